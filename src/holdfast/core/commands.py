"""Commands: every write to a store except the hot operations (`ports` lists those).

`Store.apply` takes one command and returns its answer. The union is closed. `stores.operations.commands` implements
each command once for all stores. Every command may be repeated after a lost answer.

A command names its needs, what it reads first, so that a store can load it in one trip. Each store translates them into
its own reads. An operation that reads more asks its store for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition, RegisteredFlow
from holdfast.core.model import Event, Firing, MessageToRun, Schedule, Topic, TypeChange, TypeOffer, Value
from holdfast.core.wire import Tagged


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The first reads of a command. A run, type or schedule that does not exist is needed all the same.

    - `runs`: runs without their payloads
    - `endings`: runs that may end, with what their end entails
    - `histories`: runs with their payloads and histories
    - `inboxes` and `audits`: ids of the runs whose inboxes and audits are needed
    - `reopenings`: runs whose lost descendants may be reopened, with the number of descendants
    - `messages` and `events`: those that the command delivers
    - `types` and `flows`: types whose rules and whose registrations as flows are needed
    - `letters` and `schedules`: numbers of dead letters, names of schedules
    - `is_ruling`: no claim may happen meanwhile
    """

    runs: Sequence[str] = ()
    endings: Sequence[str] = ()
    histories: Sequence[str] = ()
    inboxes: Sequence[str] = ()
    audits: Sequence[str] = ()
    reopenings: Mapping[str, int] = field(default_factory=dict)
    messages: Sequence[MessageToRun] = ()
    events: Sequence[Event] = ()
    types: Sequence[str] = ()
    flows: Sequence[str] = ()
    letters: Sequence[int] = ()
    schedules: Sequence[str] = ()
    is_ruling: bool = False


REOPENED_AT_ONCE = 1_000
"""Maximum number of children that one transaction reopens, so that no transaction takes too long."""

A_co = TypeVar("A_co", covariant=True)


class Command(Tagged, Generic[A_co], frozen=True, kw_only=True):
    """A request to change something. The type parameter is the type of the answer. `by` names the actor who asked."""

    by: str = ""
    changed: ClassVar[str | int | None] = None
    """The number of things that the command changes, or the field that has them."""

    def needs(self) -> Needs:
        """Return what the command reads first."""
        return Needs()

    @property
    def size(self) -> int | None:
        """The number of things that the command changes; None if it may reach any number of runs."""
        return len(getattr(self, self.changed)) if isinstance(self.changed, str) else self.changed


# Controls: requests about one run


class Control(Command[A_co], Generic[A_co], frozen=True, kw_only=True):
    """A request about one run. A repeat with the same `id` is a no-op. The answer True means that something changed.

    Raises `RunNotFound` if the run is unknown or deleted.
    """

    run_id: str
    id: str

    @property
    def verb(self) -> str:
        """The name of the verb (`core.verbs`)."""
        return type(self).__name__.lower()

    def needs(self) -> Needs:
        return Needs(runs=(self.run_id,), audits=(self.run_id,))


class Cancel(Control[bool], frozen=True, kw_only=True):
    """End the run as cancelled. The finished steps are undone first, unless `force`."""

    reason: str = ""
    force: bool = False

    def needs(self) -> Needs:
        return Needs(endings=(self.run_id,), audits=(self.run_id,))


class Pause(Control[bool], frozen=True, kw_only=True):
    """Stop the run until it is resumed. A held run stops at its next standstill."""

    reason: str = ""


class Resume(Control[bool], frozen=True, kw_only=True):
    """Let a paused run continue."""


class Wake(Control[bool], frozen=True, kw_only=True):
    """Make a waiting run ready now, so that it checks its waits again."""


class Evict(Control[bool], frozen=True, kw_only=True):
    """Make the holder cancel its bodies and release the run, so that any worker can continue it."""


class Rewind(Control[bool], frozen=True, kw_only=True):
    """Drop the entry at a location and all later ones, and continue from there. `force` takes a held run away."""

    location: str
    force: bool = False

    def needs(self) -> Needs:
        run = (self.run_id,)
        return Needs(histories=run, audits=run, inboxes=run)


