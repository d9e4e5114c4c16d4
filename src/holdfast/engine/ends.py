"""Waiting for ends: runs that end in this process are answered from memory, others by one shared watcher."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from holdfast.core.checkpoint import Finish
from holdfast.core.errors import ErrorRecord, StoreUnavailable
from holdfast.core.hint import Hint
from holdfast.core.model import Run
from holdfast.core.ports import Store
from holdfast.core.states import RunState

POLL_SECONDS = 1.0
_SOON_SECONDS = 0.005
_REMEMBERED = 1_000
_REMEMBERED_BYTES = 64 * 1024


class End(msgspec.Struct, frozen=True):
    """How a run ended."""

    state: RunState
    result: str | None
    error: ErrorRecord | None

    @classmethod
    def of(cls, ended: Run | Finish) -> End:
        return cls(RunState(ended.state), ended.result, ended.error)


class Ends:
    """Everybody in this process who waits for a run to end. Hints make it quick, a slow poll makes it sure."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, set[asyncio.Future[End]]] = {}
        self._recent: OrderedDict[str, End] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_behind = False
        self._unlisten: Callable[[], None] = store.listen(self._hear)

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    def note(self, run_id: str, finish: Finish) -> None:
        """A run has ended in this process, and the commit is done."""
        end = End.of(finish)
        self._resolve(run_id, end)
        if len(end.result or "") <= _REMEMBERED_BYTES:
            self._recent[run_id] = end
            if len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)

    async def wait(self, run_id: str, *, is_fresh: bool = False) -> End:
        """The end of a run, when it comes. `is_fresh`: just started here, so most likely to be noted soon."""
        if (known := self._recent.get(run_id)) is not None:
            return known
        waiter: asyncio.Future[End] = self._loop.create_future()
        self._waiters.setdefault(run_id, set()).add(waiter)
        self._check_in(_SOON_SECONDS if is_fresh else 0)
        try:
            return await waiter
        finally:
            waiting = self._waiters.get(run_id)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._waiters[run_id]

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

    def forget(self, run_id: str) -> None:
        """A run that ended was reopened."""
        self._recent.pop(run_id, None)

    def _hear(self, hint: Hint) -> None:
        if hint.is_elsewhere:
            self._recent.clear()  # another process may have reopened what ended here
        if hint.is_elsewhere and self._waiters:
            self._check_in(0)
        elif any(run_id in self._waiters for run_id in hint.ended):
            self._check_in(_SOON_SECONDS)  # most likely noted by then

    def _check_in(self, seconds: float) -> None:
        """Look for ends within so many seconds."""
        when = self._loop.time() + seconds
        if self._task is not None:
            self._is_behind = True  # a look is under way that may have missed what we were told of
        elif self._timer is None or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(when, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._waiters and self._task is None:
            self._task = self._loop.create_task(self._ask())
            self._task.add_done_callback(self._asked)

    async def _ask(self) -> None:
        try:
            for run in await self._store.ends(list(self._waiters)):
                self._resolve(run.id, End.of(run))
        except StoreUnavailable:
            pass  # whoever waits has a time-out of their own; the next look may work

    def _asked(self, task: asyncio.Task[None]) -> None:
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
            self._check_in(0 if is_behind else POLL_SECONDS)

    def _resolve(self, run_id: str, end: End) -> None:
        for waiter in self._waiters.get(run_id, ()):
            if not waiter.done():
                waiter.set_result(end)
