"""Output on a terminal: colour, tables that fit, live display. The only module that imports `rich`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import Progress
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.cli.output import Line, Row, Table

STYLES = {
    "": "",
    "bad": "red",
    "busy": "cyan",
    "dim": "dim",
    "good": "green",
    "id": "bold",
    "title": "bold",
    "wait": "yellow",
}
"""The `rich` style for each style name."""

_REFRESHES_PER_SECOND = 8

Draw = Callable[[], Sequence[Line] | Table]


class Terminal:
    """Writes lines and tables with colour. It never interprets user text as markup."""

    def __init__(self, *, is_forced: bool = False, is_stderr: bool = False) -> None:
        self._console = Console(
            stderr=is_stderr,
            highlight=False,
            markup=False,
            emoji=False,
            # With None, `rich` follows NO_COLOR and TERM.
            force_terminal=True if is_forced else None,
            color_system="standard" if is_forced else "auto",
            no_color=False if is_forced else None,
        )

    @property
    def width(self) -> int:
        return self._console.width

    def line(self, line: Line) -> None:
        """Write a line. The terminal wraps a long line; a `Row` is cut instead."""
        if isinstance(line, Row):
            self._console.print(_text(line), no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(_text(line), soft_wrap=True)

    def table(self, table: Table) -> None:
        self._console.print(_rich_table(table))

    @contextmanager
    def live(self, draw: Draw) -> Iterator[Callable[[], None]]:
        """Draw the result of `draw` several times a second, and whenever the yielded function is called."""

        def render() -> RenderableType:
            drawn = draw()
            return _rich_table(drawn) if isinstance(drawn, Table) else Group(*map(_text, drawn))

        live = Live(console=self._console, get_renderable=render, refresh_per_second=_REFRESHES_PER_SECOND)
        with live:
            yield live.refresh

    @contextmanager
    def counted(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar that disappears at the end. Call the yielded function with the number of new items."""
        with Progress(*Progress.get_default_columns(), console=self._console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda number: bar.advance(task, number)


def _text(line: Line) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis") if isinstance(line, Row) else Text()
    for cell in line:
        words, style = (cell, "") if isinstance(cell, str) else cell
        text.append(words, STYLES[style])
    return text


def _rich_table(table: Table) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
    for column in table.columns:
        drawn.add_column(
            column.name.upper(),
            justify="right" if column.is_number else "left",
            # `rich` shrinks only columns that may wrap. Their text is a `Row`, so it is cut, not wrapped.
            no_wrap=not column.may_be_cut,
        )
    for row in table.rows:
        drawn.add_row(*(_text(Row([row[column.name]])) for column in table.columns))
    return drawn
