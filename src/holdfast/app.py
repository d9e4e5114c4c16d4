"""The Holdfast object: a URL becomes a store, and registry, engine and workers are wired to it."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.config import settings
from holdfast.config.configuration import Configuration
from holdfast.config.secret import scrubbed
from holdfast.core.checkpoint import Finish
from holdfast.core.clock import in_seconds
from holdfast.core.errors import HoldfastError, InvalidRequest
from holdfast.core.ports import Store
from holdfast.core.signals import Signal, named
from holdfast.engine.base import opened_elsewhere, refuse_workflow_code
from holdfast.engine.engine import Engine
from holdfast.engine.replies import Replies
from holdfast.engine.results import Results
from holdfast.engine.sync import Sync
from holdfast.runner.registry import Registry
from holdfast.telemetry.hooks import Hooks
from holdfast.telemetry.metrics import Metrics
from holdfast.worker.worker import Worker

_HOOK_SECONDS = 5.0

H = TypeVar("H", bound=Callable[[Signal], Any])


class Holdfast(Engine):
    """A durable workflow engine on one store.

    The URL is `sqlite:///file.db` (relative), `sqlite:////absolute/file.db`, `postgresql://user@host/database`,
    `memory://`, or that of a store which an installed package offers; by default what is configured: `$HOLDFAST_URL`,
    else that of the file of settings, else `sqlite:///holdfast.db`. Nothing is opened before the first use. `store` is
    a store that has no URL; the URL is then only its name.
    """

    def __init__(self, url: str | None = None, *, store: Store | None = None) -> None:
        super().__init__(Registry())
        self.configuration = Configuration()
        self.url = url or (self.configuration[settings.URL] if store is None else type(store).__name__)
        self._store = store_for(self.url) if store is None else store
        self._results: Results | None = None
        self._replies: Replies | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._pid: int | None = None
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._hooks = Hooks(self.signals)
        self._metrics: Metrics | None = None
        self._sync: Sync | None = None
        self._making_sync = threading.Lock()
        self.workflow = self.registry.workflow
        self.task = self.registry.task
        self.step = self.registry.step
        self.schedule = self.registry.schedule
        self.include: Callable[[Registry], None] = self.registry.include

    # Lifetime

    async def __aenter__(self) -> Self:
        await self.opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def opened(self) -> None:
        """Open the store, if that has not been done on this event loop."""
        loop = asyncio.get_running_loop()
        if self._results is not None and self._loop is loop:
            return
        self._check_process()
        refuse_workflow_code()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise InvalidRequest(
                    "this Holdfast is in use on another event loop that still runs; make one for each loop, "
                    "or use hf.sync in threads"
                )
            # The loop it was used on is gone, as after asyncio.run(): begin anew on this one.
            self._loop, self._results, self._replies, self._opening = loop, None, None, asyncio.Lock()
            self.neighbours.clear()
        assert self._opening is not None
        async with self._opening:
            if self._results is None:
                await self._store.open()
                self._replies = self._make_replies()
                self._results = self._make_results()
                self._pid = os.getpid()

    @property
    def _is_forked(self) -> bool:
        """Whether this is the copy that a forked child has of what its parent opened."""
        return self._pid is not None and self._pid != os.getpid()

    def _check_process(self) -> None:
        if self._pid is not None and self._is_forked:
            raise opened_elsewhere("this Holdfast", self._pid)

    def _make_results(self) -> Results:
        return Results(self._store)

    def _make_replies(self) -> Replies:
        return Replies(self._store)

    async def close(self) -> None:
        """Stop the workers of this object and let go of the store. It may be used again afterwards."""
        if self._is_forked:
            return  # what is open is the parent's
        refuse_workflow_code()
        for worker in list(self._workers):
            await worker.stop()
        if self._sync is not None:
            await asyncio.to_thread(self._sync.close)
        await self._hooks.drain(_HOOK_SECONDS)
        if self._results is not None and self._loop is asyncio.get_running_loop():
            await self._results.close()
            await self.replies.close()
        self._results = self._replies = self._loop = None
        await self._store.close()
        self._pid = None

    @property
    def store(self) -> Store:
        return self._store

    @property
    def results(self) -> Results:
        assert self._results is not None, "used before opened()"
        return self._results

    @property
    def replies(self) -> Replies:
        assert self._replies is not None, "used before opened()"
        return self._replies

    # Blocking

    @property
    def sync(self) -> Sync:
        """The same for code that blocks, such as that of Django, Flask and scripts: `hf.sync.start(…).result()`.

        It has a store of its own on the same runs, which is opened at the first use, and closed by `hf.sync.close()`
        or together with this one.
        """
        with self._making_sync:
            if self._sync is None:
                self._sync = Sync(self._twin())
            return self._sync

    def _twin(self) -> Holdfast:
        """Another one for the same runs, code and listeners, on another event loop."""
        twin = Holdfast(self.url, store=self._store.twin())
        twin.registry, twin.configuration = self.registry, self.configuration
        twin.signals, twin._hooks = self.signals, self._hooks
        return twin

    # Working

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
        leases of 30 seconds and a grace of 10. `retention` is how long it lets ended runs be kept of which neither they
        nor their type say so: 30 days.
        """
        configured = self.configuration
        lease = configured[settings.LEASE] if lease_seconds is None else lease_seconds
        grace = configured[settings.GRACE] if grace_seconds is None else grace_seconds
        return self._hire(
            types=configured[settings.TYPES] if types is None else types,
            concurrency=configured.chosen(settings.CONCURRENCY, concurrency),
            threads=configured.chosen(settings.THREADS, threads),
            steps=configured.chosen(settings.STEPS, steps),
            lease_seconds=in_seconds(lease, "worker: lease_seconds"),
            grace_seconds=in_seconds(grace, "worker: grace_seconds"),
            name=configured.chosen(settings.NAME, name),
            retention=configured[settings.RETENTION] if retention is None else retention,
        )

    def _hire(self, **options: Any) -> Worker:
        worker = Worker(
            self._store,
            self.registry,
            signals=self.signals,
            on_open=self.opened,
            on_start=self.neighbours.append,
            on_stop=self._fire,
            on_end=self._note_end,
            **options,
        )
        self._workers.add(worker)
        return worker

    def _note_end(self, run_id: str, end: Finish) -> None:
        self.results.note(run_id, end)

    def _fire(self, worker: Worker) -> None:
        if worker in self.neighbours:
            self.neighbours.remove(worker)
        self._workers.discard(worker)

    # Listening

    def on(self, *patterns: str) -> Callable[[H], H]:
        """Have a function called for each signal of these names, such as `run.failed`, or families, such as `run.*`.

        It gets a `Signal`, after what that tells of was written, and in this process only. It may be sync or async,
        and changes nothing about the run, whatever it does. What must happen durably belongs in a step.
        """
        for pattern in patterns or ("",):
            named(pattern)

        def hook(function: H) -> H:
            self._hooks.add(patterns, function)
            return function

        return hook

    async def _opened_store(self) -> Store:
        await self.opened()
        return self._store

    @property
    def metrics(self) -> Metrics:
        """Metrics of this process and of the store; what happens is counted from the first use of this on."""
        if self._metrics is None:
            self._metrics = Metrics(
                self.signals, self._hooks, lambda: self._workers, self._opened_store, lambda: self._results is not None
            )
        return self._metrics

    def __repr__(self) -> str:
        return f"<Holdfast {scrubbed(self.url)}>"


