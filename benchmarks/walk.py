"""The walk of one step: how many files of the package a reader passes through, from `hf.start` to the result.

python -m benchmarks.walk [--store sqlite|postgres|redis] [--files]

A change of file is a call into another file than the call before it, in the same thread. The walk with the fewest
changes of several is shown, because a thread that happens to poll at that moment does not belong to it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from benchmarks.stores import NAMES, the_store

ROOT = str(Path(holdfast.__file__).parent) + "/"
WARM_UP = 20
WALKS = 10


@dataclass(frozen=True)
class Walk:
    """The calls and the changes of file of one walk, by file."""

    calls: Counter[str]
    changes: Counter[str]

    def __str__(self) -> str:
        return f"{len(self.calls)} files, {self.changes.total()} changes of file, {self.calls.total()} calls"


class Recorder:
    """Notes the file of each call into the package, by thread."""

    def __init__(self) -> None:
        self._is_on = False
        self._files: defaultdict[int, list[str]] = defaultdict(list)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call" and (file := frame.f_code.co_filename).startswith(ROOT):
            self._files[threading.get_ident()].append(file.removeprefix(ROOT))

    def begin(self) -> None:
        self._files.clear()
        self._is_on = True

    def end(self) -> Walk:
        self._is_on = False
        calls: Counter[str] = Counter()
        changes: Counter[str] = Counter()
        for files in self._files.values():
            calls.update(files)
            changes.update(file for last, file in zip(["", *files], files, strict=False) if file != last)
        return Walk(calls, changes)


async def shortest_walk(url: str, record: Recorder) -> Walk:
    """Return the walk of one step with the fewest changes of file."""
    async with holdfast.Holdfast(url) as hf:

        @hf.step
        async def double(number: int) -> int:
            return 2 * number

        @hf.workflow("walk")
        async def walk(_: holdfast.Context, number: int) -> int:
            return await double(number)

        async with hf.worker():
            for number in range(WARM_UP):
                await hf.execute(walk, number)
            walks: list[Walk] = []
            for number in range(WALKS):
                record.begin()
                await hf.execute(walk, number)
                walks.append(record.end())
    return min(walks, key=lambda each: each.changes.total())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--store", choices=NAMES, default="sqlite")
    parser.add_argument("--files", action="store_true", help="list the files with their calls and changes")
    given = parser.parse_args()
    record = Recorder()
    threading.setprofile(record)
    sys.setprofile(record)
    with the_store(given.store) as store, store.place() as url:
        walk = asyncio.run(shortest_walk(url, record))
    sys.setprofile(None)
    threading.setprofile(None)
    print(f"{given.store}: {walk}")
    if given.files:
        for file, count in walk.changes.most_common():
            print(f"{count:>4} changes {walk.calls[file]:>4} calls  {file}")


if __name__ == "__main__":
    main()
