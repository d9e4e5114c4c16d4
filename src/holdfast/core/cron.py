"""Cron: when an expression of five fields fires in a time zone, and where the mistake is in one that never could.

The fields are read and walked by `cronsim`; what a change of the clocks means is decided here. An expression that names
hours fires once for each local time it matches: one that the clocks skip, at the instant they go on; one that they
repeat, the first time only. An expression for every hour follows real time: it neither pauses nor repeats itself.
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
"""The names of the fields, in order, and what each may hold."""

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
_ANY_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - the time of a clock on a wall, somewhere
_LOCAL_NAMES = {"localtime", "posixrules"}
"""Files beside the zones that say what the zone of this machine is: another one for each."""


# Checking


def check_cron(expression: object) -> str:
    """Return an expression, its fields one blank apart, if it fires at some time; else say where the mistake is."""
    text = check_text(expression, "cron expression", EXPRESSION_LIMIT)
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if len(spans) != len(FIELDS):
        _refuse_count(text, spans)
    for index, (start, end) in enumerate(spans):
        _check_field(text, index, start, text[start:end])
    fields = " ".join(text.split())
    if _never_fires(fields):
        start, end = spans[_DAY_FIELD]
        _refuse(text, start, end, "it never fires: none of the months has such a day")
    return fields


def check_zone(zone: object) -> str:
    """Return the name of a time zone if it is known on this machine; else name those that it may be."""
    name = check_text(zone, "time zone")
    zone_of(name)
    return name


def _check_field(text: str, index: int, start: int, field: str) -> None:
    if _parses(index, field):
        return
    name = list(FIELDS)[index]
    allowed = f"it is * or {FIELDS[name]}; also lists (1,2), ranges (1-5) and steps (*/2)"
    for term in field.split(","):
        if not _parses(index, term):
            what = f"{term!r} is no {name}" if term else f"a {name} is missing"
            _refuse(text, start, start + max(1, len(term)), f"{what}: {allowed}")
        start += len(term) + 1
    raise AssertionError(f"{field!r} is wrong, though each part of it is right")


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
    wanted = f"{len(FIELDS)} fields are needed: {', '.join(FIELDS)}"
    if len(spans) > len(FIELDS):
        advice = "; there is none for seconds: use an interval instead" if len(spans) == len(FIELDS) + 1 else ""
        _refuse(text, *spans[len(FIELDS)], f"there are {len(spans)} fields, and {wanted}{advice}")
    if (written_out := _SHORTHANDS.get(text.strip().lower())) is not None:
        _refuse(text, *spans[0], f"names are not known here; write {written_out!r}")
    missing = ", ".join(list(FIELDS)[len(spans) :])
    _refuse(text, len(text), len(text) + 1, f"{missing} missing; {wanted}")


def _refuse(text: str, start: int, end: int, why: str) -> NoReturn:
    marks = " " * start + "^" * (end - start)
    raise InvalidRequest(f"cron {text!r}, column {start + 1}: {why}\n    {text}\n    {marks}")


# Firing


def next_fire(expression: str, zone: str, after: Micros) -> Micros | None:
    """The first instant after another at which an expression fires; None if it never does again."""
    place = zone_of(zone)
    is_by_clock = place is UTC or not _is_hourly(expression)
    fires = _by_the_clock(expression, after, place) if is_by_clock else _by_real_time(expression, after, place)
    return next((at for at in fires if at > after), None)


@lru_cache(_EXPRESSIONS_KEPT)
def _is_hourly(expression: str) -> bool:
    return CronSim(expression, _ANY_DAY).hours == _EVERY_HOUR


def _by_the_clock(expression: str, after: Micros, place: tzinfo) -> Iterator[Micros]:
    """The instants of the local times that match. One of them may come more than once, or before the start."""
    for wall in CronSim(expression, _wall(after, place)):
        first = wall.replace(tzinfo=place, fold=0)
        is_skipped = first.astimezone(UTC).astimezone(place).replace(tzinfo=None) != wall
        yield _end_of_gap(wall, place) if is_skipped else instant(first)


def _end_of_gap(wall: datetime, place: tzinfo) -> Micros:
    """The instant at which the clocks went on that skipped this local time."""
    # Read by the rules of after the change a time in the gap lies before it, by those of before it lies after.
    before, after = (instant(wall.replace(tzinfo=place, fold=fold)) for fold in (1, 0))
    return _change_between(before, after, place)


def _by_real_time(expression: str, at: Micros, place: tzinfo) -> Iterator[Micros]:
    """The instants at which clocks show a time that matches, from one change of theirs to the next.

    Not left to cronsim, which takes some steps of an hour and may step over a change by half of one.
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
    """The first instant after `start` and until `end` at which clocks are changed. Days have at most one."""
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
    """What a clock on the wall shows."""
    return moment(at).astimezone(place).replace(tzinfo=None)


# Zones


def zone_of(name: str) -> tzinfo:
    """The rules of a time zone. UTC needs no zone data."""
    if name == "UTC":
        return UTC
    try:
        if name not in _LOCAL_NAMES:
            return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # not there, a path that leads elsewhere, a folder
        pass
    raise InvalidRequest(f"there is no time zone {name!r}; {_near(name)}")


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
    return "a zone is named by region and city, such as 'Europe/Rome', or 'UTC'"
