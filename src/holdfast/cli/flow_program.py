"""The program of a flow as lines: with line numbers, marks at lines that wait or failed, and the variables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from holdfast.cli.output import cleaned, preview
from holdfast.cli.table import Line, Row
from holdfast.cli.times import stamp
from holdfast.engine.flow_view import FlowFrame, FlowView
from holdfast.engine.flows import VERSION_SHOWN

_WHOLE = 60
"""Maximum number of lines of a program that is shown whole."""
_AROUND = 5
"""Number of lines around a mark of a longer program."""
_VALUE_LIMIT = 100


def program_lines(view: FlowView, *, is_terminal: bool, is_verbose: bool = False) -> list[Line]:
    """Return the program of a run with a mark at each line that waits, and the variables."""
    version = "" if view.version is None else f", version {view.version[:VERSION_SHOWN]}"
    lines: list[Line] = [((f"flow {cleaned(view.type)}{version}: {view.note}", "dim"),)]
    if view.source is not None:
        marks = _marks(view, is_terminal=is_terminal)
        lines += numbered(view.source, marks, is_whole=is_verbose)
    if view.unreadable is not None:
        lines.append(((f"cannot be read: {cleaned(view.unreadable)}", "bad"),))
    lines += _variables(view)
    return lines


Marks = Mapping[int, tuple[str, str, Sequence[str]]]
"""A glyph, its style and sentences for each line that is marked."""


def numbered(source: str, marks: Marks, *, is_whole: bool = True) -> Iterator[Line]:
    """Yield the lines of a program with their numbers. Without `is_whole`, lines far from marks are left out."""
    texts = source.rstrip("\n").split("\n")
    width = len(str(len(texts)))
    shown = _shown(len(texts), marks, is_whole=is_whole)
    last = 0
    for number, text in enumerate(texts, start=1):
        if number not in shown:
            continue
        if number > last + 1:
            yield ((f"  {'⋯':>{width}}", "dim"),)
        last = number
        glyph, style, sentences = marks.get(number, (" ", "", ()))
        yield Row([(f"{glyph} ", style), (f"{number:>{width}}  ", "dim"), (cleaned(text), style)])
        indent = " " * (width + 4 + len(text) - len(text.lstrip()))
        for sentence in sentences:
            yield ((f"{indent}{cleaned(sentence)}", style),)
    if last < len(texts):
        yield ((f"  {'⋯':>{width}}", "dim"),)


def _shown(count: int, marks: Collection[int], *, is_whole: bool) -> Collection[int]:
    if is_whole or count <= _WHOLE:
        return range(1, count + 1)
    around = {number for line in marks for number in range(line - _AROUND, line + _AROUND + 1)}
    return {number for number in around if 1 <= number <= count} or range(1, _WHOLE + 1)


def _marks(view: FlowView, *, is_terminal: bool) -> Marks:
    marks: dict[int, tuple[str, str, list[str]]] = {}
    for wait in view.waits:
        glyph = "▶" if is_terminal else ">"
        since = "" if wait.since is None else f", since {stamp(wait.since)}"
        sentences = marks.setdefault(wait.line, (glyph, "wait", []))[2]
        if (sentence := f"{wait.sentence}{since}") not in sentences:
            sentences.append(sentence)
    if view.failed_at is not None:
        marks[view.failed_at.line] = ("✗", "bad", [f"failed here, in {view.failed_at.function}"])
    return marks


def _variables(view: FlowView) -> Iterator[Line]:
    frames = [frame for wait in view.waits for frame in wait.frames if frame.variables]
    if not view.waits and view.variables:
        yield ("",)
        yield (("variables in its last snapshot", "dim"),)
        yield from _listed(view.variables)
    for frame in frames:
        yield ("",)
        yield ((f"variables of {_where(frame, len(frames))}", "dim"),)
        yield from _listed(frame.variables)


def _where(frame: FlowFrame, count: int) -> str:
    return frame.function if count == 1 else f"{frame.function}, line {frame.line}"


def _listed(variables: Mapping[str, Any]) -> Iterator[Line]:
    width = max(map(len, variables))
    for name, value in variables.items():
        yield Row([f"  {name:<{width}}  ", preview(value, _VALUE_LIMIT)])
