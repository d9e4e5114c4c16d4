"""Output: data goes to stdout, messages to stderr. Colour, width and live display only on a terminal.

Lines and tables are values that say nothing about how they are drawn. `rich` is imported only for a terminal. Elsewhere
text is written as it is, one row per line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

import click

from holdfast.cli.option import Settings
from holdfast.core.wire import as_json

if TYPE_CHECKING:
    from holdfast.cli.terminal import Terminal

_MANY = 20
"""Minimum number of runs for a progress bar."""


Cell = str | tuple[str, str]
"""Text, or text with the name of a style: bad busy dim good id title wait."""

Line = Sequence[Cell]


class Row(list[Cell]):
    """A line that is cut at the edge of the terminal instead of wrapped."""


@dataclass(frozen=True)
class Column:
    """A column. Its cells have this name in each row."""

    name: str
    is_number: bool = False
    may_be_cut: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells, by column name."""

    columns: Sequence[Column]
    rows: list[Mapping[str, Cell]] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Cell]], *, numbers: Container[str] = (), cut: str = "") -> Table:
        """Return a table of rows with the same names. `numbers` are columns of numbers; `cut` may be cut."""
        found = list(rows)
        names = found[0] if found else ()
        return cls([Column(name, name in numbers, name == cut) for name in names], found)

    def without_empty_columns(self) -> Table:
        """Return the table without empty columns."""
        used = [c for c in self.columns if any(text_of(row[c.name]) for row in self.rows)]
        return Table(used, self.rows)


def plain_lines(table: Table) -> Iterator[str]:
    """Yield a table as lines of text: aligned, not wrapped, not cut."""
    texts = [[text_of(row[column.name]) for column in table.columns] for row in table.rows]
    heads = [column.name.upper() for column in table.columns]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    for row in [heads, *texts]:
        cells = [
            text.rjust(width) if column.is_number else text.ljust(width)
            for text, width, column in zip(row, widths, table.columns, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def text_of(cell: Cell) -> str:
    """Return the text of a cell, without its style."""
    return cell if isinstance(cell, str) else cell[0]


class Output:
    """The output of a command, in the format that the settings choose."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    # How

    @property
    def is_json(self) -> bool:
        """True if the output is JSON, for a program."""
        return self.settings.output != "table"

    @property
    def is_rich(self) -> bool:
        """True if stdout gets colour and tables that fit the terminal."""
        return not self.is_json and self.is_rich_for(sys.stdout)

    def is_rich_for(self, stream: TextIO) -> bool:
        """Return True if a stream gets colour."""
        if self.settings.color != "auto":
            return self.settings.color == "always"
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @cached_property
    def terminal(self) -> Terminal:
        """The terminal of the user. Use it only if `is_rich`."""
        from holdfast.cli.terminal import Terminal

        return Terminal(is_forced=self.settings.color == "always")

    @property
    def width(self) -> int | None:
        """Number of characters that fit on a line; None if there is no limit."""
        return self.terminal.width if self.is_rich else None

    # Data

    def line(self, *cells: Cell) -> None:
        """Write one line of text, made of pieces that may have a style."""
        self.lines([cells])

    def lines(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if self.is_rich:
                self.terminal.line(line)
            else:
                click.echo("".join(map(text_of, line)).rstrip())

    def table(self, table: Table) -> None:
        """Write a table; an empty table writes nothing."""
        if not table.rows:
            return
        if self.is_rich:
            self.terminal.table(table)
        else:
            for line in plain_lines(table):
                click.echo(line)

    def item(self, value: Any) -> None:
        """Write one value as JSON: a record, or plain data with records in it."""
        click.echo(_json(value, 2 if self.settings.output == "json" else None))

    def items(self, values: Sequence[Any]) -> None:
        """Write many values as JSON: one array, or one value per line."""
        if self.settings.output == "json":
            click.echo(_json(list(values), 2))
        else:
            for value in values:
                click.echo(_json(value))

    def answer(self, value: Any, text: str) -> None:
        """Write one value as JSON, or a line of text that says the same."""
        if self.is_json:
            self.item(value)
        else:
            self.line(text)

    def listing(self, values: Sequence[Any], table: Table, nothing: str) -> None:
        """Write many values as JSON or as a table. `nothing` is the message for people if there are none."""
        if self.is_json:
            self.items(values)
            return
        self.table(table)
        if not values:
            self.talk(nothing)

    def event(self, value: Any) -> None:
        """Write one of many values that come over time: at once, on a line of its own."""
        click.echo(_json(value))

    # Talk

    def talk(self, message: str) -> None:
        """Write a message to stderr, unless the command is quiet."""
        if not self.settings.is_quiet:
            click.echo(message, err=True)

    @contextmanager
    def counted(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts finished items. On a terminal, a progress bar shows many items."""
        if total < _MANY or self.settings.is_quiet or not self.is_rich_for(sys.stderr):
            yield lambda _: None
            return
        from holdfast.cli.terminal import Terminal

        with Terminal(is_stderr=True, is_forced=self.settings.color == "always").counted(what, total) as count:
            yield count


def cleaned(text: str) -> str:
    """Return text on one line, without control characters that could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else f"\\x{ord(c):02x}" for c in text)


def shortened(text: str, limit: int) -> str:
    """Return text cut to at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def spoken(length: float | timedelta) -> str:
    """Format a length of time in seconds as short as possible: `12 ms`, `1.2 s`, `3 min`, `2 h 5 min`.

    An `int` is formatted without a fraction.
    """
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds < 0:
        return f"-{spoken(-seconds)}"
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 10 and isinstance(seconds, float):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return _pair(minutes, "min", rest, "s")
    if minutes < 60:
        return f"{minutes} min"
    if whole < 86_400:
        return _pair(minutes // 60, "h", minutes % 60, "min")
    return _pair(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")


def ago(when: datetime, now: datetime) -> str:
    """Format the distance of a moment from `now`, in whole seconds: `3 min ago` or `in 5 s`."""
    seconds = round((now - when).total_seconds())
    if seconds == 0:
        return "now"
    return f"{spoken(seconds)} ago" if seconds > 0 else f"in {spoken(-seconds)}"


def stamp(when: datetime) -> str:
    """Format a moment for people, in UTC like every other time that holdfast writes."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def preview(value: Any, limit: int = 80) -> str:
    """Return the beginning of a JSON value, on one line."""
    return shortened(cleaned(json.dumps(value, ensure_ascii=False)), limit)


def _json(value: Any, indent: int | None = None) -> str:
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return as_json(value, indent=indent, is_ascii=not is_unicode)
