"""The assembler: collects the instructions of one function, with their positions and error handlers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.flows import instructions as ops
from holdfast.flows.program import FlowFunction

UNPLACED = -2


class Label:
    """A place in the code that jumps refer to before it is known."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = UNPLACED


class Constants:
    """The constants of a program, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, value: Any) -> int:
        """Return the number of a constant."""
        key = type(value).__name__, repr(value)  # `1`, `1.0` and `True` are equal, and `-0.0` equals `0.0`
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


class Assembler:
    """The instructions of one function while it is compiled."""

    def __init__(self, constants: Constants, slots: list[str]) -> None:
        self.constants = constants
        self._slots = list(slots)
        self._numbers = {name: number for number, name in enumerate(slots)}
        self._code: list[tuple[int, int | Label, int | Label]] = []
        self._positions: list[int] = []
        self._handlers: list[Label | None] = []
        self._handler: Label | None = None
        self._position = (1, 1)

    def __len__(self) -> int:
        return len(self._code)

    def at(self, node: ast.AST) -> None:
        """Let the next instructions belong to the position of a node."""
        self._position = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1

    def emit(self, op: int, a: int | Label = 0, b: int | Label = 0) -> None:
        """Add an instruction."""
        self._code.append((op, a, b))
        self._positions += self._position
        self._handlers.append(self._handler)

    def constant(self, value: Any) -> None:
        """Add the instruction that loads a constant."""
        self.emit(ops.LOAD_CONST, self.constants.number(value))

    def place(self, label: Label) -> None:
        """Let a label stand for the next instruction."""
        label.at = len(self._code)

    @property
    def handler(self) -> Label | None:
        """The label of the code that handles errors of the instructions being added."""
        return self._handler

    @contextmanager
    def handled_by(self, handler: Label | None) -> Iterator[None]:
        """Let errors of the instructions inside go to a handler."""
        before, self._handler = self._handler, handler
        try:
            yield
        finally:
            self._handler = before

    def slot(self, name: str) -> int:
        """Return the number of a variable."""
        return self._numbers[name]

    def new_slot(self, purpose: str) -> int:
        """Return the number of a new variable that the program cannot name."""
        self._slots.append(f".{purpose}")
        return len(self._slots) - 1

    def finish(self, name: str, *, is_async: bool, argument_count: int) -> FlowFunction:
        """Return the finished function."""
        code: list[int] = []
        for op, a, b in self._code:
            code += (op, a.at if isinstance(a, Label) else a, b.at if isinstance(b, Label) else b)
        return FlowFunction(
            name=name,
            is_async=is_async,
            argument_count=argument_count,
            slots=tuple(self._slots),
            code=tuple(code),
            positions=tuple(self._positions),
            handlers=tuple(-1 if handler is None else handler.at for handler in self._handlers),
        )
