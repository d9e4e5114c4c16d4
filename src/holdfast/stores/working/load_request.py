"""A load request: the rows that an operation must lock and read before it can decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.core import limits
from holdfast.core.checkpoint import Checkpoint, ContinueAsNew, Finish, StartRollback
from holdfast.core.commands import Command
from holdfast.core.model import Event, Intent, MessageToRun, Run, WaitKind


class NotLoaded(Exception):
    """Raised when an operation needs something that was not loaded. `LoadRequest.add` asks for it.

    `part` is a field of `LoadRequest`, or `many_runs` or `many_histories`.
    """

    def __init__(self, part: str, *what: Any) -> None:
        super().__init__(part, what)
        self.part = part
        self.what = what


class DueRuns(msgspec.Struct, frozen=True):
    """Due runs of some types: at most `count` of each rank, and at most `suspects` suspects."""

    types: tuple[str, ...]
    count: int
    suspects: int


@dataclass
class LoadRequest:
    """The rows to lock and load. It only grows, so repeating an operation with more rows comes to an end.

    - `endings`: runs that may end. Their parents, and the descendants that end with them, are loaded too.
    - `renewals`: runs that may continue as new, and detach all their children.
    - `emitted`: topics on which events may be published or handed on.
    - `awaited`: topics on which a run begins to wait.
    - `groups` and `waiting`: how many of the runs to load that wait for a slot, or for an event of a queue.
    - `types`: types whose rules and slots are needed.
    - `limits` and `lifted`: types whose limits may change, and types that lose their limits.
    - `flows` and `flow_texts`: types whose registrations are needed, and those that are needed with their texts.
    - `is_ruling`: claims wait until the transaction ends.
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
    flows: set[str] = field(default_factory=set)
    flow_texts: set[str] = field(default_factory=set)
    is_ruling: bool = False
    due: set[DueRuns] = field(default_factory=set)

    @classmethod
    def of(cls, *commands: Command[Any]) -> LoadRequest:
        """Return the rows that commands need at first. Schedules are not included: the store loads them itself."""
        request = cls()
        for command in commands:
            request.command(command)
        return request

    # Adding rows

    def command(self, command: Command[Any]) -> None:
        needs = command.needs()
        self.runs.update(needs.runs, needs.endings, needs.histories)
        self.endings.update(needs.endings)
        self.histories.update(needs.histories)
        self.audits.update(needs.audits)
        self.inboxes.update(dict.fromkeys(needs.inboxes, 0))
        self.send(needs.messages)
        self.emit(needs.events)
        self.types.update(needs.types)
        self.flows.update(needs.flows)
        self.letters.update(needs.letters)
        self.is_ruling |= needs.is_ruling

    def add(self, missing: NotLoaded) -> None:
        """Add what an operation found to be missing."""
        match missing.part, missing.what:
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
            case ("many_runs" | "many_histories") as part, runs:
                self.runs.update(runs)
                self.reopened(runs if part == "many_histories" else ())
            case "new_events", ():
                self.new_events = self.new_events * 2 + 4
            case part, (one,):
                getattr(self, part).add(one)
            case part, several:
                getattr(self, part).add(several)

    def _want_more_waiting(self, queues: Sequence[str]) -> None:
        """Load more runs of queues, several times as many in each round."""
        # A change of limits may free very many runs, in as many queues as there are keys. So all known queues grow
        # together, instead of one in each round.
        is_known = any(queue in self.groups for queue in queues)
        for queue in {*self.groups, *queues} if self.is_ruling and is_known else queues:
            self.groups[queue] = self.groups[queue] * (8 if self.is_ruling else 2) + (4 if self.is_ruling else 8)

    def intents(self, intents: Iterable[Intent]) -> None:
        for intent in intents:
            self.runs.add(intent.id)
            if intent.key is not None:
                self.keys.add(intent.key)

    def send(self, messages: Iterable[MessageToRun]) -> None:
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

    def reopened(self, run_ids: Iterable[str]) -> None:
        """Load runs that may be reopened, with their histories and the requests made on them."""
        known = set(run_ids)
        self.runs |= known
        self.histories |= known
        self.audits |= known

    def leave(self, run: Run) -> None:
        """Load the run that may get each slot that a run frees, and the run behind it, which is examined next."""
        self.types.add(run.type)
        self.serve(run.type, 1, run.slots)

    def serve(self, type: str, count: int, slots: Iterable[str] = ()) -> None:
        """Load `count` more runs from each queue for shared slots of a type, and for `slots` of its keys."""
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
        if isinstance(checkpoint.next, (Finish, StartRollback, ContinueAsNew)):
            self.endings.add(run_id)
        if isinstance(checkpoint.next, ContinueAsNew):
            self.renewals.add(run_id)
            self.inboxes[run_id] = 0
