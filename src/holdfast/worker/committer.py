"""The committer: collects checkpoints of all runs while the last write is in flight, and writes them as one.

This is where the speed comes from. Durability is not weakened: nothing is executed before what led to it is
written; only the cost of the commit is shared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from holdfast.core.checkpoint import Checkpoint, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Store

BATCH_LIMIT = 500
_FIRST_PAUSE_SECONDS = 0.05
_LAST_PAUSE_SECONDS = 5.0

_log = logging.getLogger("holdfast.worker")


Answer = Verdict | Exception


class Writer(Protocol):
    """Whoever has something to write: one held run."""

    def take_checkpoint(self) -> Checkpoint | None:
        """What to write now, or None if it is not needed any more."""
        ...

    def written(self, verdict: Verdict) -> None: ...

    def refused(self, error: Exception) -> None:
        """The store will never take this checkpoint."""
        ...


class Committer:
    """Writes checkpoints in batches, one batch at a time, hence never two of one run.

    `is_alone` tells that nobody else could have something to write soon.
    """

    def __init__(self, store: Store, told: Callable[[Micros], None], is_alone: Callable[[], bool]) -> None:
        self._store = store
        self._told = told
        self._is_alone = is_alone
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[Writer, None] = {}
        self._task: asyncio.Future[Any] | None = None
        self._is_scheduled = False
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self._dirty and self._task is None

    def add(self, writer: Writer) -> None:
        """Have a run's checkpoint written with the next batch."""
        self._dirty[writer] = None
        if self._task is not None or self._is_scheduled:
            return
        if self._is_alone():
            self._flush()
        else:
            # Not at once: what else is ready in this round of the loop shares the commit.
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    async def close(self) -> None:
        """Stop writing; what is under way is left to its fate."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._task is not None or self._is_closed:
            return
        writers: list[Writer] = []
        batch: list[Checkpoint] = []
        while self._dirty and len(batch) < BATCH_LIMIT:
            writer = next(iter(self._dirty))
            del self._dirty[writer]
            checkpoint = writer.take_checkpoint()
            if checkpoint is not None:
                writers.append(writer)
                batch.append(checkpoint)
        if batch:
            self._task = self._sent(batch)
            # Runs are driven from plain callbacks, never from inside a task.
            self._task.add_done_callback(partial(self._answered, batch, writers))

    def _sent(self, batch: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:
        try:
            return asyncio.ensure_future(self._store.checkpoint(batch))
        except Exception as error:  # noqa: BLE001 - it is looked at where all answers are
            refused: asyncio.Future[Verdicts] = self._loop.create_future()
            refused.set_exception(error)
            return refused

    def _answered(self, batch: Sequence[Checkpoint], writers: Sequence[Writer], sent: asyncio.Future[Verdicts]) -> None:
        if sent.cancelled():
            self._task = None
        elif (error := sent.exception()) is None:
            self._told(sent.result().now)
            self._deliver(writers, sent.result().verdicts)
        else:
            self._task = self._loop.create_task(self._insist(batch, error))
            self._task.add_done_callback(partial(self._written, writers))

    def _written(self, writers: Sequence[Writer], task: asyncio.Future[list[Answer]]) -> None:
        if task.cancelled():
            self._task = None
        else:
            self._deliver(writers, task.result())

    def _deliver(self, writers: Sequence[Writer], answers: Sequence[Answer]) -> None:
        self._task = None
        self._is_scheduled = True  # what they have to write next shares a commit, too
        try:
            for writer, answer in zip(writers, answers, strict=True):
                if isinstance(answer, Verdict):
                    writer.written(answer)
                else:
                    writer.refused(answer)
        finally:
            self._flush()

    async def _insist(self, batch: Sequence[Checkpoint], error: BaseException | None = None) -> list[Answer]:
        """Write a batch, however long it takes; a refusal that is not the store's own is narrowed to its culprit."""
        pause = 0.0
        while True:
            if isinstance(error, StoreUnavailable):
                if pause == 0.0:
                    _log.warning("cannot write; trying again until it works: %s", error)
                pause = min(_LAST_PAUSE_SECONDS, pause * 2 or _FIRST_PAUSE_SECONDS)
                await asyncio.sleep(pause)
            elif isinstance(error, Exception):
                if len(batch) == 1:
                    return [error]
                middle = len(batch) // 2
                return [*await self._insist(batch[:middle]), *await self._insist(batch[middle:])]
            try:
                answer = await self._store.checkpoint(batch)
            except Exception as again:  # noqa: BLE001 - whatever a store refuses must not stop the others
                error = again
            else:
                if pause:
                    _log.warning("writing works again")
                self._told(answer.now)
                return list(answer.verdicts)
