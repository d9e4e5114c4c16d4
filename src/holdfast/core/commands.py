"""Commands: every write to a store except the hot operations (`ports` lists those).

`Store.apply` takes one command and returns its answer. The union is closed. `stores.operations.commands` implements
each command once for all stores. Every command may be repeated after a lost answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition, RegisteredFlow
from holdfast.core.model import Event, Firing, MessageToRun, Schedule, Topic, TypeChange, TypeOffer, Value
from holdfast.core.wire import Tagged

REOPENED_AT_ONCE = 1_000
"""Maximum number of children that one transaction reopens, so that no transaction takes too long."""

A_co = TypeVar("A_co", covariant=True)


class Command(Tagged, Generic[A_co], frozen=True, kw_only=True):
    """A request to change something. The type parameter is the type of the answer. `by` names the actor who asked."""

    by: str = ""


# Controls: requests about one run


class Control(Command[A_co], Generic[A_co], frozen=True, kw_only=True):
    """A request about one run. A repeat with the same `id` is a no-op. The answer True means that something changed.

    Raises `RunNotFound` if the run is unknown or deleted.
    """

    run_id: str
    id: str


class Cancel(Control[bool], frozen=True, kw_only=True):
    """End the run as cancelled. The finished steps are undone first, unless `force`."""

    reason: str = ""
    force: bool = False


class Pause(Control[bool], frozen=True, kw_only=True):
    """Stop the run until it is resumed. A held run stops at its next standstill."""

    reason: str = ""


class Resume(Control[bool], frozen=True, kw_only=True):
    """Let a paused run continue."""


class Wake(Control[bool], frozen=True, kw_only=True):
    """Make a waiting run ready now, so that it checks its waits again."""


class Rewind(Control[bool], frozen=True, kw_only=True):
    """Drop the entry at a location and all later ones, and continue from there. `force` takes a held run away."""

    location: str
    force: bool = False


class Recover(Control[bool | None], frozen=True, kw_only=True):
    """Retry a failed, cancelled or blocked run from the operations that failed.

    One transaction reopens at most `limit` of its children and their children. The run itself comes last. The answer
    is None while more children are left to reopen: repeat the command.
    """

    force: bool = False
    limit: int = REOPENED_AT_ONCE


class Fork(Control[bool], frozen=True, kw_only=True):
    """Create a new run, `new_run_id`, with the history before a location. `patch` replaces results by location."""

    new_run_id: str
    location: str
    patch: dict[str, str] = {}
    force: bool = False


class Delete(Control[bool], frozen=True, kw_only=True):
    """Hide the run for good. A live run is cancelled without undo. `force` as in `Rewind`."""

    force: bool = False


class DropMessage(Control[bool], frozen=True, kw_only=True):
    """Remove an unread message from the run's inbox. `RunBusy` while a worker holds the run.

    The id of the message is remembered as that of a received one, so a repeated send does not bring it back.
    """

    message_id: str


class Cancellation(Value, frozen=True, kw_only=True):
    """The reason of a cancel: a command, or the parent of the run. In the second case `request` is empty."""

    reason: str
    force: bool = False
    request: str = ""
    by: str = ""

    @classmethod
    def of(cls, command: Cancel) -> Cancellation:
        return cls(reason=command.reason, force=command.force, request=command.id, by=command.by)


RunControl = Cancel | Pause | Resume | Wake | Rewind | Recover | Fork | Delete | DropMessage


# Messages and events


class Sent(Value, frozen=True, kw_only=True):
    """The result for one message: the run it reached, or the reason for its refusal (`unknown`, `finished`)."""

    run_id: str | None
    refused: str | None = None


class SendMessages(Command[Sequence[Sent]], frozen=True, kw_only=True):
    """Deliver messages to runs. The answer has one result per message."""

    messages: Sequence[MessageToRun]


class EmitEvents(Command[Sequence[int]], frozen=True, kw_only=True):
    """Publish events. The answer is the number of waiting runs that each reached: at most one on a queue topic."""

    events: Sequence[Event]


class SetTopics(Command[None], frozen=True, kw_only=True):
    """Set the rules of topics. The mode applies to events emitted from now on, the limits to all events."""

    topics: Sequence[Topic]


class ReplayDeadLetters(Command[int], frozen=True, kw_only=True):
    """Deliver dead letters again. The answer is the number delivered.

    A message stays a dead letter if its run accepts no messages.
    """

    numbers: Sequence[int]


class PurgeDeadLetters(Command[int], frozen=True, kw_only=True):
    """Remove dead letters. The answer is the number removed."""

    numbers: Sequence[int]


# Types and workers


class ChangeTypes(Command[None], frozen=True, kw_only=True):
    """Enable or disable types, and set their limits and descriptions. Limits count runs that are already held.

    Later claims obey the change. Runs that older limits parked are checked again.
    """

    changes: Sequence[TypeChange]


class OfferTypes(Command[None], frozen=True, kw_only=True):
    """Record the types that a worker, identified by its name, can execute.

    Raises `InvalidRequest` if the worker offers code for a type that is a flow. The offer of a flow has the runtime
    `flow_definitions.FLOW_RUNTIME`.
    """

    worker: str
    offers: Sequence[TypeOffer]


class RegisterFlow(Command[RegisteredFlow], frozen=True, kw_only=True):
    """Register a version of a flow. It is the version of runs that are created from now on.

    Registering the newest version of its type again changes nothing. An older version becomes the newest one again,
    with the program of its first registration. The store sets the instant, later than every earlier registration of
    the type. Raises `InvalidRequest` if a worker offers the type as code.
    """

    definition: FlowDefinition


class RetireWorker(Command[None], frozen=True, kw_only=True):
    """Remove the record of a stopped worker."""

    worker_id: str


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


class PauseSchedules(Command[Sequence[bool]], frozen=True, kw_only=True):
    """Pause schedules, or let them fire again from the next slot on. The answer says for each if it changed."""

    names: Sequence[str]
    is_paused: bool


class RemoveSchedules(Command[Sequence[bool]], frozen=True, kw_only=True):
    """Remove schedules, but not their runs. The answer says for each if it existed."""

    names: Sequence[str]


class TriggerSchedule(Command[bool], frozen=True, kw_only=True):
    """Create a run of a schedule now under this id, unless that run exists. False if the schedule does not exist."""

    name: str
    run_id: str


class FireSchedules(Command[Sequence[Fired]], frozen=True, kw_only=True):
    """Create the runs of due slots and advance to the next slots, if a schedule has not changed since it was read."""

    firings: Sequence[Firing]


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