class Recover(Control[bool | None], frozen=True, kw_only=True):
    """Retry a failed, cancelled or blocked run from the operations that failed.

    One transaction reopens at most `limit` of its children and their children. The run itself comes last. The answer
    is None while more children are left to reopen: repeat the command. With `fail`, a blocked run is given up instead:
    the error that blocked it undoes its steps and fails it.
    """

    force: bool = False
    fail: bool = False
    limit: int = REOPENED_AT_ONCE

    def needs(self) -> Needs:
        run = (self.run_id,)
        if self.fail:
            return Needs(endings=run, audits=run)
        # Twice as many as are reopened, because some of them may be skipped.
        return Needs(histories=run, audits=run, inboxes=run, reopenings={self.run_id: 2 * self.limit})


class Fork(Control[bool], frozen=True, kw_only=True):
    """Create a new run, `new_run_id`, with the history before a location. `patch` replaces results by location."""

    new_run_id: str
    location: str
    patch: dict[str, str] = {}
    force: bool = False

    def needs(self) -> Needs:
        return Needs(runs=(self.new_run_id,), histories=(self.run_id,), audits=(self.run_id,))


class Delete(Control[bool], frozen=True, kw_only=True):
    """Hide the run for good. A live run is cancelled without undo. `force` as in `Rewind`."""

    force: bool = False

    def needs(self) -> Needs:
        return Needs(endings=(self.run_id,), audits=(self.run_id,))


class DropMessage(Control[bool], frozen=True, kw_only=True):
    """Remove an unread message from the run's inbox. `RunBusy` while a worker holds the run.

    The id of the message is remembered as that of a received one, so a repeated send does not bring it back.
    """

    message_id: str

    def needs(self) -> Needs:
        run = (self.run_id,)
        return Needs(runs=run, audits=run, inboxes=run)


class Cancellation(Value, frozen=True, kw_only=True):
    """The reason of a cancel: a command, or the parent of the run. In the second case `request` is empty."""

    reason: str
    force: bool = False
    request: str = ""
    by: str = ""

    @classmethod
    def of(cls, command: Cancel) -> Cancellation:
        return cls(reason=command.reason, force=command.force, request=command.id, by=command.by)


RunControl = Cancel | Pause | Resume | Wake | Evict | Rewind | Recover | Fork | Delete | DropMessage


# Messages and events


class Sent(Value, frozen=True, kw_only=True):
    """The result for one message: the run it reached, or the reason for its refusal (`unknown`, `finished`)."""

    run_id: str | None
    refused: str | None = None


class SendMessages(Command[Sequence[Sent]], frozen=True, kw_only=True):
    """Deliver messages to runs. The answer has one result per message."""

    messages: Sequence[MessageToRun]
    changed = "messages"

    def needs(self) -> Needs:
        return Needs(messages=self.messages)


class EmitEvents(Command[Sequence[int]], frozen=True, kw_only=True):
    """Publish events. The answer is the number of waiting runs that each reached: at most one on a queue topic."""

    events: Sequence[Event]

    def needs(self) -> Needs:
        return Needs(events=self.events)


class SetTopics(Command[None], frozen=True, kw_only=True):
    """Set the rules of topics. The mode applies to events emitted from now on, the limits to all events."""

    topics: Sequence[Topic]
    changed = "topics"


class ReplayDeadLetters(Command[int], frozen=True, kw_only=True):
    """Deliver dead letters again. The answer is the number delivered.

    A message stays a dead letter if its run accepts no messages.
    """

    numbers: Sequence[int]
    changed = "numbers"

    def needs(self) -> Needs:
        return Needs(letters=self.numbers)


class PurgeDeadLetters(Command[int], frozen=True, kw_only=True):
    """Remove dead letters. The answer is the number removed."""

    numbers: Sequence[int]
    changed = "numbers"

    def needs(self) -> Needs:
        return Needs(letters=self.numbers)


# Types and workers


