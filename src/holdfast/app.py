"""The Holdfast object: the public API of a store, a registry, and the workers that execute its runs.

It is composed of parts. `Session` owns the open store; `engine` has the verbs of producers, `runner` the decorators,
`worker` the workers. Internals are private, and `session_of` passes them to the layers above.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack, overload

from holdfast.config import settings
from holdfast.config.configuration import Configuration
from holdfast.config.secret import scrubbed
from holdfast.core.clock import in_seconds
from holdfast.core.intent import Call, Startable, StartOptions
from holdfast.core.news import Signal, Signals, named
from holdfast.core.ports import Store
from holdfast.core.schedules import ScheduleOptions
from holdfast.engine import namespaces
from holdfast.engine.check import RunCheck, check_runs
from holdfast.engine.controls import Selection
from holdfast.engine.handle import RunHandle, Starter, handle_on
from holdfast.engine.info import RunInfo
from holdfast.engine.lists import AsyncList, Filter, list_runs
from holdfast.engine.namespaces import DeadLetters, Flows, Schedules, Topics, Types, Workers
from holdfast.engine.session import Session, database_of, refuse_workflow_code
from holdfast.engine.sync import Sync
from holdfast.engine.transfers import (
    TIMEOUT_SECONDS,
    Export,
    ImportReport,
    Lines,
    ProgressCallback,
    import_lines,
)
from holdfast.runner.pipeline import PipelineDeclaration
from holdfast.runner.registry import Registry, StepDecorator, TaskDecorator, WorkflowDecorator
from holdfast.store_urls import store_for
from holdfast.telemetry.hooks import Hooks
from holdfast.telemetry.metrics import Metrics
from holdfast.worker.worker import Worker


class LocalWorkers:
    """Makes workers for a session and knows those that still exist. Starts and results take a short cut to them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def make(self, **options: Any) -> Worker:
        """Make a worker on the store of the session."""
        session = self._session
        worker = Worker(
            session.store,
            session.registry,
            signals=session.signals,
            on_open=session.open,
            on_start=session.local_workers.append,
            on_stop=self._forget,
            on_end=lambda run_id, end: session.results.note(run_id, end),  # noqa: PLW0108 - none before it is open
            **options,
        )
        self._workers.add(worker)
        return worker

    async def stop(self) -> None:
        """Stop all of them."""
        for worker in list(self._workers):
            await worker.stop()

    def _forget(self, worker: Worker) -> None:
        if worker in self._session.local_workers:
            self._session.local_workers.remove(worker)
        self._workers.discard(worker)


_HOOK_SECONDS = 5.0

