"""Questions: everything that a store is asked about runs and what surrounds them, and the answers.

`Store.list` takes a `Query`. `Store.stats`, `Store.catalog` and `Store.changes` each take one of a closed union of
questions, so a new view is a new question and the port stays as small as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from holdfast.core.checkpoint import Verdicts
from holdfast.core.clock import Micros
from holdfast.core.intent import matches_type
from holdfast.core.model import Arrival, Backlog, DeadLetter, Holding, Run, Schedule, Topic, TypeRule, Value, Wait
from holdfast.core.states import RunState

PAGE_LIMIT = 1_000

A_co = TypeVar("A_co", covariant=True)


class Query(Value, frozen=True, kw_only=True):
    """Which runs to list, newest first. `type` may end in `.*`; `before` is the last run of the page before.

    Runs that were deleted are listed only if `is_deleted`, and then no others.
    """

    states: frozenset[RunState] = frozenset()
    type: str | None = None
    key: str | None = None
    tags: dict[str, str] = {}
    parent_id: str | None = None
    id_prefix: str | None = None
    created_from: Micros | None = None
    created_until: Micros | None = None
    is_deleted: bool = False
    before: tuple[Micros, str] | None = None
    limit: int = 100

    def admits(self, run: Run) -> bool:
        """Whether a run is one of those asked for."""
        return (
            (not self.states or run.state in self.states)
            and (self.type is None or matches_type(run.type, self.type))
            and (self.key is None or run.key == self.key)
            and all(run.tags.get(name) == value for name, value in self.tags.items())
            and (self.parent_id is None or run.parent_id == self.parent_id)
            and (self.id_prefix is None or run.id.startswith(self.id_prefix))
            and (self.created_from is None or run.created_at >= self.created_from)
            and (self.created_until is None or run.created_at < self.created_until)
            and self.is_deleted == (run.deleted_at is not None)
            and (self.before is None or (run.created_at, run.id) < self.before)
        )


class Details(Value, frozen=True, kw_only=True):
    """Everything about one run that a person asks for.

    `unreadable` names the fields that cannot be decoded, and are None; and why.
    """

    run: Run
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = {}
    unreadable: str | None = None


# Stats: how much there is of something


class Stat(Value, Generic[A_co], frozen=True, kw_only=True):
    """A question about numbers; the type parameter is its answer."""


class CountRuns(Stat[dict[str, dict[RunState, int]]], frozen=True, kw_only=True):
    """How many runs there are, by type and state, without those that were deleted."""


class CountReady(Stat[Sequence[Backlog]], frozen=True, kw_only=True):
    """What may be claimed now, by type: runs that are ready, and those whose lease ran out.

    It costs no more for runs that sleep, wait or have ended.
    """


class CountLeases(Stat[dict[str, int]], frozen=True, kw_only=True):
    """How many runs each worker holds, by its id; a worker that is gone may still hold some."""


class SlotUse(Value, frozen=True, kw_only=True):
    """How many runs have a slot of this name, and how many wait in its queue. `core.limits` has the names."""

    name: str
    used: int
    waiting: int


class CountSlots(Stat[Sequence[SlotUse]], frozen=True, kw_only=True):
    """The slots of limits that runs have or wait for, by name; of one type, or of all."""

    type: str | None = None


class FindOrphans(Stat[Sequence[str]], frozen=True, kw_only=True):
    """Live runs that are neither held, nor ready at some time, nor waiting for something named: there are none."""

    limit: int


AnyStat = CountRuns | CountReady | CountLeases | CountSlots | FindOrphans


# Catalog: what there is besides runs


class Listing(Value, Generic[A_co], frozen=True, kw_only=True):
    """A question about one kind of thing that is not a run; the type parameter is its answer."""


class ListTopics(Listing[Sequence[Topic]], frozen=True, kw_only=True):
    """The rules that were set for topics, by name."""


class ListTypes(Listing[Sequence[TypeRule]], frozen=True, kw_only=True):
    """What is known of types, by name: those that somebody set rules for or a worker offered."""


class ListMessages(Listing[Sequence[Arrival]], frozen=True, kw_only=True):
    """The messages that a run has not received yet, in the order in which they arrived."""

    run_id: str


class ListDeadLetters(Listing[Sequence[DeadLetter]], frozen=True, kw_only=True):
    """Dead letters, oldest first. `topic` may end in `*`; `after` is the last one of the page before."""

    topic: str | None = None
    after: int = 0
    limit: int = 100


class ListSchedules(Listing[Sequence[Schedule]], frozen=True, kw_only=True):
    """Schedules by name. `type` may end in `.*`; `after` is the last name of the page before."""

    name: str | None = None
    type: str | None = None
    after: str = ""
    limit: int = 100

    def admits(self, schedule: Schedule) -> bool:
        """Whether a schedule is one of those asked for."""
        return (
            (self.name is None or schedule.name == self.name)
            and (self.type is None or matches_type(schedule.type, self.type))
            and schedule.name > self.after
        )


class Due(Value, frozen=True, kw_only=True):
    """Schedules with a slot that has come, earliest first, and when the next slot comes that has not."""

    schedules: tuple[Schedule, ...]
    next_at: Micros | None
    now: Micros


class ListDueSchedules(Listing[Due], frozen=True, kw_only=True):
    """The first schedules that are due; `after` is the slot and the name of the last one of the page before.

    It costs no more for schedules that are not due.
    """

    limit: int
    after: tuple[Micros, str] = (0, "")


AnyListing = ListTopics | ListTypes | ListMessages | ListDeadLetters | ListSchedules | ListDueSchedules


# Changes: what has become of something that somebody waits for


class Awaited(Value, Generic[A_co], frozen=True, kw_only=True):
    """A question about something that somebody waits for; the type parameter is its answer."""

    @property
    def size(self) -> int:
        """How many things it asks about."""
        raise NotImplementedError


class EndsOf(Awaited[Sequence[Run]], frozen=True, kw_only=True):
    """Those of the runs that have ended, including deleted ones."""

    run_ids: Sequence[str]

    @property
    def size(self) -> int:
        return len(self.run_ids)


class VerdictsOn(Awaited[Verdicts], frozen=True, kw_only=True):
    """What a renewal of these leases would answer, without renewing them."""

    holdings: Sequence[Holding]

    @property
    def size(self) -> int:
        return len(self.holdings)


class RepliesTo(Awaited[dict[tuple[str, str], str]], frozen=True, kw_only=True):
    """The replies to messages, by (run id, message id); messages without a reply are left out."""

    messages: Sequence[tuple[str, str]]

    @property
    def size(self) -> int:
        return len(self.messages)


AnyAwaited = EndsOf | VerdictsOn | RepliesTo
