"""Operations: durable requests of workflow code, whose outcome the code awaits.

Steps and transactions are operations that execute a function. Here are their options, the end of an attempt at them,
and the verdict on it: the step is settled, or it is tried again later.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from types import FunctionType
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros, in_seconds
from holdfast.core.codec import Codec
from holdfast.core.entries import Received, received_in, record_of
from holdfast.core.errors import (
    ChildFailed,
    ErrorRecord,
    Fatal,
    HoldfastError,
    InvalidRequest,
    Rollback,
    StepFailed,
    StepTimeout,
    WaitTimeout,
    refuse_unknown,
)
from holdfast.core.intent import check_length
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Wait, WaitKind
from holdfast.core.retry import Retry, worker_lost
from holdfast.core.states import RunState
from holdfast.runner.step_info import StepInfo, TaskContext, current_step

MISSING: Any = object()
"""Marks a missing value, because `None` is a valid value."""


class Operation:
    """A durable request of workflow code, with its location and time.

    `after` is the number of facts that must be committed before the operation may act.
    `since` is the position of the last fact before the request.
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
        """Return the value of the entry for the workflow, or raise its error."""
        raise NotImplementedError

    def wait(self, after: int) -> Wait | None:
        """Return the wait to register for this operation, or None if a run does not suspend for it."""
        raise NotImplementedError

    def resume(self, recorded: Entry) -> None:
        """Continue from an entry that is not settled."""

    def put_off(self, length: Micros) -> None:
        """Move the deadline by `length`, because a rewind does not count the time that has passed since."""
        if self.deadline is not None:
            self.deadline += length


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a step. `step_options` creates and validates them."""

    retry: Retry = Retry()
    timeout: float | None = None
    retry_timeout: bool = False
    ephemeral: bool = False
    undo: Callable[[Any], Any] | None = None


DEFAULT_STEP_OPTIONS = StepOptions()


def step_options(declared: StepOptions, **given: Any) -> StepOptions:
    """Return the declared options, overridden by the given options of `Context.step`. Refuses invalid ones."""
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
        raise InvalidRequest(f"retry={retry!r}: expected a Retry, such as Retry(max_attempts=3)")
    return retry


def _checked_timeout(timeout: float | timedelta | None) -> float | None:
    if timeout is None:
        return None
    check_length(timeout, "timeout")
    return in_seconds(timeout)


def _checked_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name}={value!r}: expected True or False")
    return value


def checked_undo(undo: Any) -> Callable[[Any], Any] | None:
    """Return the undo function. Of a decorated step, return the plain function, because no workflow code calls it."""
    plain = getattr(undo, "function", undo)
    if plain is not None and not callable(plain):
        raise InvalidRequest(f"undo={undo!r}: expected a function that takes the step's result")
    return plain  # type: ignore[no-any-return]  # the caller's object, whose type is unknown


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "retry": _checked_retry,
    "timeout": _checked_timeout,
    "retry_timeout": partial(_checked_flag, "retry_timeout"),
    "ephemeral": partial(_checked_flag, "ephemeral"),
    "undo": checked_undo,
}


class StepCall(Operation):
    """A call of a step: its function, arguments and attempts, and the number of earlier undos (`round`)."""

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

    def info(self, run_id: str, generation: int, notify: Callable[[StepInfo], None]) -> StepInfo:
        """Return the `StepInfo` for the body of the next attempt. The body calls `notify` when it reports progress."""
        return StepInfo(run_id, generation, self.location, self.attempts + 1, notify, round=self.round)

    def arguments(self, info: StepInfo) -> tuple[Any, ...]:
        """Return the arguments for the function."""
        return self.args

    def outcome(self, entry: Entry) -> Any:
        if entry.state is EntryState.DONE:
            if self.value is not MISSING:
                return self.value
            return self.codec.decode(entry.result or "null", f"result of step {self.location!r}")
        record = entry.error or ErrorRecord(type="Unknown", message="")
        failed = (StepTimeout if record.type == "StepTimeout" else StepFailed)(self.location, record)
        if record.matches(Rollback) and self.kind is not EntryKind.UNDO:
            raise Rollback(record.message) from failed  # `except StepFailed` in a workflow must not catch a rollback
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
        """Return the entry of the step's outcome: its result or its error."""
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
        """Return the entry of a failed attempt that will be retried."""
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

    def info(self, run_id: str, generation: int, notify: Callable[[StepInfo], None]) -> StepInfo:
        return TaskContext(run_id, generation, self.location, self.attempts + 1, notify, round=self.round)

    def arguments(self, info: StepInfo) -> tuple[Any, ...]:
        return (info, *self.args)


