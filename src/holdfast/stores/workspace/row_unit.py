"""A unit of work on loaded rows: each read is named first, and then answered as the memory store answers it.

A method that is not here only writes, or reads a run that was read before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.core import limits
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Run, Wait
from holdfast.stores.memory.state import Published, Record
from holdfast.stores.memory.unit_of_work import (
    StateAudit,
    StateDeadLetters,
    StateEvents,
    StateFamilies,
    StateFlows,
    StateHistories,
    StateInboxes,
    StateLimits,
    StateRuns,
    StateSchedules,
    StateTypes,
    StateUnit,
    StateWaits,
)
from holdfast.stores.workspace import reads
from holdfast.stores.workspace.reads import FEW_WAITING, RowRead
from holdfast.stores.workspace.rows import RowWorkspace

P = ParamSpec("P")
T = TypeVar("T")


def reading(
    method: Callable[Concatenate[Any, P], T], reads_of: Callable[P, Iterable[RowRead]]
) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a part of the memory store for loaded rows: it names its reads before it is answered."""

    def answered(self: Any, /, *args: P.args, **options: P.kwargs) -> T:
        self._state.expect(reads_of(*args, **options))
        return method(self, *args, **options)

    return answered


def one(kind: Callable[P, RowRead]) -> Callable[P, Iterable[RowRead]]:
    """Return the only read of a method whose arguments are the fields of the read."""
    return lambda *args, **options: (kind(*args, **options),)


class RowUnit(StateUnit):
    """All parts of loaded rows, as a unit of work."""

    def __init__(self, rows: RowWorkspace) -> None:
        super().__init__(rows)
        self.rows = rows
        self.runs = RowRuns(rows)
        self.families = RowFamilies(rows)
        self.histories = RowHistories(rows)
        self.waits = RowWaits(rows)
        self.inboxes = RowInboxes(rows)
        self.events = RowEvents(rows)
        self.dead_letters = RowDeadLetters(rows)
        self.types = RowTypes(rows)
        self.flows = RowFlows(rows)
        self.limits = RowLimits(rows)
        self.schedules = RowSchedules(rows)
        self.audit = RowAudit(rows)


class RowRuns(StateRuns):
    """Runs, by id and by key."""

    _state: RowWorkspace

    get = reading(StateRuns.get, one(reads.RunRead))
    whole = get
    existing = reading(StateRuns.existing, lambda run_ids: map(reads.RunRead, run_ids))
    fences = reading(StateRuns.fences, lambda run_ids: map(reads.RunRead, run_ids))
    with_key = reading(StateRuns.with_key, one(reads.KeyRead))
    expect = reading(
        StateRuns.expect,
        lambda run_ids, *, with_histories=False: (
            reads.to_reopen(run_ids) if with_histories else map(reads.RunRead, run_ids)
        ),
    )

    def holding(self, keys: Sequence[str]) -> dict[str, Run]:
        self._state.expect(map(reads.KeyRead, keys))
        self.expect([run_id for key in keys if (run_id := self._state.keys.get(key)) is not None])
        return super().holding(keys)


class RowFamilies(StateFamilies):
    """Children, by their parent."""

    _state: RowWorkspace

    to_cancel = reading(StateFamilies.to_cancel, lambda parent_id: [reads.EndingRead(parent_id)])
    detach = reading(StateFamilies.detach, one(reads.ChildrenRead))
    parked = reading(StateFamilies.parked, one(reads.ChildrenRead))
    seated = reading(StateFamilies.seated, lambda parent_id, *_, **__: [reads.ChildrenRead(parent_id or "")])

    def children_of(self, parent_id: str) -> Iterator[Record]:
        known = self._state.children.get(parent_id, ())
        self._state.expect(map(reads.RunRead, known))
        self._state.expect_waits(known)
        return super().children_of(parent_id)


