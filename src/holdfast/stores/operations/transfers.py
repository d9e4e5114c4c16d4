"""Transfers: import runs, events and dead letters from another store."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import transfer
from holdfast.core.clock import Micros
from holdfast.core.transfer import Dump, Fate, KeptEvent, Origin, Restoration, Restored
from holdfast.stores.operations import arrivals, types
from holdfast.stores.operations.unit_of_work import UnitOfWork


def restore(unit: UnitOfWork, restoration: Restoration, now: Micros) -> Restored:
    """Write the part of a restoration that was not written before. Raises before it writes."""
    for dump in restoration.runs:
        transfer.check_restorable(dump)
    known = unit.origins.get(restoration.export_id)
    origin = known
    if origin is None:
        high, since = unit.events.newest()
        origin = Origin(high=high, since=since, at=since)
    if origin.is_finished:
        return Restored(is_finished=True)
    types.check_restorable_flows(unit, restoration.flows)
    restored_flows = types.restore_flows(unit, restoration.flows, now)
    unit.events.raise_numbers(restoration.last_event)
    fates = tuple(_restore_one(unit, dump, origin.high) for dump in restoration.runs)
    origin, events, skipped = transfer.accept(
        origin,
        restoration.events,
        is_known=lambda event: unit.events.find(event.topic, event.id) is not None,
        keep=lambda event: _keep_event(unit, event, now),
    )
    fresh = transfer.fresh_letters(origin, restoration.letters)
    for letter in fresh:
        unit.dead_letters.add(letter)
        origin = replace(origin, letter=letter.number)
    origin = replace(origin, is_finished=restoration.is_last)
    if origin != known:  # a repetition writes nothing
        unit.origins.put(restoration.export_id, origin)
    return Restored(fates=fates, events=events, skipped=skipped, letters=len(fresh), flows=restored_flows)


def _restore_one(unit: UnitOfWork, dump: Dump, high: int) -> Fate:
    run_id, key = dump.run.id, dump.run.key
    known = unit.runs.get(run_id)
    facts = () if known is None else tuple(unit.audit.all(run_id))
    holder = None if key is None else unit.runs.with_key(key)
    fate = transfer.fate(dump, known, facts, holder)
    if fate.outcome == "restored":
        _add(unit, transfer.renumbered(dump, high, unit.events.next_number))
    return fate


def _add(unit: UnitOfWork, dump: Dump) -> None:
    run = dump.run
    unit.runs.add([run])
    unit.histories.put(run.id, run.token, dump.entries)
    unit.inboxes.put(run.id, dump.inbox)
    unit.inboxes.keep_receipts(run.id, dump.receipts)
    unit.inboxes.keep_replies(run.id, dump.replies)
    unit.runs.publish(run.id, dump.values)
    unit.waits.put(run.id, dump.waits)
    for fact in dump.audit:
        unit.audit.note(fact)


def _keep_event(unit: UnitOfWork, kept: KeptEvent, now: Micros) -> None:
    arrival = unit.events.keep(kept)
    if kept.is_queued:
        unit.events.count(arrival, int(arrivals.pass_on(unit, arrival, now)))
