"""Reads of rows: what an operation must lock and load before it can decide, as values.

Each kind of read belongs to one part of the document that the database gets (`Reads.document`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from holdfast.core import limits
from holdfast.core.checkpoint import Checkpoint, ContinueAsNew, Finish, Hold, StartRollback
from holdfast.core.commands import Command, FireSchedules
from holdfast.core.model import Event, Intent, MessageToRun, Run, WaitKind

FEW_WAITING = 8
"""Number of runs that are loaded of those that wait for events of a queue, besides one for each event."""


class RowRead(msgspec.Struct, frozen=True, gc=False, tag_field="part"):
    """Rows to lock and load. Rows that do not exist are read all the same."""

    is_single: ClassVar[bool] = False
    """True if there is only one read of this kind, so that its part is no list."""


class _SizedRead(RowRead, frozen=True):
    """A read about what its first field names. Of two reads about the same, the larger one answers the other too."""

    @property
    def about(self) -> object:
        return getattr(self, self.__struct_fields__[0])

    @property
    def size(self) -> int:
        """The extent of the read."""
        return 0


class _CountedRead(_SizedRead, frozen=True):
    """The first rows of something."""

    name: str
    count: int

    @property
    def size(self) -> int:
        return self.count


class RunRead(RowRead, tag="runs", frozen=True):
    """A run, with its waits and the events in its inbox."""

    run_id: str


class KeyRead(RowRead, tag="keys", frozen=True):
    """The run that has a key."""

    key: str


class EndingRead(RowRead, tag="endings", frozen=True):
    """A run that may end: its parent, and the descendants that end with it."""

    run_id: str


class ChildrenRead(RowRead, tag="renewals", frozen=True):
    """All live children of a run."""

    parent_id: str


class WaitsRead(RowRead, tag="waits", frozen=True):
    """The waits of a run that was loaded without them, because no arrival can wake it."""

    run_id: str


class EntryRead(RowRead, tag="locations", frozen=True):
    """The entry at a location of a run."""

    run_id: str
    location: str


class ScopeRead(RowRead, tag="scopes", frozen=True):
    """The entries of a scope of a run."""

    run_id: str
    scope: str


class HistoryRead(RowRead, tag="histories", frozen=True):
    """All entries of a run."""

    run_id: str


class InboxRead(_SizedRead, tag="inboxes", frozen=True):
    """The arrivals of a run with numbers above `seen`."""

    run_id: str
    seen: int = 0

    @property
    def size(self) -> int:
        return -self.seen


class ArrivalRead(RowRead, tag="consumed", frozen=True):
    """One arrival of a run."""

    run_id: str
    number: int


class MessageRead(RowRead, tag="messages", frozen=True):
    """A message to a run, named by its id or its key: whether it has arrived before."""

    run_id: str | None
    key: str | None
    id: str


class AuditRead(RowRead, tag="audits", frozen=True):
    """The facts of a run that name a request, or that are noted only once."""

    run_id: str


class TopicRead(_CountedRead, tag="topics", frozen=True):
    """A topic on which a run begins to wait: locked against emits, with its first pending events."""


class TopicRulesRead(RowRead, tag="topics", frozen=True):
    """The rules of all topics."""


class EmitRead(_CountedRead, tag="emitted", frozen=True):
    """A topic on which events are published or passed on: locked, with the runs that wait for its events.

    Of a queue, only the first waiting runs.
    """


class EventRead(RowRead, tag="events", frozen=True):
    """The kept event with an id."""

    topic: str
    id: str


class MissedRead(RowRead, tag="missed", frozen=True):
    """The first open event of a topic after a number that a run may have missed."""

    topic: str
    run_id: str
    after: int


class NumbersRead(_SizedRead, tag="new_events", frozen=True):
    """New numbers for events."""

    is_single = True
    count: int

    @property
    def about(self) -> None:
        return None

    @property
    def size(self) -> int:
        return self.count


class LetterRead(RowRead, tag="letters", frozen=True):
    """A dead letter."""

    number: int


class QueueRead(_CountedRead, tag="groups", frozen=True):
    """The first runs that wait for a slot."""


class TypeRead(RowRead, tag="types", frozen=True):
    """The rule of a type, the window of its rate, and the number of runs that have each of its slots."""

    type: str


class SeatedRead(RowRead, tag="limits", frozen=True):
    """The runs of a type that are held or have slots, and the queues for its slots. Its limits may change."""

    type: str


class LiftedRead(RowRead, tag="lifted", frozen=True):
    """All runs that wait because of limits of a type. They are locked, but not loaded."""

    type: str


class RulingRead(RowRead, tag="is_ruling", frozen=True):
    """The right to change rules of types: claims wait until the transaction ends."""

    is_single = True
    is_ruling: bool = True


class FlowRead(_SizedRead, tag="flows", frozen=True):
    """The registrations of a type."""

    type: str
    has_texts: bool = False

    @property
    def size(self) -> int:
        return int(self.has_texts)


class DueRead(RowRead, tag="due", frozen=True):
    """Due runs of some types: at most `count` of each rank, and at most `suspects` suspects."""

    types: tuple[str, ...]
    count: int
    suspects: int


class ScheduleRead(_SizedRead, tag="schedules", frozen=True):
    """A schedule. With `may_skip` it is not waited for: one that another transaction changes seems not to exist."""

    name: str
    may_skip: bool = False


R = TypeVar("R", bound=RowRead)


class Reads:
    """The reads of one operation. They only grow, so repeating the operation comes to an end."""

    def __init__(self, reads: Iterable[RowRead] = ()) -> None:
        self._kinds: dict[type[RowRead], dict[object, RowRead]] = {}
        self.add(reads)

    def add(self, reads: Iterable[RowRead]) -> None:
        for read in reads:
            known = self._kinds.setdefault(type(read), {})
            if not isinstance(read, _SizedRead):
                known[read] = read
            elif read not in self:
                known[read.about] = read

    def __contains__(self, read: RowRead) -> bool:
        known = self._kinds.get(type(read), {})
        if not isinstance(read, _SizedRead):
            return read in known
        found = known.get(read.about)
        return isinstance(found, _SizedRead) and found.size >= read.size

    def of(self, kind: type[R]) -> Sequence[R]:
        """Return all reads of one kind."""
        return cast("Sequence[R]", [*self._kinds.get(kind, {}).values()])

    def document(self) -> dict[str, Any]:
        """Return the reads by their parts. A read with one field is the value of that field.

        A part that nothing was asked of is left out. A read without fields only asks for its part.
        """
        parts: dict[str, Any] = {}
        for kind, known in self._kinds.items():
            part, fields = str(kind.__struct_config__.tag), kind.__struct_fields__
            items = [getattr(read, fields[0]) for read in known.values()] if len(fields) == 1 else [*known.values()]
            if kind.is_single:
                (parts[part],) = items
            else:
                parts.setdefault(part, []).extend(items if fields else ())
        return parts


# What is read at first


def reads_for(command: Command[Any]) -> Iterator[RowRead]:
    """Yield the reads that a command needs at first. The operation asks for the rest."""
    needs = command.needs()
    yield from map(RunRead, (*needs.runs, *needs.endings, *needs.histories))
    yield from map(EndingRead, needs.endings)
    yield from map(HistoryRead, needs.histories)
    yield from map(AuditRead, needs.audits)
    yield from map(InboxRead, needs.inboxes)
    yield from for_messages(needs.messages)
    yield from for_events(needs.events)
    yield from map(TypeRead, needs.types)
    yield from map(FlowRead, needs.flows)
    yield from map(LetterRead, needs.letters)
    if needs.letters:
        yield TopicRulesRead()
    # A firing skips schedules that another process is changing. The other commands wait for their turn.
    yield from (ScheduleRead(name, isinstance(command, FireSchedules)) for name in needs.schedules)
    if needs.is_ruling:
        yield RulingRead()


def for_messages(messages: Iterable[MessageToRun]) -> Iterator[RowRead]:
    for message in messages:
        if message.key is not None:
            yield KeyRead(message.key)
            yield MessageRead(None, message.key, message.id)
        elif message.run_id is not None:
            yield RunRead(message.run_id)
            yield MessageRead(message.run_id, None, message.id)


def for_events(events: Sequence[Event]) -> Iterator[RowRead]:
    for topic, count in Counter(event.topic for event in events).items():
        yield EmitRead(topic, count + FEW_WAITING)
        yield TopicRead(topic, 1)
    yield from (EventRead(event.topic, event.id) for event in events)
    if events:
        yield NumbersRead(len(events))


def for_intents(intents: Iterable[Intent]) -> Iterator[RowRead]:
    for intent in intents:
        yield RunRead(intent.id)
        if intent.key is not None:
            yield KeyRead(intent.key)


def to_reopen(run_ids: Iterable[str]) -> Iterator[RowRead]:
    """Yield the reads for runs that may be reopened: their histories, and the requests made on them."""
    for run_id in run_ids:
        yield from (RunRead(run_id), HistoryRead(run_id), AuditRead(run_id))


def to_leave(type: str, runs: Iterable[Run]) -> Iterator[RowRead]:
    """Yield the run that may get each slot that runs of a type free, and the run behind it, which is examined next."""
    yield TypeRead(type)
    freed = Counter(slot for run in runs for slot in {*_shared(type), *run.slots})
    yield from (QueueRead(slot, 1 + count) for slot, count in freed.items())


def to_serve(type: str, count: int) -> Iterator[RowRead]:
    """Yield the first runs in the queues for the slots that all runs of a type share."""
    yield TypeRead(type)
    yield from (QueueRead(slot, 1 + count) for slot in _shared(type))


def _shared(type: str) -> tuple[str, str]:
    return limits.type_slot(type), limits.rate_slot(type)


def for_checkpoints(batch: Sequence[Checkpoint], held: Iterable[Run | None]) -> Iterator[RowRead]:
    """Yield the reads for checkpoints. `held` are their runs, as far as the store remembers them."""
    ending: Counter[str] = Counter()
    leaving: dict[str, list[Run]] = {}
    for checkpoint, run in zip(batch, held, strict=True):
        yield from _for_checkpoint(checkpoint)
        if run is not None and run.group is not None and isinstance(checkpoint.next, Finish):
            ending[run.group] += 1
        if run is not None and run.slots and not isinstance(checkpoint.next, Hold):
            leaving.setdefault(run.type, []).append(run)
    yield from for_events([event for checkpoint in batch for event in checkpoint.events])
    waits = [wait for checkpoint in batch for wait in checkpoint.waits or () if wait.kind is WaitKind.EVENT]
    for topic, count in Counter(wait.names[0] for wait in waits).items():
        yield TopicRead(topic, count + 1)
    yield from (QueueRead(group, count) for group, count in ending.items())
    for type, runs in leaving.items():
        yield from to_leave(type, runs)


def _for_checkpoint(checkpoint: Checkpoint) -> Iterator[RowRead]:
    run_id = checkpoint.run_id
    yield RunRead(run_id)
    yield InboxRead(run_id, 0 if isinstance(checkpoint.next, ContinueAsNew) else checkpoint.seen)
    yield from (EntryRead(run_id, entry.location) for entry in checkpoint.entries)
    yield from (ScopeRead(run_id, scope) for scope in checkpoint.pruned)
    yield from (ArrivalRead(run_id, number) for number in checkpoint.consumed)
    for wait in checkpoint.waits or ():
        if wait.kind is WaitKind.EVENT:
            yield MissedRead(wait.names[0], run_id, wait.after)
    yield from for_intents(checkpoint.children)
    yield from for_messages(checkpoint.messages)
    for ending in checkpoint.cancels:
        yield from (RunRead(ending), EndingRead(ending))
    if checkpoint.beat:
        yield AuditRead(run_id)
    if isinstance(checkpoint.next, (Finish, StartRollback, ContinueAsNew)):
        yield EndingRead(run_id)
    if isinstance(checkpoint.next, ContinueAsNew):
        yield ChildrenRead(run_id)