class UndoCall(StepCall):
    """A call of an undo function. It is executed, retried and recorded like a step."""

    kind = EntryKind.UNDO
    __slots__ = ()


class Sleep(Operation):
    """A durable timer. A timer of plain asyncio has `fire`, which is called instead of resolving a future.

    A timer with `is_fixed` is due at a given instant, not after a duration, so a rewind does not move it.
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
    """A point that a loop has reached. It is due at once and records `text`."""

    kind = EntryKind.LOOP
    __slots__ = ("ref", "text")

    def __init__(self, location: str, text: str, *, ref: str | None = None) -> None:
        super().__init__(location, deadline=0)
        self.text = text
        self.ref = ref

    def put_off(self, length: Micros) -> None:
        """Do nothing: a mark is always due at once."""

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
        """Return the value of one received message or event for the workflow."""
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
    """A wait for messages that takes all that have arrived, up to `count`. A timeout is not an error."""

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
        # The store writes the record of a cancellation without exception classes. A user's error named `Cancelled`
        # has classes.
        kind = "cancelled" if record.type == "Cancelled" and not record.types else "failed"
        raise ChildFailed(self.child_id, kind, record, self.location)

    def resume(self, recorded: Entry) -> None:
        self.since = asked_since(recorded, self.since)
        self.started_at = recorded.started_at

    def wait(self, after: int) -> Wait:
        return Wait(location=self.location, kind=WaitKind.CHILD, since=self.asked_at, names=(self.child_id,))


def asked_since(child: Entry, now: int) -> int:
    """Return the `since` of a child's entry. For a child that a recovery kept, the code asks again `now`."""
    return now if child.state is EntryState.RETRYING else child.since


class ChildGroup(Operation):
    """A wait for the ends of many children. Each end is recorded by itself, and all are fed together.

    `started` has the children that have not ended, by id, with the entries of their start.
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
        """The location of each child, by its id."""
        return self._members

    @property
    def open_ids(self) -> list[str]:
        return [child_id for child_id, location in self._members.items() if location not in self._ends]

    @property
    def is_complete(self) -> bool:
        return len(self._ends) == len(self._members)

    def take(self, entry: Entry) -> None:
        """Note the end of a child."""
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
    """Return the entry of the arrivals that an operation consumed. Only a batch consumes more than one."""
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
    """Return the entry of an operation that is due: a timer that fired, a loop's mark, or a wait that timed out."""
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


class Returned(msgspec.Struct, frozen=True):
    """The body of the attempt returned."""

    value: Any


class Raised(msgspec.Struct, frozen=True):
    """The body of the attempt raised."""

    error: BaseException


class TimedOut(msgspec.Struct, frozen=True):
    """The attempt took too long. Its body may still be running, so by default it is not retried."""


AttemptEnd = Returned | Raised | TimedOut


class Settled(msgspec.Struct, frozen=True):
    """The step is settled with this outcome."""

    state: EntryState
    result: str | None = None
    error: ErrorRecord | None = None


class TryAgain(msgspec.Struct, frozen=True):
    """The step waits for its next attempt. The error is None if the worker crashed during the last one."""

    error: ErrorRecord | None = None


def judge_attempt(call: StepCall, end: AttemptEnd) -> Settled | TryAgain:
    """Count an attempt, and return the verdict for its step. A result that cannot be stored is a failure."""
    match end:
        case Returned(value):
            try:
                text, call.value = call.codec.store(value, f"result of step {call.location!r}")
            except HoldfastError as refused:
                return judge_attempt(call, Raised(refused))
            call.attempts += 1
            return Settled(EntryState.DONE, text)
        case Raised(error):
            call.attempts += 1
            may_retry = call.options.retry.allows(error, call.attempts)
            record = ErrorRecord.of(error, attempts=call.attempts)
        case TimedOut():
            call.attempts += 1
            may_retry = call.options.retry_timeout and call.attempts < call.options.retry.max_attempts
            message = f"an attempt took longer than {call.options.timeout} s"
            record = ErrorRecord(type="StepTimeout", message=message, types=("TimeoutError",), attempts=call.attempts)
        case _:
            assert_never(end)
    return TryAgain(record) if may_retry else Settled(EntryState.FAILED, error=record)


