"""Pruning: remove data that is no longer needed, a little at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.core import retention
from holdfast.core.clock import Micros
from holdfast.core.model import RECEIPT_RETENTION, DeadReason
from holdfast.core.ports import Pruned
from holdfast.core.topics import REPLY_RETENTION
from holdfast.stores.operations import types
from holdfast.stores.operations.unit_of_work import OldEvent, OldRun, UnitOfWork


def prune(unit: UnitOfWork, limit: int, usual: Micros, now: Micros) -> Pruned:
    """Remove at most `limit` items of each kind. `usual` is the retention of runs whose type does not set one."""
    pruned = prune_events(unit, limit, now)
    runs, has_more = purge(unit, limit, usual, now)
    removed = types.prune_flows(unit, limit, usual, now)
    return replace(pruned, runs=runs, flows=removed, has_more=pruned.has_more or has_more or removed == limit)


def prune_events(unit: UnitOfWork, limit: int, now: Micros) -> Pruned:
    """Remove old events, receipts and replies, at most `limit` of each. Pending events become dead letters."""
    expired, has_more = unit.housekeeping.expired_events(limit, now)
    _remove(unit, expired, "expired", now)
    surplus = unit.housekeeping.surplus_events(limit - len(expired))
    _remove(unit, surplus, "overflow", now)
    gone = Counter(event.state for event in (*expired, *surplus))
    receipts = unit.housekeeping.forget_receipts(now - RECEIPT_RETENTION, limit)
    replies = unit.housekeeping.forget_replies(now - REPLY_RETENTION, limit)
    return Pruned(
        events=gone["open"],
        dead_letters=gone["pending"],
        taken=gone["taken"],
        receipts=receipts,
        replies=replies,
        has_more=has_more or limit in (gone.total(), receipts, replies),
    )


def _remove(unit: UnitOfWork, events: Sequence[OldEvent], reason: DeadReason, now: Micros) -> None:
    for event in sorted(events):  # dead letters are numbered in the order of their events
        if event.state == "pending":
            unit.housekeeping.give_up(event, reason, now)
        unit.events.drop(event.topic, event.number)


def purge(unit: UnitOfWork, limit: int, usual: Micros, now: Micros) -> tuple[dict[str, int], bool]:
    """Remove the first runs that are due. Return how many were removed, by type, and True if more may be due."""
    room = limit * retention.ROWS_PER_RUN
    due = unit.housekeeping.ended_runs(limit, usual, room, now)
    gone: list[OldRun] = []
    # Judge all runs before removing any, so that a child is never removed together with the parent it was kept for.
    for one in due:
        found = one.judge(now)
        if found == "purge":
            gone.append(one)
        else:
            unit.housekeeping.defer(retention.deferred(one.run, found, now))
    count = retention.fitting((one.size for one in gone), room)
    if gone and count == 0:  # the first run alone has more rows than one transaction may remove
        unit.housekeeping.remove_part(gone[0].run, room, now)
    else:
        unit.housekeeping.remove([one.run for one in gone[:count]])
    return _by_type(gone[:count]), len(due) == limit or count < len(gone)


def count_due(runs: Iterable[OldRun], now: Micros) -> dict[str, int]:
    """Count the runs that would be removed, by type."""
    return _by_type(one for one in runs if one.judge(now) == "purge")


def _by_type(runs: Iterable[OldRun]) -> dict[str, int]:
    return dict(sorted(Counter(one.run.type for one in runs).items()))
