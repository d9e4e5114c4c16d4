"""Output: stdout is data, stderr is talk. Colour, width and live display only where a person looks.

`rich` is imported only then; everywhere else text is written as it is, one row on one line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

import click

from holdfast.cli.settings import Settings
from holdfast.cli.table import Cell, Line, Table, plain_lines, text_of

if TYPE_CHECKING:
    from holdfast.cli.terminal import Terminal

_MANY = 20
"""From so many runs on a progress bar is shown."""


class Output:
    """Where a command writes, in the form the settings ask for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    # How

    @property
    def is_json(self) -> bool:
        """Whether a program reads what is written."""
        return self.settings.is_json

    @property
    def is_rich(self) -> bool:
        """Whether a person looks at stdout, who likes colour and tables that fit."""
        return not self.is_json and self.is_rich_for(sys.stdout)

    def is_rich_for(self, stream: TextIO) -> bool:
        """Whether a stream takes colour."""
        if self.settings.color != "auto":
            return self.settings.color == "always"
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @cached_property
    def terminal(self) -> Terminal:
        """The person's terminal. Only to be asked for if `is_rich`."""
        from holdfast.cli.terminal import Terminal

        return Terminal(is_forced=self.settings.color == "always")

    @property
    def width(self) -> int | None:
        """How many characters fit on a line; None if there is no limit."""
        return self.terminal.width if self.is_rich else None

    # Data

    def line(self, *cells: Cell) -> None:
        """One line of text, made of pieces that may have a style."""
        self.lines([cells])

    def lines(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if self.is_rich:
                self.terminal.line(line)
            else:
                click.echo("".join(map(text_of, line)).rstrip())

    def table(self, table: Table) -> None:
        """Rows for people; nothing at all if there are none."""
        if not table.rows:
            return
        if self.is_rich:
            self.terminal.table(table)
        else:
            for line in plain_lines(table):
                click.echo(line)

    def item(self, value: Any) -> None:
        """One value as JSON."""
        click.echo(_json(value, 2 if self.settings.output == "json" else None))

    def items(self, values: Sequence[Any]) -> None:
        """Many values as JSON: one array, or one value on each line."""
        if self.settings.output == "json":
            click.echo(_json(list(values), 2))
        else:
            for value in values:
                click.echo(_json(value))

    def event(self, value: Any) -> None:
        """One of many values that come over time: always on a line of its own, at once."""
        click.echo(_json(value))

    # Talk

    def talk(self, message: str) -> None:
        """Say something to whoever typed the command, unless they asked for quiet."""
        if not self.settings.is_quiet:
            click.echo(message, err=True)

    @contextmanager
    def counted(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Something to call with how many things were done since; if they are many and a person waits, a bar moves."""
        if not self._is_worth_a_bar(total):
            yield lambda _: None
            return
        from holdfast.cli.terminal import Terminal

        with Terminal(is_stderr=True, is_forced=self.settings.color == "always").counted(what, total) as count:
            yield count

    def _is_worth_a_bar(self, number: int) -> bool:
        return number >= _MANY and not self.settings.is_quiet and self.is_rich_for(sys.stderr)

    def tracked(self, things: Sequence[str], what: str) -> Iterable[str]:
        """The same things; if they are many and a person waits, with a progress bar."""
        if not self._is_worth_a_bar(len(things)):
            return things
        from holdfast.cli.terminal import Terminal

        return Terminal(is_stderr=True).tracked(things, what)


def cleaned(text: str) -> str:
    """Text on one line that cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else f"\\x{ord(c):02x}" for c in text)


def shortened(text: str, limit: int) -> str:
    """Text of at most so many characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def preview(value: Any, limit: int = 80) -> str:
    """The beginning of a JSON value, on one line."""
    return shortened(cleaned(json.dumps(value, ensure_ascii=False)), limit)


def _json(value: Any, indent: int | None = None) -> str:
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(value, ensure_ascii=not is_unicode, indent=indent)