def store_for(url: str) -> Store:
    """The store a URL names. Its driver is loaded here and nowhere else."""
    if not isinstance(url, str):
        raise InvalidRequest(f"{url!r} is no URL of a store: it is a text, such as sqlite:///file.db")
    if url.partition(":")[0] in ("postgresql", "postgres"):
        return _postgres(url)  # which reads it as its driver does, brackets and all
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(f"{scrubbed(url)!r} is no URL of a store: {error}") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        _refuse_options(url, options)
        return MemoryStore()
    if parts.scheme == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            raise InvalidRequest(
                f"{url!r}: a SQLite URL is sqlite:///relative/path.db or, with four slashes, sqlite:////absolute/path.db"
            )
        from holdfast.stores.sqlite import SqliteStore, in_namespace, mode_of

        namespace, mode = options.pop("namespace", None), mode_of(options.pop("mode", "0600"))
        _refuse_options(url, options)
        path = unquote(parts.path[1:])
        return SqliteStore(path if namespace is None else in_namespace(path, namespace), mode=mode)
    return _third_party(url)


def _postgres(url: str) -> Store:
    try:
        from holdfast.stores.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise InvalidRequest("Postgres needs a driver: pip install 'holdfast[postgres]'") from error
    return PostgresStore(url)


ENTRY_POINTS = "holdfast.stores"
"""The group of entry points in which packages offer stores: the name is the scheme of URLs, the value takes a URL."""


def _third_party(url: str) -> Store:
    """The store that an installed package offers for the scheme of a URL."""
    from importlib.metadata import entry_points  # here, because it takes long and few need it

    scheme = url.partition(":")[0].lower()
    offered = entry_points(group=ENTRY_POINTS)
    found = {point.value: point for point in offered if point.name.lower() == scheme}
    if not found:
        others = "".join(f", {name}://…" for name in sorted({point.name for point in offered}))
        raise InvalidRequest(
            f"{scrubbed(url)!r}: unknown kind of store; use sqlite:///file.db, postgresql://user@host/database, "
            f"memory://{others}, or install a package that offers such a store"
        )
    if len(found) > 1:
        raise InvalidRequest(f"several packages offer stores for {scheme}://: {', '.join(sorted(found))}; keep one")
    ((value, point),) = found.items()
    try:
        store: Store = point.load()(url)
    except HoldfastError:
        raise
    except Exception as error:  # a package may fail in any way, and the message has to name it
        raise InvalidRequest(f"the store for {scheme}://, {value}, cannot be made: {error!r}") from error
    if not hasattr(store, "apply"):
        raise InvalidRequest(f"the store for {scheme}://, {value}, gave {store!r}, which is no store")
    return store


def _refuse_options(url: str, options: dict[str, str]) -> None:
    if options:
        raise InvalidRequest(f"{scrubbed(url)!r}: unknown option {', '.join(sorted(options))}")
