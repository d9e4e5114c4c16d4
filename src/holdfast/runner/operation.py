"""An operation: something durable that workflow code asked for and whose outcome it awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros, in_seconds
from holdfast.core.codec import Codec
from holdfast.core.errors import (
    ChildFailed,
    ErrorRecord,
    InvalidRequest,
    Rollback,
    StepFailed,
    StepTimeout,
    WaitTimeout,
)
from holdfast.core.intent import check_length
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Wait, WaitKind
from holdfast.core.received import Received, received_in, record_of
from holdfast.core.retry import Retry
from holdfast.core.states import RunState
from holdfast.core.suggestion import refuse_unknown
from holdfast.runner.step_info import StepInfo
from holdfast.runner.task_context import TaskContext

MISSING: Any = object()
"""No value yet; `None` is a value like any other."""


class Operation:
    """What was asked for, where, and when. `after` counts the facts that must be committed before it may act.

    `since` is the position of the last fact before it was asked for.
    """

    kind: EntryKind
    __slots__ = ("after", "asked_at", "deadline", "future", "location", "serial", "since", "value")

    def __init__(self, location: str, *, deadline: Micros | None = None) -> None:
        self.location = location
        self.deadline = deadline
        self.future: asyncio.Future[Entry] | None = None
        self.serial = 0
        self.after = 0
        self.since = 0
        self.asked_at: Micros = 0
        self.value: Any = MISSING

    def outcome(self, entry: Entry) -> Any:
        """What the entry means to the workflow: a value, or the error it raises."""
        raise NotImplementedError

    def wait(self, after: int) -> Wait | None:
        """The reason to be suspended that this operation is, if it is one."""
        raise NotImplementedError

    def resume(self, recorded: Entry) -> None:
        """Take over from a record that is not settled."""

    def put_off(self, length: Micros) -> None:
        """The run went back to when this was asked for already: the time that has passed since does not count."""
        if self.deadline is not None:
            self.deadline += length


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is executed. Made by `step_options`, which finds the mistakes of users."""

    retry: Retry = Retry()
    timeout: float | None = None
    retry_timeout: bool = False
    ephemeral: bool = False
    undo: Callable[[Any], Any] | None = None


DEFAULT_STEP_OPTIONS = StepOptions()


def step_options(declared: StepOptions, **given: Any) -> StepOptions:
    """What was declared, and instead of it what was given: one of the options of `Context.step`, if it can be so."""
    if given.keys() - _CHECKS.keys():
        refuse_unknown(
            "option",
            given,
            _CHECKS,
            of="a step",
            advice="arguments of the function are positional, or bound by name with functools.partial or a step's "
            f"bind(); the options of a step are {', '.join(_CHECKS)}",
        )
    return replace(declared, **{name: _CHECKS[name](value) for name, value in given.items()})


def _checked_retry(retry: object) -> Retry:
    if not isinstance(retry, Retry):
        raise InvalidRequest(f"retry={retry!r}: it is a Retry, such as Retry(max_attempts=3)")
    return retry


def _checked_timeout(timeout: float | timedelta | None) -> float | None:
    if timeout is None:
        return None
    check_length(timeout, "timeout")
    return in_seconds(timeout)


def _checked_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name}={value!r}: it is True or False")
    return value


def checked_undo(undo: Any) -> Callable[[Any], Any] | None:
    """The function that undoes a step; of a decorated step the plain one, as it is not workflow code that calls it."""
    plain = getattr(undo, "function", undo)
    if plain is not None and not callable(plain):
        raise InvalidRequest(f"undo={undo!r}: it is a function that takes the step's result")
    return plain  # type: ignore[no-any-return]  # it is what the caller gave, whatever it claims to be


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "retry": _checked_retry,
    "timeout": _checked_timeout,
    "retry_timeout": partial(_checked_flag, "retry_timeout"),
    "ephemeral": partial(_checked_flag, "ephemeral"),
    "undo": checked_undo,
}


