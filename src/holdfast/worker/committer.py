"""The committer: collects checkpoints of all runs while the last write is in flight, and writes them as one.

This is where the speed comes from. Durability is not weakened: nothing is executed before what led to it is
written; only the cost of the commit is shared. A store that can use it gets a further batch while one is in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeGuard

from holdfast.core.checkpoint import Checkpoint, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.outage import Outage, pauses
from holdfast.core.ports import Store
from holdfast.worker.signals import SignalSender

BATCH_LIMIT = 500

WORTH_A_COMMIT = 50
"""So many checkpoints are worth a commit of their own beside one in flight, even if more are about to come."""

WORTH_SHARE = 4
"""Beside a large batch in flight a small one waits, to be part of the next: it is at least one in so many of them."""

_log = logging.getLogger("holdfast.worker")


Answer = Verdict | Exception


class CheckpointSource(Protocol):
    """Something that has checkpoints to write: the driver of one run."""

    def take_checkpoint(self) -> Checkpoint | None:
        """What to write now, or None if it is not needed any more. Not asked for while one is in flight."""
        ...

    def written(self, verdict: Verdict) -> None: ...

    def refused(self, error: Exception) -> None:
        """The store will never take this checkpoint."""
        ...


class Flush:
    """A batch in flight, and the sources that wait for the answer."""

    __slots__ = ("batch", "began", "sources", "task")

    def __init__(
        self, batch: Sequence[Checkpoint], sources: Sequence[CheckpointSource], task: asyncio.Future[Any]
    ) -> None:
        self.began = perf_counter()
        self.batch = batch
        self.sources = sources
        self.task = task


class Committer:
    """Writes checkpoints in batches, as many at a time as the store can use, and never two of one run.

    `is_alone` tells that no other run could have something to write soon. `signal_sender` reports how much was written.
    """

    def __init__(
        self,
        store: Store,
        told: Callable[[Micros], None],
        is_alone: Callable[[], bool],
        signal_sender: SignalSender | None = None,
    ) -> None:
        self._signal_sender = signal_sender
        self._store = store
        self._told = told
        self._is_alone = is_alone
        self._limit = store.flushes
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[CheckpointSource, None] = {}
        self._flushes: set[Flush] = set()
        self._busy: set[CheckpointSource] = set()
        self._troubled: set[Flush] = set()
        self._held_up: set[Flush] = set()
        self._outage = Outage(_log, "cannot write; trying again", "writing works again")
        self._is_scheduled = False
        self._is_answering = False
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self._dirty and not self._flushes

    def add(self, source: CheckpointSource) -> None:
        """Have a run's checkpoint written with the next batch; the answer may be there before this returns."""
        self._dirty[source] = None
        if self._is_scheduled or not self._is_time():
            return
        if self._is_alone():
            self._flush()
        else:
            # Not at once: what else is ready in this round of the loop shares the commit.
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _is_time(self) -> bool:
        """Whether what has gathered is to be written now.

        With nothing in flight it always is, but for what somebody outside holds up, which may take long. Else it waits
        for the answer, and grows meanwhile; unless the store can use another batch, and this one is worth a commit of
        its own: it is large, or nothing else is about to come, and it is no mere crumb of what is in flight. Runs that
        commit together come back together, so crumbs would stay crumbs, and commits of a few would for ever slow down
        those of many.
        """
        in_flight = len(self._flushes) - len(self._held_up)
        if not in_flight:
            return True
        if in_flight >= self._limit or self._troubled:
            return False
        gathered = len(self._dirty)
        is_share = gathered * WORTH_SHARE >= len(self._busy)
        return is_share and (gathered >= WORTH_A_COMMIT or self._is_alone())

    async def close(self) -> None:
        """Stop writing; what is under way is left to its fate."""
        self._is_closed = True
        tasks = [flush.task for flush in self._flushes]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _flush(self) -> None:
        self._is_scheduled = False
        while not self._is_closed and self._dirty and self._is_time():
            sources, batch = self._gathered()
            if not batch:
                return
            self._busy.update(sources)
            flush = Flush(batch, sources, self._sent(batch))
            self._flushes.add(flush)
            if flush.task.done() and not self._is_answering:
                # The store has answered at once. What follows from that is for the loop again: others have their turn.
                self._is_answering = True
                try:
                    self._answered(flush, flush.task)
                finally:
                    self._is_answering = False
            else:
                # Runs are driven from plain callbacks, never from inside a task.
                flush.task.add_done_callback(partial(self._answered, flush))

    def _gathered(self) -> tuple[list[CheckpointSource], list[Checkpoint]]:
        """The next batch. A run whose last checkpoint is in flight stays for a later one."""
        sources: list[CheckpointSource] = []
        batch: list[Checkpoint] = []
        for source in list(self._dirty):
            if len(batch) == BATCH_LIMIT:
                break
            if source in self._busy:
                continue
            del self._dirty[source]
            checkpoint = source.take_checkpoint()
            if checkpoint is not None:
                sources.append(source)
                batch.append(checkpoint)
        return sources, batch

    def _sent(self, batch: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:
        try:
            return asyncio.ensure_future(self._store.checkpoint(batch))
        except Exception as error:  # noqa: BLE001 - it is looked at where all answers are
            refused: asyncio.Future[Verdicts] = self._loop.create_future()
            refused.set_exception(error)
            return refused

    def _answered(self, flush: Flush, sent: asyncio.Future[Verdicts]) -> None:
        if sent.cancelled():
            self._landed(flush)
        elif (error := sent.exception()) is None:
            self._told(sent.result().now)
            self._deliver(flush, sent.result().verdicts)
        elif self._is_closed:
            self._landed(flush)
        elif _is_held_up(error):
            self._scatter(flush, error)
        else:
            self._troubled.add(flush)
            self._have_insisted(flush, error)

    def _have_insisted(self, flush: Flush, error: BaseException) -> None:
        flush.task = self._loop.create_task(self._insist(flush.batch, error))
        flush.task.add_done_callback(partial(self._written, flush))

    def _scatter(self, flush: Flush, error: BaseException) -> None:
        """Let each checkpoint of a batch go alone, as one of them is held up; the others need not wait for it."""
        self._landed(flush)
        for source, checkpoint in zip(flush.sources, flush.batch, strict=True):
            alone = Flush([checkpoint], [source], flush.task)
            self._flushes.add(alone)
            self._held_up.add(alone)
            self._busy.add(source)
            self._have_insisted(alone, error)
        self._flush()

    def _written(self, flush: Flush, task: asyncio.Future[list[Answer]]) -> None:
        if task.cancelled():
            self._landed(flush)
        elif (error := task.exception()) is not None:
            self._scatter(flush, error)
        else:
            self._deliver(flush, task.result())

    def _landed(self, flush: Flush) -> None:
        self._flushes.discard(flush)
        self._troubled.discard(flush)
        self._held_up.discard(flush)
        self._busy.difference_update(flush.sources)

    def _deliver(self, flush: Flush, answers: Sequence[Answer]) -> None:
        self._landed(flush)
        if self._signal_sender is not None and self._signal_sender.signals.is_used:
            self._signal_sender.flushed(len(flush.batch), perf_counter() - flush.began)
        self._is_scheduled = True  # what they have to write next shares a commit, too
        try:
            for source, answer in zip(flush.sources, answers, strict=True):
                try:
                    if isinstance(answer, Verdict):
                        source.written(answer)
                    else:
                        source.refused(answer)
                except Exception as error:  # noqa: BLE001 - the answers behind it are those of other runs
                    message = "exception while a run was told that it is written"
                    self._loop.call_exception_handler({"message": message, "exception": error})
        finally:
            self._flush()

    async def _insist(self, batch: Sequence[Checkpoint], error: BaseException | None = None) -> list[Answer]:
        """Write a batch, however long it takes; a refusal that is not the store's own is narrowed to its culprit.

        Raises only if a batch of several is held up.
        """
        waits = pauses()
        while True:
            if _is_held_up(error) and len(batch) > 1:
                raise error
            if isinstance(error, StoreUnavailable):
                self._outage.failed(error)
                await asyncio.sleep(next(waits))
            elif isinstance(error, Exception):
                if len(batch) == 1:
                    self._outage.worked()  # the store has answered, though it refuses what is to be written
                    return [error]
                middle = len(batch) // 2
                return [*await self._insist(batch[:middle]), *await self._insist(batch[middle:])]
            try:
                answer = await self._store.checkpoint(batch)
            except Exception as again:  # noqa: BLE001 - whatever a store refuses must not stop the others
                error = again
            else:
                self._outage.worked()
                self._told(answer.now)
                return list(answer.verdicts)


def _is_held_up(error: BaseException | None) -> TypeGuard[StoreUnavailable]:
    return isinstance(error, StoreUnavailable) and error.is_held_up
