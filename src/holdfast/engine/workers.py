"""Listing the workers that the store knows."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.questions import CountLeases
from holdfast.engine.async_list import AsyncList
from holdfast.engine.liveness import is_alive
from holdfast.engine.session import SessionPart
from holdfast.engine.store_info import WorkerInfo


class Workers(SessionPart):
    """`hf.workers`: list the workers of all processes."""

    def list(self) -> AsyncList[WorkerInfo]:
        """List all workers: those alive, and dead ones whose runs no other worker has taken over yet."""
        return AsyncList.of(self._all)

    async def _all(self) -> Sequence[WorkerInfo]:
        store = await self._session.opened_store()
        workers = await store.workers()
        held = await store.stats(CountLeases())
        now = await store.now()
        return [
            WorkerInfo.of(worker, held=held.get(worker.id, 0), is_alive=is_alive(worker, now)) for worker in workers
        ]