class StepCall(Operation):
    """A call of a step: the function, its arguments, how often it was tried, and how often it was undone before."""

    kind = EntryKind.STEP
    __slots__ = ("args", "attempts", "codec", "function", "is_started", "options", "retry_at", "round", "started_at")

    def __init__(
        self,
        location: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        codec: Codec[Any],
        options: StepOptions,
    ) -> None:
        super().__init__(location)
        self.function = function
        self.args = args
        self.codec = codec
        self.options = options
        self.attempts = 0
        self.retry_at: Micros | None = None
        self.started_at: Micros | None = None
        self.is_started = False
        self.round = 0

    def info(self, run_id: str, generation: int, ring: Callable[[StepInfo], None]) -> StepInfo:
        """What the body of the next attempt may know; `ring` is called when it has something to say."""
        return StepInfo(run_id, generation, self.location, self.attempts + 1, ring, round=self.round)

    def arguments(self, info: StepInfo) -> tuple[Any, ...]:
        """What the function is called with."""
        return self.args

    def outcome(self, entry: Entry) -> Any:
        if entry.state is EntryState.DONE:
            if self.value is not MISSING:
                return self.value
            return self.codec.decode(entry.result or "null", f"result of step {self.location!r}")
        record = entry.error or ErrorRecord(type="Unknown", message="")
        failed = (StepTimeout if record.type == "StepTimeout" else StepFailed)(self.location, record)
        if record.matches(Rollback) and self.kind is not EntryKind.UNDO:
            raise Rollback(record.message) from failed  # no handler of failed steps is to go on from there
        raise failed

    def resume(self, recorded: Entry) -> None:
        self.since = recorded.since
        self.attempts = recorded.attempts
        self.retry_at = recorded.retry_at
        self.started_at = recorded.started_at

    def wait(self, after: int) -> Wait | None:
        if self.retry_at is None:
            return None
        return Wait(location=self.location, kind=WaitKind.RETRY, since=self.asked_at, deadline=self.retry_at)

    def settled(
        self,
        state: EntryState,
        position: int,
        stamp: Micros,
        *,
        result: str | None = None,
        error: ErrorRecord | None = None,
    ) -> Entry:
        """The record of the step's outcome: its result or its error."""
        return Entry(
            location=self.location,
            kind=self.kind,
            state=state,
            position=position,
            attempts=self.attempts,
            result=result,
            error=error,
            started_at=self.started_at or self.asked_at,
            finished_at=stamp,
            since=self.since,
            has_undo=state is EntryState.DONE and self.options.undo is not None,
        )

    def retrying(self, error: ErrorRecord | None) -> Entry:
        """The record of an attempt that will be repeated."""
        return Entry(
            location=self.location,
            kind=self.kind,
            state=EntryState.RETRYING,
            attempts=self.attempts,
            error=error,
            started_at=self.started_at or self.asked_at,
            retry_at=self.retry_at,
            since=self.since,
        )


class TaskCall(StepCall):
    """The one step of a task whose function takes a context."""

    __slots__ = ()

    def info(self, run_id: str, generation: int, ring: Callable[[StepInfo], None]) -> StepInfo:
        return TaskContext(run_id, generation, self.location, self.attempts + 1, ring, round=self.round)

    def arguments(self, info: StepInfo) -> tuple[Any, ...]:
        return (info, *self.args)


class UndoCall(StepCall):
    """A call of the function that undoes what a step did. It is executed, retried and recorded like a step."""

    kind = EntryKind.UNDO
    __slots__ = ()


class Sleep(Operation):
    """A durable timer. `fire` is set for one of plain asyncio: it calls back instead of resolving a future.

    A fixed one is due at a moment that was named, not after a length of time.
    """

    kind = EntryKind.TIMER
    __slots__ = ("fire", "is_fixed")

    def __init__(
        self, location: str, *, deadline: Micros, fire: Callable[[], None] | None = None, is_fixed: bool = False
    ) -> None:
        super().__init__(location, deadline=deadline)
        self.fire = fire
        self.is_fixed = is_fixed

    def put_off(self, length: Micros) -> None:
        if not self.is_fixed:
            super().put_off(length)

    def outcome(self, entry: Entry) -> None:
        return None

    def wait(self, after: int) -> Wait:
        return Wait(location=self.location, kind=WaitKind.TIME, since=self.asked_at, deadline=self.deadline)


class Mark(Operation):
    """A point that a loop has come to: it is due at once, and what it records is `text`."""

    kind = EntryKind.LOOP
    __slots__ = ("ref", "text")

    def __init__(self, location: str, text: str, *, ref: str | None = None) -> None:
        super().__init__(location, deadline=0)
        self.text = text
        self.ref = ref

    def put_off(self, length: Micros) -> None:
        """It is due at once, whenever that is."""

    def outcome(self, entry: Entry) -> Entry:
        return entry

    def wait(self, after: int) -> None:
        return None


class Reception(Operation):
    """A wait for a message or an event. `names` are message names (none: any) or the one topic."""

    __slots__ = ("codec", "kind", "names", "wait_kind", "with_name")

    def __init__(
        self,
        location: str,
        wait_kind: WaitKind,
        names: tuple[str, ...],
        codec: Codec[Any],
        *,
        deadline: Micros | None,
        with_name: bool = False,
    ) -> None:
        super().__init__(location, deadline=deadline)
        self.kind = EntryKind.MESSAGE if wait_kind is WaitKind.MESSAGE else EntryKind.EVENT
        self.wait_kind = wait_kind
        self.names = names
        self.codec = codec
        self.with_name = with_name

    def outcome(self, entry: Entry) -> Any:
        if entry.state is EntryState.TIMED_OUT:
            what = f"{self.wait_kind.value} {' or '.join(self.names) or 'of any name'}"
            raise WaitTimeout(f"no {what} came in time (waited at {self.location!r})", self.location)
        (received,) = received_in(entry)
        return self.meaning(received)

    def meaning(self, received: Received) -> Any:
        """What one thing that was received is to the workflow."""
        value = self.payload_of(received)
        return (received.name, value) if self.with_name else value

    def payload_of(self, received: Received) -> Any:
        return self.codec.decode(received.payload, f"payload of {self.wait_kind.value} {received.name!r}")

    def wait(self, after: int) -> Wait:
        return Wait(
            location=self.location,
            kind=self.wait_kind,
            since=self.asked_at,
            names=self.names,
            deadline=self.deadline,
            after=after,
        )


