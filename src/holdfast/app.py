"""The Holdfast object: the public face of a store, a registry and the workers that execute it.

It is composed of parts. `Session` owns the open store; `engine` has the verbs of producers, `runner` the decorators,
`worker` the workers. Whatever is not for users is private here, and `session_of` hands it to the layers above.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack, overload

from holdfast.config import settings
from holdfast.config.configuration import Configuration
from holdfast.config.secret import scrubbed
from holdfast.core.clock import in_seconds
from holdfast.core.ports import Store
from holdfast.core.schedules import ScheduleOptions
from holdfast.core.signals import Signal, Signals, named
from holdfast.core.startable import Call, Startable
from holdfast.engine import events
from holdfast.engine.async_list import AsyncList
from holdfast.engine.capabilities import database_of
from holdfast.engine.check import RunCheck, check_runs
from holdfast.engine.dead_letters import DeadLetters
from holdfast.engine.export import Export, Told
from holdfast.engine.handle import RunHandle, handle_on
from holdfast.engine.importing import ImportReport, Lines
from holdfast.engine.info import RunInfo
from holdfast.engine.listing import list_runs
from holdfast.engine.queries import Filter
from holdfast.engine.schedules import Schedules
from holdfast.engine.selection import Selection
from holdfast.engine.session import Session, refuse_workflow_code
from holdfast.engine.starting import Starter, StartOptions
from holdfast.engine.sync import Sync
from holdfast.engine.topics import Topics
from holdfast.engine.transfers import TIMEOUT_SECONDS, import_lines, new_export
from holdfast.engine.types import Types
from holdfast.engine.workers import Workers
from holdfast.runner.decorators import StepDecorator, TaskDecorator, WorkflowDecorator
from holdfast.runner.registry import Registry
from holdfast.store_urls import store_for
from holdfast.telemetry.hooks import Hooks
from holdfast.telemetry.metrics import Metrics
from holdfast.worker.worker import Worker

_HOOK_SECONDS = 5.0

D = TypeVar("D")
H = TypeVar("H", bound=Callable[[Signal], Any])
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Holdfast:
    """A durable workflow engine on one store.

    The URL is `sqlite:///file.db` (relative), `sqlite:////absolute/file.db`, `postgresql://user@host/database`,
    `memory://`, or that of a store which an installed package offers. The default is `$HOLDFAST_URL`, else the URL of
    the settings file, else `sqlite:///holdfast.db`. Nothing is opened before the first use; `async with hf` and
    `await hf.close()` close it. `store` is a store that has no URL; the URL is then only its name.
    """

    def __init__(self, url: str | None = None, *, store: Store | None = None) -> None:
        configuration = Configuration()
        name = url or (configuration[settings.URL] if store is None else type(store).__name__)
        session = Session(name, store_for(name) if store is None else store, Registry(), Signals())
        self._assemble(session, configuration, Hooks(session.signals))

    def _assemble(self, session: Session, configuration: Configuration, hooks: Hooks) -> None:
        self._session = session
        self._configuration = configuration
        self._hooks = hooks
        self._starter = Starter(session)
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._metrics: Metrics | None = None
        self._sync: Sync | None = None
        self._making_sync = threading.Lock()

    # Lifetime

    async def __aenter__(self) -> Self:
        await self._session.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the workers of this object and close the store. The object may be used again afterwards."""
        if self._session.is_forked:
            return  # what is open belongs to the parent process
        refuse_workflow_code()
        for worker in list(self._workers):
            await worker.stop()
        if self._sync is not None:
            await asyncio.to_thread(self._sync.close)
        await self._hooks.drain(_HOOK_SECONDS)
        await self._session.close()

    # Declaring

    @property
    def workflow(self) -> WorkflowDecorator:
        """Registers a workflow: `@hf.workflow`, or with options `@hf.workflow("shop.checkout.v1", strict=False)`.

        Its first parameter is the context: a `Context` for an `async def` function, a `SyncContext` for a `def` one.
        """
        return self._session.registry.workflow

    @property
    def task(self) -> TaskDecorator:
        """Registers a plain function as a task, a run with one implicit step: `@hf.task`, or `@hf.task(timeout=30)`.

        A first parameter called `ctx` gets a `TaskContext`, and is no part of the payload.
        """
        return self._session.registry.task

    @property
    def step(self) -> StepDecorator:
        """Makes a function a step: `@hf.step`, or with options `@hf.step(retry=Retry(max_attempts=5), timeout=30)`.

        A step is durable when workflow code calls it, and a plain function everywhere else.
        """
        return self._session.registry.step

    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[D], D]:
        """Start runs of a workflow or task over time: put it above `@hf.workflow` or `@hf.task`.

        It fires at the times of a cron expression in a `zone` (default UTC), or `every` that many seconds. `args` are
        those of the function, `name` is that of its type by default; for the other options see `ScheduleOptions`. The
        store learns of it when a worker starts.
        """
        return self._session.registry.schedule(cron, name=name, args=args, **options)

    def include(self, registry: Registry) -> None:
        """Take in what another registry has, and what it will have."""
        self._session.registry.include(registry)

    # Starting

    @overload
    async def start(
        self, workflow: Startable[Callable[[*Ts], Call[R]]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> RunHandle[R]: ...
    @overload
    async def start(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[StartOptions]
    ) -> RunHandle[Any]: ...
    async def start(  # type: ignore[misc]  # mypy does not see that *Any takes every *Ts
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> RunHandle[Any]:
        """Start a run: of a workflow or task with its arguments, of a bound call, or of a type's name with a payload.

        Positional arguments are those of your function, keywords are options of the run (`StartOptions`). To pass
        arguments by name, bind them: `hf.start(checkout.bind(order=order), key="order-17")`. When it returns the run is
        durable, whether or not a worker exists. `run.created` is False if the key, or id, was known already.
        """
        return await self._starter.start(workflow, args, options)

    @overload
    async def start_many(
        self,
        workflow: Startable[Callable[[*Ts], Call[R]]],
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
    @overload
    async def start_many(
        self, calls: Iterable[Call[R]], /, *, keys: Sequence[str] | None = None, **options: Unpack[StartOptions]
    ) -> list[RunHandle[R]]: ...
    async def start_many(
        self,
        workflow: Any,
        arguments: Any = None,
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> list[RunHandle[Any]]:
        """Start many runs in one transaction, all or none; a `KeyConflict` has the `index` of the culprit.

        Give a workflow or task and a list of arguments, a tuple for each run; a type's name and a list of payloads; or
        a list of bound calls alone. `keys` has a key for each run, and the options apply to all.
        """
        return await self._starter.start_many(workflow, arguments, keys, options)

    @overload
    async def execute(
        self, workflow: Startable[Callable[[*Ts], Call[R]]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    async def execute(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[StartOptions]
    ) -> Any: ...
    async def execute(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> Any:
        """Start a run and wait for its result. Needs a worker, here or elsewhere."""
        return await (await self._starter.start(workflow, args, options)).result()

    # Finding

    def run(self, run_id: str | None = None, /, *, key: str | None = None) -> RunHandle[Any]:
        """A handle on a run by its id or its key. Whether the run exists shows when the handle is used."""
        return handle_on(self._session, run_id, key)

    def list(
        self, *, limit: int | None = None, after: RunInfo | str | None = None, **filter: Unpack[Filter]
    ) -> AsyncList[RunInfo]:
        """Runs, newest first: `async for run in hf.list(state="failed")`, or `await` it for all at once.

        `Filter` has the conditions. `after` is the last run of the page before, or its id: what follows does not shift,
        whatever was started meanwhile.
        """
        return list_runs(self._session, filter, limit=limit, after=after)

    def runs(
        self, *, ids: Iterable[str] | None = None, everything: bool = False, **filter: Unpack[Filter]
    ) -> Selection:
        """All runs that match a filter, to be changed together: `await hf.runs(state="failed").recover(by="ada")`.

        `Filter` has the conditions; or give `ids`. Without any of them, changing runs needs `everything=True`.
        """
        return Selection(self._session, filter, ids=ids, everything=everything)

    def check(self, *, type: str | None = None, limit: int | None = None) -> AsyncList[RunCheck]:
        """Replay every live run against the code that is registered here, newest first: use it before a deploy.

        It executes no step and writes nothing. `type` may end in `.*`.
        """
        return AsyncList(check_runs(self._session, type=type, limit=limit))

    # Publishing

    async def emit(self, topic: str, payload: Any = None, *, by: str = "") -> int:
        """Publish an event. When it returns the event is durable.

        The answer is how many waiting runs it reached, at most one if the topic is a queue.
        """
        return await events.emit(self._session, topic, payload, by=by)

    # In your own transactions

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        """A transaction in the store's database, for your own tables: `with hf.connection() as connection: …`.

        It is committed at the end of the block, and rolled back if that raises. Nobody else can write meanwhile, so
        keep it short; one that is `readonly` keeps nobody waiting. Needs an open store: `async with hf`.
        """
        refuse_workflow_code()
        return database_of(self._session.store, "connection").connection(readonly=readonly)

    @overload
    async def start_in(
        self,
        connection: object,
        workflow: Startable[Callable[[*Ts], Call[R]]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
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
        return await self._starter.start_in(connection, workflow, args, options)

    async def send_in(
        self,
        connection: object,
        run: RunHandle[Any] | str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        by: str = "",
    ) -> None:
        """Send a run a message in your own transaction: it arrives when you commit what is open on the connection.

        The run is a handle, by id or by key, or an id. A run that does not exist or has ended is refused at once.
        """
        handle = self.run(run) if isinstance(run, str) else run
        await handle.send_in(connection, name, payload, id=id, by=by)

    async def emit_in(self, connection: object, topic: str, payload: Any = None, *, by: str = "") -> int:
        """Publish an event in your own transaction: it exists when you commit what is open on the connection.

        The answer is how many of the runs that wait now it will reach then.
        """
        return await events.emit_in(self._session, connection, topic, payload, by=by)

    # Administration

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules: `put`, `list`, `get`, `next`, `pause`, `resume`, `trigger`, `remove`."""
        return Schedules(self._session)

    @cached_property
    def topics(self) -> Topics:
        """Topics of events: `set`, `list`."""
        return Topics(self._session)

    @cached_property
    def types(self) -> Types:
        """Types of runs: `set` limits, `list`, `enable`, `disable`."""
        return Types(self._session)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """Events and messages that could not be delivered: `list`, `replay`, `purge`."""
        return DeadLetters(self._session)

    @cached_property
    def workers(self) -> Workers:
        """The workers of all processes: `list`."""
        return Workers(self._session)

    def export(
        self,
        *,
        live: bool = True,
        timeout: float = TIMEOUT_SECONDS,
        reason: str = "exported",
        by: str = "",
        told: Told | None = None,
        **filter: Unpack[Filter],
    ) -> Export:
        """Runs as lines of JSON, for `import_` on another store; the conditions are those of `list`.

        Live runs are paused first, for `reason`, and stay paused here; a run that a worker does not release within
        `timeout` seconds is left, with all that belongs to it. With conditions, live parents and children of those they
        choose go too. `live=False` exports only runs that have ended, and changes nothing. `told` is called with what
        is going on. Iterate over the lines once; afterwards `counts`, `left` and `taken_along` say what they were.
        """
        return new_export(self._session, filter, live=live, timeout=timeout, reason=reason, by=by, told=told)

    async def import_(self, lines: Lines, *, by: str = "", told: Told | None = None) -> ImportReport:
        """Take in the lines of an export. Runs that are there already are left as they are, so it may be repeated.

        When all lines are there, what the export has paused goes on here; what a person had paused stays so. A file
        that was cut off or changed is refused with `InvalidRequest`, and then nothing goes on.
        """
        return await import_lines(self._session, lines, by=by, told=told)

    # Executing

    def worker(
        self,
        types: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        threads: int | None = None,
        steps: int | None = None,
        lease_seconds: float | timedelta | None = None,
        grace_seconds: float | timedelta | None = None,
        name: str | None = None,
        retention: float | timedelta | None = None,
    ) -> Worker:
        """A worker for what is registered here: `async with` it, or `run()`, or `run_until_idle()`.

        What is not given is as configured: by default all types, 200 runs, 1000 step bodies and 32 threads at once,
        leases of 30 seconds and a grace of 10. `retention` is how long ended runs are kept if neither they nor their
        type say so: 30 days.
        """
        configured = self._configuration
        lease = configured[settings.LEASE] if lease_seconds is None else lease_seconds
        grace = configured[settings.GRACE] if grace_seconds is None else grace_seconds
        return self._new_worker(
            types=configured[settings.TYPES] if types is None else types,
            concurrency=configured.chosen(settings.CONCURRENCY, concurrency),
            threads=configured.chosen(settings.THREADS, threads),
            steps=configured.chosen(settings.STEPS, steps),
            lease_seconds=in_seconds(lease, "worker: lease_seconds"),
            grace_seconds=in_seconds(grace, "worker: grace_seconds"),
            name=configured.chosen(settings.NAME, name),
            retention=configured[settings.RETENTION] if retention is None else retention,
        )

    def _new_worker(self, **options: Any) -> Worker:
        session = self._session
        worker = Worker(
            session.store,
            session.registry,
            signals=session.signals,
            on_open=session.open,
            on_start=session.local_workers.append,
            on_stop=self._forget_worker,
            on_end=lambda run_id, end: session.results.note(run_id, end),  # noqa: PLW0108 - none before it is open
            **options,
        )
        self._workers.add(worker)
        return worker

    def _forget_worker(self, worker: Worker) -> None:
        if worker in self._session.local_workers:
            self._session.local_workers.remove(worker)
        self._workers.discard(worker)

    # Observing

    def on(self, *patterns: str) -> Callable[[H], H]:
        """Call a function for each signal of these names, such as `run.failed`, or families, such as `run.*`.

        It gets a `Signal`, after the change was written, and in this process only. It may be sync or async, and changes
        nothing about the run, whatever it does. What must happen durably belongs in a step.
        """
        for pattern in patterns or ("",):
            named(pattern)

        def hook(function: H) -> H:
            self._hooks.add(patterns, function)
            return function

        return hook

    @property
    def metrics(self) -> Metrics:
        """Metrics of this process and of the store. Counting begins with the first use."""
        if self._metrics is None:
            session = self._session
            self._metrics = Metrics(
                session.signals, self._hooks, lambda: self._workers, session.opened_store, lambda: session.is_open
            )
        return self._metrics

    # Blocking

    @property
    def sync(self) -> Sync:
        """The blocking version of this object, for Django, Flask and scripts: `hf.sync.start(…).result()`.

        It has a store of its own on the same runs, which is opened at the first use, and closed by `hf.sync.close()`
        or together with this one.
        """
        with self._making_sync:
            if self._sync is None:
                twin = self._twin()
                self._sync = Sync(twin, twin._session.open)  # noqa: SLF001 - of the same class
            return self._sync

    def _twin(self) -> Holdfast:
        """Another Holdfast for the same runs, code and listeners, to be used on another event loop."""
        session = self._session
        twin = Holdfast.__new__(Holdfast)
        other = Session(session.url, session.store.twin(), session.registry, session.signals)
        twin._assemble(other, self._configuration, self._hooks)  # noqa: SLF001 - of the same class
        return twin

    def __repr__(self) -> str:
        return f"<Holdfast {scrubbed(self._session.url)}>"


def session_of(hf: Holdfast) -> Session:
    """The session of a Holdfast, with its store, registry and signals: for the layers above, not for users."""
    return hf._session  # noqa: SLF001 - this function is the way to it
