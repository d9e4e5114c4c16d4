"""Liveness: which workers are alive, and which runs wait for a worker that does not exist.

`explain`, the doctor and the metrics use this module, so that all of them agree. It only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Backlog, WorkerRecord
from holdfast.core.ports import Reader
from holdfast.core.questions import CountReady

DEAD_AFTER: Micros = 60 * SECOND
"""Age of the last heartbeat after which a worker counts as dead. Heartbeats are much more frequent."""


def is_alive(worker: WorkerRecord, now: Micros) -> bool:
    """True if a worker had a recent heartbeat and is not known to be dead."""
    return not worker.is_dead and worker.heartbeat_at > now - DEAD_AFTER


def alive(workers: Iterable[WorkerRecord], now: Micros) -> list[WorkerRecord]:
    """Return the workers that are alive."""
    return [worker for worker in workers if is_alive(worker, now)]


def is_handled(type: str, workers: Iterable[WorkerRecord]) -> bool:
    """True if one of the workers executes runs of a type."""
    return any(type in worker.types for worker in workers)


async def unhandled(store: Reader, now: Micros) -> Sequence[Backlog]:
    """Return the types with due runs that no living worker executes. The cost does not grow with other runs."""
    living = alive(await store.workers(), now)
    return [due for due in await store.stats(CountReady()) if not is_handled(due.type, living)]
