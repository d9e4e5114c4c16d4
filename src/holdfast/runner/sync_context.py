"""The context of a `def` workflow: the operations of `Context`, each of which blocks and gives its value.

Nothing is decided here. An operation that is new in `Context` becomes one method here, with the same parameters, which
hands them on and waits; a test compares the two. What takes a function of the user's own wraps it with `_branch`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from random import Random
from typing import Any, Never, TypeVar, TypeVarTuple, Unpack, overload
from uuid import UUID

from holdfast.core.retry import Retry
from holdfast.core.startable import Call, Startable
from holdfast.runner.child import ChildOptions
from holdfast.runner.context import Context, StepKeywords
from holdfast.runner.looping import Break, Continue
from holdfast.runner.message import Message
from holdfast.runner.receiving import T
from holdfast.runner.run_view import RunLogger, RunView
from holdfast.runner.sync_child import SyncChild

R = TypeVar("R")
S = TypeVar("S")
V = TypeVar("V")
Ts = TypeVarTuple("Ts")


class SyncContext:
    """Given to a `def` workflow as its first argument."""

    def __init__(self, context: Context) -> None:
        # Here and not above: it needs the extra `sync`.
        from holdfast.runner.blocking import run_blocking, wait

        self._context = context
        self._wait: Callable[[Awaitable[Any]], Any] = wait
        self._run = run_blocking

    @property
    def run(self) -> RunView:
        """What is known about this run: its id, key, tags and the like."""
        return self._context.run

    @property
    def random(self) -> Random:
        """A source of chance that gives the same numbers on every replay; each iteration of a loop has its own."""
        return self._context.random

    @property
    def logger(self) -> RunLogger:
        """A logger that names the run and is silent while it is replayed."""
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
        """Execute a function at least once, record its result exactly once, and give it back ever after.

        An async function runs on the worker's loop, a sync one in a thread. `timeout` (seconds, or a timedelta) applies
        to each attempt. `ephemeral`: recorded with the next checkpoint instead of its own; may repeat after a crash.
        `undo` is called with the result if the run rolls back: it fails, is cancelled, or raises `Rollback`.
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
        """Call `function(connection, *args)` in the store's own transaction, together with the record of its result.

        What it writes with the connection happens exactly once. What it raises undoes that, and is a failed attempt
        like that of a step. It is sync, and should take milliseconds: others wait for what it has locked, on SQLite
        all of them, and then it has 5 seconds.
        """
        result: R = self._wait(self._context.tx(name, function, *args, retry=retry, undo=undo))
        return result

    # Waiting

    def sleep(self, length: float | timedelta) -> None:
        """Wait that many seconds, however often the process dies meanwhile. A length that is over returns at once."""
        self._wait(self._context.sleep(length))

    def sleep_until(self, when: datetime) -> None:
        """Wait until a moment (UTC unless it has a zone). A past one returns at once."""
        self._wait(self._context.sleep_until(when))

    def wait_event(self, topic: str, *, type: type[T] | None = None, timeout: float | timedelta | None = None) -> T:
        """The payload of the next event on a topic that this run has not had; `WaitTimeout` if none comes in time."""
        payload: T = self._wait(self._context.wait_event(topic, type=type, timeout=timeout))
        return payload

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
        """The payload of the next message of this name; of several names, or any, `(name, payload)`.

        Messages are kept, in order, also those sent before the run asked or even started.
        """
        receive: Any = self._context.receive  # one of its overloads, as one of ours was chosen
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
        """The payloads of the next messages, at most `count`, as soon as there is one; none if none comes in time."""
        receive_batch: Any = self._context.receive_batch  # as above
        return self._wait(receive_batch(name, count, timeout, type=type))

    def receive_message(
        self,
        name: str | Sequence[str] | None = None,
        *,
        type: type[T] | None = None,
        timeout: float | timedelta | None = None,
    ) -> Message[T]:
        """The next message of this name, of one of several, or of any: with its id and time, and a way to reply."""
        message: Message[T] = self._wait(self._context.receive_message(name, type=type, timeout=timeout))
        return message

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
        """Start a child run and go on; the answer is its handle, whose `result()` blocks until the child has ended.

        `on_close` says what becomes of the child when this run ends: `abandon` (default) or `cancel`.
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
        """Start a child run and block until its result is there; `ChildFailed` if it fails or is cancelled.

        The child is cancelled when this run ends.
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
        """Start a child for each item and block until all have ended: their results in order, or `JoinFailed` by index.

        An item is the child's argument, a tuple all of its arguments. With `limit` only so many run at once. However
        many there are, this run is woken once. The children are cancelled when this run, or the map, ends early.
        """
        results: list[Any] = self._wait(self._context.map(workflow, items, limit=limit, **options))
        return results

    # Side by side

    def join(
        self, name: str, branches: Mapping[str, Callable[[SyncContext], R]], *, fail_fast: bool = False
    ) -> dict[str, R]:
        """Run branches side by side until all have ended: results by key, or `JoinFailed` with results and errors.

        A branch is a `def branch(ctx)`. `fail_fast` cancels the others as soon as one fails.
        """
        results: dict[str, R] = self._wait(self._context.join(name, self._branches(branches), fail_fast=fail_fast))
        return results

    def race(self, name: str, branches: Mapping[str, Callable[[SyncContext], R]]) -> tuple[str, R]:
        """Run branches side by side until one succeeds: its key and result. `RaceFailed` if all fail."""
        winner: tuple[str, R] = self._wait(self._context.race(name, self._branches(branches)))
        return winner

    def first_settled(self, name: str, branches: Mapping[str, Callable[[SyncContext], R]]) -> tuple[str, R]:
        """Run branches side by side until one ends: its key and result, or the error it raised."""
        first: tuple[str, R] = self._wait(self._context.first_settled(name, self._branches(branches)))
        return first

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
        """Call `body(ctx, state)` again and again until it returns `Break(value)`; `Continue(state)` goes on.

        The state is durable: it is recorded every so many iterations, and what they recorded is pruned except for the
        last `keep`. So a run may loop for years, and resumes at once.
        """
        value: V = self._wait(self._context.loop(name, self._branch(body), state, keep=keep, every=every))
        return value

    def continue_as_new(self, *args: Any) -> Any:
        """Begin anew with these arguments: the same run, its next generation, without the history so far.

        Use it as `return ctx.continue_as_new(...)`, in the workflow function itself; it does not come back. Unread
        messages are kept; everything else that is open ends.
        """
        return self._wait(self._context.continue_as_new(*args))

    # Telling others

    def send(self, run_id: str, name: str, payload: Any = None) -> None:
        """Send a message to another run, once, with the next checkpoint. To a run that has ended it is dropped."""
        self._wait(self._context.send(run_id, name, payload))

    def emit(self, topic: str, payload: Any = None) -> None:
        """Publish an event, once, with the next checkpoint."""
        self._wait(self._context.emit(topic, payload))

    def set_value(self, name: str, value: Any) -> None:
        """Publish a named value that anyone can read while the run lives, such as its progress."""
        self._wait(self._context.set_value(name, value))

    # Changing code

    def version(self, name: str, latest: int) -> int:
        """Which version of a change this run follows: `latest`, or 1 for a run that has been here before the change."""
        return int(self._context.version(name, latest))

    def removed(self, name: str, kind: str) -> None:
        """Say that an operation was here which the code no longer has: what old runs recorded of it is accepted."""
        self._context.removed(name, kind)

    # The world, made repeatable

    def now(self) -> datetime:
        """The time, as of the last thing that happened to this run; the same on every replay."""
        return self._context.now()

    def uuid(self) -> UUID:
        """A random UUID; the same on every replay."""
        return self._context.uuid()

    # Inside

    def _branches(self, branches: Any) -> Any:
        return {key: self._branch(one) for key, one in branches.items()} if isinstance(branches, Mapping) else branches

    def _branch(self, function: Any) -> Any:
        """A blocking function that takes a context, as the async one that `Context` expects."""
        if not callable(function):
            return function  # which is refused where all are

        @wraps(function)
        def begin(context: Context, /, *args: Any) -> Coroutine[Any, Any, Any]:
            return self._run(function, SyncContext(context), *args)

        return begin
