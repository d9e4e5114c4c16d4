"""Pruning: find data that is no longer needed by scanning everything, and remove it. A dry run uses a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import DeadLetter, DeadReason, Run
from holdfast.core.ports import Pruned
from holdfast.core.topics import TAKEN_RETENTION, topic_of
from holdfast.stores.memory.state import Published, State
from holdfast.stores.operations import pruning, types
from holdfast.stores.operations.unit_of_work import OldEvent, OldRun

if TYPE_CHECKING:
    from holdfast.stores.memory.unit_of_work import StateUnit

_Place = tuple[dict[str, Any], str]
"""The dictionary that keeps an old item, and the item's id."""


class StateHousekeeping:
    """Finds and removes old data by scanning the whole state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def expired_events(self, limit: int, now: Micros) -> tuple[Sequence[OldEvent], bool]:
        return _oldest(self._expired(now), limit), False

    def _expired(self, now: Micros) -> Iterator[Published]:
        for published in chain.from_iterable(self._state.events.values()):
            retention = topic_of(published.event.topic, self._state.topics).retention
            if published.state == "taken":
                if published.taken_at <= now - TAKEN_RETENTION:
                    yield published
            elif published.state != "handed" and published.at <= now - retention:
                yield published

    def surplus_events(self, limit: int) -> Sequence[OldEvent]:
        return _oldest(self._overflowing(), limit)

    def _overflowing(self) -> Iterator[Published]:
        """Yield the oldest events of each topic beyond its limit. Open and pending events are counted separately."""
        for name, kept in self._state.events.items():
            limit = topic_of(name, self._state.topics).max_pending
            for kind in ("open", "pending"):
                waiting = [published for published in kept if published.state == kind]
                yield from waiting[: max(0, len(waiting) - limit)]

    def give_up(self, event: OldEvent, reason: DeadReason, now: Micros) -> None:
        what = next(one.event for one in self._state.events[event.topic] if one.number == event.number)
        number = self._state.next_letter()
        letter = DeadLetter(number=number, id=what.id, topic=what.topic, payload=what.payload, at=now, reason=reason)
        self._state.letters[number] = letter

    def forget_receipts(self, until: Micros, limit: int) -> int:
        records = self._state.records.values()
        return _forget(((r.receipts, id) for r in records for id, at in r.receipts.items() if at <= until), limit)

    def forget_replies(self, until: Micros, limit: int) -> int:
        records = self._state.records.values()
        return _forget(((r.replies, id) for r in records for id, (_, at) in r.replies.items() if at <= until), limit)

    def ended_runs(self, limit: int, usual: Micros, room: int, now: Micros) -> Sequence[OldRun]:
        runs = [record.run for record in self._state.records.values()]
        own = [run for run in runs if run.purge_at is not None and run.purge_at <= now]
        ended = [run for run in runs if run.purge_at is None and run.finished_at is not None]
        by_type = [run for run in ended if (run.finished_at or 0) <= now - self._kept(run, usual)]
        due = sorted(own, key=lambda run: (run.purge_at, run.id))
        due += sorted(by_type, key=lambda run: (run.finished_at, run.id))
        return [OldRun(run, self._kept(run, usual), self._is_kept_for_parent(run)) for run in due[:limit]]

    def _kept(self, run: Run, usual: Micros) -> Micros:
        """Return the retention of runs of this type."""
        rule = self._state.types.get(run.type)
        return usual if rule is None or rule.retention is None else rule.retention

    def _is_kept_for_parent(self, run: Run) -> bool:
        parent = self._state.records.get(run.parent_id or "")
        recorded = parent.entries.get(run.parent_location or "") if parent is not None else None
        return rules.is_kept_for_parent(recorded, run)

    def defer(self, run: Run) -> None:
        self._state.put_run(self._state.records[run.id], run)

    def remove(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._state.remove(run.id)
            if run.key is not None:
                del self._state.keys[run.key]
            if run.parent_id is not None:
                self._state.children[run.parent_id].remove(run.id)

    def remove_part(self, run: Run, room: int, now: Micros) -> None:
        raise AssertionError("the memory store counts no rows, so no run is too large")


def _oldest(chosen: Iterator[Published], limit: int) -> list[OldEvent]:
    return sorted(OldEvent(one.number, one.event.topic, one.state) for one in chosen)[:limit]


def _forget(old: Iterator[_Place], limit: int) -> int:
    chosen = list(islice(old, limit))
    for kept, id in chosen:
        del kept[id]
    return len(chosen)


def prune(unit: StateUnit, limit: int, retention: Micros, now: Micros, *, is_dry_run: bool) -> Pruned:
    """Remove data that is no longer needed. A dry run only counts it."""
    if not is_dry_run:
        return pruning.prune(unit, limit, retention, now)
    copy = type(unit)(deepcopy(unit.state))
    pruned = pruning.prune_events(copy, limit, now)
    removed = types.prune_flows(copy, limit, retention, now)
    runs, _ = pruning.purge(copy, max(1, len(copy.state.records)), retention, now)  # a dry run counts all of them
    return replace(pruned, runs=runs, flows=removed)
