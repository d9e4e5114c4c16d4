"""A session: one open store on one event loop, with its registry and pollers.

All parts of the public object share one session, which opens the store at the first use.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.config.secret import scrubbed
from holdfast.core.checkpoint import LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.model import Lease
from holdfast.core.news import Signals
from holdfast.core.ports import Database, Store, Transfer
from holdfast.engine.answers import Replies, Results
from holdfast.runner.asyncio_private import get_running_loop_or_none
from holdfast.runner.loop import RunLoop
from holdfast.runner.registry import Registry
from holdfast.runner.violation import holdfast_call

_log = logging.getLogger("holdfast.store")


class LocalWorker(Protocol):
    """A worker of this process, which may take a run when it is created."""

    def offer(self, type: str) -> LeaseRequest | None:
        """Return a request for the lease of a new run of a type. None if the worker takes none now."""
        ...

    def accept(self, leases: Sequence[Lease], now: Micros) -> None:
        """Take the leases of an offer, of which there may be none. Called from a plain callback."""
        ...

    def recall(self, request: LeaseRequest) -> None:
        """Withdraw an offer whose outcome is unknown. Called from a plain callback."""
        ...


class Session:
    """A store that is opened at the first use and can be opened again after it was closed.

    `url` is the name of the store for people. If `may_migrate` says so, opening a store with a lower schema number
    migrates it. `make_results` and `make_replies` can be replaced before it is opened.
    """

    results: Results
    """The poller that waits for runs to end. The first opening sets it."""
    replies: Replies
    """The poller that waits for replies to requests. The first opening sets it."""

    def __init__(
        self,
        url: str,
        store: Store,
        registry: Registry,
        signals: Signals,
        *,
        may_migrate: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self.store = store
        self.registry = registry
        self.signals = signals
        self.may_migrate = may_migrate
        self.local_workers: list[LocalWorker] = []
        self.advancing: set[int] = set()
        """The identities of the namespace drivers on which a run is being advanced."""
        self.make_results: Callable[[Store], Results] = Results
        self.make_replies: Callable[[Store], Replies] = Replies
        self.is_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._pid: int | None = None

    async def open(self) -> None:
        """Open the store, unless it is open on this event loop."""
        loop = asyncio.get_running_loop()
        if self.is_open and self._loop is loop:
            return
        self._check_process()
        refuse_workflow_code()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise InvalidRequest(
                    "this Holdfast is in use on another event loop that still runs; create one Holdfast for each loop, "
                    "or use hf.sync in threads"
                )
            # The loop of the last use has ended, as after asyncio.run(): start again on this one.
            self._loop, self.is_open, self._opening = loop, False, asyncio.Lock()
            self.local_workers.clear()
        assert self._opening is not None
        async with self._opening:
            if not self.is_open:
                await (self.store.open(_log_migration) if self.may_migrate() else self.store.open())
                self.replies = self.make_replies(self.store)
                self.results = self.make_results(self.store)
                self._pid = os.getpid()
                self.is_open = True

    async def close(self) -> None:
        """Close the store. The session can be opened again."""
        if self.is_open and self._loop is asyncio.get_running_loop():
            await self.results.close()
            await self.replies.close()
        self.is_open, self._loop = False, None
        await self.store.close()
        self._pid = None

    @property
    def is_forked(self) -> bool:
        """True if this process is a fork and its parent opened the store."""
        return self._pid is not None and self._pid != os.getpid()

    async def opened_store(self) -> Store:
        """Return the store, opened if necessary."""
        await self.open()
        return self.store

    def _check_process(self) -> None:
        if self._pid is not None and self.is_forked:
            raise opened_elsewhere("this Holdfast", self._pid)


def _log_migration(line: str) -> None:
    _log.info("migrating the store: %s", line)


INSTEAD = {
    "start": "ctx.start",
    "start_many": "ctx.map",
    "execute": "ctx.call",
    "result": "ctx.call, or await the handle that ctx.start returned",
    "send": "ctx.send",
    "emit": "ctx.emit",
    "connection": "ctx.tx",
}
"""Replacements in workflow code for methods of a Holdfast or a handle."""

_WORDS = {
    "RunHandle": "run",
    "Selection": "hf.runs(…)",
    "Worker": "worker",
    "Schedules": "hf.schedules",
    "Topics": "hf.topics",
    "Types": "hf.types",
    "DeadLetters": "hf.dead_letters",
    "Workers": "hf.workers",
}
"""Names of objects as users write them, by class."""


class SessionPart:
    """A part of the public object, which works on the store of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session


def refuse_workflow_code() -> None:
    """Refuse a call on the loop of a run: its outcome would not be recorded, and the store is on another loop.

    The run loop records the call as a violation, even if the code catches the error.
    """
    loop = get_running_loop_or_none()
    if isinstance(loop, RunLoop):
        owner, _, name = holdfast_call().rpartition(".")
        word = _WORDS.get(owner, "hf")
        call = f"`async with` on {word}" if name == "__aenter__" else f"{word}.{name}()"
        raise loop.refuse(call, INSTEAD.get(name, ""))


def opened_elsewhere(what: str, pid: int) -> StoreUnavailable:
    """Return the error of a forked child that uses an object that its parent has opened."""
    return StoreUnavailable(
        f"{what} was opened in another process (pid {pid}), and a fork does not inherit its threads; "
        "close it before the fork, or create a new one after the fork"
    )


_INSTEAD = {
    "connection": "use your own connection to another database, in a step that passes on its idempotency key",
    "start_in": "commit your rows first, then call hf.start with a key, which is safe to repeat",
    "send_in": "commit your rows first, then call run.send with an id, which is safe to repeat",
    "emit_in": "commit your rows first, then call hf.emit",
}
"""What to do on a store without a database, by call."""


def database_of(session: Session, what: str) -> Database:
    """Return the database of a store. Raises `InvalidRequest` with the call `what` if the store has none."""
    if (database := session.store.database) is None:
        raise InvalidRequest(
            f"hf.{what}: {scrubbed(session.url)} cannot hold your tables, so it cannot commit your rows and runs "
            f"together; use sqlite:///file.db or postgresql://…, or {_INSTEAD[what]}"
        )
    return database


def transfer_of(store: Store, what: str) -> Transfer:
    """Return the transfer capability of a store. Raises `InvalidRequest` with the call `what` if it has none."""
    if (transfer := store.transfer) is None:
        raise InvalidRequest(
            f"hf.{what}: {type(store).__name__} cannot export or import runs; it offers no `transfer` capability"
        )
    return transfer
