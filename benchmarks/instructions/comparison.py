"""The comparison of figures with earlier ones, and its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.instructions.figures import MEASURES, OPERATIONS, TITLES, Figures, Measure, Subject, shown

TOLERANCE = 0.03

Verdict = Literal["same", "better", "WORSE", "new"]

_COLUMNS = ("operation", "store", "measure", "before", "now", "change", "verdict")
_NUMBERS = {"before", "now", "change"}
_NAMES = {operation.name: operation.title for operation in OPERATIONS}


@dataclass(frozen=True)
class Row:
    """One figure, with its earlier value."""

    subject: Subject
    measure: Measure
    before: float | None
    now: float

    @property
    def change(self) -> float | None:
        """Return its relative growth; None if that cannot be computed."""
        if self.before is None:
            return None
        if self.before == self.now:
            return 0.0
        return None if self.before == 0 else (self.now - self.before) / self.before

    @property
    def verdict(self) -> Verdict:
        if self.before is None:
            return "new"
        if self.now > self.before * (1 + TOLERANCE):
            return "WORSE"
        return "better" if self.now < self.before * (1 - TOLERANCE) else "same"

    def as_json(self) -> dict[str, object]:
        return {
            "operation": self.subject.operation,
            "store": self.subject.store,
            "measure": self.measure,
            "before": self.before,
            "now": self.now,
            "change": self.change,
            "verdict": self.verdict.lower(),
        }


def compared(before: Figures, now: Figures) -> list[Row]:
    """Return a row for each current figure."""
    return [
        Row(subject, measure, before.get(subject, {}).get(measure), found[measure])
        for subject, found in now.items()
        for measure in MEASURES
    ]


def is_worse(rows: Sequence[Row]) -> bool:
    return any(row.verdict == "WORSE" for row in rows)


def table(rows: Sequence[Row], before: str) -> str:
    """Return the table for the terminal; `before` names the earlier figures."""
    cells = [[before if name == "before" else name for name in _COLUMNS], *map(_cells, rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(_COLUMNS))]
    return "\n".join(_lines(cells, widths))


def _cells(row: Row) -> list[str]:
    change = "" if row.change is None else f"{row.change:+.1%}"
    return [
        _NAMES.get(row.subject.operation, row.subject.operation),
        row.subject.store,
        TITLES[row.measure],
        shown(row.before, row.measure),
        shown(row.now, row.measure),
        change,
        row.verdict,
    ]


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for row in cells:
        placed = [
            text.rjust(width) if name in _NUMBERS else text.ljust(width)
            for name, text, width in zip(_COLUMNS, row, widths, strict=True)
        ]
        yield "  ".join(placed).rstrip()


def summary(rows: Sequence[Row]) -> str:
    """Return the overall verdict, in a line."""
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("WORSE", "better", "same", "new")}
    told = ", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items() if count)
    return f"{len(rows)} figures: {told} (a change of up to {TOLERANCE:.0%} counts as the same)"
