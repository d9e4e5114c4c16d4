"""Wishes: all that an operation has to know, and lock, before it can decide anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.core import limits
from holdfast.core.checkpoint import (
    Cancel,
    Checkpoint,
    Control,
    Delete,
    Finish,
    Fork,
    Recover,
    Renew,
    Rewind,
    TurnAround,
)
from holdfast.core.model import Event, Intent, Message, Run, WaitKind
from holdfast.stores.postgres.topics import bucket, classid


class Unknown(Exception):
    """Something that an operation wants to know was not loaded. `wish` is the field of `Wishes` it belongs to."""

    def __init__(self, wish: str, *what: Any) -> None:
        super().__init__(wish, what)
        self.wish = wish
        self.what = what


class Due(msgspec.Struct, frozen=True):
    """The wish for runs of some types that may be claimed: how many at most, and how many of them suspects."""

    types: tuple[str, ...]
    count: int
    suspects: int


@dataclass
class Wishes:
    """What to lock and to load. It only grows, so an operation that is done again with more ends at last.

    `emitted` are topics on which events may be published or handed on, `awaited` those somebody begins to wait for.
    `groups` and `waiting` say how many are wanted of those who wait for a slot, or for an event of a queue.
    `types` are those whose rules and slots are asked for, `limits` those whose limits may become others, `lifted`
    those that have none any more; `is_ruling`: whoever wants to claim something waits meanwhile.
    """

    runs: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    endings: set[str] = field(default_factory=set)
    renewals: set[str] = field(default_factory=set)
    emitted: set[str] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)
    groups: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    locations: set[tuple[str, str]] = field(default_factory=set)
    scopes: set[tuple[str, str]] = field(default_factory=set)
    histories: set[str] = field(default_factory=set)
    waits: set[str] = field(default_factory=set)
    inboxes: dict[str, int] = field(default_factory=dict)
    consumed: set[tuple[str, int]] = field(default_factory=set)
    messages: set[tuple[str | None, str | None, str]] = field(default_factory=set)
    audits: set[str] = field(default_factory=set)
    events: set[tuple[str, str]] = field(default_factory=set)
    missed: set[tuple[str, str, int]] = field(default_factory=set)
    letters: set[int] = field(default_factory=set)
    new_events: int = 0
    types: set[str] = field(default_factory=set)
    limits: set[str] = field(default_factory=set)
    lifted: set[str] = field(default_factory=set)
    is_ruling: bool = False
    due: set[Due] = field(default_factory=set)

    # Growing

    def add(self, unknown: Unknown) -> None:
        """Wish for what turned out to be missing."""
        match unknown.wish, unknown.what:
            case "inboxes", (run_id, seen):
                self.inboxes[run_id] = min(seen, self.inboxes.get(run_id, seen))
            case "groups", queues:
                self._want_more_waiting(queues)
            case "waiting", (topic,):
                self.waiting[topic] = self.waiting[topic] * 4 + 32
            case "types", (type, *runs):
                self.types.add(type)
                for run in runs:
                    self.leave(run)
            case ("many_runs" | "many_histories") as wish, runs:
                self.runs.update(runs)
                self.reopened(runs if wish == "many_histories" else ())
            case "new_events", ():
                self.new_events = self.new_events * 2 + 4
            case wish, (one,):
                getattr(self, wish).add(one)
            case wish, several:
                getattr(self, wish).add(several)

    def _want_more_waiting(self, queues: Sequence[str]) -> None:
        """A change of limits may let very many go, from as many queues as there are keys: all of them at once then."""
        is_known = any(queue in self.groups for queue in queues)
        for queue in {*self.groups, *queues} if self.is_ruling and is_known else queues:
            self.groups[queue] = self.groups[queue] * (8 if self.is_ruling else 2) + (4 if self.is_ruling else 8)

    def intents(self, intents: Iterable[Intent]) -> None:
        for intent in intents:
            self.runs.add(intent.id)
            if intent.key is not None:
                self.keys.add(intent.key)

    def send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.key is not None:
                self.keys.add(message.key)
                self.messages.add((None, message.key, message.id))
            elif message.run_id is not None:
                self.runs.add(message.run_id)
                self.messages.add((message.run_id, None, message.id))

    def emit(self, events: Sequence[Event]) -> None:
        self.emitted.update(event.topic for event in events)
        self.events.update((event.topic, event.id) for event in events)
        self.new_events += len(events)
        self.waiting.update(event.topic for event in events)

    def control(self, run_id: str, request: Control) -> None:
        self.runs.add(run_id)
        self.audits.add(run_id)
        match request:
            case Cancel() | Delete():
                self.endings.add(run_id)
            case Rewind() | Recover():
                self.histories.add(run_id)
                self.inboxes[run_id] = 0
            case Fork():
                self.runs.add(request.run_id)
                self.histories.add(run_id)
            case _:
                pass

    def reopened(self, run_ids: Iterable[str]) -> None:
        """Runs that may be reopened, with their histories and what was asked of them."""
        known = set(run_ids)
        self.runs |= known
        self.histories |= known
        self.audits |= known

    def leave(self, run: Run) -> None:
        """A run may give back its slots: each goes to the next who waits, and then the one after that is looked at."""
        self.types.add(run.type)
        self.serve(run.type, 1, run.slots)

    def serve(self, type: str, count: int, slots: Iterable[str] = ()) -> None:
        """So many of those may go who wait for slots of a type, and as many for those of its keys."""
        for queue in {limits.type_slot(type), limits.rate_slot(type), *slots}:
            self.groups[queue] = max(1, self.groups[queue]) + count

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        run_id = checkpoint.run_id
        self.runs.add(run_id)
        self.inboxes[run_id] = min(checkpoint.seen, self.inboxes.get(run_id, checkpoint.seen))
        self.locations.update((run_id, entry.location) for entry in checkpoint.entries)
        self.scopes.update((run_id, scope) for scope in checkpoint.pruned)
        self.consumed.update((run_id, number) for number in checkpoint.consumed)
        for wait in checkpoint.waits or ():
            if wait.kind is WaitKind.EVENT:
                (topic,) = wait.names
                self.awaited.add(topic)
                self.missed.add((topic, run_id, wait.after))
        self.intents(checkpoint.children)
        self.send(checkpoint.messages)
        self.emit(checkpoint.events)
        self.runs.update(checkpoint.cancels)
        self.endings.update(checkpoint.cancels)
        if checkpoint.beat:
            self.audits.add(run_id)
        if isinstance(checkpoint.next, (Finish, TurnAround, Renew)):
            self.endings.add(run_id)
        if isinstance(checkpoint.next, Renew):
            self.renewals.add(run_id)
            self.inboxes[run_id] = 0

    # Telling

    def document(self, schema: str) -> str:
        """The wishes as the function that loads takes them. What is empty is left out, and costs nothing."""
        pending = Counter(topic for topic, _, _ in self.missed)
        topics = self.emitted | self.awaited
        wanted: dict[str, Any] = {
            "buckets": self._buckets(schema),
            "runs": sorted(self.runs),
            "keys": sorted(self.keys),
            "endings": sorted(self.endings),
            "renewals": sorted(self.renewals),
            "emitted": [{"name": topic, "count": self.waiting[topic] + 8} for topic in sorted(self.emitted)],
            "groups": [{"name": name, "count": count} for name, count in self.groups.items()],
            "locations": [{"run_id": run_id, "location": location} for run_id, location in self.locations],
            "scopes": [{"run_id": run_id, "scope": scope} for run_id, scope in self.scopes],
            "histories": sorted(self.histories),
            "waits": sorted(self.waits),
            "inboxes": [{"run_id": run_id, "seen": seen} for run_id, seen in self.inboxes.items()],
            "consumed": [{"run_id": run_id, "number": number} for run_id, number in self.consumed],
            "messages": [{"run_id": run_id, "key": key, "id": id} for run_id, key, id in self.messages],
            "audits": sorted(self.audits),
            "events": [{"topic": topic, "id": id} for topic, id in self.events],
            "missed": [{"topic": topic, "run_id": run_id, "after": after} for topic, run_id, after in self.missed],
            "topics": [{"name": topic, "count": pending[topic] + 1} for topic in topics],
            "letters": sorted(self.letters),
            "new_events": self.new_events,
            "types": sorted(self.types),
            "limits": sorted(self.limits),
            "lifted": sorted(self.lifted),
            "is_ruling": self.is_ruling,
            "due": list(self.due),
        }
        return msgspec.json.encode({name: wish for name, wish in wanted.items() if wish}).decode()

    def _buckets(self, schema: str) -> list[dict[str, Any]]:
        """The locks of the topics. Where two topics share one it is exclusive if either needs it to be."""
        locks = {bucket(topic): False for topic in self.awaited} | {bucket(topic): True for topic in self.emitted}
        family = classid(schema)
        return [{"class": family, "bucket": at, "is_exclusive": is_exclusive} for at, is_exclusive in locks.items()]
