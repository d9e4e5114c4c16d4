"""Questions: every query that a store answers, besides reading one run, and the answers.

`Store.list` takes a `Query`. `Store.stats`, `Store.catalog` and `Store.changes` each take one of a closed union of
questions. So a new view is a new question, and the port stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Self, TypeVar

from msgspec.structs import replace

from holdfast.core.checkpoint import Verdicts
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import matches_type
from holdfast.core.model import Arrival, Backlog, DeadLetter, Holding, Run, Schedule, Topic, TypeRule, Value, Wait
from holdfast.core.states import RunState
from holdfast.core.wire import Tagged

PAGE_LIMIT = 1_000

A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")


class Query(Value, frozen=True, kw_only=True):
    """A filter for runs to list, newest first. `type` may end in `.*`; `before` is the last run of the previous page.

    With `is_deleted`, only deleted runs are listed; without it, only the others.
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
        """True if a run matches the filter."""
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
    """Everything about one run that a person may want to see.

    `unreadable` names the fields that cannot be decoded, with the reasons. Those fields have placeholders.
    """

    run: Run
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = {}
    unreadable: str | None = None


# Stats: numbers about runs


class Stat(Tagged, Generic[A_co], frozen=True, kw_only=True):
    """A question about numbers. The type parameter is the type of the answer."""


class CountRuns(Stat[dict[str, dict[RunState, int]]], frozen=True, kw_only=True):
    """The number of runs by type and state, without deleted ones."""


class CountReady(Stat[Sequence[Backlog]], frozen=True, kw_only=True):
    """The runs that may be claimed now, by type: those that are ready, and those whose lease has expired.

    The cost does not grow with runs that sleep, wait or have ended.
    """


class CountLeases(Stat[dict[str, int]], frozen=True, kw_only=True):
    """The number of runs that each worker holds, by worker id. A dead worker may still hold some."""


class SlotUse(Value, frozen=True, kw_only=True):
    """The number of runs that have a slot of this name, and that wait in its queue. `core.limits` defines the names."""

    name: str
    used: int
    waiting: int


class CountSlots(Stat[Sequence[SlotUse]], frozen=True, kw_only=True):
    """The slots that runs have or wait for, by name; of one type, or of all."""

    type: str | None = None


class FindOrphans(Stat[Sequence[str]], frozen=True, kw_only=True):
    """Live runs that are not held, never become ready and wait for nothing named. Any such run is a bug."""

    limit: int


AnyStat = CountRuns | CountReady | CountLeases | CountSlots | FindOrphans


# Catalog: things other than runs


class Listing(Tagged, Generic[A_co], frozen=True, kw_only=True):
    """A question about one kind of thing other than runs. The type parameter is the type of the answer."""


class Pages(Listing[Sequence[T]], Generic[T], frozen=True, kw_only=True):
    """A question that is answered page by page."""

    limit: int = 100

    def next_page(self, last: T) -> Self:
        """Return the question for the page after the one that ends with an item."""
        raise NotImplementedError


class ListTopics(Listing[Sequence[Topic]], frozen=True, kw_only=True):
    """The rules set for topics, by name."""


class ListTypes(Listing[Sequence[TypeRule]], frozen=True, kw_only=True):
    """The known types, by name: those that have settings or that a worker offered."""


class ListMessages(Listing[Sequence[Arrival]], frozen=True, kw_only=True):
    """The messages that a run has not received yet, in the order in which they arrived."""

    run_id: str


class ListDeadLetters(Pages[DeadLetter], frozen=True, kw_only=True):
    """Dead letters, oldest first. `topic` may end in `*`; `after` is the last one of the previous page."""

    topic: str | None = None
    after: int = 0

    def next_page(self, last: DeadLetter) -> ListDeadLetters:
        return replace(self, after=last.number)


class ListSchedules(Pages[Schedule], frozen=True, kw_only=True):
    """Schedules by name. `type` may end in `.*`; `after` is the last name of the previous page."""

    name: str | None = None
    type: str | None = None
    after: str = ""

    def next_page(self, last: Schedule) -> ListSchedules:
        return replace(self, after=last.name)

    def admits(self, schedule: Schedule) -> bool:
        """True if a schedule matches the filter."""
        return (
            (self.name is None or schedule.name == self.name)
            and (self.type is None or matches_type(schedule.type, self.type))
            and schedule.name > self.after
        )


class ListFlows(Pages[FlowDefinition], frozen=True, kw_only=True):
    """Registrations of flows, by type and then by time.

    `type` may end in `.*`; `version` is the beginning of a version. `after` is the type and the time of the last one of
    the previous page. Without `with_texts`, source and program are left out, which makes the answer small.
    """

    type: str | None = None
    version: str | None = None
    with_texts: bool = False
    after: tuple[str, Micros] = ("", 0)

    def next_page(self, last: FlowDefinition) -> ListFlows:
        return replace(self, after=(last.type, last.registered_at))

    def admits(self, definition: FlowDefinition) -> bool:
        """True if a registration matches the filter."""
        return (
            (self.type is None or matches_type(definition.type, self.type))
            and (self.version is None or definition.version.startswith(self.version))
            and (definition.type, definition.registered_at) > self.after
        )


class Due(Value, frozen=True, kw_only=True):
    """The schedules with a due slot, earliest first, and the time of the next slot that is not due."""

    schedules: tuple[Schedule, ...]
    next_at: Micros | None
    now: Micros


class ListDueSchedules(Listing[Due], frozen=True, kw_only=True):
    """The first schedules that are due. `after` is the slot and the name of the last one of the previous page.

    The cost does not grow with schedules that are not due.
    """

    limit: int
    after: tuple[Micros, str] = (0, "")


AnyListing = ListTopics | ListTypes | ListMessages | ListDeadLetters | ListSchedules | ListDueSchedules | ListFlows


# Changes: news that a process waits for


class Awaited(Tagged, Generic[A_co], frozen=True, kw_only=True):
    """A question about something that a process waits for. The type parameter is the type of the answer."""

    @property
    def size(self) -> int:
        """The number of things it asks about."""
        raise NotImplementedError


class EndsOf(Awaited[Sequence[Run]], frozen=True, kw_only=True):
    """The runs out of these that have ended, including deleted ones."""

    run_ids: Sequence[str]

    @property
    def size(self) -> int:
        return len(self.run_ids)


class VerdictsOn(Awaited[Verdicts], frozen=True, kw_only=True):
    """The verdicts that a renewal of these leases would return, without renewing them."""

    holdings: Sequence[Holding]

    @property
    def size(self) -> int:
        return len(self.holdings)


class RepliesTo(Awaited[dict[str, dict[str, str]]], frozen=True, kw_only=True):
    """The replies to messages (run id, message id), by run id and then by message id. Others are left out."""

    messages: Sequence[tuple[str, str]]

    @property
    def size(self) -> int:
        return len(self.messages)


AnyAwaited = EndsOf | VerdictsOn | RepliesTo

Question = Stat[A_co] | Listing[A_co] | Awaited[A_co]
AnyQuestion = AnyStat | AnyListing | AnyAwaited


def replies_by_run(found: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    """Return the answer to `RepliesTo`, made from run ids, message ids and payloads."""
    replies: dict[str, dict[str, str]] = {}
    for run_id, message_id, payload in found:
        replies.setdefault(run_id, {})[message_id] = payload
    return replies
