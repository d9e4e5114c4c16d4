"""The context: the interface of holdfast for workflow code. Every operation is durable and the same on every replay.

An operation gets its location when it is *called* and is requested when it is first *awaited*. So these methods are
plain functions that return coroutines.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Mapping, MutableMapping
from datetime import datetime, timedelta
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, Never, TypedDict, TypeVar, TypeVarTuple, Unpack, overload
from uuid import UUID

from holdfast.core.clock import Micros, instant, micros, moment
from holdfast.core.codec import Codec, encode_any
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import Call, ChildOptions, Startable, check_names, check_topic, described, is_count, unbound
from holdfast.core.location import TIMER_NAME, check_name, name_from
from holdfast.core.model import Entry, EntryKind, Event, Intent, MessageToRun, Run, derived_id
from holdfast.core.retry import Retry
from holdfast.runner.branches import Branches, check_some
from holdfast.runner.children import (
    Child,
    ChildMap,
    Done,
    Started,
    check_limit,
    child_fields,
)
from holdfast.runner.looping import Break, Continue, Looping
from holdfast.runner.operation import (
    DEFAULT_STEP_OPTIONS,
    Operation,
    Sleep,
    StepOptions,
    TxCall,
    check_function,
    declared_options,
    step_options,
)
from holdfast.runner.receiving import Receiving

if TYPE_CHECKING:
    from holdfast.runner.code_requests import CodeRequests


R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S")
V = TypeVar("V")
Ts = TypeVarTuple("Ts")


class StepKeywords(TypedDict, total=False):
    """The options of one step: keywords of `ctx.step`. They override those of `@hf.step`."""

    retry: Retry
    """The retry policy after an error. Default: 4 attempts, 0.1 seconds apart and growing."""
    timeout: float | timedelta | None
    """Seconds or a timedelta that one attempt may take. Default: no limit."""
    retry_timeout: bool
    """True to try again after an attempt that took too long. Default: False."""
    ephemeral: bool
    """Record the result with the next checkpoint instead of at once.

    Faster, but the step may run again after a crash.
    """
    undo: Callable[[Any], Any] | None
    """A function that is called with the result of the step if the run rolls back.

    A run rolls back when it fails, is cancelled, or raises `Rollback`.
    """


class Context(Receiving):
    """The first argument of an `async def` workflow. Its operations are durable and return the same on every replay."""

    def __init__(self, requests: CodeRequests) -> None:
        self._requests = requests

    @cached_property
    def run(self) -> RunView:
        """Facts about this run: id, type, key, tags, and more."""
        return RunView(self._requests.run)

    @property
    def random(self) -> Random:
        """A random generator that gives the same numbers on every replay. Each iteration of a loop has its own."""
        return self._chance("random")

    @cached_property
    def logger(self) -> RunLogger:
        """A logger whose records name the run. It is silent while the run is replayed."""
        return RunLogger(self._requests)

    def _chance(self, purpose: str) -> Random:
        run, scope = self._requests.run, self._requests.loop.scope
        if purpose not in scope.chances:
            inside = f":{scope.iteration}" if scope.iteration else ""
            scope.chances[purpose] = Random(f"{run.options.seed or run.id}:{run.generation}:{purpose}{inside}")
        return scope.chances[purpose]

    # Steps

    @overload
    def step(
        self,
        name: str,
        function: Startable[Callable[[*Ts], Call[R]]],
        /,
        *args: *Ts,
        **options: Unpack[StepKeywords],
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self, name: str, function: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StepKeywords]
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self, name: str, function: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StepKeywords]
    ) -> Coroutine[Any, Any, R]: ...
    def step(  # type: ignore[misc]  # mypy does not see that *Any takes every *Ts
        self, name: str, function: Any, /, *args: Any, **options: Unpack[StepKeywords]
    ) -> Coroutine[Any, Any, Any]:
        """Execute a function at least once, record its result exactly once, and return that result on every replay.

            parcel = await ctx.step("pack", pack, order, undo=unpack)

        `name` is its name in the history; the positional arguments after `function` are passed to it. An async function
        runs on the worker's event loop, a sync one in a thread. `StepKeywords` has the options. Raises `StepFailed`
        when the attempts are used up, and `StepTimeout` if the last one took too long.
        """
        self._requests.loop.check_inside()
        check_name(name, "step name")
        kwargs: Mapping[str, Any] | None = None
        if isinstance(function, Call):
            function, args, kwargs = function.target, unbound(function, args), function.kwargs
        declared: StepOptions = getattr(function, "options", None) or DEFAULT_STEP_OPTIONS
        chosen = step_options(declared, **options) if options else declared
        plain = getattr(function, "function", function)
        if not callable(plain):
            raise InvalidRequest(f"step {name!r}: expected a function, then its arguments; got {plain!r}")
        codec = self._requests.definition.codec_of(plain)
        return self._requests.step(name, plain, args, codec, chosen, kwargs=kwargs)

    def tx(
        self,
        name: str,
        function: Callable[[Any, *Ts], R],
        /,
        *args: *Ts,
        retry: Retry | None = None,
        undo: Callable[[R], Any] | None = None,
    ) -> Coroutine[Any, Any, R]:
        """Call `function(connection, *args)` exactly once, in a transaction of the store that also records its result.

        The writes of the function on the connection are committed together with its result. If it raises, nothing is
        written, and it is retried like a step. The function is sync and should take milliseconds. Other transactions
        wait for its locks; on SQLite it locks the whole store, and has 5 seconds. Needs SQLite or Postgres.
        """
        self._requests.loop.check_inside()
        check_name(name, "name of a transaction")
        if not self._requests.has_database:
            raise InvalidRequest(
                f"ctx.tx({name!r}): this store cannot hold your tables, so it cannot commit your rows and the result "
                "together; use sqlite:///file.db or postgresql://…, or, on Redis or in memory, a step that passes its "
                "idempotency key to your database"
            )
        plain, declared = check_function(name, function), declared_options(name, function)
        given = {name: value for name, value in (("retry", retry), ("undo", undo)) if value is not None}
        options = step_options(declared, **given) if given else declared
        codec = self._requests.definition.codec_of(plain)
        return self._perform(TxCall(self._requests.loop.scope.locate(name), plain, args, codec, options))

    # Waiting

    def sleep(self, length: float | timedelta) -> Coroutine[Any, Any, None]:
        """Wait for seconds or a timedelta, even if the process dies meanwhile. No worker is occupied."""
        return self._sleep(self._requests.stamp + micros(length), is_fixed=False)

    def sleep_until(self, when: datetime) -> Coroutine[Any, Any, None]:
        """Wait until a moment, in UTC unless it has a zone. A moment in the past returns at once."""
        return self._sleep(instant(when), is_fixed=True)

    def _sleep(self, deadline: Micros, *, is_fixed: bool) -> Coroutine[Any, Any, None]:
        return self._perform(Sleep(self._locate("sleep"), deadline=deadline, is_fixed=is_fixed))

    # Children

    @overload
    def start(
        self, workflow: Startable[Callable[[*Ts], Call[R]]], /, *args: *Ts, **options: Unpack[ChildOptions]
    ) -> Awaitable[Child[R]]: ...
    @overload
    def start(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[ChildOptions]
    ) -> Awaitable[Child[Any]]: ...
    def start(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[ChildOptions]
    ) -> Any:
        """Start a child run and continue. Returns its handle; await that to get the result of the child.

        `ChildOptions` has the options. When this run ends, the child continues, unless `on_close="cancel"`.
        """
        child = self._child(workflow, args, {"on_close": "abandon"} | options)
        child.create()
        return Started(child, self._requests)

    @overload
    def call(
        self, workflow: Startable[Callable[[*Ts], Call[R]]], /, *args: *Ts, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, Any]: ...
    def call(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[ChildOptions]
    ) -> Any:
        """Start a child run and wait for its result. Raises `ChildFailed` if it fails or is cancelled.

        `ChildOptions` has the options. The child is cancelled when this run ends, and when this call is cancelled, for
        example by a timeout.
        """
        return self._call(self._child(workflow, args, {"on_close": "cancel"} | options))

    async def _call(self, child: Child[Any]) -> Any:
        child.create(is_awaited=True)
        return await child.result(cancels=child.intent.on_close == "cancel")

    def _child(self, workflow: Any, args: tuple[Any, ...], options: ChildOptions) -> Child[Any]:
        check_names(options, ChildOptions, workflow, of="a child")
        what = described(workflow, args)
        location = self._locate(check_name(options.get("name") or what[0], "name of a child"))
        return self._child_at(location, what, child_fields(options, workflow, None))

    def _child_at(
        self,
        location: str,
        what: tuple[str, str, Codec[Any]],
        fields: dict[str, Any],
        place: int | None = None,
    ) -> Child[Any]:
        type, payload, codec = what
        origin = location if place is None else location.rpartition("/")[0]
        intent = Intent(
            # The token makes the id unique to this lease. Otherwise code would find a child that a rewind cancelled.
            id=derived_id(f"{self._key_of(origin)}:{self._requests.token}", self._requests.stamp, place),
            type=type,
            payload=payload,
            parent_id=self._requests.run.id,
            parent_location=location,
            **fields,
        )
        return Child(self, self._requests, intent, location, codec)

    @overload
    def map(
        self,
        workflow: Startable[Callable[..., Call[R]]],
        items: Iterable[Any],
        /,
        *,
        limit: int | None = None,
        **options: Unpack[ChildOptions],
    ) -> Coroutine[Any, Any, list[R]]: ...
    @overload
    def map(
        self, workflow: str, items: Iterable[Any], /, *, limit: int | None = None, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, list[Any]]: ...
    def map(
        self, workflow: Any, items: Iterable[Any], /, *, limit: int | None = None, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, list[Any]]:
        """Start one child for each item and wait for all. Returns their results in order.

        An item is the argument of its child; a tuple is all its arguments. `limit` is how many children run at once.
        Raises `JoinFailed`, by index, if any child fails, after all have ended. This run is woken only once. The
        children are cancelled when this run, or the map, ends early.
        """
        check_limit(limit)
        chosen: ChildOptions = {"on_close": "cancel", **options}
        check_names(chosen, ChildOptions, workflow, of="a child")
        described_items = [described(workflow, item if isinstance(item, tuple) else (item,)) for item in items]
        default = workflow if isinstance(workflow, str) else getattr(workflow, "type", "map")
        location = self._locate(check_name(chosen.get("name") or default, "name of a map"))
        fields = child_fields(chosen, workflow, limit)
        children = [
            self._child_at(f"{location}/{place}", what, fields, place) for place, what in enumerate(described_items)
        ]
        return ChildMap(self._requests, location, children, limit).run()

    # Side by side

    def join(
        self, name: str, branches: Mapping[str, Callable[[Context], Awaitable[R]]], *, fail_fast: bool = False
    ) -> Coroutine[Any, Any, dict[str, R]]:
        """Run branches side by side and wait for all. Returns their results by key.

            both = await ctx.join("both", {"pay": pay_branch, "pack": pack_branch})

        A branch is an `async def branch(ctx)`. Raises `JoinFailed`, with results and errors by key, if any of them
        fails. `fail_fast` cancels the other branches as soon as one fails.
        """
        return self._branches(name, branches).join(fail_fast=fail_fast)

    def race(
        self, name: str, branches: Mapping[str, Callable[[Context], Awaitable[R]]]
    ) -> Coroutine[Any, Any, tuple[str, R]]:
        """Run branches side by side until one succeeds. Returns its key and result, and cancels the others.

        Raises `RaceFailed` if all of them fail.
        """
        check_some(name, branches)
        return self._branches(name, branches).race()

    def first_settled(
        self, name: str, branches: Mapping[str, Callable[[Context], Awaitable[R]]]
    ) -> Coroutine[Any, Any, tuple[str, R]]:
        """Run branches side by side until one ends. Returns its key and result, or raises its error."""
        check_some(name, branches)
        return self._branches(name, branches).first_settled()

    def _branches(self, name: str, branches: Mapping[str, Callable[[Context], Awaitable[R]]]) -> Branches:
        check_name(name, "name of branches")
        return Branches(self._requests, self._locate(name), branches)

    # Again and again

    def loop(
        self,
        name: str,
        body: Callable[[Context, S], Awaitable[Continue[S] | Break[V]]],
        state: S | Collection[Never],
        *,
        keep: int = 10,
        every: int = 10,
    ) -> Coroutine[Any, Any, V]:
        """Call `body(ctx, state)` again and again until it returns `Break(value)`, and return that value.

        `Continue(state)` calls it again, with that state. The state is recorded every `every` iterations. The history
        of iterations before the last `keep` is removed, so a run can loop for years and still resumes fast.
        """
        check_name(name, "name of a loop")
        return Looping(self._requests, self._locate(name), body, state, keep=keep, every=every).run()

    def continue_as_new(self, *args: Any) -> Coroutine[Any, Any, Never]:
        """Begin the run again with these arguments, as its next generation with an empty history.

        Use it in the workflow function itself: `return await ctx.continue_as_new(...)`. Messages that were not received
        are kept. Everything else that is open ends.
        """
        requests, loop = self._requests, self._requests.loop
        loop.check_inside()
        if not loop.is_in_root and not loop.is_evicting:
            raise InvalidRequest(
                "only the workflow function itself may call continue_as_new, not a branch or task of it"
            )
        what = f"payload of the next generation of {requests.run.type!r}"
        requests.continue_as_new(requests.definition.signature.encode(args, what))
        return requests.never()

    # Sending

    def send(self, run_id: str, name: str, payload: Any = None) -> Done:
        """Send a message to another run, exactly once, with the next checkpoint. An ended run does not get it."""
        check_name(name, "message name")
        location = self._locate(name_from("send", name))
        message = MessageToRun(
            id=self._key_of(location),
            run_id=run_id,
            name=name,
            payload=encode_any(payload, f"payload of message {name!r}"),
        )
        self._requests.command(EntryKind.SEND, location, ref=run_id, command=message)
        return Done(self._requests)

    def emit(self, topic: str, payload: Any = None) -> Done:
        """Publish an event on a topic, exactly once, with the next checkpoint."""
        check_topic(topic)
        location = self._locate(name_from("emit", topic))
        event = Event(
            id=self._key_of(location),
            topic=topic,
            payload=encode_any(payload, f"payload of event {topic!r}"),
        )
        self._requests.command(EntryKind.EMIT, location, command=event)
        return Done(self._requests)

    def set_value(self, name: str, value: Any) -> Done:
        """Publish a named value, such as the progress, that others read with `run.value(name)` while the run lives."""
        self._requests.loop.check_inside()
        check_name(name, "name of a value")
        self._requests.publish(name, encode_any(value, f"value {name!r}"))
        return Done(self._requests)

    # Changing code

    def version(self, name: str, latest: int) -> Version:
        """Return the version of a code change that this run follows: `latest`, or 1 if it passed before the change.

        The answer is recorded, so it stays the same. A run that recorded a version above `latest` is blocked.
        """
        check_name(name, "name of a version")
        if not is_count(latest):
            raise InvalidRequest(
                f"version {name!r}: latest must be a whole number of at least 1, not {latest!r}; 1 is the original code"
            )
        location = self._locate(name_from("version", name))
        return Version(self._requests.version(location, self._requests.loop.scope.path, latest))

    def removed(self, name: str, kind: str) -> Done:
        """Declare that an operation was removed from the code here, so that old runs which recorded it still fit.

        `name` is its name in the history without a number (`charge`, `sleep`, `receive:approve`). `kind` is its kind
        there.
        """
        removed = check_removed(name, kind)
        self._requests.removed(self._locate(name), removed)
        return Done(self._requests)

    # Time and randomness

    def now(self) -> datetime:
        """Return the time of the last fact of this run, such as the end of a step. The same on every replay."""
        return moment(self._requests.stamp)

    def uuid(self) -> UUID:
        """Return a random UUID. The same on every replay."""
        self._requests.loop.check_inside()
        return UUID(int=self._chance("uuid").getrandbits(128), version=4)

    # Inside

    def _key_of(self, location: str) -> str:
        run = self._requests.run
        return f"{run.id}:{run.generation}:{location}"

    def _perform(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        return self._requests.perform(operation)


def requests_of(context: Context) -> CodeRequests:
    """Return the requests behind a context, for other modules of holdfast."""
    return context._requests  # noqa: SLF001 - other modules use this function instead


class RunView:
    """Facts about a run for its own code, as `ctx.run`. The same on every replay.

    `id`, `type`, `key`, `tags`, `priority` and `created_at` are those of its start. `generation` is 1, and one more
    after each `ctx.continue_as_new`. `parent_id` is the run that it was started by or under.
    """

    def __init__(self, run: Run) -> None:
        self.id = run.id
        self.type = run.type
        self.key = run.key
        self.tags = dict(run.tags)
        self.priority = run.priority
        self.generation = run.generation
        self.parent_id = run.parent_id
        self.created_at = moment(run.created_at)

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.type}>"


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while a run is replayed. Records have `run_id`, `type` and `location` (the branch)."""

    def __init__(self, requests: CodeRequests) -> None:
        super().__init__(logging.getLogger("holdfast.workflow"), {"run_id": requests.run.id, "type": requests.run.type})
        self._requests = requests

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        location = self._requests.loop.scope.path.rstrip("/") or None
        kwargs["extra"] = {**(self.extra or {}), "location": location, **(kwargs.get("extra") or {})}
        return msg, kwargs

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name logging calls
        return not self._requests.is_replaying and super().isEnabledFor(level)


_REMOVABLE: dict[str, EntryKind | None] = {
    **{kind.value: kind for kind in EntryKind if kind not in (EntryKind.REMOVED, EntryKind.ROLLBACK, EntryKind.UNDO)},
    "sleep": EntryKind.TIMER,
    # These have no entry of their own, only those of their branches or children.
    "join": None,
    "race": None,
    "first_settled": None,
    "map": None,
}


class Version(int):
    """A version number. Code may await it, but need not."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, int]:
        yield from ()
        return int(self)


def check_removed(name: str, kind: object) -> EntryKind | None:
    """Return the kind of entry of a removed operation, or None if it has no entry. Refuses an unknown kind or name."""
    if name != TIMER_NAME:  # the location of a timer of plain asyncio, which has no name
        check_name(name, "name of what was removed")
    if not isinstance(kind, str) or kind not in _REMOVABLE:
        raise InvalidRequest(f"removed {name!r}: unknown kind {kind!r}; the kinds are {', '.join(_REMOVABLE)}")
    return _REMOVABLE[kind]


def version_in(entry: Entry) -> int:
    """Return the version that an entry records, or 0 if it records none."""
    text = entry.result or ""
    return int(text) if entry.kind is EntryKind.VERSION and text.isdecimal() else 0
