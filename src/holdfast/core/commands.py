"""Commands: everything that a store is asked to change, except by its hot operations (`ports` lists those).

`Store.apply` takes one command and returns its answer. The union is closed: `stores.operations.commands` decides each
of them, once for all stores. Every command may be repeated after a lost answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from holdfast.core.clock import Micros
from holdfast.core.model import Event, Firing, MessageToRun, Schedule, Topic, TypeChange, TypeOffer, Value

REOPENED_AT_ONCE = 1_000
"""The most children that one transaction reopens with their parent, so that none takes too long."""

A_co = TypeVar("A_co", covariant=True)


class Command(Value, Generic[A_co], frozen=True, kw_only=True):
    """A request to change something; the type parameter is its answer. `by` names the actor who asked."""

    by: str = ""


# Controls: what a person or a program does to one run


class Control(Command[A_co], Generic[A_co], frozen=True, kw_only=True):
    """A request about one run. `id` makes a repeat a no-op. True means that something changed.

    `RunNotFound` for a run that is unknown or deleted.
    """

    run_id: str
    id: str


class Cancel(Control[bool], frozen=True, kw_only=True):
    """End the run as cancelled, after undoing what it did unless `force`."""

    reason: str = ""
    force: bool = False


class Pause(Control[bool], frozen=True, kw_only=True):
    """Keep the run from going on until it is resumed; a held one at its next standstill."""

    reason: str = ""


class Resume(Control[bool], frozen=True, kw_only=True):
    """Let a paused run go on."""


class Wake(Control[bool], frozen=True, kw_only=True):
    """Make a run that waits look again, now."""


class Rewind(Control[bool], frozen=True, kw_only=True):
    """Forget the entry at a location and all that came later, and go on from there. `force` takes a held run away."""

    location: str
    force: bool = False


class Recover(Control[bool | None], frozen=True, kw_only=True):
    """Give a run that failed, was cancelled or is blocked another chance at what it failed at.

    One transaction reopens at most `limit` of its children, and their children; the run itself comes last. The answer
    is None while there is more to reopen: repeat the command.
    """

    force: bool = False
    limit: int = REOPENED_AT_ONCE


class Fork(Control[bool], frozen=True, kw_only=True):
    """Make a new run, `new_run_id`, with the history before a location; `patch` replaces results by location."""

    new_run_id: str
    location: str
    patch: dict[str, str] = {}
    force: bool = False


class Delete(Control[bool], frozen=True, kw_only=True):
    """Take the run out of sight, for good; one that lives is cancelled, nothing undone. `force` as in `Rewind`."""

    force: bool = False


class DropMessage(Control[bool], frozen=True, kw_only=True):
    """Remove an unread message from the run's inbox. `RunBusy` while a worker holds the run.

    The id of the message is remembered as that of a received one, so a repeated send does not bring it back.
    """

    message_id: str


class Cancellation(Value, frozen=True, kw_only=True):
    """Why a run is cancelled: because a command asks for it, or because of its parent; then `request` is empty."""

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
    """The fate of one message: the run it reached, or why it was refused (`unknown`, `finished`)."""

    run_id: str | None
    refused: str | None = None


class SendMessages(Command[Sequence[Sent]], frozen=True, kw_only=True):
    """Deliver messages to runs; one answer each."""

    messages: Sequence[MessageToRun]


class EmitEvents(Command[Sequence[int]], frozen=True, kw_only=True):
    """Publish events; the answer is how many waiting runs each reached: at most one on a topic that is a queue."""

    events: Sequence[Event]


class SetTopics(Command[None], frozen=True, kw_only=True):
    """Set the rules for topics. The mode applies to events emitted from now on, the limits to all."""

    topics: Sequence[Topic]


class ReplayDeadLetters(Command[int], frozen=True, kw_only=True):
    """Deliver dead letters after all; how many. A message to a run that takes none stays a dead letter."""

    numbers: Sequence[int]


class PurgeDeadLetters(Command[int], frozen=True, kw_only=True):
    """Forget dead letters; how many there were."""

    numbers: Sequence[int]


# Types and workers


class ChangeTypes(Command[None], frozen=True, kw_only=True):
    """Switch types off and on, limit and describe them. Limits count the runs that are held already.

    Claims from now on obey the change; runs that older limits kept waiting are looked at again.
    """

    changes: Sequence[TypeChange]


class OfferTypes(Command[None], frozen=True, kw_only=True):
    """Note which types a worker, by its name, is ready to work on."""

    worker: str
    offers: Sequence[TypeOffer]


class RetireWorker(Command[None], frozen=True, kw_only=True):
    """Forget a worker that has stopped."""

    worker_id: str


# Schedules


class Fired(Value, frozen=True, kw_only=True):
    """The fate of a firing: the runs of its slots, and the slots left out because an earlier run has not ended.

    `is_stale`: nothing happened, because another process has fired or changed the schedule since it was read.
    """

    run_ids: tuple[str, ...] = ()
    skipped: tuple[Micros, ...] = ()
    is_stale: bool = False


class PutSchedules(Command[Sequence[Schedule]], frozen=True, kw_only=True):
    """Set what schedules do; the answer is how they stand afterwards. What does not change disturbs nothing."""

    schedules: Sequence[Schedule]


class PauseSchedules(Command[Sequence[bool]], frozen=True, kw_only=True):
    """Stop schedules from firing, or let them fire again from the next slot on; of each, whether it changed."""

    names: Sequence[str]
    is_paused: bool


class RemoveSchedules(Command[Sequence[bool]], frozen=True, kw_only=True):
    """Forget schedules, not their runs; of each, whether there was one."""

    names: Sequence[str]


class TriggerSchedule(Command[bool], frozen=True, kw_only=True):
    """Make a run of a schedule now, under this id, unless it exists; False if there is no such schedule."""

    name: str
    run_id: str


class FireSchedules(Command[Sequence[Fired]], frozen=True, kw_only=True):
    """Make the runs of slots and move on to the next ones, if a schedule has not changed since it was read."""

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
    | RetireWorker
    | PutSchedules
    | PauseSchedules
    | RemoveSchedules
    | TriggerSchedule
    | FireSchedules
)
"""The closed union of commands."""