class ChangeTypes(Command[None], frozen=True, kw_only=True):
    """Enable or disable types, and set their limits and descriptions. Limits count runs that are already held.

    Later claims obey the change. Runs that older limits parked are checked again.
    """

    changes: Sequence[TypeChange]

    def needs(self) -> Needs:
        return Needs(types=[change.name for change in self.changes], is_ruling=True)


class OfferTypes(Command[None], frozen=True, kw_only=True):
    """Record the types that a worker, identified by its name, can execute.

    Raises `InvalidRequest` if the worker offers code for a type that is a flow. The offer of a flow has the runtime
    `flow_definitions.FLOW_RUNTIME`.
    """

    worker: str
    offers: Sequence[TypeOffer]
    changed = 1

    def needs(self) -> Needs:
        types = [offer.name for offer in self.offers]
        return Needs(types=types, flows=types)


class RegisterFlow(Command[RegisteredFlow], frozen=True, kw_only=True):
    """Register a version of a flow. It is the version of runs that are created from now on.

    Registering the newest version of its type again changes nothing. An older version becomes the newest one again,
    with the program of its first registration. The store sets the instant, later than every earlier registration of
    the type. Raises `InvalidRequest` if a worker offers the type as code.
    """

    definition: FlowDefinition
    changed = 1

    def needs(self) -> Needs:
        return Needs(types=(self.definition.type,), flows=(self.definition.type,))


class RetireWorker(Command[None], frozen=True, kw_only=True):
    """Remove the record of a stopped worker."""

    worker_id: str
    changed = 1


# Schedules


class Fired(Value, frozen=True, kw_only=True):
    """The result of a firing: the runs of its slots, and the slots skipped because an earlier run has not ended.

    `is_stale`: nothing happened, because another process fired or changed the schedule after it was read.
    """

    run_ids: tuple[str, ...] = ()
    skipped: tuple[Micros, ...] = ()
    is_stale: bool = False


class PutSchedules(Command[Sequence[Schedule]], frozen=True, kw_only=True):
    """Create or change schedules. The answer is the schedules afterwards. An unchanged schedule is left untouched."""

    schedules: Sequence[Schedule]
    changed = "schedules"

    def needs(self) -> Needs:
        return Needs(schedules=[schedule.name for schedule in self.schedules])


class PauseSchedules(Command[Sequence[bool]], frozen=True, kw_only=True):
    """Pause schedules, or let them fire again from the next slot on. The answer says for each if it changed."""

    names: Sequence[str]
    is_paused: bool
    changed = "names"

    def needs(self) -> Needs:
        return Needs(schedules=self.names)


class RemoveSchedules(Command[Sequence[bool]], frozen=True, kw_only=True):
    """Remove schedules, but not their runs. The answer says for each if it existed."""

    names: Sequence[str]
    changed = "names"

    def needs(self) -> Needs:
        return Needs(schedules=self.names)


class TriggerSchedule(Command[bool], frozen=True, kw_only=True):
    """Create a run of a schedule now under this id, unless that run exists. False if the schedule does not exist."""

    name: str
    run_id: str
    changed = 1

    def needs(self) -> Needs:
        return Needs(schedules=(self.name,), runs=(self.run_id,))


class FireSchedules(Command[Sequence[Fired]], frozen=True, kw_only=True):
    """Create the runs of due slots and advance to the next slots, if a schedule has not changed since it was read."""

    firings: Sequence[Firing]
    changed = "firings"

    def needs(self) -> Needs:
        return Needs(
            schedules=[firing.schedule.name for firing in self.firings],
            runs=[run_id for firing in self.firings for run_id in (*firing.schedule.open_run_ids, *firing.run_ids)],
        )


AnyCommand = (
    RunControl
    | SendMessages
    | EmitEvents
    | SetTopics
    | ReplayDeadLetters
    | PurgeDeadLetters
    | ChangeTypes
    | OfferTypes
    | RegisterFlow
    | RetireWorker
    | PutSchedules
    | PauseSchedules
    | RemoveSchedules
    | TriggerSchedule
    | FireSchedules
)
"""The closed union of commands."""