def charge_crashes(call: StepCall, crashes: int) -> Settled | TryAgain:
    """Count worker crashes as attempts at a step that was at the frontier of the run."""
    call.attempts += crashes
    if call.attempts >= call.options.retry.max_attempts:
        return Settled(EntryState.FAILED, error=worker_lost(call.attempts))
    return TryAgain()


class TxCall(StepCall):
    """A step that the store executes. It is a checkpoint of its run, so it also commits the facts fed before."""

    kind = EntryKind.TX
    __slots__ = ()


class Attempt:
    """One attempt at a transaction. The store commits the writes of the function and the entry together, or neither.

    The store calls it on one of its threads, with a connection of its driver, perhaps for several runs at once. It does
    not change the run: its entry is fed after the commit.
    """

    def __init__(self, call: TxCall, info: StepInfo, position: int, stamp: Micros) -> None:
        self.location = call.location
        self._call = call
        self._position = position
        self._stamp = stamp
        self.context = copy_context()
        self.context.run(current_step.set, info)

    def __call__(self, connection: Any, now: Micros) -> Entry:
        """Call the function and return the entry to record. Raises its error, or an error if its result is refused."""
        call = self._call
        # Run in a fresh copy of the context, because an attempt whose commit failed is made again.
        value = self.context.copy().run(call.function, connection, *call.args)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise Fatal(f"the function of transaction {self.location!r} returned an awaitable; pass a sync function")
        text, _ = call.codec.store(value, f"result of transaction {self.location!r}")
        entry = call.settled(EntryState.DONE, self._position, max(self._stamp, now), result=text)
        return replace(entry, attempts=call.attempts + 1)


def check_function(name: str, function: object) -> Callable[..., Any]:
    """Return the plain function of a transaction. Refuses an async function."""
    plain = getattr(function, "function", function)
    if not callable(plain):
        raise InvalidRequest(f"transaction {name!r}: expected a function, then its arguments; got {plain!r}")
    inner: Any = plain
    while isinstance(inner, partial):
        inner = inner.func
    if _is_async(inner) or _is_async(getattr(inner, "__call__", None)):  # noqa: B004
        raise InvalidRequest(
            f"transaction {name!r}: {inner!r} is async, and nothing can be awaited while the transaction is open: "
            "pass a sync function, and await in steps before and after it"
        )
    return plain


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def declared_options(name: str, function: object) -> StepOptions:
    """Return the declared options of a function. Refuses options that a transaction cannot have."""
    declared: StepOptions = getattr(function, "options", None) or DEFAULT_STEP_OPTIONS
    if declared.timeout is not None or declared.ephemeral:
        raise InvalidRequest(
            f"transaction {name!r}: its function is declared with timeout= or ephemeral=, which are for steps; "
            "a transaction has a time limit of its own, and is recorded with its own commit"
        )
    return declared


def check_arguments(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that a function could not be called with, judged by their number and names."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a function of a C library may have no signature; then calling it raises the error
    parameters = signature.parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        names = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
        if not kwargs.keys() <= set(names):
            refuse_unknown("parameter", kwargs, names, of=name)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidRequest(f"{name}{signature}: {error}") from None


def check_call(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> None:
    """Raise the `TypeError` of a wrong call when workflow code makes it, not when a worker executes the step."""
    if type(function) is FunctionType and not kwargs:  # almost always: a fraction of the cost of a signature
        code, defaults = function.__code__, function.__defaults__
        least = code.co_argcount - (len(defaults) if defaults is not None else 0)
        is_bounded = not code.co_flags & inspect.CO_VARARGS
        if least <= len(args) and not (is_bounded and len(args) > code.co_argcount) and not code.co_kwonlyargcount:
            return
    try:
        # What a decorator wraps may take other arguments than the decorated function.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # a function of a C library may have no signature; then calling it raises the error
    try:
        signature.bind(*args, **(kwargs or {}))
    except TypeError as error:
        raise TypeError(f"{name}{inspect.signature(function)}: {error}") from None


def with_keywords(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function with these keyword arguments bound. The caller passes the positional ones."""
    if inspect.iscoroutinefunction(function):

        async def called(*args: Any) -> Any:
            return await function(*args, **kwargs)

        return called
    return lambda *args: function(*args, **kwargs)
