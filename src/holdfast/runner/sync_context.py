"""The context of a `def` workflow: the operations of `Context`, each of which blocks and returns its value.

This module has no rules of its own. Each operation of `Context` has one method here, with the same parameters, which
passes them on and waits. A test compares the two classes. Methods that take a user's function wrap it with `_branch`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from random import Random
from typing import Any, Generic, Never, TypeVar, TypeVarTuple, Unpack, overload
from uuid import UUID

from holdfast.core.intent import Call, ChildOptions, Startable
from holdfast.core.retry import Retry
from holdfast.runner.children import Child
from holdfast.runner.context import Context, RunLogger, RunView, StepKeywords
from holdfast.runner.looping import Break, Continue
from holdfast.runner.receiving import Message, T

R = TypeVar("R")


class SyncContext:
    """The first argument of a `def` workflow. Its operations are those of `Context`; each blocks and returns its value.

    Needs the extra `sync` (greenlet). No thread is held while it blocks.
    """

    def __init__(self, context: Context) -> None:
        # Imported here, because it needs the extra `sync`.
        from holdfast.runner.blocking import run_blocking, wait

        self._context = context
        self._wait = wait
        self._run = run_blocking

    @property
    def run(self) -> RunView:
        """Facts about this run: id, type, key, tags, and more."""
        return self._context.run

    @property
    def random(self) -> Random:
        """A random generator that gives the same numbers on every replay. Each iteration of a loop has its own."""
        return self._context.random

    @property
    def logger(self) -> RunLogger:
        """A logger whose records name the run. It is silent while the run is replayed."""
        return self._context.logger

    # Steps

    @overload
    def step(
        self,
        name: str,
        function: Startable[Callable[[*Ts], Call[R]]],
        /,
        *args: *Ts,
        **options: Unpack[StepKeywords],
    ) -> R: ...
    @overload
    def step(
        self, name: str, function: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StepKeywords]
    ) -> R: ...
    @overload
    def step(self, name: str, function: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StepKeywords]) -> R: ...
    def step(  # type: ignore[misc]  # mypy does not see that *Any takes every *Ts
        self, name: str, function: Any, /, *args: Any, **options: Unpack[StepKeywords]
    ) -> Any:
        """Execute a function at least once, record its result exactly once, and return that result on every replay.

            parcel = ctx.step("pack", pack, order, undo=unpack)

        `name` is its name in the history; the positional arguments after `function` are passed to it. An async function
        runs on the worker's event loop, a sync one in a thread. `StepKeywords` has the options. Raises `StepFailed`
        when the attempts are used up, and `StepTimeout` if the last one took too long.
        """
        return self._wait(self._context.step(name, function, *args, **options))

    def tx(
        self,
        name: str,
        function: Callable[[Any, *Ts], R],
        /,
        *args: *Ts,
        retry: Retry | None = None,
        undo: Callable[[R], Any] | None = None,
    ) -> R:
        """Call `function(connection, *args)` exactly once, in a transaction of the store that also records its result.

        The writes of the function on the connection are committed together with its result. If it raises, nothing is
        written, and it is retried like a step. The function is sync and should take milliseconds. Other transactions
        wait for its locks; on SQLite it locks the whole store, and has 5 seconds. Needs SQLite or Postgres.
        """
        return self._wait(self._context.tx(name, function, *args, retry=retry, undo=undo))

    # Waiting

    def sleep(self, length: float | timedelta) -> None:
        """Wait for seconds or a timedelta, even if the process dies meanwhile. No worker is occupied."""
        self._wait(self._context.sleep(length))

    def sleep_until(self, when: datetime) -> None:
        """Wait until a moment, in UTC unless it has a zone. A moment in the past returns at once."""
        self._wait(self._context.sleep_until(when))

    def wait_event(self, topic: str, *, type: type[T] | None = None, timeout: float | timedelta | None = None) -> T:
        """Wait for the next event on a topic and return its payload. Raises `WaitTimeout` if none comes in time.

        A run gets each event that was published after its start, once. From a queue, it gets the next event that no
        other run has taken, however old that is. `type` says how to decode the payload.
        """
        return self._wait(self._context.wait_event(topic, type=type, timeout=timeout))

    @overload
    def receive(  # type: ignore[overload-overlap]  # a str is a sequence of strings, too
        self, name: str, *, type: type[T] | None = None, timeout: float | timedelta | None = None
    ) -> T: ...
    @overload
    def receive(
        self, name: Sequence[str] | None = None, *, timeout: float | timedelta | None = None
    ) -> tuple[str, Any]: ...
    def receive(
        self,
        name: str | Sequence[str] | None = None,
        *,
        type: Any = None,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """Wait for the next message with this name and return its payload. Raises `WaitTimeout` if none comes in time.

        With several names, or without a name for any message, it returns `(name, payload)`. Messages are kept in order,
        even if they were sent before the run asked for them or began. `type` says how to decode the payload.
        """
        receive: Any = self._context.receive  # Any, because mypy cannot choose an overload here
        return self._wait(receive(name, type=type, timeout=timeout))

    @overload
    def receive_batch(  # type: ignore[overload-overlap]  # likewise
        self, name: str, count: int, timeout: float | timedelta | None = None, *, type: type[T] | None = None
    ) -> list[T]: ...
    @overload
    def receive_batch(
        self, name: Sequence[str] | None, count: int, timeout: float | timedelta | None = None
    ) -> list[tuple[str, Any]]: ...
    def receive_batch(
        self,
        name: str | Sequence[str] | None,
        count: int,
        timeout: float | timedelta | None = None,
        *,
        type: Any = None,
    ) -> Any:
        """Wait for messages and return the payloads of up to `count` of them as soon as there is one.

        Returns an empty list if none comes within `timeout`. With several names, or None for any, each item is `(name,
        payload)`. All of them cost one checkpoint.
        """
        receive_batch: Any = self._context.receive_batch  # as above
        return self._wait(receive_batch(name, count, timeout, type=type))

    def receive_message(
        self,
        name: str | Sequence[str] | None = None,
        *,
        type: type[T] | None = None,
        timeout: float | timedelta | None = None,
    ) -> Message[T]:
        """Wait for the next message and return it whole: with its id, name and time, and a method to reply.

        `name` is one name, several, or None for any. Raises `WaitTimeout` if none comes in time.
        """
        return self._wait(self._context.receive_message(name, type=type, timeout=timeout))

    # Children

    @overload
    def start(
        self, workflow: Startable[Callable[[*Ts], Call[R]]], /, *args: *Ts, **options: Unpack[ChildOptions]
    ) -> SyncChild[R]: ...
    @overload
    def start(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[ChildOptions]
    ) -> SyncChild[Any]: ...
    def start(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[ChildOptions]
    ) -> Any:
        """Start a child run and continue. Returns its handle, whose `result()` blocks until the child has ended.

        `ChildOptions` has the options. When this run ends, the child continues, unless `on_close="cancel"`.
        """
        return SyncChild(self._wait(self._context.start(workflow, *args, **options)), self._wait)

    @overload
    def call(
        self, workflow: Startable[Callable[[*Ts], Call[R]]], /, *args: *Ts, **options: Unpack[ChildOptions]
    ) -> R: ...
    @overload
    def call(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[ChildOptions]
    ) -> Any: ...
    def call(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[ChildOptions]
    ) -> Any:
        """Start a child run and block until its result is there. Raises `ChildFailed` if it fails or is cancelled.

        `ChildOptions` has the options. The child is cancelled when this run ends.
        """
        return self._wait(self._context.call(workflow, *args, **options))

    @overload
    def map(
        self,
        workflow: Startable[Callable[..., Call[R]]],
        items: Iterable[Any],
        /,
        *,
        limit: int | None = None,
        **options: Unpack[ChildOptions],
    ) -> list[R]: ...
    @overload
    def map(
        self, workflow: str, items: Iterable[Any], /, *, limit: int | None = None, **options: Unpack[ChildOptions]
    ) -> list[Any]: ...
    def map(
        self, workflow: Any, items: Iterable[Any], /, *, limit: int | None = None, **options: Unpack[ChildOptions]
    ) -> list[Any]:
        """Start one child for each item and wait for all. Returns their results in order.

        An item is the argument of its child; a tuple is all its arguments. `limit` is how many children run at once.
        Raises `JoinFailed`, by index, if any child fails, after all have ended. This run is woken only once. The
        children are cancelled when this run, or the map, ends early.
        """
        return self._wait(self._context.map(workflow, items, limit=limit, **options))

    # Side by side

    def join(
        self, name: str, branches: Mapping[str, Callable[[SyncContext], R]], *, fail_fast: bool = False
    ) -> dict[str, R]:
        """Run branches side by side and wait for all. Returns their results by key.

            both = ctx.join("both", {"pay": pay_branch, "pack": pack_branch})

        A branch is a `def branch(ctx)`. Raises `JoinFailed`, with results and errors by key, if any of them fails.
        `fail_fast` cancels the other branches as soon as one fails.
        """
        return self._wait(self._context.join(name, self._branches(branches), fail_fast=fail_fast))

    def race(self, name: str, branches: Mapping[str, Callable[[SyncContext], R]]) -> tuple[str, R]:
        """Run branches side by side until one succeeds. Returns its key and result, and cancels the others.

        Raises `RaceFailed` if all of them fail.
        """
        return self._wait(self._context.race(name, self._branches(branches)))

    def first_settled(self, name: str, branches: Mapping[str, Callable[[SyncContext], R]]) -> tuple[str, R]:
        """Run branches side by side until one ends. Returns its key and result, or raises its error."""
        return self._wait(self._context.first_settled(name, self._branches(branches)))

    # Again and again

    def loop(
        self,
        name: str,
        body: Callable[[SyncContext, S], Continue[S] | Break[V]],
        state: S | Collection[Never],
        *,
        keep: int = 10,
        every: int = 10,
    ) -> V:
        """Call `body(ctx, state)` again and again until it returns `Break(value)`, and return that value.

        `Continue(state)` calls it again, with that state. The state is recorded every `every` iterations. The history
        of iterations before the last `keep` is removed, so a run can loop for years and still resumes fast.
        """
        value: V = self._wait(self._context.loop(name, self._branch(body), state, keep=keep, every=every))
        return value

    def continue_as_new(self, *args: Any) -> Any:
        """Begin the run again with these arguments, as its next generation with an empty history.

        Use it in the workflow function itself: `return ctx.continue_as_new(...)`. Messages that were not received are
        kept. Everything else that is open ends.
        """
        return self._wait(self._context.continue_as_new(*args))

    # Sending

    def send(self, run_id: str, name: str, payload: Any = None) -> None:
        """Send a message to another run, exactly once, with the next checkpoint. An ended run does not get it."""
        self._wait(self._context.send(run_id, name, payload))

    def emit(self, topic: str, payload: Any = None) -> None:
        """Publish an event on a topic, exactly once, with the next checkpoint."""
        self._wait(self._context.emit(topic, payload))

    def set_value(self, name: str, value: Any) -> None:
        """Publish a named value, such as the progress, that others read with `run.value(name)` while the run lives."""
        self._wait(self._context.set_value(name, value))

    # Changing code

    def version(self, name: str, latest: int) -> int:
        """Return the version of a code change that this run follows: `latest`, or 1 if it passed before the change.

        The answer is recorded, so it stays the same. A run that recorded a version above `latest` is blocked.
        """
        return int(self._context.version(name, latest))

    def removed(self, name: str, kind: str) -> None:
        """Declare that an operation was removed from the code here, so that old runs which recorded it still fit.

        `name` is its name in the history without a number (`charge`, `sleep`, `receive:approve`). `kind` is its kind
        there.
        """
        self._context.removed(name, kind)

    # Time and randomness

    def now(self) -> datetime:
        """Return the time of the last fact of this run, such as the end of a step. The same on every replay."""
        return self._context.now()

    def uuid(self) -> UUID:
        """Return a random UUID. The same on every replay."""
        return self._context.uuid()

    # Inside

    def _branches(self, branches: Any) -> Any:
        return {key: self._branch(one) for key, one in branches.items()} if isinstance(branches, Mapping) else branches

    def _branch(self, function: Any) -> Any:
        """Wrap a blocking function that takes a context into the async one that `Context` expects."""
        if not callable(function):
            return function  # `Context` refuses it with the usual message

        @wraps(function)
        def begin(context: Context, /, *args: Any) -> Coroutine[Any, Any, Any]:
            return self._run(function, SyncContext(context), *args)

        return begin


class SyncChild(Generic[R]):
    """The handle of a child run in a `def` workflow. `ctx.start` returns it."""

    def __init__(self, child: Child[R], wait: Callable[[Awaitable[Any]], Any]) -> None:
        self._child = child
        self._wait = wait

    @property
    def id(self) -> str:
        """The id of the child run."""
        return self._child.id

    def result(self) -> R:
        """Block until the child has ended and return its result. Raises `ChildFailed` if it did not succeed."""
        result: R = self._wait(self._child.result())
        return result

    def cancel(self) -> None:
        """Cancel the child, with the next checkpoint."""
        self._wait(self._child.cancel())

    def send(self, name: str, payload: Any = None) -> None:
        """Send the child a message, with the next checkpoint."""
        self._wait(self._child.send(name, payload))

    def __repr__(self) -> str:
        return repr(self._child)


S = TypeVar("S")
V = TypeVar("V")
Ts = TypeVarTuple("Ts")
