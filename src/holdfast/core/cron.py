"""Cron expressions with five fields: their fire times in a time zone, and error messages that point at the mistake.

`cronsim` parses and walks the fields. This module handles changes of the clocks (daylight saving time). An expression
that names hours fires once for each local time it matches. If the clocks skip that time, it fires at the instant of the
change. If the clocks repeat that time, it fires the first time only. An expression for every hour follows real time: it
neither pauses nor repeats itself.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NoReturn
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from holdfast.core.clock import DAY, Micros, instant, moment
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_text

EXPRESSION_LIMIT = 200
_EXPRESSIONS_KEPT = 1_000

FIELDS = {
    "minute": "0-59",
    "hour": "0-23",
    "day of the month": "1-31, L for the last one, LW for the last weekday",
    "month": "1-12 or jan-dec",
    "day of the week": "0-7 or sun-sat (0 and 7 are Sunday), mon#2 for the second Monday, 5L for the last Friday",
}
"""The names of the fields, in order, and the values that each allows."""

_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAY_FIELD = 2
_EVERY_HOUR = set(range(24))
_ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - a local time without a zone
_LOCAL_NAMES = {"localtime", "posixrules"}
"""Zone files that stand for the local zone of a machine. Refused, because they differ between machines."""


# Checking


def check_cron(expression: object) -> str:
    """Return the expression with single spaces between its fields. `InvalidRequest` points at the mistake.

    An expression that never fires is a mistake too.
    """
    text = check_text(expression, "cron expression", EXPRESSION_LIMIT)
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if len(spans) != len(FIELDS):
        _refuse_count(text, spans)
    for index, (start, end) in enumerate(spans):
        _check_field(text, index, start, text[start:end])
    fields = " ".join(text.split())
    if _never_fires(fields):
        start, end = spans[_DAY_FIELD]
        _refuse(text, start, end, "the expression never fires: none of its months has this day")
    return fields


def check_zone(zone: object) -> str:
    """Return the name of a time zone if this machine knows it. `InvalidRequest` suggests similar names."""
    name = check_text(zone, "time zone")
    zone_of(name)
    return name


def _check_field(text: str, index: int, start: int, field: str) -> None:
    if _parses(index, field):
        return
    name = list(FIELDS)[index]
    allowed = f"use * or {FIELDS[name]}; also lists (1,2), ranges (1-5) and steps (*/2)"
    for term in field.split(","):
        if not _parses(index, term):
            what = f"{term!r} is not a valid {name}" if term else f"a {name} is missing"
            _refuse(text, start, start + max(1, len(term)), f"{what}: {allowed}")
        start += len(term) + 1
    raise AssertionError(f"{field!r} does not parse, although each of its parts does")


def _parses(index: int, field: str) -> bool:
    fields = ["*"] * len(FIELDS)
    fields[index] = field
    try:
        return len(CronSim(" ".join(fields), _ANY_DAY).parts) == len(FIELDS) + 1 and field != ""
    except CronSimError:
        return False


def _never_fires(fields: str) -> bool:
    try:
        return next(CronSim(fields, _ANY_DAY), None) is None
    except CronSimError:
        return True


def _refuse_count(text: str, spans: list[tuple[int, int]]) -> NoReturn:
    wanted = f"expected {len(FIELDS)} fields: {', '.join(FIELDS)}"
    if len(spans) > len(FIELDS):
        advice = "; there is no field for seconds: use an interval instead" if len(spans) == len(FIELDS) + 1 else ""
        _refuse(text, *spans[len(FIELDS)], f"found {len(spans)} fields, but {wanted}{advice}")
    if (written_out := _SHORTHANDS.get(text.strip().lower())) is not None:
        _refuse(text, *spans[0], f"named expressions are not supported; write {written_out!r}")
    missing = ", ".join(list(FIELDS)[len(spans) :])
    _refuse(text, len(text), len(text) + 1, f"{missing} missing; {wanted}")


def _refuse(text: str, start: int, end: int, why: str) -> NoReturn:
    marks = " " * start + "^" * (end - start)
    raise InvalidRequest(f"cron {text!r}, column {start + 1}: {why}\n    {text}\n    {marks}")


# Firing


def next_fire(expression: str, zone: str, after: Micros) -> Micros | None:
    """Return the first instant after `after` at which an expression fires; None if it never fires again."""
    place = zone_of(zone)
    is_by_clock = place is UTC or not _is_hourly(expression)
    fires = _by_the_clock(expression, after, place) if is_by_clock else _by_real_time(expression, after, place)
    return next((at for at in fires if at > after), None)


@lru_cache(_EXPRESSIONS_KEPT)
def _is_hourly(expression: str) -> bool:
    return CronSim(expression, _ANY_DAY).hours == _EVERY_HOUR


def _by_the_clock(expression: str, after: Micros, place: tzinfo) -> Iterator[Micros]:
    """Yield the instants of matching local times. An instant may repeat, or lie before `after`."""
    for wall in CronSim(expression, _wall(after, place)):
        first = wall.replace(tzinfo=place, fold=0)
        is_skipped = first.astimezone(UTC).astimezone(place).replace(tzinfo=None) != wall
        yield _end_of_gap(wall, place) if is_skipped else instant(first)


def _end_of_gap(wall: datetime, place: tzinfo) -> Micros:
    """Return the instant of the clock change that skipped this local time."""
    # With the UTC offset of after the change (fold=1), a local time in the gap lies before the change. With the offset
    # of before the change (fold=0), it lies after the change.
    before, after = (instant(wall.replace(tzinfo=place, fold=fold)) for fold in (1, 0))
    return _change_between(before, after, place)


def _by_real_time(expression: str, at: Micros, place: tzinfo) -> Iterator[Micros]:
    """Yield the instants at which local clocks show a matching time, from one clock change to the next.

    cronsim alone is not enough: it takes some steps of an hour, and may step over a change of half an hour.
    """
    nudge = timedelta()
    while True:
        wall = _wall(at, place)
        match = next(CronSim(expression, wall - nudge), None)
        if match is None:
            return
        due = at + round((match - wall) / timedelta(microseconds=1))
        change = _first_change(at, due, place)
        if change is None:
            yield due
        at, nudge = (due, timedelta()) if change is None else (change, timedelta(seconds=1))


def _first_change(start: Micros, end: Micros, place: tzinfo) -> Micros | None:
    """Return the first clock change after `start` and until `end`. A day has at most one."""
    while start < end:
        middle = min(start + DAY, end)
        if _offset(middle, place) != _offset(start, place):
            return _change_between(start, middle, place)
        start = middle
    return None


def _change_between(before: Micros, after: Micros, place: tzinfo) -> Micros:
    offset = _offset(after, place)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle, place) == offset:
            after = middle
        else:
            before = middle
    return after


def _offset(at: Micros, place: tzinfo) -> timedelta | None:
    return moment(at).astimezone(place).utcoffset()


def _wall(at: Micros, place: tzinfo) -> datetime:
    """Return the local time of an instant, without a zone."""
    return moment(at).astimezone(place).replace(tzinfo=None)


# Zones


def zone_of(name: str) -> tzinfo:
    """Return a time zone by name. UTC needs no zone data."""
    if name == "UTC":
        return UTC
    try:
        if name not in _LOCAL_NAMES:
            return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # a missing zone, a path outside the zone data, a directory
        pass
    raise InvalidRequest(f"unknown time zone {name!r}; {_near(name)}")


def _near(name: str) -> str:
    known = sorted(available_timezones() - _LOCAL_NAMES)
    if not known:
        return "no time zones are installed on this machine: pip install tzdata"
    wanted = name.lower().replace(" ", "_")
    exact = [zone for zone in known if wanted in (zone.lower(), zone.lower().rpartition("/")[2])]
    by_lower = {zone.lower(): zone for zone in known}
    close = [by_lower[one] for one in difflib.get_close_matches(wanted, by_lower, n=3)]
    if near := (exact or close)[:3]:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return "use a region and city, such as 'Europe/Rome', or 'UTC'"
