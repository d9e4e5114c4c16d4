"""The lease check: asks the store about held runs after a hint that one of them may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.core.checkpoint import Verdicts
from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.model import Holding
from holdfast.core.ports import Store
from holdfast.core.questions import VerdictsOn

_PAUSE_SECONDS = 0.02


class LeaseCheck:
    """Asks the store until it has asked after the last hint. Calls `ended` when done, with the error if any."""

    def __init__(
        self,
        store: Store,
        holdings: Callable[[], Sequence[Holding]],
        heard: Callable[[Sequence[Holding], Verdicts], None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._heard = heard
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._must_look = False
        self._pause_seconds = 0.0

    @property
    def is_looking(self) -> bool:
        return self._task is not None

    def look(self, *, is_elsewhere: bool) -> None:
        """Ask soon. Hints from another process say only that something happened, and may come in a stream."""
        self._must_look = True
        self._pause_seconds = _PAUSE_SECONDS if is_elsewhere else 0.0
        if self._task is None:
            self._start()

    def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = self._loop.create_task(self._look())
        self._task.add_done_callback(self._looked)

    async def _look(self) -> None:
        """Ask about the held runs. Hints from another process add a pause after each request."""
        while self._must_look:
            self._must_look = False
            with suppress(
                StoreUnavailable, SchemaOutOfDate
            ):  # the next heartbeat gets the same answer, and logs the outage
                holdings = self._holdings()
                answer = await self._store.changes(VerdictsOn(holdings=holdings))
                self._loop.call_soon(self._heard, holdings, answer)
            await asyncio.sleep(self._pause_seconds)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._ended(None if task.cancelled() else task.exception())
        if self._must_look and not task.cancelled():  # a hint came between the last request and this callback
            self._start()
