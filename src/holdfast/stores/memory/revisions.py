"""Revisions: histories are changed. What becomes of them is decided in `holdfast.stores.revisions`."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Recover, Rewind
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, AuditFact, Entry, Run, Wait
from holdfast.core.revision import Revised
from holdfast.stores import revisions as deciding
from holdfast.stores.memory import moves, starts
from holdfast.stores.memory.state import State


def revise(state: State, run: Run, request: Rewind | Recover, now: Micros) -> bool | None:
    """Change the history and the inbox of a run. It waits for nothing until its code has asked again."""
    return deciding.revise(StateBook(state, now), run, request, now)


class StateBook:
    """The state as the book in which histories are changed."""

    def __init__(self, state: State, now: Micros) -> None:
        self._state = state
        self._now = now

    def expect(self, run_ids: Collection[str], *, with_histories: bool = False) -> None:
        self._state.expect(run_ids, with_histories=with_histories)

    def run(self, run_id: str) -> Run | None:
        record = self._state.records.get(run_id)
        return None if record is None else record.run

    def history(self, run_id: str) -> Sequence[Entry]:
        return self._state.records[run_id].history()

    def entry(self, run_id: str, location: str) -> Entry | None:
        record = self._state.records.get(run_id)
        return None if record is None else record.recorded(location)

    def inbox(self, run_id: str) -> Sequence[Arrival]:
        return tuple(self._state.records[run_id].inbox.values())

    def facts(self, run_id: str) -> Sequence[AuditFact]:
        return self._state.records[run_id].audit

    def key_holder(self, key: str) -> str | None:
        return self._state.keys.get(key)

    def seated(self, child: Run) -> int:
        return starts.taken(self._state, child.parent_id, child.group)

    def write(self, revised: Revised, waits: Sequence[Wait]) -> None:
        run, record = revised.run, self._state.records[revised.run.id]
        for location in revised.dropped:
            del record.entries[location]
        record.entries |= {entry.location: entry for entry in revised.reset}
        record.inbox = {arrival.number: arrival for arrival in revised.inbox}
        if record.run.is_held:
            self._state.news.taken.add(run.id)
        moves.move(self._state, record, run, self._now, revised.fact)
        record.waits = tuple(waits)
        for wait in waits:
            heapq.heappush(self._state.parked[wait.names[0]], (wait.after, wait.since, run.id))
        if run.key is not None:
            self._state.keys[run.key] = run.id

    def attach(self, child_id: str, location: str) -> None:
        child = self._state.records[child_id]
        child.run = replace(child.run, parent_location=location)

    def part_with(self, child_id: str) -> None:
        child = self._state.records.get(child_id)
        if child is None:
            return
        if not (child.run.state.is_end or rules.is_parked(child.waits)):
            moves.hand_on_slot(self._state, child.run, self._now)
        child.run = replace(child.run, parent_location=None)
        moves.cancel(self._state, child_id, rules.FORGOTTEN, self._now)