D = TypeVar("D")
H = TypeVar("H", bound=Callable[[Signal], Any])
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Holdfast:
    """A durable workflow engine on one store.

    `url` is `sqlite:///file.db` (relative), `sqlite:////absolute/file.db`, `postgresql://user@host/database`,
    `redis://host:port/0`, `memory://`, or the URL of a store that an installed package offers. The default is
    `$HOLDFAST_URL`, then the URL of the settings file, then `sqlite:///holdfast.db`. `store` is a store object that has
    no URL; `url` is then only its name. Nothing is opened before the first use. `async with hf` closes the store at its
    end; so does `await hf.close()`.
    """

    def __init__(self, url: str | None = None, *, store: Store | None = None) -> None:
        configuration = Configuration()
        name = url or (configuration[settings.URL] if store is None else type(store).__name__)
        session = Session(
            name,
            store_for(name) if store is None else store,
            Registry(),
            Signals(),
            may_migrate=lambda: configuration[settings.MIGRATE] == "auto",
        )
        self._assemble(session, configuration, Hooks(session.signals))

    def _assemble(self, session: Session, configuration: Configuration, hooks: Hooks) -> None:
        self._session = session
        self._configuration = configuration
        self._hooks = hooks
        self._starter = Starter(session)
        self._local_workers = LocalWorkers(session)
        self._metrics: Metrics | None = None
        self._sync: Sync | None = None
        self._making_sync = threading.Lock()

    # Lifetime

    async def __aenter__(self) -> Self:
        await self._session.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the workers of this object and close the store. The object can be used again afterwards."""
        if self._session.is_forked:
            return  # the open store and the workers belong to the parent process
        refuse_workflow_code()
        await self._local_workers.stop()
        if self._sync is not None:
            await asyncio.to_thread(self._sync.close)
        await self._hooks.drain(_HOOK_SECONDS)
        await self._session.close()

    # Declaring

    @property
    def workflow(self) -> WorkflowDecorator:
        """Register a workflow: `@hf.workflow`, or with options `@hf.workflow("shop.checkout.v1", strict=False)`.

        The first parameter of the function is its context: a `Context` if it is `async def`, a `SyncContext` if it is
        `def`.
        """
        return self._session.registry.workflow

    @property
    def task(self) -> TaskDecorator:
        """Register a plain function as a task, a run with one implicit step: `@hf.task`, or `@hf.task(timeout=30)`.

        A first parameter named `ctx` gets a `TaskContext`. It is not part of the payload.
        """
        return self._session.registry.task

    @property
    def pipeline(self) -> PipelineDeclaration:
        """Register a workflow that is a list of steps: `hf.pipeline("shop.signup.v1", create_account, welcome)`."""
        return self._session.registry.pipeline

    @property
    def step(self) -> StepDecorator:
        """Make a function a step: `@hf.step`, or with options `@hf.step(retry=Retry(max_attempts=5), timeout=30)`.

        A step is durable when workflow code calls it. Everywhere else it is a plain function.
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
        """Start runs over time: put `@hf.schedule("0 3 * * *")` above `@hf.workflow` or `@hf.task`.

        It fires at the times of the `cron` expression, or every `every` seconds (`ScheduleOptions`). `args` are the
        arguments of the function. `name` is by default the type. A worker puts it into the store when it starts.
        """
        return self._session.registry.schedule(cron, name=name, args=args, **options)

    def include(self, registry: Registry) -> None:
        """Add the workflows, tasks and schedules of another registry, and those it gets later."""
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
        """Start a run of a workflow or task, of a bound call, or of a type by its name with a payload.

        Positional arguments are for your function, keywords are options of the run (`StartOptions`). To pass arguments
        by name, bind them: `hf.start(checkout.bind(order=order), key="order-17")`. The payload of a type is a JSON
        object of the function's parameters by name. When `start` returns, the run is durable, even if no worker exists
        yet. `run.created` is False if a run with this key or id existed already.
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
        """Start many runs in one transaction, all or none. A `KeyConflict` names the `index` of the run that failed.

        Pass a workflow or task and a list of argument tuples, one for each run; or the name of a type and a list of
        payloads; or only a list of bound calls. `keys` has one key for each run. The options apply to all runs.
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
        """Start a run and wait for its result. A worker must run, in this process or in another one."""
        return await (await self._starter.start(workflow, args, options)).result()

    # Finding

    def run(self, run_id: str | None = None, /, *, key: str | None = None) -> RunHandle[Any]:
        """Make a handle on a run from its id or its key. An unknown run raises `RunNotFound` at the first call."""
        return handle_on(self._session, run_id, key)

    def list(
        self, *, limit: int | None = None, after: RunInfo | str | None = None, **filter: Unpack[Filter]
    ) -> AsyncList[RunInfo]:
        """List runs, newest first: `async for info in hf.list(state="failed")`, or `await` it to get a list.

        `Filter` has the conditions. To get the next page, pass the last run of this one, or its id, as `after`. Runs
        that are started meanwhile do not shift the pages.
        """
        return list_runs(self._session, filter, limit=limit, after=after)

    def runs(
        self, *, ids: Iterable[str] | None = None, everything: bool = False, **filter: Unpack[Filter]
    ) -> Selection:
        """Select runs to change them together: `await hf.runs(state="failed").recover(by="ada")`.

        `Filter` has the conditions. Or pass the `ids` of the runs. A selection without conditions needs
        `everything=True`.
        """
        return Selection(self._session, filter, ids=ids, everything=everything)

    def check(self, *, type: str | None = None, limit: int | None = None) -> AsyncList[RunCheck]:
        """Replay every live run against the code that is registered here, newest first. Use it before a deploy.

        It executes no step and writes nothing. `type` is the name of a type, or a prefix such as `shop.*`.
        """
        return AsyncList(check_runs(self._session, type=type, limit=limit))

    # Publishing

    async def emit(self, topic: str, payload: Any = None, *, by: str = "") -> int:
        """Publish an event on a topic. When `emit` returns, the event is durable.

        Returns the number of waiting runs that it reached, at most one if the topic is a queue. Their audit keeps `by`.
        """
        return await namespaces.emit(self._session, topic, payload, by=by)

    # In your own transactions

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        """Open a transaction in the store's database for your own tables: `with hf.connection() as connection: …`.

        It commits at the end of the block, and rolls back if the block raises. On SQLite no other transaction can write
        meanwhile, so keep it short; a `readonly` one blocks no other. The store must be open: use `async with hf`.
        """
        refuse_workflow_code()
        return database_of(self._session, "connection").connection(readonly=readonly)

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
        """Start a run in your own transaction: it exists if and only if you commit that transaction."""
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
        """Send a run, by handle or id, a message that arrives when you commit your own transaction.

        Raises `RunNotFound` or `RunFinished` at once if the run does not exist or has ended.
        """
        handle = self.run(run) if isinstance(run, str) else run
        await handle.send_in(connection, name, payload, id=id, by=by)

    async def emit_in(self, connection: object, topic: str, payload: Any = None, *, by: str = "") -> int:
        """Publish an event in your own transaction. Returns the number of waiting runs that a commit reaches."""
        return await namespaces.emit_in(self._session, connection, topic, payload, by=by)

    # Administration

    @cached_property
    def schedules(self) -> Schedules:
        """Put, list, pause, resume, trigger and remove schedules, and ask for their next times."""
        return Schedules(self._session)

    @cached_property
    def flows(self) -> Flows:
        """Register, list and read flows: workflows whose program is text in the store."""
        return Flows(self._session)

    @cached_property
    def topics(self) -> Topics:
        """Set and list the rules of topics: fan-out or queue, and how long events are kept."""
        return Topics(self._session)

    @cached_property
    def types(self) -> Types:
        """Limit, enable, disable and list types of runs."""
        return Types(self._session)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """List, replay and purge events and messages that could not be delivered."""
        return DeadLetters(self._session)

    @cached_property
    def workers(self) -> Workers:
        """List the workers of all processes."""
        return Workers(self._session)

    def export(
        self,
        *,
        live: bool = True,
        timeout: float = TIMEOUT_SECONDS,
        reason: str = "exported",
        by: str = "",
        progress: ProgressCallback | None = None,
        **filter: Unpack[Filter],
    ) -> Export:
        """Export runs as lines of JSON, for `import_` on another store. `Filter` has the conditions; default: all runs.

        Live runs are paused first, with `reason`, and stay paused here. A run that its worker does not release within
        `timeout` seconds is left out, and so are its parents and children. With conditions, live parents and children
        of the chosen runs are exported too. `live=False` exports only ended runs and changes nothing. `progress` is a
        callback for progress; it gets what is being done, and a count. Iterate over the result once.
        """
        return Export(self._session, filter, live=live, timeout=timeout, reason=reason, by=by, progress=progress)

    async def import_(self, lines: Lines, *, by: str = "", progress: ProgressCallback | None = None) -> ImportReport:
        """Import the lines of an export. Runs that exist already are left as they are, so it is safe to repeat.

        After the last line, runs that the export paused continue here. Runs that a person paused stay paused. A file
        that was cut off or changed raises `InvalidRequest`, and no run continues.
        """
        return await import_lines(self._session, lines, by=by, progress=progress)

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
        flows: bool = True,
    ) -> Worker:
        """Make a worker for the types that are registered here. Use `async with`, `run()` or `run_until_idle()` on it.

        `types`: names, or prefixes such as `shop.*`; default: all. `concurrency`: runs at once (200). `steps`: step
        bodies at once (1000). `threads`: bodies in threads at once (32). `lease_seconds`: time after a crash until
        other workers may take over its runs (30). `grace_seconds`: time for running steps at shutdown (10).
        `retention`: how long ended runs are kept, unless their type or start sets it (30 days). `flows=False`: it
        executes no flows. Settings change these.
        """
        configured = self._configuration
        lease = configured[settings.LEASE] if lease_seconds is None else lease_seconds
        grace = configured[settings.GRACE] if grace_seconds is None else grace_seconds
        return self._local_workers.make(
            types=configured[settings.TYPES] if types is None else types,
            concurrency=configured.chosen(settings.CONCURRENCY, concurrency),
            threads=configured.chosen(settings.THREADS, threads),
            steps=configured.chosen(settings.STEPS, steps),
            lease_seconds=in_seconds(lease, "worker: lease_seconds"),
            grace_seconds=in_seconds(grace, "worker: grace_seconds"),
            name=configured.chosen(settings.NAME, name),
            retention=configured[settings.RETENTION] if retention is None else retention,
            flows=flows,
        )

    # Observing

    def on(self, *patterns: str) -> Callable[[H], H]:
        """Call a function for each signal with one of these names or families: `@hf.on("run.failed", "step.*")`.

        The function gets a `Signal`, after the change was written, only in the process that wrote it. It is sync or
        async, and cannot change the run. Put work that must be durable into a step.
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
                session.signals, self._hooks, lambda: self._local_workers, session.opened_store, lambda: session.is_open
            )
        return self._metrics

    # Blocking

    @property
    def sync(self) -> Sync:
        """The blocking version of this object, for Django, Flask and scripts: `hf.sync.start(…).result()`.

        It opens its own connection to the same store at the first use. `hf.sync.close()` or `hf.close()` closes it.
        """
        with self._making_sync:
            if self._sync is None:
                twin = self._twin()
                self._sync = Sync(twin, twin._session.open)  # noqa: SLF001 - of the same class
            return self._sync

    def _twin(self) -> Holdfast:
        """Make another Holdfast with the same runs, code and hooks, for another event loop."""
        session, twin = self._session, Holdfast.__new__(Holdfast)
        other = Session(
            session.url,
            session.store.for_another_loop(),
            session.registry,
            session.signals,
            may_migrate=session.may_migrate,
        )
        twin._assemble(other, self._configuration, self._hooks)  # noqa: SLF001 - of the same class
        return twin

    def __repr__(self) -> str:
        return f"<Holdfast {scrubbed(self._session.url)}>"


def session_of(hf: Holdfast) -> Session:
    """Return the session of a Holdfast, with its store, registry and signals. For the layers above, not for users."""
    return hf._session  # noqa: SLF001 - other modules use this function instead
