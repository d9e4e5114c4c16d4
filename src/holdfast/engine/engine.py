"""The engine: everything a program can do with runs except execute them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import NoneType
from typing import Any, Protocol, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from msgspec.structs import replace

from holdfast.core.checkpoint import Created, LeaseRequest
from holdfast.core.clock import Micros, instant, moment
from holdfast.core.codec import Codec
from holdfast.core.commands import EmitEvents
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.ids import new_id
from holdfast.core.intent import (
    check_delay,
    check_id,
    check_key,
    check_length,
    check_priority,
    check_string,
    check_tags,
    described,
    run_options,
)
from holdfast.core.model import DEFAULT_PRIORITY, Intent, Lease, Reuse, Undelivered
from holdfast.core.signals import Signal, Signals
from holdfast.core.states import RunState
from holdfast.engine.check import RunCheck, check_runs
from holdfast.engine.controls import ControlVerbs, check_actor
from holdfast.engine.handle import RunHandle
from holdfast.engine.info import RunInfo
from holdfast.engine.paging import run_pages
from holdfast.engine.queries import Filter, place_of, query_of
from holdfast.engine.schedules import ScheduleVerbs
from holdfast.engine.topics import TopicVerbs
from holdfast.engine.transfers import TransferVerbs
from holdfast.engine.types import TypeVerbs
from holdfast.engine.user_transactions import UserTransactions, an_event
from holdfast.runner.context import Context
from holdfast.runner.registry import Registry
from holdfast.runner.sync_context import SyncContext

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class StartOptions(TypedDict, total=False):
    """What can be said about a run to be started.

    `key` makes the start repeatable: the same key with the same payload gives the same run. `priority` is 0 to
    255, lower first. `delay` (seconds) and `ready_at` hold it back. `tags` can be searched for. `max_run` limits the
    whole run, from its start time on, and `max_suspend` each of its suspensions; either cancels it. `undelivered` says
    what becomes of messages it never received: `discard`, or `dead_letter`. `retention` is how long the run is kept
    after its end, if not as long as others of its type.
    """

    key: str | None
    reuse: Reuse
    priority: int
    delay: float | timedelta
    ready_at: datetime | None
    tags: Mapping[str, str] | None
    id: str | None
    max_run: float | timedelta | None
    max_suspend: float | timedelta | None
    undelivered: Undelivered
    retention: float | timedelta | None


class Neighbour(Protocol):
    """A worker in the same process, which may take a run at the moment it is created."""

    def offer(self, type: str) -> LeaseRequest | None: ...

    def accept(self, leases: Sequence[Lease], now: Micros) -> None:
        """What became of an offer; there may be no lease. Called from a plain callback."""
        ...

    def recall(self, request: LeaseRequest) -> None:
        """What became of an offer is not known. Called from a plain callback."""
        ...


class Engine(ControlVerbs, TopicVerbs, TypeVerbs, ScheduleVerbs, TransferVerbs, UserTransactions):
    """Starts, finds, lists and controls runs in one store."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.signals = Signals()
        self.neighbours: list[Neighbour] = []

    # Starting

    @overload
    async def start(
        self, workflow: Callable[[Context, *Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: Callable[[SyncContext, *Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[StartOptions]
    ) -> RunHandle[Any]: ...
    async def start(  # type: ignore[misc]  # mypy does not see that *Any takes every *Ts
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> RunHandle[Any]:
        """Start a run: of a workflow or task with its arguments, or of a type's name with a payload.

        When it returns the run is durable, whether or not a worker exists. `run.created` is False if the key, or
        id, was known already.
        """
        intent, codec = self._intent(workflow, args, options)
        await self.opened()
        created = await self._create_one(intent)
        (run,) = created.runs
        # A run that bears the id that was made up here is new, even if the store knows it: an answer of its got lost.
        is_new = run.created or (run.run_id == intent.id and options.get("id") is None)
        return RunHandle(self, run.run_id, codec, created=is_new)

    @overload
    async def start_in(
        self,
        connection: object,
        workflow: Callable[[Context, *Ts], Awaitable[R]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> RunHandle[R]: ...
    @overload
    async def start_in(
        self,
        connection: object,
        workflow: Callable[[SyncContext, *Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> RunHandle[R]: ...
    @overload
    async def start_in(
        self,
        connection: object,
        workflow: Callable[[*Ts], Awaitable[R]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> RunHandle[R]: ...
    @overload
    async def start_in(
        self, connection: object, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> RunHandle[R]: ...
    @overload
    async def start_in(
        self,
        connection: object,
        workflow: str,
        payload: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[StartOptions],
    ) -> RunHandle[Any]: ...
    async def start_in(  # type: ignore[misc]  # as above
        self, connection: object, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> RunHandle[Any]:
        """Start a run in your own transaction: it exists exactly if you commit what is open on the connection."""
        intent, codec = self._intent(workflow, args, options)
        await self.opened()
        (run,) = (await self.database_for("start_in").create_in(connection, [intent])).runs
        return RunHandle(self, run.run_id, codec, created=run.created)

    async def _create_one(self, intent: Intent) -> Created:
        """Create a run; if a worker of this process has nothing better to do, it gets the lease in the same commit."""
        for neighbour in self.neighbours:
            request = neighbour.offer(intent.type)
            if request is not None:
                creating = asyncio.create_task(self.store.create([intent], request))
                # A plain callback, as runs are never driven from inside a task; and shielded, as the worker must
                # learn of its lease also if the caller does not wait for it any more.
                creating.add_done_callback(partial(self._hand_over, neighbour, request, intent))
                return await asyncio.shield(creating)
        created = await self.store.create([intent])
        self._tell_started([intent], created)
        return created

    def _hand_over(
        self, neighbour: Neighbour, request: LeaseRequest, intent: Intent, creating: asyncio.Task[Created]
    ) -> None:
        if creating.cancelled() or isinstance(creating.exception(), StoreUnavailable):
            neighbour.recall(request)
        elif creating.exception() is not None:
            neighbour.accept((), 0)
        else:
            created = creating.result()
            self._tell_started([intent], created)  # before it is told that it was claimed
            neighbour.accept([run.lease for run in created.runs if run.lease is not None], created.now)

    def _tell_started(self, intents: Sequence[Intent], created: Created) -> None:
        if not self.signals.wants("run.started"):
            return
        for intent, run in zip(intents, created.runs, strict=True):
            if run.created:
                self.signals.give(
                    Signal(
                        name="run.started",
                        at=moment(created.now),
                        run_id=run.run_id,
                        type=intent.type,
                        state=RunState.PENDING,
                        trace=intent.options.trace,
                    )
                )

    @overload
    async def execute(
        self, workflow: Callable[[Context, *Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    async def execute(
        self, workflow: Callable[[SyncContext, *Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    async def execute(
        self, workflow: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    async def execute(self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]) -> R: ...
    @overload
    async def execute(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[StartOptions]
    ) -> Any: ...
    async def execute(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> Any:
        """Start a run and wait for its result. Needs a worker, here or elsewhere."""
        run: RunHandle[Any] = await self.start(workflow, *args, **options)
        return await run.result()

    @overload
    async def start_many(
        self,
        workflow: Callable[[Context, *Ts], Awaitable[R]],
        arguments: Iterable[tuple[*Ts]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> list[RunHandle[R]]: ...
    @overload
    async def start_many(
        self,
        workflow: Callable[[SyncContext, *Ts], R],
        arguments: Iterable[tuple[*Ts]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> list[RunHandle[R]]: ...
    @overload
    async def start_many(
        self,
        workflow: Callable[[*Ts], Awaitable[R]],
        arguments: Iterable[tuple[*Ts]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> list[RunHandle[R]]: ...
    @overload
    async def start_many(
        self,
        workflow: Callable[[*Ts], R],
        arguments: Iterable[tuple[*Ts]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> list[RunHandle[R]]: ...
    @overload
    async def start_many(
        self,
        workflow: str,
        payloads: Iterable[Mapping[str, Any]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> list[RunHandle[Any]]: ...
    async def start_many(
        self,
        workflow: Any,
        arguments: Iterable[Any],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> list[RunHandle[Any]]:
        """Start many runs in one round trip, all or none; a `KeyConflict` tells the `index` of the culprit."""
        if options.get("key") is not None or options.get("id") is not None:
            raise InvalidRequest("start_many takes keys=[…], one for each run, instead of key= or id=")
        _check_many(arguments, keys)
        many = [one if isinstance(one, tuple) else (one,) for one in arguments]
        if keys is not None and len(keys) != len(many):
            raise InvalidRequest(f"start_many got {len(many)} sets of arguments and {len(keys)} keys")
        built = [self._intent(workflow, args, options) for args in many]
        intents = [intent for intent, _ in built]
        if keys is not None:
            intents = [replace(intent, key=check_key(key)) for intent, key in zip(intents, keys, strict=True)]
        await self.opened()
        created = await self.store.create(intents)
        self._tell_started(intents, created)
        return [
            RunHandle(self, run.run_id, codec, created=run.run_id == intent.id)
            for run, (intent, codec) in zip(created.runs, built, strict=True)
        ]

    def _intent(self, workflow: Any, args: tuple[Any, ...], options: StartOptions) -> tuple[Intent, Codec[Any]]:
        if unknown := options.keys() - StartOptions.__annotations__.keys():
            raise InvalidRequest(
                f"unknown option {', '.join(sorted(unknown))}; arguments of the workflow are positional, and keywords "
                f"are options of the run: {', '.join(StartOptions.__annotations__)}"
            )
        type, payload, codec = described(workflow, args)
        known = self.registry.get(type)
        if known is not None:
            if isinstance(workflow, str):
                codec = known.result
            known.signature.decode(payload, f"payload of {type!r}")  # what does not fit is refused now, not later
        key, ready_at, run_id = options.get("key"), options.get("ready_at"), options.get("id")
        delay = check_delay(options.get("delay", 0))
        if delay and ready_at is not None:
            raise InvalidRequest("delay= and ready_at= both say when the run may start; give one of them")
        id = new_id() if run_id is None else check_id(run_id)
        lasting = run_options(
            max_run=options.get("max_run"),
            max_suspend=options.get("max_suspend"),
            undelivered=options.get("undelivered", "discard"),
        )
        if (tracing := self.signals.tracing) is not None:
            lasting = replace(lasting, trace=tracing.of_start(type, id))
        intent = Intent(
            id=id,
            type=type,
            payload=payload,
            key=None if key is None else check_key(key),
            reuse=_check_reuse(options.get("reuse", "never")),
            priority=check_priority(options.get("priority", DEFAULT_PRIORITY)),
            start_at=None if ready_at is None else instant(ready_at, "ready_at"),
            delay=delay,
            tags=check_tags(options.get("tags")),
            retention=check_length(options.get("retention"), "retention"),
            options=lasting,
        )
        return intent, codec

    async def trigger_schedule(self, name: str) -> RunHandle[Any]:
        """Start a run of a schedule now, whatever its slots, and also if it is paused."""
        return RunHandle(self, await self.triggered(name), _ANY, created=True)

    # Finding

    def run(self, run_id: str | None = None, /, *, key: str | None = None) -> RunHandle[Any]:
        """A handle on a run by its id or its key. Whether the run exists shows when the handle is used."""
        if (run_id is None) == (key is None):
            raise InvalidRequest("hf.run() takes an id, or key=…, and not both")
        check_string(run_id if key is None else key, "id" if key is None else "key")
        return RunHandle(self, run_id, _ANY, key=key)

    async def list(
        self,
        *,
        state: RunState | str | Iterable[RunState | str] | None = None,
        type: str | None = None,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
        parent_id: str | None = None,
        since: datetime | timedelta | None = None,
        until: datetime | None = None,
        deleted: bool = False,
        limit: int | None = None,
        after: RunInfo | str | None = None,
    ) -> AsyncIterator[RunInfo]:
        """Runs, newest first. `type` may end in `.*`; `since` is a moment, or how long ago.

        Runs that were deleted are listed only if `deleted` is set, and then no others. `after` is the last run of the
        page before, or its id: what follows does not shift, whatever was started meanwhile.
        """
        chosen = Filter(
            state=state,
            type=type,
            key=key,
            tags=tags,
            parent_id=parent_id,
            since=since,
            until=until,
            deleted=deleted,
        )
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidRequest(f"limit={limit!r}: it is a whole number of runs, or None for all")
        await self.opened()
        query = await query_of(self.store, chosen)
        if after is not None:
            query = replace(query, before=await place_of(self.store, after, is_deleted=deleted))
        async for page in run_pages(self.store, query, limit):
            for details in page:
                yield RunInfo.of(details)

    async def check(self, *, type: str | None = None, limit: int | None = None) -> AsyncIterator[RunCheck]:
        """Replay every live run against the code that is registered here, newest first, without doing anything.

        For use before a deploy: executes no step and writes nothing. `type` may end in `.*`.
        """
        await self.opened()
        async for found in check_runs(self.store, self.registry, type=type, limit=limit):
            yield found

    # Telling

    async def emit(self, topic: str, payload: Any = None, *, by: str = "") -> int:
        """Publish an event; the answer is how many waiting runs it reached (of a queue, one at most).

        When it returns the event is durable.
        """
        event = an_event(topic, payload)
        await self.opened()
        (reached,) = await self.store.apply(EmitEvents(events=[event], by=check_actor(by)))
        return reached


_ANY: Codec[Any] = Codec(Any)


def _check_many(arguments: object, keys: object) -> None:
    if not isinstance(arguments, Iterable) or not isinstance(keys, (Sequence, NoneType)):
        raise InvalidRequest("start_many takes a list of arguments, a tuple for each run, and keys=[…] of as many")


def _check_reuse(reuse: Reuse) -> Reuse:
    if reuse not in ("never", "after_failure", "after_end"):
        raise InvalidRequest(f"reuse={reuse!r}: it is 'never', 'after_failure' or 'after_end'")
    return reuse
