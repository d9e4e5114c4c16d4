"""The journal: the accepted calls of producers, one line each, written after the answer and never before.

A killed producer is replaced by one with the same journal, which repeats the jobs that are not closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

What = Literal["open", "start", "send", "emit", "cancel", "close"]


class Expectation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The expected outcome of an accepted run.

    `states`: how it ends, `suspended` if it waits forever. `result` is its result, if known; `letters` the number of
    messages of each name; `one_of` the group of runs that share the events of a queue; `children` the number of runs
    that it starts, if known.
    """

    states: tuple[str, ...] = ("succeeded",)
    result: Any = None
    letters: dict[str, int] = {}
    one_of: str = ""
    payloads: tuple[Any, ...] = ()
    children: int | None = None


class Acceptance(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a producer has returned. `item` is its job, `answer` the result of a cancel."""

    item: str
    what: What
    kind: str = ""
    run_id: str = ""
    answer: bool = False
    expect: Expectation | None = None


class Journal:
    """Acceptances in the order in which they were written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, acceptance: Acceptance) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, msgspec.json.encode(acceptance) + b"\n")
        os.close(file)

    def __iter__(self) -> Iterator[Acceptance]:
        if self.path.exists():
            for line in self.path.read_bytes().splitlines():
                yield msgspec.json.decode(line, type=Acceptance)

    def count(self, text: bytes) -> int:
        """Count the lines that contain this text, without decoding them."""
        return self.path.read_bytes().count(text) if self.path.exists() else 0

    def unfinished(self) -> list[int]:
        """Return the numbers of open jobs, and after them the first that was not started."""
        opened: set[int] = set()
        closed: set[int] = set()
        for acceptance in self:
            number = int(acceptance.item.rpartition("-")[2])
            if acceptance.what == "open":
                opened.add(number)
            elif acceptance.what == "close":
                closed.add(number)
        return [*sorted(opened - closed), max(opened, default=-1) + 1]
