"""Figures: the measures of an operation on a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Measure = Literal["instructions", "calls", "statements", "wal_bytes"]

MEASURES: tuple[Measure, ...] = ("instructions", "calls", "statements", "wal_bytes")
TITLES: Mapping[Measure, str] = {
    "instructions": "instructions",
    "calls": "Python calls",
    "statements": "SQL statements",
    "wal_bytes": "WAL bytes",
}
DIGITS: Mapping[Measure, int] = {"instructions": 0, "calls": 1, "statements": 3, "wal_bytes": 0}
"""Number of decimal places of a figure; smaller differences do not count."""

STORES = ("sqlite", "postgres")


@dataclass(frozen=True)
class Operation:
    """A measured operation, and the number of repetitions in the shorter of its two sections.

    `unit` is the number of counted items per repetition.
    """

    name: str
    title: str
    size: int
    unit: int = 1

    @property
    def sizes(self) -> tuple[int, int]:
        return self.size, 2 * self.size

    def per_operation(self, short: float, long: float, measure: Measure) -> float:
        """Return the cost of one operation: the extra cost of the longer section, divided by its extra operations."""
        return round((long - short) / (self.size * self.unit), DIGITS[measure]) + 0.0  # never -0.0


# As small as possible, because valgrind is slow. On SQLite a section must write less than 2,000 pages: beyond that the
# store copies its log back, in a thread, beside the counted work.
OPERATIONS = (
    Operation("step", "a step in five-step workflows", 40, unit=5),
    Operation("pipeline", "a step in five-step pipelines", 40, unit=5),
    Operation("lone-step", "a lone step", 100),
    Operation("start", "a start", 50),
    Operation("message", "a message round trip", 25),
    Operation("claim", "a claim", 50),
    Operation("replay", "a replayed entry", 200),
)


class Subject(NamedTuple):
    """One operation on one store, by their names."""

    operation: str
    store: str


Figures = dict[Subject, dict[Measure, float]]


def chosen(only: str | None, stores: Sequence[str] | None) -> list[tuple[Operation, str]]:
    """Return the named operations, separated by commas, on the named stores; by default all.

    Raises:
        ValueError: There is no such operation.

    """
    by_name = {operation.name: operation for operation in OPERATIONS}
    names = list(by_name) if only is None else only.split(",")
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(f"there is no operation {unknown[0]!r}; there are {', '.join(by_name)}")
    return [(by_name[name], store) for store in stores or STORES for name in names]


def shown(value: float | None, measure: Measure) -> str:
    return "–" if value is None else f"{value:,.{DIGITS[measure]}f}"
