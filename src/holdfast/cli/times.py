"""Human-readable times: `2h`, `1.2 s`, `3 min ago`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from holdfast.core.length import parse_length


def spoken(length: float | timedelta) -> str:
    """Format a length of time in seconds as short as possible: `12 ms`, `1.2 s`, `3 min`, `2 h 5 min`.

    An `int` is formatted without a fraction.
    """
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds < 0:
        return f"-{spoken(-seconds)}"
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 10 and isinstance(seconds, float):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10:
        return _pair(minutes, "min", rest, "s")
    if minutes < 60:
        return f"{minutes} min"
    if whole < 86_400:
        return _pair(minutes // 60, "h", minutes % 60, "min")
    return _pair(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")


def ago(when: datetime, now: datetime) -> str:
    """Format the distance of a moment from `now`, in whole seconds: `3 min ago` or `in 5 s`."""
    seconds = round((now - when).total_seconds())
    if seconds == 0:
        return "now"
    return f"{spoken(seconds)} ago" if seconds > 0 else f"in {spoken(-seconds)}"


def stamp(when: datetime) -> str:
    """Format a moment for people, in UTC like every other time that holdfast writes."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def parse_moment(text: str) -> datetime:
    """Parse a date, or date and time, in ISO form. Without a zone it is local time. Raises `ValueError`."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is not a valid moment; write 2030-01-31, 2030-01-31T09:00 or 2030-01-31T09:00Z"
        ) from error


def parse_since(text: str) -> datetime | timedelta:
    """Parse a moment, or a length of time before now. Raises `ValueError`."""
    if re.match(r"\d{4}-", text.strip()):
        return parse_moment(text)
    try:
        return parse_length(text)
    except ValueError as error:
        raise ValueError(f"{error}, or a moment such as 2030-01-31T09:00") from None
