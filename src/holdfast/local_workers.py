"""The workers that a Holdfast object has made in this process."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from holdfast.engine.session import Session
from holdfast.worker.worker import Worker


class LocalWorkers:
    """Makes workers for a session and knows those that still exist. Starts and results take a short cut to them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def make(self, **options: Any) -> Worker:
        """Make a worker on the store of the session."""
        session = self._session
        worker = Worker(
            session.store,
            session.registry,
            signals=session.signals,
            on_open=session.open,
            on_start=session.local_workers.append,
            on_stop=self._forget,
            on_end=lambda run_id, end: session.results.note(run_id, end),  # noqa: PLW0108 - none before it is open
            **options,
        )
        self._workers.add(worker)
        return worker

    async def stop(self) -> None:
        """Stop all of them."""
        for worker in list(self._workers):
            await worker.stop()

    def _forget(self, worker: Worker) -> None:
        if worker in self._session.local_workers:
            self._session.local_workers.remove(worker)
        self._workers.discard(worker)
