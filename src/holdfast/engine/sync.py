"""The blocking facade: what an engine and its handles can do, for code that does not await.

It decides nothing and does nothing itself. Each method is that of the same name of `Engine` or `RunHandle`, run on a
private event loop while the calling thread waits; only where a type would be lost is it written out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

from holdfast.engine.engine import Engine, StartOptions
from holdfast.engine.handle import RunHandle
from holdfast.engine.private_loop import PrivateLoop
from holdfast.runner.context import Context
from holdfast.runner.sync_context import SyncContext

PAGE = 100
"""So many of what is listed are fetched at once."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Facade:
    """Something asynchronous, called `word` by its users, and the loop that it lives on."""

    def __init__(self, word: str, target: Any, loop: PrivateLoop) -> None:
        self._word = word
        self._target = target
        self._loop = loop

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """What a method of that name comes to."""
        self._loop.check(f"{self._word}.{name}")
        return self._loop.run(getattr(self._target, name)(*args, **kwargs))

    def _each(self, name: str, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """What a method of that name gives, one by one."""
        self._loop.check(f"{self._word}.{name}")
        source = getattr(self._target, name)(*args, **kwargs)

        def each() -> Iterator[Any]:
            while page := self._loop.run(_page(source)):
                yield from page

        return each()


async def _page(source: AsyncIterator[T]) -> list[T]:
    page: list[T] = []
    async for one in source:
        page.append(one)
        if len(page) == PAGE:
            break
    return page


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The method of a facade that is a coroutine of what is behind it."""

    @wraps(method)
    def call(self: _Facade, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self._call(method.__name__, *args, **kwargs)
        return answer

    return call


def _iterating(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Likewise, of one that gives many."""

    @wraps(method)
    def call(self: _Facade, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._each(method.__name__, *args, **kwargs)

    return call


class SyncRunHandle(_Facade, Generic[R]):
    """One run, for code that blocks. `created` tells whether the `start` that gave this handle made it."""

    _target: RunHandle[R]

    def __init__(self, run: RunHandle[R], loop: PrivateLoop) -> None:
        super().__init__("run", run, loop)

    @property
    def id(self) -> str:
        """The run's id. Of a handle by key it is known only after the first answer about the run."""
        return self._target.id

    @property
    def created(self) -> bool:
        return self._target.created

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait for the end: the typed result, `RunFailed` or `RunCancelled`.

        After `timeout` seconds `TimeoutError` is raised, and nothing is changed by it.
        """
        result: R = self._call("result", timeout)
        return result

    def fork(
        self,
        location: str,
        *,
        patch: Mapping[str, Any] | None = None,
        force: bool = False,
        id: str | None = None,
        by: str = "",
    ) -> SyncRunHandle[R]:
        """Make a new run with the history of this one before a location; `patch` gives other results by location."""
        return SyncRunHandle(self._call("fork", location, patch=patch, force=force, id=id, by=by), self._loop)

    info = _blocking(RunHandle.info)
    history = _blocking(RunHandle.history)
    audit = _blocking(RunHandle.audit)
    explain = _blocking(RunHandle.explain)
    cancel = _blocking(RunHandle.cancel)
    pause = _blocking(RunHandle.pause)
    resume = _blocking(RunHandle.resume)
    wake = _blocking(RunHandle.wake)
    rewind = _blocking(RunHandle.rewind)
    recover = _blocking(RunHandle.recover)
    delete = _blocking(RunHandle.delete)
    send = _blocking(RunHandle.send)
    send_in = _blocking(RunHandle.send_in)
    request = _blocking(RunHandle.request)
    value = _blocking(RunHandle.value)

    def __repr__(self) -> str:
        return repr(self._target)


class Sync(_Facade):
    """What `hf.sync` is: starts, finds, lists and controls runs, and blocks meanwhile.

    For any number of threads at once, and for none with an event loop of its own. Opened at the first use; `with
    hf.sync:` or `hf.sync.close()` lets go of it, and it may be used again afterwards.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__("hf", engine, PrivateLoop(engine.close))

    # Lifetime

    def __enter__(self) -> Self:
        self._call("opened")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store and end the thread. Whoever waits in another thread gets `StoreUnavailable`."""
        self._loop.end()

    # Starting

    @overload
    def start(
        self, workflow: Callable[[Context, *Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[R]: ...
    @overload
    def start(
        self, workflow: Callable[[SyncContext, *Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[R]: ...
    @overload
    def start(
        self, workflow: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[R]: ...
    @overload
    def start(
        self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[R]: ...
    @overload
    def start(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Any]: ...
    def start(  # type: ignore[misc]  # mypy does not see that *Any takes every *Ts
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> SyncRunHandle[Any]:
        """Start a run: of a workflow or task with its arguments, or of a type's name with a payload.

        When it returns the run is durable, whether or not a worker exists. `run.created` is False if the key, or
        id, was known already.
        """
        return SyncRunHandle(self._call("start", workflow, *args, **options), self._loop)

    @overload
    def start_in(
        self,
        connection: object,
        workflow: Callable[[Context, *Ts], Awaitable[R]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> SyncRunHandle[R]: ...
    @overload
    def start_in(
        self,
        connection: object,
        workflow: Callable[[SyncContext, *Ts], R],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> SyncRunHandle[R]: ...
    @overload
    def start_in(
        self,
        connection: object,
        workflow: Callable[[*Ts], Awaitable[R]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> SyncRunHandle[R]: ...
    @overload
    def start_in(
        self, connection: object, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
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
        """Start a run in your own transaction: it exists exactly if you commit what is open on the connection."""
        return SyncRunHandle(self._call("start_in", connection, workflow, *args, **options), self._loop)

    @overload
    def execute(
        self, workflow: Callable[[Context, *Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    def execute(
        self, workflow: Callable[[SyncContext, *Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]
    ) -> R: ...
    @overload
    def execute(self, workflow: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StartOptions]) -> R: ...
    @overload
    def execute(self, workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StartOptions]) -> R: ...
    @overload
    def execute(
        self, workflow: str, payload: Mapping[str, Any] | None = None, /, **options: Unpack[StartOptions]
    ) -> Any: ...
    def execute(  # type: ignore[misc]  # as above
        self, workflow: Any, /, *args: Any, **options: Unpack[StartOptions]
    ) -> Any:
        """Start a run and wait for its result. Needs a worker, in another thread or process."""
        return self._call("execute", workflow, *args, **options)

    @overload
    def start_many(
        self,
        workflow: Callable[[Context, *Ts], Awaitable[R]],
        arguments: Iterable[tuple[*Ts]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> Sequence[SyncRunHandle[R]]: ...
    @overload
    def start_many(
        self,
        workflow: Callable[[SyncContext, *Ts], R],
        arguments: Iterable[tuple[*Ts]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> Sequence[SyncRunHandle[R]]: ...
    @overload
    def start_many(
        self,
        workflow: Callable[[*Ts], Awaitable[R]],
        arguments: Iterable[tuple[*Ts]],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> Sequence[SyncRunHandle[R]]: ...
    @overload
    def start_many(
        self,
        workflow: Callable[[*Ts], R],
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
    def start_many(
        self,
        workflow: Any,
        arguments: Iterable[Any],
        /,
        *,
        keys: Sequence[str] | None = None,
        **options: Unpack[StartOptions],
    ) -> Sequence[SyncRunHandle[Any]]:
        """Start many runs in one round trip, all or none; a `KeyConflict` tells the `index` of the culprit."""
        many = [*arguments]  # here: it may be a generator that blocks, or uses what is of this thread
        started = self._call("start_many", workflow, many, keys=keys, **options)
        return [SyncRunHandle(run, self._loop) for run in started]

    def trigger_schedule(self, name: str) -> SyncRunHandle[Any]:
        """Start a run of a schedule now, whatever its slots, and also if it is paused."""
        return SyncRunHandle(self._call("trigger_schedule", name), self._loop)

    # Finding

    def run(self, run_id: str | None = None, /, *, key: str | None = None) -> SyncRunHandle[Any]:
        """A handle on a run by its id or its key. Whether the run exists shows when the handle is used."""
        return SyncRunHandle(self._target.run(run_id, key=key), self._loop)

    def fork(
        self,
        run_id: str,
        location: str,
        *,
        patch: Mapping[str, Any] | None = None,
        force: bool = False,
        id: str | None = None,
        by: str = "",
    ) -> SyncRunHandle[Any]:
        """Make a new run with the history of this one before a location; `patch` gives other results by location."""
        return self.run(run_id).fork(location, patch=patch, force=force, id=id, by=by)

    # In your own transactions

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[Any]:
        """A transaction in the store's database, for tables of yours: `with hf.sync.connection() as connection: …`.

        It is committed at the end of the block, and rolled back if that raises. Nobody else can write meanwhile, so
        keep it short; one that is `readonly` keeps nobody waiting.
        """
        self._call("opened")
        connection: AbstractContextManager[Any] = self._target.connection(readonly=readonly)
        return connection

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
        """Send a run a message in your own transaction: it arrives when you commit what is open on the connection.

        The run is a handle, by id or by key, or an id. Refused at once are runs that do not exist or have ended.
        """
        handle = self.run(run) if isinstance(run, str) else run
        handle.send_in(connection, name, payload, id=id, by=by)

    emit_in = _blocking(Engine.emit_in)

    # What comes out as it is

    emit = _blocking(Engine.emit)
    cancel = _blocking(Engine.cancel)
    pause = _blocking(Engine.pause)
    resume = _blocking(Engine.resume)
    wake = _blocking(Engine.wake)
    rewind = _blocking(Engine.rewind)
    recover = _blocking(Engine.recover)
    delete = _blocking(Engine.delete)
    topic = _blocking(Engine.topic)
    topics = _blocking(Engine.topics)
    dead_letters = _iterating(Engine.dead_letters)
    replay_dead_letters = _blocking(Engine.replay_dead_letters)
    purge_dead_letters = _blocking(Engine.purge_dead_letters)
    types = _blocking(Engine.types)
    put_schedule = _blocking(Engine.put_schedule)
    get_schedule = _blocking(Engine.get_schedule)
    schedules = _iterating(Engine.schedules)
    pause_schedule = _blocking(Engine.pause_schedule)
    resume_schedule = _blocking(Engine.resume_schedule)
    remove_schedule = _blocking(Engine.remove_schedule)
    triggered = _blocking(Engine.triggered)
    import_ = _blocking(Engine.import_)
    check = _iterating(Engine.check)
    list = _iterating(Engine.list)
    type = _blocking(Engine.type)

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"
