"""A series of measurements: its output, and its limit."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence

MILLISECOND = 0.001


async def measured(times: int, measure: Callable[[], Awaitable[float]]) -> list[float]:
    """Return the seconds of several measurements."""
    return [await measure() for _ in range(times)]


def report(what: str, seconds: Sequence[float], *, unit: str = "s") -> None:
    """Print the median and the maximum of a series."""
    size, digits = (MILLISECOND, 1) if unit == "ms" else (1.0, 2)
    middle, most = statistics.median(seconds) / size, max(seconds) / size
    sys.stdout.write(f"figure: {what} p50 {middle:.{digits}f} {unit}, most {most:.{digits}f} {unit}\n")
