"""`hf.sync`: the blocking version of a Holdfast, for code that does not await.

It has no rules of its own. Each method runs the method of the same name of `Holdfast` on a private event loop, while
the calling thread waits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack, overload

from holdfast.core.intent import Call, Startable, StartOptions
from holdfast.engine.check import RunCheck
from holdfast.engine.controls import SyncSelection
from holdfast.engine.handle import SyncRunHandle
from holdfast.engine.info import RunInfo
from holdfast.engine.lists import Filter
from holdfast.engine.namespaces import DeadLetters, Flows, Schedules, Topics, Types, Workers
from holdfast.engine.private_loop import Facade, PrivateLoop, blocking, iterating, listing
from holdfast.engine.transfers import TIMEOUT_SECONDS, Export, ImportReport, Lines, ProgressCallback

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Sync(Facade):
    """The blocking version of a Holdfast, for code without an event loop. Its methods take the same arguments.

    Any number of threads may use it at once, but not a thread that runs an event loop. It executes no runs: a worker
    must run in another thread or process. It opens its store at the first use; `with hf.sync:` or `hf.sync.close()`
    closes it.
    """

    def __init__(self, hf: Any, open_store: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super().__init__("hf", hf, PrivateLoop(hf.close))
        self._open_store = open_store

    # Lifetime

    def __enter__(self) -> Self:
        self._open("hf.__enter__", "`async with hf`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, call: str, instead: str) -> None:
        self._loop.check(call, instead)
        self._loop.run(self._open_store())

    def close(self) -> None:
        """Close the store and end the thread. A call that waits in another thread raises `StoreUnavailable`."""
        self._loop.end()

    # Starting

    @overload
    def start(
        self, workflow: Startable[Callable[[*Ts], Call[R]]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[R]: ...
    @overload
    def start(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Any]: ...
    def start(  # type: ignore[misc]  # mypy does not see that *Any takes every *Ts
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Any]:
        """Start a run of a workflow or task, of a bound call, or of a type by its name with a payload.

        When `start` returns, the run is durable, even if no worker exists yet. `run.created` is False if a run with
        this key or id existed already.
        """
        return SyncRunHandle(self._call("start", workflow, *args, **options), self._loop)

    @overload
    def start_many(
        self,
        workflow: Startable[Callable[[*Ts], Call[R]]],
        arguments: Iterable[tuple[*Ts]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> Sequence[SyncRunHandle[R]]: ...
    @overload
    def start_many(
        self,
        workflow: str,
        payloads: Iterable[Mapping[str, Any]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> Sequence[SyncRunHandle[Any]]: ...
    @overload
    def start_many(
        self, calls: Iterable[Call[R]], /, *, keys: Sequence[str] | None = None, **options: Unpack[StartOptions]
    ) -> Sequence[SyncRunHandle[R]]: ...
    def start_many(
        self,
        workflow: Any,
        arguments: Any = None,
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> Sequence[SyncRunHandle[Any]]:
        """Start many runs in one transaction, all or none. A `KeyConflict` names the `index` of the run that failed."""
        # Read generators here: they may block, or use objects that belong to this thread.
        workflow, arguments = _read(workflow), _read(arguments)
        started = self._call("start_many", workflow, arguments, keys=keys, **options)
        return [SyncRunHandle(run, self._loop) for run in started]

    @overload
    def execute(
        self, workflow: Startable[Callable[[*Ts], Call[R]]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    def execute(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[StartOptions]
    ) -> Any: ...
    def execute(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> Any:
        """Start a run and wait for its result. A worker must run, in another thread or process."""
        return self._call("execute", workflow, *args, **options)

    # Finding

    def run(self, run_id: str | None = None, /, *, key: str | None = None) -> SyncRunHandle[Any]:
        """Make a handle on a run from its id or its key. An unknown run raises `RunNotFound` at the first call."""
        return SyncRunHandle(self._target.run(run_id, key=key), self._loop)

    def list(
        self, *, limit: int | None = None, after: RunInfo | str | None = None, **filter: Unpack[Filter]
    ) -> Iterator[RunInfo]:
        """List runs, newest first. `Filter` has the conditions; `after` is the last run of the page before."""
        return self._each("list", limit=limit, after=after, **filter)

    def runs(
        self, *, ids: Iterable[str] | None = None, everything: bool = False, **filter: Unpack[Filter]
    ) -> SyncSelection:
        """Select runs to change them together: `hf.sync.runs(state="failed").recover(by="ada")`."""
        return SyncSelection(self._target.runs(ids=ids, everything=everything, **filter), self._loop)

    def check(self, *, type: str | None = None, limit: int | None = None) -> Iterator[RunCheck]:
        """Replay every live run against the code that is registered here, newest first. Use it before a deploy."""
        return self._each("check", type=type, limit=limit)

    # Publishing

    def emit(self, topic: str, payload: Any = None, *, by: str = "") -> int:
        """Publish an event on a topic. Returns the number of waiting runs that it reached."""
        reached: int = self._call("emit", topic, payload, by=by)
        return reached

    # In your own transactions

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        """Open a transaction in the store's database for your own tables: `with hf.sync.connection() as connection: …`.

        It commits at the end of the block, and rolls back if the block raises. On SQLite no other transaction can write
        meanwhile, so keep it short; a `readonly` one blocks no other.
        """
        self._open("hf.connection", "`with hf.connection()`")
        connection: AbstractContextManager[Any] = self._target.connection(readonly=readonly)
        return connection

    @overload
    def start_in(
        self,
        connection: object,
        workflow: Startable[Callable[[*Ts], Call[R]]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> SyncRunHandle[R]: ...
    @overload
    def start_in(
        self,
        connection: object,
        workflow: str,
        payload: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[StartOptions],
    ) -> SyncRunHandle[Any]: ...
    def start_in(  # type: ignore[misc]  # as above
        self, connection: object, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Any]:
        """Start a run in your own transaction: it exists if and only if you commit that transaction."""
        return SyncRunHandle(self._call("start_in", connection, workflow, *args, **options), self._loop)

    def send_in(
        self,
        connection: object,
        run: SyncRunHandle[Any] | str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        by: str = "",
    ) -> None:
        """Send a run a message in your own transaction: it arrives when you commit that transaction.

        `run` is a handle or an id. Raises `RunNotFound` or `RunFinished` at once if the run does not exist or has
        ended.
        """
        handle = self.run(run) if isinstance(run, str) else run
        handle.send_in(connection, name, payload, id=id, by=by)

    def emit_in(self, connection: object, topic: str, payload: Any = None, *, by: str = "") -> int:
        """Publish an event in your own transaction: it exists when you commit that transaction."""
        reached: int = self._call("emit_in", connection, topic, payload, by=by)
        return reached

    # Administration

    @cached_property
    def schedules(self) -> SyncSchedules:
        """Put, list, pause, resume, trigger and remove schedules, and ask for their next times."""
        return SyncSchedules("hf.schedules", self._target.schedules, self._loop)

    @cached_property
    def flows(self) -> SyncFlows:
        """Register, list and read flows: workflows whose program is text in the store."""
        return SyncFlows("hf.flows", self._target.flows, self._loop)

    @cached_property
    def topics(self) -> SyncTopics:
        """Set and list the rules of topics: fan-out or queue, and how long events are kept."""
        return SyncTopics("hf.topics", self._target.topics, self._loop)

    @cached_property
    def types(self) -> SyncTypes:
        """Limit, enable, disable and list types of runs."""
        return SyncTypes("hf.types", self._target.types, self._loop)

    @cached_property
    def dead_letters(self) -> SyncDeadLetters:
        """List, replay and purge events and messages that could not be delivered."""
        return SyncDeadLetters("hf.dead_letters", self._target.dead_letters, self._loop)

    @cached_property
    def workers(self) -> SyncWorkers:
        """List the workers of all processes."""
        return SyncWorkers("hf.workers", self._target.workers, self._loop)

    def export(
        self,
        *,
        live: bool = True,
        timeout: float = TIMEOUT_SECONDS,
        reason: str = "exported",
        by: str = "",
        progress: ProgressCallback | None = None,
        **filter: Unpack[Filter],
    ) -> SyncExport:
        """Export runs as lines of JSON, for `import_` on another store. `Filter` has the conditions."""
        export = self._target.export(live=live, timeout=timeout, reason=reason, by=by, progress=progress, **filter)
        return SyncExport("hf.export", export, self._loop)

    def import_(self, lines: Lines, *, by: str = "", progress: ProgressCallback | None = None) -> ImportReport:
        """Import the lines of an export. Runs that exist already are left as they are, so it is safe to repeat."""
        report: ImportReport = self._call("import_", lines, by=by, progress=progress)
        return report


class SyncExport(Facade):
    """The lines of an export, for code that blocks. Iterate once; after that, `report` is complete."""

    def __iter__(self) -> Iterator[bytes]:
        return self._each("__aiter__")

    @property
    def report(self) -> Export:
        """The export itself, with its `counts`, `left`, `unreadable` and `taken_along`."""
        export: Export = self._target
        return export


def _read(many: Any) -> Any:
    return list(many) if isinstance(many, Iterator) else many


class SyncSchedules(Facade):
    """`hf.sync.schedules`: create, change, list and control the schedules that start runs over time."""

    put = blocking(Schedules.put)
    get = blocking(Schedules.get)
    next = blocking(Schedules.next)
    pause = blocking(Schedules.pause)
    resume = blocking(Schedules.resume)
    remove = blocking(Schedules.remove)
    list = iterating(Schedules.list)

    def trigger(self, name: str) -> SyncRunHandle[Any]:
        """Start a run of a schedule now, even if it is paused. Its next times do not change."""
        return SyncRunHandle(self._call("trigger", name), self._loop)


class SyncFlows(Facade):
    """`hf.sync.flows`: register, list and read flows."""

    register = blocking(Flows.register)
    list = listing(Flows.list)
    get = blocking(Flows.get)


class SyncTopics(Facade):
    """`hf.sync.topics`: set and list how events are delivered and kept."""

    set = blocking(Topics.set)
    list = listing(Topics.list)


class SyncTypes(Facade):
    """`hf.sync.types`: limit, enable, disable and list types of runs."""

    set = blocking(Types.set)
    enable = blocking(Types.enable)
    disable = blocking(Types.disable)
    list = listing(Types.list)


class SyncDeadLetters(Facade):
    """`hf.sync.dead_letters`: list, replay and purge events and messages that could not be delivered."""

    replay = blocking(DeadLetters.replay)
    purge = blocking(DeadLetters.purge)
    list = iterating(DeadLetters.list)


class SyncWorkers(Facade):
    """`hf.sync.workers`: list the workers of all processes."""

    list = listing(Workers.list)
