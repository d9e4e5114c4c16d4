"""Schedules: the due slots, the runs they create, and the state of a schedule afterwards. Pure decisions.

A slot is an instant at which a schedule fires. The id of its run is derived from the schedule's name and the slot, so
firing a slot again creates no second run.

Cron expressions have five fields. `cronsim` parses and walks the fields. The code here handles changes of the clocks
(daylight saving time). An expression that names hours fires once for each local time it matches. If the clocks skip
that time, it fires at the instant of the change. If the clocks repeat that time, it fires the first time only. An
expression for every hour follows real time: it neither pauses nor repeats itself.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, NoReturn, get_args
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from holdfast.core.clock import DAY, SECOND, Micros, instant, micros, moment
from holdfast.core.codec import same_json
from holdfast.core.commands import Fired
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import StoredRunOptions, check_choice, check_names, check_text, described, intent_fields
from holdfast.core.model import CatchUp, Firing, Intent, Overlap, Schedule

GRACE: Micros = 60 * SECOND
"""A slot that is overdue by more than this counts as missed, and the catch-up rule applies."""

SLOTS_LIMIT = 1_000
"""Maximum number of missed slots of a schedule that are fired at once."""

EVERY_LEAST: Micros = SECOND
UPCOMING = 5

NAME_TAG = "schedule"
SLOT_TAG = "slot"
"""Tags on each run of a schedule: the name of the schedule, and the slot."""

_STANDING = ("is_paused", "created_at", "updated_at", "anchor", "next_at", "last_slot", "last_run_id", "open_run_ids",
             "skipped", "last_skipped_slot")  # fmt: skip
"""The fields that hold the state of a schedule, not its settings."""

# Slots


def next_slot(schedule: Schedule, after: Micros) -> Micros | None:
    """Return the first slot after an instant; None if the schedule never fires again."""
    if schedule.every is not None:
        return schedule.anchor + max(1, (after - schedule.anchor) // schedule.every + 1) * schedule.every
    assert schedule.cron is not None
    return next_fire(schedule.cron, schedule.zone, after)


def next_slots(schedule: Schedule, after: Micros, count: int = UPCOMING) -> list[Micros]:
    """Return the first slots after an instant."""
    slots: list[Micros] = []
    while len(slots) < count and (slot := next_slot(schedule, slots[-1] if slots else after)) is not None:
        slots.append(slot)
    return slots


def firing(schedule: Schedule, now: Micros, limit: int = SLOTS_LIMIT) -> Firing:
    """Return the firing of a schedule that is due, by its catch-up rule."""
    first = schedule.next_at
    assert first is not None
    assert first <= now
    if schedule.catch_up == "all":
        slots, after = _each(schedule, first, now, limit)
        return Firing(schedule=schedule, slots=tuple(slots), next_at=after)
    latest, after = first, next_slot(schedule, first)
    if after is not None and after <= now:
        latest = _latest(schedule, after, now)
        after = next_slot(schedule, latest)
    is_missed = schedule.catch_up == "skip" and latest < now - GRACE
    return Firing(schedule=schedule, slots=() if is_missed else (latest,), next_at=after)


def _each(schedule: Schedule, first: Micros, now: Micros, limit: int) -> tuple[list[Micros], Micros | None]:
    """Return the due slots up to a limit, and the slot after them."""
    slots: list[Micros] = []
    slot: Micros | None = first
    while slot is not None and slot <= now and len(slots) < limit:
        slots.append(slot)
        slot = next_slot(schedule, slot)
    return slots, slot


def _latest(schedule: Schedule, first: Micros, now: Micros) -> Micros:
    """Return the last slot that is due, by binary search: after a year there may be half a million due slots."""
    latest, beyond = first, now
    while latest < beyond:
        middle = (latest + beyond) // 2
        slot = next_slot(schedule, middle)
        if slot is not None and slot <= now:
            latest = slot
        else:
            beyond = middle
    return latest


# Firing


def fired(firing: Firing, open_run_ids: Sequence[str], now: Micros) -> tuple[Schedule, list[Intent], Fired]:
    """Return the schedule afterwards, the runs to create, and the answer. `open_run_ids` have not ended."""
    schedule = firing.schedule
    intents: list[Intent] = []
    skipped: list[Micros] = []
    for slot in firing.slots:
        if schedule.overlap == "skip" and (open_run_ids or intents):
            skipped.append(slot)
        else:
            intents.append(intent_of(schedule, slot))
    run_ids = tuple(intent.id for intent in intents)
    after = replace(
        schedule,
        next_at=firing.next_at,
        updated_at=now,
        last_slot=firing.slots[len(intents) - 1] if intents else schedule.last_slot,
        skipped=schedule.skipped + len(skipped),
        last_skipped_slot=skipped[-1] if skipped else schedule.last_skipped_slot,
    )
    return having_made(after, open_run_ids, run_ids), intents, Fired(run_ids=run_ids, skipped=tuple(skipped))


def triggered(schedule: Schedule, open_run_ids: Sequence[str], run_id: str, now: Micros) -> tuple[Schedule, Intent]:
    """Return the schedule after a manual trigger, and the run to create."""
    intent = replace(_intent(schedule), id=run_id, tags={**schedule.tags, NAME_TAG: schedule.name})
    return replace(having_made(schedule, open_run_ids, [run_id]), updated_at=now), intent


def having_made(schedule: Schedule, open_run_ids: Sequence[str], run_ids: Sequence[str]) -> Schedule:
    """Return the schedule after it created runs. It remembers open runs only if they must not overlap."""
    return replace(
        schedule,
        last_run_id=run_ids[-1] if run_ids else schedule.last_run_id,
        open_run_ids=(*open_run_ids, *run_ids) if schedule.overlap == "skip" else (),
    )


def intent_of(schedule: Schedule, slot: Micros) -> Intent:
    """Return the intent of a slot, the same each time."""
    return replace(
        _intent(schedule),
        id=schedule.run_id_of(slot),
        start_at=slot + jitter_of(schedule, slot),
        tags={**schedule.tags, NAME_TAG: schedule.name, SLOT_TAG: slot_text(slot)},
    )


def jitter_of(schedule: Schedule, slot: Micros) -> Micros:
    """Return the delay of the run of a slot: pseudo-random, but the same each time."""
    noise = hashlib.blake2b(f"{schedule.name}@{slot}".encode(), digest_size=8).digest()
    return schedule.jitter * int.from_bytes(noise, "big") // (1 << 64)


def _intent(schedule: Schedule) -> Intent:
    return Intent(
        id="",
        type=schedule.type,
        payload=schedule.payload,
        priority=schedule.priority,
        parent_id=schedule.parent_id,
        retention=schedule.retention,
        options=schedule.options,
    )


def slot_text(slot: Micros) -> str:
    """Return a slot as text, for the tag of its run."""
    return moment(slot).isoformat().replace("+00:00", "Z")


# Changing


def planned(before: Schedule | None, wanted: Schedule, now: Micros) -> Schedule:
    """Return a schedule after it is put. If nothing differs, it does not change at all.

    After a change of the fire times, it continues with the next slot. Any other change affects no slot.
    """
    if before is None:
        fresh = replace(wanted, created_at=now, updated_at=now, anchor=now)
        return replace(fresh, next_at=None if fresh.is_paused else next_slot(fresh, now))
    kept = {name: getattr(before, name) for name in _STANDING}
    if _is_same(before, replace(wanted, **kept)):
        return before
    after = replace(wanted, **kept | {"updated_at": now})
    if after.overlap == "skip" and before.overlap != "skip" and before.last_run_id is not None:
        after = replace(after, open_run_ids=(before.last_run_id,))
    if (before.cron, before.every, before.zone) == (after.cron, after.every, after.zone):
        return after
    after = replace(after, anchor=before.anchor if before.every == after.every else now)
    return replace(after, next_at=None if after.is_paused else next_slot(after, now))


def _is_same(a: Schedule, b: Schedule) -> bool:
    return same_json(a.payload, b.payload) and replace(a, payload=b.payload) == b


def paused(schedule: Schedule, now: Micros) -> Schedule | None:
    """Return the schedule, paused; None if it already is."""
    return None if schedule.is_paused else replace(schedule, is_paused=True, next_at=None, updated_at=now)


def resumed(schedule: Schedule, now: Micros) -> Schedule | None:
    """Return the schedule, resumed; None if it is not paused. Slots of the pause are not made up for."""
    if not schedule.is_paused:
        return None
    return replace(schedule, is_paused=False, next_at=next_slot(schedule, now), updated_at=now)


# Checking


def check_schedule_name(name: object) -> str:
    """Return the name of a schedule if it is valid."""
    return check_text(name, "schedule's name")


class ScheduleOptions(StoredRunOptions, total=False):
    """The options of a schedule: keywords of `hf.schedules.put` and `@hf.schedule`, besides its cron expression.

    All runs of the schedule have its tags, and the tags `schedule` and, unless they were triggered by hand, `slot`.
    """

    every: float | timedelta | None
    """Seconds or a timedelta between two runs, instead of a cron expression. At least 1 second."""
    zone: str | None
    """The time zone of the cron expression, such as `Europe/Paris`. Default: UTC."""
    catch_up: CatchUp
    """Handling of times that passed while no worker ran: `one` run for all of them (default), `all`, or `skip`."""
    overlap: Overlap
    """`allow` (default), or `skip`, which starts no run while an earlier one has not ended."""
    jitter: float | timedelta
    """Spreads the starts: each run begins up to this many seconds, or this timedelta, later. Default: 0."""
    parent_id: str | None
    """The id of a run that the runs of the schedule are listed under, as in `StartOptions`."""


def checked_schedule(
    name: str,
    workflow: object,
    args: tuple[Any, ...],
    cron: str | None,
    options: ScheduleOptions,
    *,
    known: object = None,
    is_declared: bool = False,
) -> Schedule:
    """Return the schedule that these arguments describe. `InvalidRequest` shows where a mistake is.

    `known` is the definition of the type, if `workflow` is a name of one that is registered here.
    """
    check_names(options, ScheduleOptions, workflow, of="a schedule")
    type, payload, _ = described(workflow, args)
    every, zone = options.get("every"), options.get("zone")
    if (cron is None) == (every is None):
        raise InvalidRequest(f"schedule {name!r} needs a cron expression or every=…, but not both")
    if every is not None and zone is not None:
        raise InvalidRequest(
            f"schedule {name!r}: zone={zone!r} is for cron; an interval does not depend on a time zone"
        )
    fields = intent_fields(options, known or workflow)
    _refuse_own_tags(fields.get("tags", {}))
    return Schedule(
        name=check_schedule_name(name),
        type=type,
        payload=payload,
        cron=None if cron is None else check_cron(cron),
        every=None if every is None else _checked_every(every),
        zone="UTC" if zone is None else check_zone(zone),
        catch_up=check_choice("catch_up", options.get("catch_up", "one"), get_args(CatchUp)),
        overlap=check_choice("overlap", options.get("overlap", "allow"), get_args(Overlap)),
        jitter=_checked_jitter(options.get("jitter", 0)),
        is_declared=is_declared,
        **fields,
    )


def _checked_every(every: float | timedelta) -> Micros:
    length = micros(every, "every")
    if length < EVERY_LEAST:
        raise InvalidRequest(f"every={every!r}: the interval must be at least {EVERY_LEAST // SECOND} second")
    return length


def _checked_jitter(jitter: float | timedelta) -> Micros:
    length = micros(jitter, "jitter")
    if length < 0:
        raise InvalidRequest(f"jitter={jitter!r}: must not be negative, because no run starts earlier than its slot")
    return length


def _refuse_own_tags(tags: Mapping[str, str]) -> None:
    for name in (NAME_TAG, SLOT_TAG):
        if name in tags:
            raise InvalidRequest(f"tag {name!r} is set by the schedule itself on each of its runs; choose another name")


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
