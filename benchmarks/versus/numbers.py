"""Format numbers for people: in a suitable unit, with meaningful digits."""

from __future__ import annotations

from benchmarks.versus.workloads import Unit

NOTHING = "–"


def shown(value: float | None, unit: Unit) -> str:
    """Return a figure, or a dash if there is none."""
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
    """Return a ratio, or an empty string."""
    return "" if ratio is None else f"{_digits(ratio)}×"


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
