"""The step log of the demo: a file to which every step appends a line when it begins and when it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

What = Literal["begin", "end"]


class StepLine(msgspec.Struct, frozen=True):
    """One line of the step log: a step of an order began or ended."""

    order: str
    step: str
    what: What
    pid: int


class StepLog:
    """The record of what was executed, independent of the store."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, order: str, step: str, what: What) -> None:
        line = msgspec.json.encode(StepLine(order, step, what, os.getpid())) + b"\n"
        with self._path.open("ab", buffering=0) as file:
            file.write(line)

    def lines(self, order: str) -> Iterator[StepLine]:
        """Yield the lines of an order. A last line that a kill cut off does not count."""
        text = self._path.read_bytes() if self._path.exists() else b""
        for raw in text.split(b"\n")[:-1]:
            line = msgspec.json.decode(raw, type=StepLine)
            if line.order == order:
                yield line

    def count_begun(self, order: str, step: str, pid: int | None = None) -> int:
        """Return the number of times that a step began, in all processes or in one."""
        return sum(line.step == step and line.what == "begin" and pid in (None, line.pid) for line in self.lines(order))