class Batch(Reception):
    """A wait for messages that takes all there are, up to `count`. That none came in time is no error."""

    __slots__ = ("count",)

    def __init__(
        self,
        location: str,
        names: tuple[str, ...],
        codec: Codec[Any],
        count: int,
        *,
        deadline: Micros | None,
        with_name: bool,
    ) -> None:
        super().__init__(location, WaitKind.MESSAGE, names, codec, deadline=deadline, with_name=with_name)
        self.count = count

    def outcome(self, entry: Entry) -> list[Any]:
        return [self.meaning(received) for received in received_in(entry)]


class ChildEnd(Operation):
    """A wait for the end of a child run."""

    kind = EntryKind.CHILD
    __slots__ = ("child_id", "codec", "started_at")

    def __init__(self, location: str, child_id: str, codec: Codec[Any]) -> None:
        super().__init__(location)
        self.child_id = child_id
        self.codec = codec
        self.started_at: Micros = 0

    def outcome(self, entry: Entry) -> Any:
        if entry.state is EntryState.DONE:
            return self.codec.decode(entry.result or "null", f"result of child {self.location!r}")
        record = entry.error or ErrorRecord(type="Unknown", message="")
        # The record of a cancellation is the store's own and has no classes; an error of that name has.
        kind = "cancelled" if record.type == "Cancelled" and not record.types else "failed"
        raise ChildFailed(self.child_id, kind, record, self.location)

    def resume(self, recorded: Entry) -> None:
        self.since = asked_since(recorded, self.since)
        self.started_at = recorded.started_at

    def wait(self, after: int) -> Wait:
        return Wait(location=self.location, kind=WaitKind.CHILD, since=self.asked_at, names=(self.child_id,))


def asked_since(child: Entry, now: int) -> int:
    """Since when code asks for a child. One that a recovery has kept is asked for anew, when the code comes there."""
    return now if child.state is EntryState.RETRYING else child.since


class ChildGroup(Operation):
    """A wait for the ends of many children, which are recorded one by one and told all at once.

    `started` are the children that have not ended, by id, with the entries of their start.
    """

    kind = EntryKind.CHILD
    __slots__ = ("_ends", "_group", "_members", "started")

    def __init__(self, location: str, group: str, members: Iterable[tuple[str, str]]) -> None:
        super().__init__(location)
        self._group = group
        self._members = dict(members)
        self._ends: dict[str, Entry] = {}
        self.started: dict[str, Entry] = {}

    @property
    def members(self) -> dict[str, str]:
        """Where each child stands, by its id."""
        return self._members

    @property
    def open_ids(self) -> list[str]:
        return [child_id for child_id, location in self._members.items() if location not in self._ends]

    @property
    def is_complete(self) -> bool:
        return len(self._ends) == len(self._members)

    def take(self, entry: Entry) -> None:
        """A child has ended."""
        self._ends[entry.location] = entry
        self.started.pop(entry.ref or "", None)

    def outcome(self, entry: Entry) -> dict[str, Entry]:
        return self._ends

    def wait(self, after: int) -> Wait:
        return Wait(
            location=self.location,
            kind=WaitKind.CHILDREN,
            since=self.asked_at,
            names=(self._group,),
            count=len(self._members) - len(self._ends),
        )


def entry_of_arrivals(operation: Operation, arrivals: Sequence[Arrival], position: int, stamp: Micros) -> Entry:
    """The record of what an operation consumed: one arrival, if it is not a batch."""
    arrival = arrivals[0]
    state = EntryState.DONE
    result = arrival.payload
    location, since = operation.location, operation.since
    if isinstance(operation, (ChildEnd, ChildGroup)):
        ref: str | None = arrival.name
        if isinstance(operation, ChildGroup):
            begun = operation.started[arrival.name]
            location, since, started_at = begun.location, begun.since, begun.started_at
        else:
            started_at = operation.started_at
        if arrival.state is not RunState.SUCCEEDED:
            state = EntryState.FAILED
    else:
        result = record_of(arrivals)
        ref = None if isinstance(operation, Batch) else arrival.ref
        started_at = operation.asked_at
    return Entry(
        location=location,
        kind=operation.kind,
        state=state,
        position=position,
        attempts=1,
        result=result,
        error=arrival.error,
        started_at=started_at,
        finished_at=stamp,
        ref=ref,
        since=since,
    )


def entry_of_deadline(operation: Operation, position: int, stamp: Micros) -> Entry:
    """The record of an operation whose time has come: a timer that fired, a loop's mark, a wait that timed out."""
    return Entry(
        location=operation.location,
        kind=operation.kind,
        state=EntryState.DONE if isinstance(operation, (Sleep, Mark)) else EntryState.TIMED_OUT,
        position=position,
        result=operation.text if isinstance(operation, Mark) else None,
        ref=operation.ref if isinstance(operation, Mark) else None,
        started_at=operation.asked_at,
        finished_at=stamp,
        since=operation.since,
    )
