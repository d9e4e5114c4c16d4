"""The scope of a function: what a name in it means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.flows.scopes import FunctionNode, ProgramNames


class FunctionScope:
    """The names that the code of one function sees: its own, and those of comprehensions around the code."""

    def __init__(self, node: FunctionNode, names: ProgramNames) -> None:
        self.names = names
        self.is_async = isinstance(node, ast.AsyncFunctionDef)
        self.function = node.name
        self.locals = set(names.locals_of(node))
        self._inner: list[set[str]] = []

    @contextmanager
    def comprehension(self, bound: set[str]) -> Iterator[None]:
        """Let the names of a comprehension's targets be variables inside it."""
        self._inner.append(bound)
        try:
            yield
        finally:
            self._inner.pop()

    def is_variable(self, name: str) -> bool:
        """True if a name is a variable here."""
        return name in self.locals or any(name in bound for bound in self._inner)

    def is_constant(self, name: str) -> bool:
        """True if a name is a constant of the program here."""
        return not self.is_variable(name) and name in self.names.constants

    def known(self) -> list[str]:
        """Return every name that has a value here."""
        return [*self.locals, *(name for bound in self._inner for name in bound), *self.names.constants]
