"""A handle: the value that stands for an operation in progress. It is opaque to the program."""

from __future__ import annotations


class Handle:
    """An operation in progress, by its number."""

    __slots__ = ("number",)
    __hash__ = None  # type: ignore[assignment]  # a key of a dict is a string

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.number == self.number

    def __repr__(self) -> str:
        return f"<handle {self.number}>"
