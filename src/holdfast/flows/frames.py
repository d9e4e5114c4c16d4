"""Frames and paths: where a program stands."""

from __future__ import annotations

from typing import Any

from holdfast.flows.faults import ErrorValue


class Unset:
    """The value of a variable that has none."""

    __slots__ = ()


UNSET_SLOT = Unset()
MAIN_PATH = 0
NOT_WAITING = -1


class Frame:
    """One call of a function: its program counter, its variables and its operand stack."""

    __slots__ = ("function", "pc", "slots", "stack")

    def __init__(self, function: int, slots: list[Any], pc: int = 0, stack: list[Any] | None = None) -> None:
        self.function = function
        self.pc = pc
        self.slots = slots
        self.stack: list[Any] = [] if stack is None else stack


class Path:
    """A line of execution: main, or an async helper that was started without an await."""

    __slots__ = ("error", "frames", "handle", "number", "wait")

    def __init__(self, number: int, handle: int, frames: list[Frame]) -> None:
        self.number = number
        self.handle = handle
        self.frames = frames
        self.wait = NOT_WAITING
        """The handle that it waits for."""
        self.error: ErrorValue | None = None
        """The error that it raises when it continues."""
