"""Answers: waits of many callers for the ends of runs and for replies.

Hints make it fast, and a slow poll makes it reliable. After a hint, a poller reads only the keys that the hint names.
With thousands of waiters, a read of all keys for each hint would cost more than the work they wait for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec

from holdfast.core.checkpoint import Finish
from holdfast.core.errors import ErrorRecord, StoreUnavailable
from holdfast.core.model import Run
from holdfast.core.news import Hint
from holdfast.core.outage import Outage
from holdfast.core.ports import Store
from holdfast.core.questions import EndsOf, RepliesTo
from holdfast.core.states import RunState

POLL_SECONDS = 1.0

_log = logging.getLogger("holdfast.engine")

K = TypeVar("K")
V = TypeVar("V")


class Poller(Generic[K, V]):
    """All waiters of this process for one kind of answer, by key. One read of the store serves all of them."""

    awaited: str
    """The kind of answer, in the plural, for log lines."""

    def __init__(self, store: Store, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._poll_seconds = poll_seconds  # interval between reads without a hint
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[K, set[asyncio.Future[V]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._wanted: set[K] = set()
        self._wanted_by = math.inf
        self._poll_at = math.inf
        self._outage = Outage(
            _log, f"cannot look for {self.awaited}; trying again", f"looking for {self.awaited} works again"
        )
        self._unlisten: Callable[[], None] = store.listen(self._on_hint)

    @property
    def is_awaited(self) -> bool:
        """True if there is a waiter."""
        return bool(self._waiters)

    async def close(self) -> None:
        """Stop polling and cancel all waiters."""
        self._is_closed = True
        self._unlisten()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for waiting in list(self._waiters.values()):
            for waiter in list(waiting):
                waiter.cancel()

    # Implemented by subclasses

    def _on_hint(self, hint: Hint) -> None:
        """Read soon if a hint concerns a waiter."""
        raise NotImplementedError

    async def _read(self, keys: Sequence[K]) -> None:
        """Read the answers for some keys from the store, and resolve those that exist."""
        raise NotImplementedError

    async def _await(self, key: K, seconds: float) -> V:
        """Wait for the answer for a key. The first read is within `seconds`."""
        waiter: asyncio.Future[V] = self._loop.create_future()
        if not self._waiters:
            self._poll_at = self._loop.time() + self._poll_seconds
        self._waiters.setdefault(key, set()).add(waiter)
        self._schedule([key], seconds)
        try:
            return await waiter
        finally:
            waiting = self._waiters.get(key)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._waiters[key]

    def _resolve(self, key: K, value: V) -> None:
        for waiter in self._waiters.get(key, ()):
            if not waiter.done():
                waiter.set_result(value)

    def _schedule(self, keys: Iterable[K], seconds: float) -> None:
        """Schedule a read of some keys within `seconds`."""
        self._wanted.update(keys)
        self._wanted_by = min(self._wanted_by, self._loop.time() + seconds)
        self._set_timer()

    def _schedule_poll(self) -> None:
        """Schedule a read of all awaited keys now."""
        self._poll_at = self._loop.time()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._task is not None or not self._waiters or self._is_closed:
            return  # the next waiter, or the end of the current read, sets the timer
        when = min(self._wanted_by, self._poll_at)
        if self._timer is None or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(when, self._start_read)

    def _start_read(self) -> None:
        self._timer = None
        is_poll = self._loop.time() >= self._poll_at
        keys = list(self._waiters) if is_poll else [key for key in self._wanted if key in self._waiters]
        self._wanted.clear()
        self._wanted_by = math.inf
        if is_poll:
            self._poll_at = math.inf
        if keys:
            self._task = self._loop.create_task(self._read_once(keys))
            self._task.add_done_callback(partial(self._finish_read, keys))
        else:
            self._set_timer()

    async def _read_once(self, keys: Sequence[K]) -> None:
        try:
            await self._read(keys)
        except StoreUnavailable as error:  # waiters have their own timeouts, and the next poll tries again
            if threading.main_thread().is_alive():  # else the process is ending, which has closed the store
                self._outage.failed(error)
        else:
            self._outage.worked()

    def _finish_read(self, keys: Sequence[K], task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            for waiter in [waiter for key in keys for waiter in self._waiters.get(key, ())]:
                if not waiter.done():
                    waiter.set_exception(error)
        self._poll_at = min(self._poll_at, self._loop.time() + self._poll_seconds)
        self._set_timer()


_SOON_SECONDS = 0.005
_REMEMBERED = 1_000
_REMEMBERED_BYTES = 64 * 1024


class End(msgspec.Struct, frozen=True):
    """The end of a run: its state, and its result or error."""

    state: RunState
    result: str | None
    error: ErrorRecord | None

    @classmethod
    def of(cls, ended: Run | Finish) -> End:
        return cls(RunState(ended.state), ended.result, ended.error)


class Results(Poller[str, End]):
    """All waiters of this process for ends of runs."""

    awaited = "results"

    def __init__(self, store: Store, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._recent: OrderedDict[str, End] = OrderedDict()
        super().__init__(store, poll_seconds=poll_seconds)

    def note(self, run_id: str, finish: Finish) -> None:
        """Note that a run has ended in this process and that its end is committed."""
        end = End.of(finish)
        self._resolve(run_id, end)
        if len(end.result or "") <= _REMEMBERED_BYTES:
            self._recent[run_id] = end
            if len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)

    async def wait(self, run_id: str, *, is_fresh: bool = False) -> End:
        """Wait for the end of a run. `is_fresh` means that it was just started here, so `note` likely comes soon."""
        if (known := self._recent.get(run_id)) is not None:
            return known
        return await self._await(run_id, _SOON_SECONDS if is_fresh else 0)

    def forget(self, run_id: str) -> None:
        """Forget the end of a run that was reopened."""
        self._recent.pop(run_id, None)

    def _on_hint(self, hint: Hint) -> None:
        if hint.is_elsewhere or hint.is_foreign:
            self._recent.clear()  # another process may have reopened runs that ended here
        if hint.is_elsewhere:
            self._schedule_poll()
        elif ended := [run_id for run_id in hint.ended if run_id in self._waiters]:
            # `note` has most likely resolved a run of this process by then, without a read.
            self._schedule(ended, 0 if hint.is_foreign else _SOON_SECONDS)

    async def _read(self, keys: Sequence[str]) -> None:
        for run in await self._store.changes(EndsOf(run_ids=keys)):
            self._resolve(run.id, End.of(run))


class Replies(Poller[tuple[str, str], str | None]):
    """All waiters of this process for replies, by run and message."""

    awaited = "replies"

    def __init__(self, store: Store, *, poll_seconds: float = POLL_SECONDS) -> None:
        # By run, so that a hint costs as many steps as it names runs. Most hints are about other runs.
        self._messages: dict[str, list[str]] = {}
        super().__init__(store, poll_seconds=poll_seconds)

    async def wait(self, run_id: str, message_id: str) -> str | None:
        """Wait for the reply and return it. None if the run ends without one."""
        messages = self._messages.setdefault(run_id, [])
        messages.append(message_id)
        try:
            return await self._await((run_id, message_id), 0)
        finally:
            messages.remove(message_id)
            if not messages:
                del self._messages[run_id]

    def _on_hint(self, hint: Hint) -> None:
        if hint.is_elsewhere:
            self._schedule_poll()
        elif self._messages and (runs := (hint.replied | hint.ended) & self._messages.keys()):
            self._schedule([(run_id, message) for run_id in runs for message in self._messages[run_id]], 0)

    async def _read(self, keys: Sequence[tuple[str, str]]) -> None:
        # Read the ends first: the second read then finds every reply of a run that had ended by the first.
        ended = {run.id for run in await self._store.changes(EndsOf(run_ids=list({run_id for run_id, _ in keys})))}
        replies = await self._store.changes(RepliesTo(messages=keys))
        for pair in keys:
            run_id, message_id = pair
            reply = replies.get(run_id, {}).get(message_id)
            if reply is not None or run_id in ended:
                self._resolve(pair, reply)
