"""A session: one open store on one event loop, with the registry and the pollers that work on it.

Every part of the public object has the session instead of a base class: it opens the store at the first use.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.core.checkpoint import LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.model import Lease
from holdfast.core.ports import Store
from holdfast.core.signals import Signals
from holdfast.engine.replies import Replies
from holdfast.engine.results import Results
from holdfast.runner.asyncio_private import get_running_loop_or_none
from holdfast.runner.loop import RunLoop
from holdfast.runner.registry import Registry
from holdfast.runner.violation import holdfast_call


class LocalWorker(Protocol):
    """A worker of this process, which may take a run at the moment the run is created."""

    def offer(self, type: str) -> LeaseRequest | None:
        """The lease that the worker would take on a new run of a type; None if it takes none now."""
        ...

    def accept(self, leases: Sequence[Lease], now: Micros) -> None:
        """Take the leases that an offer led to; there may be none. Called from a plain callback."""
        ...

    def recall(self, request: LeaseRequest) -> None:
        """Withdraw an offer whose outcome is not known. Called from a plain callback."""
        ...


class Session:
    """A store that is opened at the first use and may be opened again after it was closed.

    `url` names the store to people. `make_results` and `make_replies` can be replaced before the store is opened.
    """

    def __init__(self, url: str, store: Store, registry: Registry, signals: Signals) -> None:
        self.url = url
        self.store = store
        self.registry = registry
        self.signals = signals
        self.local_workers: list[LocalWorker] = []
        self.make_results: Callable[[Store], Results] = Results
        self.make_replies: Callable[[Store], Replies] = Replies
        self._results: Results | None = None
        self._replies: Replies | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._pid: int | None = None

    async def open(self) -> None:
        """Open the store, unless it is open on this event loop."""
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
            # The loop of the last use has ended, as after asyncio.run(): begin again on this one.
            self._loop, self._results, self._replies, self._opening = loop, None, None, asyncio.Lock()
            self.local_workers.clear()
        assert self._opening is not None
        async with self._opening:
            if self._results is None:
                await self.store.open()
                self._replies = self.make_replies(self.store)
                self._results = self.make_results(self.store)
                self._pid = os.getpid()

    async def close(self) -> None:
        """Close the store. The session may be opened again."""
        if self._results is not None and self._loop is asyncio.get_running_loop():
            await self._results.close()
            await self.replies.close()
        self._results = self._replies = self._loop = None
        await self.store.close()
        self._pid = None

    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._results is not None

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork, and the store was opened by its parent."""
        return self._pid is not None and self._pid != os.getpid()

    @property
    def results(self) -> Results:
        """The poller that waits for runs to end."""
        assert self._results is not None, "used before open()"
        return self._results

    @property
    def replies(self) -> Replies:
        """The poller that waits for replies to requests."""
        assert self._replies is not None, "used before open()"
        return self._replies

    async def opened_store(self) -> Store:
        """The store, opened if it was not."""
        await self.open()
        return self.store

    def _check_process(self) -> None:
        if self._pid is not None and self.is_forked:
            raise opened_elsewhere("this Holdfast", self._pid)


INSTEAD = {
    "start": "ctx.start",
    "start_many": "ctx.map",
    "execute": "ctx.call",
    "result": "ctx.call, or await what ctx.start gave",
    "send": "ctx.send",
    "emit": "ctx.emit",
    "connection": "ctx.tx",
}
"""What workflow code uses in place of methods of a Holdfast or a handle."""

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
"""How users write the object whose method they called."""


def refuse_workflow_code() -> None:
    """Refuse a call on the loop of a run: what it finds or does would not be recorded, and its store lives elsewhere.

    It is a violation, whatever the code makes of the error.
    """
    loop = get_running_loop_or_none()
    if isinstance(loop, RunLoop):
        owner, _, name = holdfast_call().rpartition(".")
        word = _WORDS.get(owner, "hf")
        call = f"`async with` on {word}" if name == "__aenter__" else f"{word}.{name}()"
        raise loop.refuse(call, INSTEAD.get(name, ""))


def opened_elsewhere(what: str, pid: int) -> StoreUnavailable:
    """The error of a forked child that uses what its parent has opened."""
    return StoreUnavailable(
        f"{what} was opened in another process (pid {pid}), and a fork does not take its threads along; "
        "close it before the fork, or make another one after it"
    )
