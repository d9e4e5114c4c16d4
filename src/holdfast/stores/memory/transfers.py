"""Transfers: runs, events and dead letters leave for another store, or come from one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain

from msgspec.structs import replace

from holdfast.core import rules, transfer
from holdfast.core.clock import Micros
from holdfast.core.model import Event
from holdfast.core.transfer import Dump, Fate, KeptEvent, Origin, Restoration, Restored
from holdfast.stores.memory import letters, queues
from holdfast.stores.memory.state import Published, Record, State


def dump(state: State, run_ids: Sequence[str]) -> list[Dump]:
    """Those of the runs that are at rest, with all that belongs to them."""
    known = [state.records[run_id] for run_id in run_ids if run_id in state.records]
    return [_dump_one(record) for record in known if transfer.is_at_rest(record.run)]


def kept_events(state: State, after: int, limit: int) -> list[KeptEvent]:
    """The events that somebody may still get, beyond a number."""
    kept = [one for one in chain.from_iterable(state.events.values()) if one.state in ("open", "pending")]
    later = sorted((one for one in kept if one.number > after), key=lambda one: one.number)
    return [_kept(one) for one in later[:limit]]


def restore(state: State, restoration: Restoration, now: Micros) -> Restored:
    """Write what comes from another store, as far as that was not done before. Raises before it writes."""
    for dump in restoration.runs:
        transfer.check_restorable(dump)
    origin = state.origins.get(restoration.export_id) or _first_seen(state)
    if origin.is_finished:
        return Restored(is_finished=True)
    state.event_count = max(state.event_count, restoration.last_event)
    fates = tuple(_restore_one(state, dump, origin.high) for dump in restoration.runs)
    origin, events, skipped = transfer.take_in(
        origin,
        restoration.events,
        is_known=lambda event: _is_published(state, event),
        keep=lambda event: _keep_event(state, event, now),
    )
    fresh = transfer.fresh_letters(origin, restoration.letters)
    for letter in fresh:
        letters.keep(state, letter)
        origin = replace(origin, letter=letter.number)
    state.origins[restoration.export_id] = replace(origin, is_finished=restoration.is_last)
    return Restored(fates=fates, events=events, skipped=skipped, letters=len(fresh))


def _dump_one(record: Record) -> Dump:
    return Dump(
        run=record.run,
        entries=record.history(),
        inbox=tuple(record.inbox[number] for number in sorted(record.inbox)),
        waits=record.waits,
        values=dict(record.values),
        receipts=dict(record.receipts),
        replies=dict(record.replies),
        audit=tuple(record.audit),
    )


def _kept(published: Published) -> KeptEvent:
    event = published.event
    return KeptEvent(
        number=published.number,
        topic=event.topic,
        id=event.id,
        payload=event.payload,
        at=published.at,
        reached=published.reached,
        is_queued=published.state == "pending",
    )


def _first_seen(state: State) -> Origin:
    latest = max(chain.from_iterable(state.events.values()), key=lambda one: one.number, default=None)
    since = 0 if latest is None else latest.at
    return Origin(high=state.event_count, since=since, at=since)


def _restore_one(state: State, dump: Dump, high: int) -> Fate:
    run_id, key = dump.run.id, dump.run.key
    record = state.records.get(run_id)
    known, facts = (None, ()) if record is None else (record.run, tuple(record.audit))
    fate = transfer.fate(dump, known, facts, None if key is None else state.keys.get(key))
    if fate.outcome == "restored":
        _add(state, transfer.renumbered(dump, high, state.next_event))
    return fate


def _add(state: State, dump: Dump) -> None:
    run = dump.run
    state.records[run.id] = record = Record(
        run,
        entries={entry.location: entry for entry in dump.entries},
        inbox={arrival.number: arrival for arrival in dump.inbox},
        waits=dump.waits,
        values=dict(dump.values),
        receipts=dict(dump.receipts),
        replies=dict(dump.replies),
    )
    for fact in dump.audit:
        state.note(record, fact)
    if run.key is not None:
        state.keys[run.key] = run.id
    if run.parent_id is not None:
        state.children[run.parent_id].append(run.id)
    for wait in dump.waits:
        if wait.location == rules.SLOT_LOCATION:
            heapq.heappush(state.parked[wait.names[0]], (wait.after, wait.since, run.id))


def _is_published(state: State, event: KeptEvent) -> bool:
    return any(one.event.id == event.id for one in state.events[event.topic])


def _keep_event(state: State, kept: KeptEvent, now: Micros) -> None:
    event = Event(id=kept.id, topic=kept.topic, payload=kept.payload)
    published = Published(kept.number or state.next_event(), event, kept.at, kept.reached)
    of_topic = state.events[kept.topic]
    of_topic.append(published)
    of_topic.sort(key=lambda one: one.number)
    if kept.is_queued:
        published.state = "pending"
        published.reached = int(queues.hand_on(state, published, now))
