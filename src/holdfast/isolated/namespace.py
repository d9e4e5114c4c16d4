"""The namespace of one run: its state in memory, on which the operations of every store decide, and what changed.

The difference to what is stored becomes one batch. Children are stubs in this state: what happens to a stub leaves
through the outbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Checkpoint, LeaseRequest, Verdict
from holdfast.core.clock import Micros
from holdfast.core.model import EVENT_RETENTION, RECEIPT_RETENTION, Arrival, AuditFact, Entry, Intent, Lease, Run
from holdfast.core.news import News
from holdfast.core.states import RunState
from holdfast.isolated import layout
from holdfast.isolated.driver import CheckedDriver
from holdfast.isolated.layout import ChildStub, EventValue, NamespaceHeader, Seal, encode, pack, split
from holdfast.isolated.loading import Contents
from holdfast.isolated.mail import (
    OutboxItem,
    accept,
    cancel_of,
    emit_of,
    reply_of,
    send_of,
    start_of,
    undelivered_of,
)
from holdfast.stores.memory.state import Published, Record, State
from holdfast.stores.memory.unit_of_work import StateAudit, StateUnit
from holdfast.stores.operations import checkpoints, leases, starts

Pairs = list[tuple[bytes, bytes | None]]


class NoAudit(StateAudit):
    """Keeps no audit: a host has its own log, and an audit would grow with the run."""

    def note(self, fact: AuditFact | None) -> None: ...

    def note_once(self, fact: AuditFact, count: int = 1) -> None: ...


class Namespace:
    """The state of one run, loaded from its namespace. `changes` is what a batch has to write."""

    def __init__(self, run_id: str, contents: Contents) -> None:
        self._id = run_id
        self._mail = contents.mail
        self._registry = contents.registry
        self._seal = contents.seal
        self._stubs = contents.children
        self._intents = {child.intent.id: child.intent for child in contents.children.values()}
        self._next_item = contents.seal.outbox
        self.outbox = contents.outbox
        """The items that the host has not delivered, by number."""
        self._state = State()
        self._unit = StateUnit(self._state)
        self._unit.audit = NoAudit(self._state)
        self._run: Run | None = contents.run
        self._waits = contents.waits
        self._values = contents.values
        self._pending: Pairs = []
        self._entries: Tracked[str, Entry] = Tracked(contents.entries)
        self._inbox: Tracked[int, Arrival] = Tracked(contents.inbox)
        self._receipts: Tracked[str, Micros] = Tracked(contents.receipts)
        if contents.run is not None:
            self._keep(contents.run, contents)

    def _keep(self, run: Run, contents: Contents) -> None:
        self._state.records[run.id] = Record(run, waits=contents.waits, values=dict(contents.values))
        self._track()
        self._state.event_count = contents.seal.events
        for number, kept in contents.events.items():
            self._state.events[kept.event.topic].append(Published(number, kept.event, kept.at))
        for child in contents.children.values():
            intent = replace(child.intent, is_parked=not child.is_started)
            stub = rules.new_run(intent, child.created_at)
            self._unit.runs.add([stub])
            if intent.is_parked:
                self._unit.waits.put(stub.id, (rules.parking(stub),))

    def _track(self) -> None:
        """Let the record of the run note its changes."""
        record = self._record
        record.entries, record.inbox, record.receipts = self._entries, self._inbox, self._receipts

    @property
    def exists(self) -> bool:
        """True if the run has been created."""
        return self._id in self._state.records

    @property
    def run(self) -> Run:
        return self._state.records[self._id].run

    @property
    def _record(self) -> Record:
        return self._state.records[self._id]

    # Deciding

    def create(self, intent: Intent, now: Micros) -> None:
        """Create the run."""
        starts.create(self._unit, [intent], None, now)
        self._track()
        header = NamespaceHeader(schema=layout.SCHEMA, run_id=self._id)
        self._pending += [(layout.HEADER, encode(header)), (layout.INPUT, encode(intent.payload))]

    def accept(self, now: Micros) -> None:
        """Accept the mail of the host, and forget receipts and events that have expired."""
        for key, mail in self._mail.items():
            accept(self._unit, self._id, mail, now)
            self._pending.append((key, None))
        self._mail = {}
        if self._pending:
            self._forget_expired(now)

    def claim(self, by: LeaseRequest, now: Micros) -> Lease:
        """Lease the run. A run that is still held was left by a crash, which the lease counts."""
        return leases.lease(self._unit, self.run, by, now)

    def write(self, checkpoint: Checkpoint, now: Micros) -> Verdict:
        """Apply a checkpoint by the rules of every store. What concerns other runs goes into the outbox."""
        away: tuple[OutboxItem, ...] = ()
        if checkpoint.messages or checkpoint.events or checkpoint.replies or checkpoint.children:
            self._intents |= {child.id: child for child in checkpoint.children}
            sends = (send_of(message) for message in checkpoint.messages if message.run_id != self._id)
            away = (*sends, *map(emit_of, checkpoint.events), *map(reply_of, checkpoint.replies))
            own = tuple(message for message in checkpoint.messages if message.run_id == self._id)
            checkpoint = replace(checkpoint, messages=own, replies=())
        verdict = checkpoints.write_one(self._unit, checkpoint, now)
        if away:
            self._settle_children(self.run)  # first, because a message may be for a child that starts now
            for item in away:
                self._put(item)
        return verdict

    def _forget_expired(self, now: Micros) -> None:
        receipts = self._receipts
        for id in [id for id, at in receipts.items() if at <= now - RECEIPT_RETENTION]:
            receipts.pop(id)
        for kept in self._state.events.values():
            for event in [one for one in kept if one.at <= now - EVENT_RETENTION]:
                kept.remove(event)
                self._pending.append((pack((layout.EVENTS, event.number)), None))

    def _put(self, item: OutboxItem) -> None:
        number, self._next_item = self._next_item, self._next_item + 1
        self.outbox[number] = item
        self._pending.append((pack((layout.OUTBOX, number)), encode(item)))

    # Writing

    async def commit(self, driver: CheckedDriver) -> None:
        """Write everything that has changed as one batch. If nothing has changed, write nothing."""
        writes = self._changes()
        if not writes:
            return
        entries = len(self._entries)
        revision = self._seal.revision + 1
        self._seal = Seal(revision, len(self._registry.names), entries, self._state.event_count, self._next_item)
        seal = encode(self._seal)
        # First and last: if a driver writes only a part of the batch, the two differ.
        await driver.batch([(layout.OPENING, seal), *writes, (layout.SEAL, seal)], layout.SEAL)

    def _changes(self) -> Pairs:
        """Return what has changed since the last batch, and count it as written."""
        record, run = self._record, self._record.run
        if self._state.news.hint() is not None or run is not self._run:
            self._state.news = News()
            self._settle_children(run)
        writes, self._pending = self._pending, []
        if run is not self._run:
            writes += self._run_changes(run)
            self._run = run
        if self._entries.dirty:
            writes += self._entry_changes()
        if self._inbox.dirty or self._receipts.dirty:
            writes += self._inbox_changes()
        if record.waits is not self._waits:
            self._waits = record.waits
            writes.append((layout.WAITS, encode(record.waits) if record.waits else None))
        if record.values != self._values:
            self._values = dict(record.values)
            writes.append((layout.VALUES, encode(self._values)))
        if self._state.event_count > self._seal.events:
            for kept in chain.from_iterable(self._state.events.values()):
                if kept.number > self._seal.events:
                    value = EventValue(event=kept.event, at=kept.at)
                    writes.append((pack((layout.EVENTS, kept.number)), encode(value)))
        return writes

    def _run_changes(self, run: Run) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the changed parts of the run. Those that may be large have keys of their own."""
        before = self._run
        yield layout.STATE, encode(replace(run, payload="", result=None, error=None, continued=None))
        if run.result is not None and (before is None or before.result is not run.result):
            yield layout.RESULT, encode(run.result)
        if run.error is not (None if before is None else before.error):
            yield layout.ERROR, None if run.error is None else encode(run.error)
        if run.continued is not None and (before is None or before.continued is not run.continued):
            yield layout.CONTINUED, encode(run.continued)

    def _entry_changes(self) -> Pairs:
        entries, names = self._entries, self._registry
        writes: Pairs = []
        known = len(names.names)
        for location in entries.dirty:
            history_key, metadata_key = names.keys_of(location)
            entry = entries.get(location)
            history, metadata = (None, None) if entry is None else split(entry)
            writes += [(history_key, history), (metadata_key, metadata)]
        entries.dirty = {}
        for index in range(known, len(names.names)):
            writes.append((pack((layout.NAMES, index)), names.names[index].encode()))
        return writes

    def _inbox_changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        inbox, receipts = self._inbox, self._receipts
        for number in inbox.dirty:
            arrival = inbox.get(number)
            yield pack((layout.MESSAGES, number)), None if arrival is None else encode(arrival)
        for id in receipts.dirty:
            at = receipts.get(id)
            yield pack((layout.WORKFLOW, layout.RECEIPTS, id)), None if at is None else encode(at)
        inbox.dirty, receipts.dirty = {}, {}

    # Children

    def _settle_children(self, run: Run) -> None:
        """Turn what happened to the stubs of children into items of the outbox, and forget those that are over."""
        is_past = run.state.is_end or (self._run is not None and run.generation > self._run.generation)
        for child_id in list(self._state.children.get(self._id, ())):
            child = self._state.records[child_id].run
            stub = self._stubs.get(child_id)
            was_started = stub is not None and stub.is_started
            # A child that is cancelled before it starts exists on every store, so the host gets both items.
            is_started = was_started or child.ready_at is not None or child.state.is_end
            if is_started and not was_started:
                self._put(start_of(replace(self._intents[child_id], is_parked=False, limit=None)))
            if child.state is RunState.CANCELLED and child.token > 0:
                # Only `rules.cancelled` raises the token of a stub; an end that the host has reported does not.
                self._put(cancel_of(child_id, "" if child.error is None else child.error.message))
            if child.state.is_end or is_past:
                self._forget_child(child_id, is_stored=stub is not None)
            elif stub is None or is_started != was_started:
                stub = ChildStub(intent=self._intents[child_id], created_at=child.created_at, is_started=is_started)
                self._stubs[child_id] = stub
                self._pending.append((pack((layout.CHILDREN, child_id)), encode(stub)))
        for letter in self._state.letters.values():
            self._put(undelivered_of(letter))
        self._state.letters.clear()

    def _forget_child(self, child_id: str, *, is_stored: bool) -> None:
        self._state.children[self._id].remove(child_id)
        del self._state.records[child_id]
        self._intents.pop(child_id, None)
        if is_stored:
            del self._stubs[child_id]
            self._pending.append((pack((layout.CHILDREN, child_id)), None))


K = TypeVar("K")
V = TypeVar("V")


class Tracked(dict[K, V]):
    """A dictionary of stored values by key. `dirty` are the keys that were set or removed since the last batch."""

    __slots__ = ("dirty",)

    def __init__(self, values: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        super().__init__(values)
        self.dirty: dict[K, None] = {}
        """The changed keys, in the order of the changes."""

    def __setitem__(self, key: K, value: V) -> None:
        self.dirty[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self.dirty[key] = None
        super().__delitem__(key)

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            self.dirty[key] = None
        return super().pop(key, *default)

    def clear(self) -> None:
        self.dirty |= dict.fromkeys(self)
        super().clear()

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # `dict` declares overloads
        changed = dict(other)
        self.dirty |= dict.fromkeys(changed)
        self.update(changed)
        return self
