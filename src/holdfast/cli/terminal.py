"""The terminal of a person: colour, tables that fit, a display that moves. The only module that imports `rich`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import track
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.cli.table import Line, Table, text_of

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
"""What the name of a style stands for."""

_REFRESHES_PER_SECOND = 8

Draw = Callable[[], Sequence[Line]]


class Terminal:
    """Writes lines and tables with colour. Text of users is never taken for markup."""

    def __init__(self, *, is_forced: bool = False, is_stderr: bool = False) -> None:
        self._console = Console(
            stderr=is_stderr, highlight=False, markup=False, emoji=False, force_terminal=True if is_forced else None
        )

    @property
    def width(self) -> int:
        return self._console.width

    def line(self, line: Line, *, is_cut: bool) -> None:
        """Write a line; one that is too long is cut, or left to the terminal to wrap."""
        self._console.print(_text(line), soft_wrap=not is_cut)

    def table(self, table: Table) -> None:
        self._console.print(_rich_table(table))

    @contextmanager
    def live(self, draw: Draw) -> Iterator[Callable[[], None]]:
        """Draw what `draw` gives several times a second, and whenever the answer is called."""

        def render() -> RenderableType:
            return Group(*map(_text, draw()))

        live = Live(console=self._console, get_renderable=render, refresh_per_second=_REFRESHES_PER_SECOND)
        with live:
            yield live.refresh

    def tracked(self, things: Sequence[str], what: str) -> Iterator[str]:
        """The same things, with a progress bar that goes away."""
        yield from track(things, what, console=self._console, transient=True)


def _text(line: Line) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for cell in line:
        words, style = (cell, "") if isinstance(cell, str) else cell
        text.append(words, STYLES[style])
    return text


def _rich_table(table: Table) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
    for column in table.columns:
        widest = max((len(text_of(row[column.name])) for row in table.rows), default=0)
        drawn.add_column(
            column.name.upper(),
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            # What may be cut gives way; what must be read whole keeps its width.
            min_width=None if column.may_be_cut else widest,
        )
    for row in table.rows:
        drawn.add_row(*(_text([row[column.name]]) for column in table.columns))
    return drawn
