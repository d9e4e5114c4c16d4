"""Mistakes: everything that is wrong with the text of a flow, reported at once."""

from __future__ import annotations

import ast

from holdfast.core.errors import FlowRefused, Mistake
from holdfast.flows.limits import MISTAKE_LIMIT


class Mistakes:
    """Collects the mistakes of one text, in the order of their places."""

    def __init__(self, source: str) -> None:
        self._lines = source.split("\n")
        self._found: dict[tuple[int, int, str], Mistake] = {}

    def add(self, node: ast.AST, message: str, advice: str) -> None:
        """Add a mistake at a node of the syntax tree."""
        line = getattr(node, "lineno", 1)
        text = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        # The tree counts bytes of UTF-8, and people count characters.
        before = text.encode(errors="replace")[: getattr(node, "col_offset", 0)]
        self.add_at(line, len(before.decode(errors="ignore")) + 1, message, advice)

    def add_at(self, line: int, column: int, message: str, advice: str) -> None:
        """Add a mistake at a line and column, both counted from 1."""
        text = self._lines[line - 1] if 0 < line <= len(self._lines) else ""
        shown = text.strip()[:200].encode(errors="backslashreplace").decode()
        self._found.setdefault((line, column, message), Mistake(line, column, shown, message, advice))

    def __bool__(self) -> bool:
        return bool(self._found)

    def refusal(self) -> FlowRefused:
        """Return the error that names every mistake."""
        ordered = [self._found[place] for place in sorted(self._found)]
        return FlowRefused(tuple(ordered[:MISTAKE_LIMIT]), total=len(ordered))
