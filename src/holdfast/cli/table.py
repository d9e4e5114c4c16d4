"""Tables and lines as values, independent of how they are drawn."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
