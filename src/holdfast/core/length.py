"""A length of time as people write it: `90`, `30s`, `1h30m`, `2d`.

Apart from the clock, which needs asyncio: the help of the command line reads the settings, and must appear at once.
"""

from __future__ import annotations

import re
from datetime import timedelta

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_WRITTEN = ("d", "h", "m", "s")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])")
_LONGEST = timedelta(days=36_500)


def parse_length(text: str) -> timedelta:
    """Parse `90`, `90s`, `5m`, `1h30m` or `2d`. A bare number is in seconds. Raises `ValueError`."""
    words = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", words):
        seconds = float(words)
    elif re.fullmatch(rf"({_PART.pattern}\s*)+", words):
        seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(words))
    else:
        raise ValueError(f"{text!r} is not a length of time; write 90, 30s, 5m, 1h30m or 2d")
    if seconds > _LONGEST.total_seconds():
        raise ValueError(f"{text!r} is too long a time; the limit is 36,500 days")
    return timedelta(seconds=seconds)


def written(length: timedelta) -> str:
    """Return a short text, such as `30d` or `90s`, that `parse_length` reads as exactly this length."""
    for unit in _WRITTEN:
        count = length / timedelta(seconds=_UNIT_SECONDS[unit])
        if count >= 1 and count.is_integer():
            return f"{count:.0f}{unit}"
    seconds = f"{length.total_seconds():.6f}".rstrip("0").rstrip(".")
    return f"{seconds}s"
