"""The journal: what producers were told is accepted, one line each, written after the answer and never before.

A producer that is killed is followed by another with the same journal, which does again whatever is not closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

What = Literal["open", "start", "send", "emit", "cancel", "close"]


class Expectation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What must become of a run that was accepted.

    `states`: how it ends, `suspended` if it waits for ever. `result` is what it gives back, if that is known; `letters`
    how many messages of each name it gets; `one_of` the group of runs that share the events of a queue.
    """

    states: tuple[str, ...] = ("succeeded",)
    result: Any = None
    letters: dict[str, int] = {}
    one_of: str = ""
    payloads: tuple[Any, ...] = ()


class Acceptance(msgspec.Struct, frozen=True, omit_defaults=True):
    """That a call of a producer has returned. `item` is the job it belongs to, `answer` what a cancel said."""

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
        """How many lines have this in them, without reading them."""
        return self.path.read_bytes().count(text) if self.path.exists() else 0

    def unfinished(self) -> list[int]:
        """Numbers of jobs that were begun and not closed, and after them the first that was not begun."""
        opened: set[int] = set()
        closed: set[int] = set()
        for acceptance in self:
            number = int(acceptance.item.rpartition("-")[2])
            if acceptance.what == "open":
                opened.add(number)
            elif acceptance.what == "close":
                closed.add(number)
        return [*sorted(opened - closed), max(opened, default=-1) + 1]