class RowHistories(StateHistories):
    """The entries of runs."""

    _state: RowWorkspace

    entry = reading(
        StateHistories.entry, lambda run_id, location: [reads.RunRead(run_id), reads.EntryRead(run_id, location)]
    )
    all = reading(StateHistories.all, one(reads.HistoryRead))
    leased = reading(StateHistories.leased, one(reads.HistoryRead))
    try_record = reading(
        StateHistories.try_record, lambda run_id, token, entry: [reads.EntryRead(run_id, entry.location)]
    )
    drop = reading(StateHistories.drop, lambda run_id, locations: [reads.EntryRead(run_id, one) for one in locations])
    prune = reading(StateHistories.prune, one(reads.ScopeRead))

    def clear(self, run_id: str) -> None:
        self._state.cleared.add(run_id)
        super().clear(run_id)

    def forget(self, run_id: str, before: int) -> None:
        # The database deletes the entries, so they need not be loaded.
        self._state.forgotten[run_id] = max(before, self._state.forgotten.get(run_id, 0))
        super().forget(run_id, before)

    def has_undo(self, run_id: str) -> bool:
        return super().has_undo(run_id) or (not self._is_whole(run_id) and self._state.undo_before[run_id][0])

    def last_position(self, run_id: str) -> int:
        if self._is_whole(run_id):
            return super().last_position(run_id)
        if not self._state.origins_of_runs[run_id].entries.keys() <= self._state.records[run_id].entries.keys():
            self._state.expect([reads.HistoryRead(run_id)])  # the dropped entry may have had the last position
        return max(super().last_position(run_id), self._state.undo_before[run_id][1])

    def _is_whole(self, run_id: str) -> bool:
        """Return True if all entries are known. If not, `undo_before` has what the end of a run reads of them."""
        is_whole = self._state.is_history_known(run_id)
        if not is_whole and run_id not in self._state.undo_before:
            self._state.expect([reads.EndingRead(run_id)])
        return is_whole


class RowWaits(StateWaits):
    """The waits of runs."""

    _state: RowWorkspace

    for_event = reading(StateWaits.for_event, lambda topic: [reads.EmitRead(topic, FEW_WAITING)])

    def of(self, run_id: str) -> Sequence[Wait]:
        self._state.expect_waits([run_id])
        return super().of(run_id)

    def put(self, run_id: str, waits: Sequence[Wait]) -> None:
        self._state.expect_waits([run_id])
        super().put(run_id, waits)

    def first(self, queue: str, location: str) -> str | None:
        self._state.expect_queue(queue)
        run_id = super().first(queue, location)
        self._state.expect_place(queue, None if run_id is None else self._state.parked[queue][0])
        return run_id

    def first_at(self, queue: str, level: int) -> str | None:
        self._state.expect_queue(queue)
        run_id = super().first_at(queue, level)
        places = (place for place in self._state.parked[queue] if place[0] == level and place[2] == run_id)
        self._state.expect_place(queue, min(places, default=None), level)
        return run_id

    def in_line(self, topic: str) -> Iterable[tuple[str, Wait]]:
        self._state.expect_waits(self._state.records)
        yield from super().in_line(topic)
        if topic in self._state.loaded.crowded:
            self._state.expect(reads.EmitRead(topic, 4 * one.count) for one in self._reads_of(topic))

    def _reads_of(self, topic: str) -> list[reads.EmitRead]:
        return [read for read in self._state.reads.of(reads.EmitRead) if read.name == topic]


class RowInboxes(StateInboxes):
    """Unread arrivals of runs, receipts of received messages, and replies. The events in inboxes are always loaded."""

    _state: RowWorkspace

    newer = reading(
        StateInboxes.newer, lambda run, seen: [reads.InboxRead(run.id, seen)] if run.arrivals > seen else ()
    )
    take = reading(StateInboxes.take, one(reads.ArrivalRead))
    messages = reading(StateInboxes.messages, lambda run: [reads.InboxRead(run.id)])
    has_end_of = reading(StateInboxes.has_end_of, lambda run, *_, **__: [reads.InboxRead(run.id)])

    def clear(self, run: Run) -> None:
        self._state.emptied.add(run.id)
        super().clear(run)

    def knows_message(self, run: Run, message_id: str, now: Micros) -> bool:
        if reads.MessageRead(None, run.key, message_id) not in self._state.reads:
            self._state.expect([reads.MessageRead(run.id, None, message_id)])
        return super().knows_message(run, message_id, now)


def _alone(topic: str) -> tuple[RowRead, ...]:
    """Return the reads of a topic in which only this operation may decide."""
    return reads.EmitRead(topic, FEW_WAITING), reads.TopicRead(topic, 1)


