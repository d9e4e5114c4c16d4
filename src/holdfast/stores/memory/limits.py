"""Limits: who gets a slot, who waits for one, and to whom it goes on."""

from __future__ import annotations

import heapq

from msgspec.structs import replace

from holdfast.core import audit, limits, rules
from holdfast.core.clock import Micros
from holdfast.core.limits import Window
from holdfast.core.model import TypeRule
from holdfast.stores.memory.state import Record, State


def admit(state: State, record: Record, now: Micros) -> bool:
    """Whether a run that is due may be claimed. If so it has all slots it needs; if not it is parked."""
    rule = state.types.get(record.run.type)
    if rule is None or record.run.is_held:
        return True
    if not _may_begin(state, record, rule, now):
        return False
    if not record.run.slots and (full := _take_slots(state, record, rule)) is not None:
        _park(state, record, full, now)
        return False
    record.waits = limits.without(record.waits)
    return True


def give_back(state: State, record: Record, now: Micros) -> None:
    """Hand on the slots of a run that nobody works on, nor could."""
    names, record.run = record.run.slots, replace(record.run, slots=())
    for name in names:
        state.slots[name].discard(record.run.id)
    for name in names:
        _hand_on(state, name, now)


def leave_queue(record: Record) -> None:
    """A run that is kept from going on waits for no slot meanwhile."""
    record.waits = limits.without(record.waits)


def apply(state: State, rule: TypeRule, now: Micros) -> None:
    """Have the limits of a type be those of a rule: whoever is worked on counts, whoever waits is looked at anew."""
    for record in state.counted(rule.name):
        for name in record.run.slots:
            state.slots[name].discard(record.run.id)
        slots = tuple(limits.slots_of(rule, record.run)) if rules.is_in_race(record.run, now) else ()
        record.run = replace(record.run, slots=slots)
        for name in slots:
            state.slots[name].add(record.run.id)
    for record in state.parked_of(rule.name):
        since = min(wait.since for wait in record.waits if wait.location in limits.LOCATIONS)
        record.waits = limits.without(record.waits)
        _make_ready(state, record, since, now)
    state.windows.pop(rule.name, None)


def _may_begin(state: State, record: Record, rule: TypeRule, now: Micros) -> bool:
    """Whether the rate of its type lets a run begin. One that has begun before may, and one whose instant has come."""
    run = record.run
    if rule.rate is None or run.first_claimed_at is not None or run.slots:
        return True
    reserved = limits.wait_at(record.waits, rules.RATE_LOCATION)
    if reserved is not None:
        due = reserved.deadline or now
    else:
        due, state.windows[rule.name] = limits.reserve(state.windows.get(rule.name, Window()), rule.rate, now)
    if due <= now and reserved is None:
        # It has had its turn, which it must not lose should it have to wait for a slot.
        record.waits = (*record.waits, limits.holding_back(run, due, now))
    elif due > now:
        if reserved is None:
            record.waits = (*record.waits, limits.holding_back(run, due, now))
            state.note(record, audit.of_parking(run, limits.rate_name(run.type), now))
        record.run = replace(run, ready_at=due, updated_at=now)
    return due <= now


def _take_slots(state: State, record: Record, rule: TypeRule) -> str | None:
    """Give a run every slot it needs, or none; then the name of one that nobody can have now."""
    wanted = limits.slots_of(rule, record.run)
    for name, count in wanted.items():
        if len(state.slots[name]) >= count:
            return name
    record.run = replace(record.run, slots=tuple(wanted))
    for name in wanted:
        state.slots[name].add(record.run.id)
    return None


def _park(state: State, record: Record, slot: str, now: Micros) -> None:
    run = record.run
    known = limits.wait_at(record.waits, rules.LIMIT_LOCATION)
    since = known.since if known is not None else min(now, run.ready_at or now)
    _queue(state, record, slot, since)
    record.run = replace(run, ready_at=None, updated_at=now)
    state.note(record, audit.of_parking(run, slot, now))


def _queue(state: State, record: Record, slot: str, since: Micros) -> None:
    others = [wait for wait in record.waits if wait.location != rules.LIMIT_LOCATION]
    wait = limits.parking(record.run, slot, since)
    record.waits = (*others, wait)
    heapq.heappush(state.parked[slot], (wait.after, wait.since, record.run.id))


def _hand_on(state: State, slot: str, now: Micros) -> None:
    """Let the next ones go that wait for a slot, as many as there are free."""
    while (record := next_parked(state, slot, rules.LIMIT_LOCATION)) is not None:
        rule = state.types[record.run.type]
        wait = limits.wait_at(record.waits, rules.LIMIT_LOCATION)
        assert wait is not None
        full = _take_slots(state, record, rule)
        if full == slot:
            _queue(state, record, slot, wait.since)  # there is none left
            return
        if full is not None:
            _queue(state, record, full, wait.since)
            continue
        record.waits = limits.without(record.waits)
        _make_ready(state, record, wait.since, now)


def next_parked(state: State, slot: str, location: str) -> Record | None:
    """Take the first of those who wait, at a location, for a slot. Others left the queue without a word."""
    waiting = state.parked.get(slot)
    while waiting:
        _, since, run_id = heapq.heappop(waiting)
        record = state.records.get(run_id)
        wait = limits.wait_at(record.waits, location) if record is not None else None
        if record is not None and wait is not None and wait.names == (slot,) and wait.since == since:
            return record
    return None


def _make_ready(state: State, record: Record, since: Micros, now: Micros) -> None:
    """A run may be claimed, in the place it had before it was parked."""
    record.run = replace(record.run, ready_at=min(since, now), updated_at=now)
    state.news.ready.add(record.run.type)
