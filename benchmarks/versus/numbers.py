"""How a number is written, for people: in a unit of its size, with as many digits as it deserves."""

from __future__ import annotations

from benchmarks.versus.workloads import Unit

NOTHING = "–"


def shown(value: float | None, unit: Unit) -> str:
    """A figure, or a dash where there is none."""
    if value is None:
        return NOTHING
    match unit:
        case "a second":
            return f"{_digits(value)}/s"
        case "seconds":
            return f"{_digits(value)} s" if value >= 1 else f"{_digits(value * 1e3)} ms"
        case "of a core":
            return f"{value * 100:.2f} %"
        case "bytes":
            return f"{value / 2**20:.0f} MB"


def times(ratio: float | None) -> str:
    """A ratio, or nothing."""
    return "" if ratio is None else f"{_digits(ratio)}×"


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