class RowEvents(StateEvents):
    """Topics and kept events. Only one operation at a time decides over the events of a queue."""

    _state: RowWorkspace

    topics = reading(StateEvents.topics, lambda: [reads.TopicRulesRead()])
    drop = reading(StateEvents.drop, lambda topic, *_, **__: _alone(topic))
    add = reading(StateEvents.add, lambda event, *_, **__: _alone(event.topic))
    keep = reading(StateEvents.keep, lambda event: [reads.TopicRead(event.topic, 0)])
    hand = reading(StateEvents.hand, lambda arrival, *_, **__: _alone(arrival.name))
    take = reading(StateEvents.take, lambda topic, *_, **__: _alone(topic))
    give_back = reading(StateEvents.give_back, lambda arrival: _alone(arrival.name))

    def find(self, topic: str, id: str) -> Published | None:
        # A topic of which nothing was read is one on which an event is going to be published.
        is_locked = self._state.is_known(reads.TopicRead(topic, 0))
        self._state.expect([reads.EventRead(topic, id), *(() if is_locked else _alone(topic))])
        return super().find(topic, id)

    def first_missed(self, run_id: str, topic: str, oldest: Micros, after: int) -> Arrival | None:
        self._state.expect([reads.TopicRead(topic, 0), reads.MissedRead(topic, run_id, after)])
        return super().first_missed(run_id, topic, oldest, after)

    def first_pending(self, topic: str) -> Arrival | None:
        found = super().first_pending(topic)
        loaded = sum(row.topic == topic and row.state == "pending" for row in self._state.loaded.events)
        # A pending event is handed to a run. If there is none, all that were loaded may have been handed to others.
        self._state.expect(_alone(topic) if found is not None else [reads.TopicRead(topic, loaded and loaded + 1)])
        return found


class RowDeadLetters(StateDeadLetters):
    """Dead letters, by number."""

    _state: RowWorkspace

    get = reading(StateDeadLetters.get, one(reads.LetterRead))
    remove = reading(StateDeadLetters.remove, one(reads.LetterRead))


class RowTypes(StateTypes):
    """The rules of types, by name."""

    _state: RowWorkspace

    get = reading(StateTypes.get, one(reads.TypeRead))
    is_ruled = reading(StateTypes.is_ruled, one(reads.TypeRead))


class RowFlows(StateFlows):
    """Registrations of flows, by type and time."""

    _state: RowWorkspace

    of = reading(StateFlows.of, one(reads.FlowRead))
    whole = reading(StateFlows.whole, lambda definition: [reads.FlowRead(definition.type, has_texts=True)])


class RowLimits(StateLimits):
    """Slots of limits, by name. Most of the runs that have slots are only counted."""

    _state: RowWorkspace

    rule = reading(StateLimits.rule, one(reads.TypeRead))
    window = reading(StateLimits.window, one(reads.TypeRead))
    counted = reading(StateLimits.counted, one(reads.SeatedRead))

    def taken(self, slot: str) -> int:
        self._state.expect([reads.TypeRead(limits.type_of(slot))])
        return self._state.taken.get(slot, 0)

    def key_queues(self, type: str) -> Sequence[str]:
        self._state.expect([reads.SeatedRead(type)])
        self._state.expect_waits(self._state.records)
        stored = (queue for queue in self._state.loaded.queues if limits.is_of(queue, type))
        queues = sorted({*super().key_queues(type), *stored})
        self._state.expect_queue(*queues)
        return queues

    def release_all(self, type: str, now: Micros) -> None:
        self._state.expect([reads.LiftedRead(type)])
        self._state.expect_waits(self._state.records)
        super().release_all(type, now)
        self._state.lifted.add(type)

    def put(self, run: Run) -> None:
        taken, record = self._state.taken, self._state.records[run.id]
        for slot in record.run.slots:
            taken[slot] -= 1
        for slot in run.slots:
            taken[slot] = taken.get(slot, 0) + 1
        self._state.put_run(record, run)


class RowSchedules(StateSchedules):
    """Schedules, by name."""

    _state: RowWorkspace

    get = reading(StateSchedules.get, one(reads.ScheduleRead))
    remove = reading(StateSchedules.remove, one(reads.ScheduleRead))


class RowAudit(StateAudit):
    """The audit facts of runs. Not all of them are loaded: only those that a decision depends on."""

    _state: RowWorkspace

    note_once = reading(StateAudit.note_once, lambda fact, *_, **__: [reads.AuditRead(fact.run_id)])
    has_request = reading(StateAudit.has_request, lambda run_id, *_, **__: [reads.AuditRead(run_id)])
    requests = reading(StateAudit.requests, one(reads.AuditRead))
    all = requests
