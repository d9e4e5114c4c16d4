"""A lookout: waits on behalf of many for something to appear in the store.

Hints make it quick, a slow poll makes it sure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from holdfast.core.errors import StoreUnavailable
from holdfast.core.hint import Hint
from holdfast.core.ports import Store

POLL_SECONDS = 1.0

K = TypeVar("K")
V = TypeVar("V")


class Lookout(Generic[K, V]):
    """Everybody in this process who waits for something, under a key; one look at the store serves them all."""

    poll_seconds = POLL_SECONDS
    """So often it looks even if it hears nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[K, set[asyncio.Future[V]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_behind = False
        self._unlisten: Callable[[], None] = store.listen(self._hear)

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    async def close(self) -> None:
        """Stop watching; whoever still waits is cancelled."""
        self._unlisten()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for waiting in list(self._waiters.values()):
            for waiter in list(waiting):
                waiter.cancel()

    # For the kind of lookout it is

    def _hear(self, hint: Hint) -> None:
        """Look soon if a hint concerns somebody who waits."""
        raise NotImplementedError

    async def _look(self) -> None:
        """Ask the store, and resolve what has appeared."""
        raise NotImplementedError

    async def _await(self, key: K, seconds: float) -> V:
        """What is waited for, when it comes; the first look is within so many seconds."""
        waiter: asyncio.Future[V] = self._loop.create_future()
        self._waiters.setdefault(key, set()).add(waiter)
        self._look_in(seconds)
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

    def _look_in(self, seconds: float) -> None:
        """Look within so many seconds."""
        when = self._loop.time() + seconds
        if self._task is not None:
            self._is_behind = True  # a look is under way that may have missed what we were told of
        elif self._timer is None or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(when, self._look_now)

    def _look_now(self) -> None:
        self._timer = None
        if self._waiters and self._task is None:
            self._task = self._loop.create_task(self._look_once())
            self._task.add_done_callback(self._looked)

    async def _look_once(self) -> None:
        with suppress(StoreUnavailable):  # whoever waits has a time-out of their own; the next look may work
            await self._look()

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            for waiting in self._waiters.values():
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_exception(error)
            return
        if self._waiters:
            is_behind, self._is_behind = self._is_behind, False
            self._look_in(0 if is_behind else self.poll_seconds)
