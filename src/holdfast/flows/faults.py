"""Faults: errors of a program as data, and the exception that carries one through the machine."""

from __future__ import annotations

from typing import Any

LIMIT_EXCEEDED = "LimitExceeded"
CANCELLED = "Cancelled"

CATCHABLE = (
    "StepFailed",
    "ChildFailed",
    "WaitTimeout",
    "JoinFailed",
    "RaceFailed",
    "TypeError",
    "KeyError",
    "IndexError",
    "ValueError",
    "ZeroDivisionError",
    "AssertionError",
    "OverflowError",
    "Error",
)
"""The names that `except` accepts. `LimitExceeded` and `Cancelled` are not among them: a program cannot stop those."""

KINDS = {"StepTimeout": "StepFailed"}
"""Errors that are caught by the name of a more general one."""


class ErrorValue:
    """An error that a program raised: its type, its message, and the fields that belong to that type."""

    __slots__ = ("fields", "is_raised_again", "message", "places", "type")

    def __init__(self, type: str, message: str, fields: dict[str, Any] | None = None) -> None:
        self.type = type
        self.message = message
        self.fields: dict[str, Any] = {} if fields is None else fields
        self.places: list[tuple[str, int, int]] = []
        """Function, line and column of each frame that it passed, innermost first."""
        self.is_raised_again = False
        """True while it leaves a handler: the place in that frame is known already."""

    def matches(self, names: tuple[str, ...]) -> bool:
        """True if one of the names catches this error."""
        return self.type in names or KINDS.get(self.type) in names

    def as_dict(self) -> dict[str, Any]:
        """Return the value that `except … as e` gives."""
        return {"type": self.type, "message": self.message, **self.fields}


class FlowFault(Exception):
    """Raised inside the machine for an error of the program. It never leaves the machine."""

    def __init__(self, error: ErrorValue) -> None:
        super().__init__(error.message)
        self.error = error


def fault(type: str, message: str) -> FlowFault:
    """Return an exception for an error of the program."""
    return FlowFault(ErrorValue(type, message))


def exceeded(limit: str, maximum: int, what: str) -> FlowFault:
    """Return the exception for a limit of `FlowLimits`, by its name."""
    return fault(LIMIT_EXCEEDED, f"{what}; the limit {limit} is {maximum:,}")
