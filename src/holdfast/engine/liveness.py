"""Liveness: which workers live, and which runs wait for a worker that does not exist.

`explain`, the doctor and metrics ask here, so that all of them mean the same by it. It reads and never writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Backlog, WorkerRecord
from holdfast.core.ports import Reader
from holdfast.core.questions import CountReady

DEAD_AFTER: Micros = 60 * SECOND
"""A worker that has not been heard of for so long is not counted on. Each tells that it lives much more often."""


def is_alive(worker: WorkerRecord, now: Micros) -> bool:
    """Whether a worker was heard of lately, and is not known to have died since."""
    return not worker.is_dead and worker.heartbeat_at > now - DEAD_AFTER


def alive(workers: Iterable[WorkerRecord], now: Micros) -> list[WorkerRecord]:
    """Those of the workers that live."""
    return [worker for worker in workers if is_alive(worker, now)]


def is_handled(type: str, workers: Iterable[WorkerRecord]) -> bool:
    """Whether one of the workers executes runs of a type."""
    return any(type in worker.types for worker in workers)


async def unhandled(store: Reader, now: Micros) -> Sequence[Backlog]:
    """The types of which runs are due that no living worker executes. Costs nothing that grows with other runs."""
    living = alive(await store.workers(), now)
    return [due for due in await store.stats(CountReady()) if not is_handled(due.type, living)]
