"""The committer: group commit. It collects checkpoints of all runs while a write is in flight, then writes one batch.

This is where the speed comes from. Durability is not weakened: an operation executes only after everything that led
to it is committed. Only the cost of the commit is shared. If the store can use several batches at once
(`Store.concurrent_checkpoints`), the committer sends another batch while one is in flight.
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
from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.outage import Outage, pauses
from holdfast.core.ports import Database, Store, Transacted, Transaction
from holdfast.worker.signals import SignalSender

BATCH_LIMIT = 500

WORTH_A_COMMIT = 50
"""Minimum size of a batch that is sent beside another one in flight, even if more checkpoints are about to come."""

WORTH_SHARE = 4
"""A batch is sent beside others only if it has at least one checkpoint for this many in flight.

A smaller batch waits and becomes part of the next one.
"""

_log = logging.getLogger("holdfast.worker")


Answer = Verdict | Exception


class CheckpointSource(Protocol):
    """A source of checkpoints: the driver of one run."""

    def take_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to write, or None if none is needed. Not called while one of this run is in flight."""
        ...

    def on_written(self, verdict: Verdict) -> None: ...

    def on_refused(self, error: Exception) -> None:
        """Handle the error with which the store refused the checkpoint. The store will never accept it."""
        ...


class Flush:
    """A batch in flight and the sources that wait for its answer."""

    __slots__ = ("batch", "began", "sources", "task")

    def __init__(
        self, batch: Sequence[Checkpoint], sources: Sequence[CheckpointSource], task: asyncio.Future[Any]
    ) -> None:
        self.began = perf_counter()
        self.batch = batch
        self.sources = sources
        self.task = task


class Committer:
    """Writes checkpoints in batches: as many batches at a time as the store can use, never two checkpoints of one run.

    `sync` gets the store's time from each answer. `is_alone` returns True if no other run can have something to
    write soon. `signal_sender` reports the size and duration of each batch.
    """

    def __init__(
        self,
        store: Store,
        sync: Callable[[Micros], None],
        is_alone: Callable[[], bool],
        signal_sender: SignalSender | None = None,
    ) -> None:
        self._signal_sender = signal_sender
        self._store = store
        self._sync = sync
        self._is_alone = is_alone
        self._limit = store.concurrent_checkpoints
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
        """Write a run's checkpoint with the next batch. The answer may arrive before this method returns."""
        self._dirty[source] = None
        if self._is_scheduled or not self._is_time():
            return
        if self._is_alone():
            self._flush()
        else:
            # Not at once, so that other checkpoints of this loop iteration share the commit.
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def _is_time(self) -> bool:
        """Return True if the collected checkpoints should be written now.

        They are if no batch is in flight. Batches that are held up (a client has locked a row, say) do not count,
        because they may take long. Otherwise the checkpoints wait for the answer, and more of them collect meanwhile.

        Exception: the store can use another batch, and this one is worth a commit of its own. That is the case if it
        is large, or no other run is about to write, and if it is not tiny compared to what is in flight. Runs that
        commit together come back together. So a tiny batch would stay tiny, and its commits would slow down the large
        ones for ever.
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
        """Stop writing. Batches in flight are cancelled; the store may or may not have committed them."""
        self._is_closed = True
        tasks = [flush.task for flush in self._flushes]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _flush(self) -> None:
        self._is_scheduled = False
        while not self._is_closed and self._dirty and self._is_time():
            sources, batch = self._gather(self._batch_limit())
            if not batch:
                return
            self._busy.update(sources)
            flush = Flush(batch, sources, self._send(batch))
            self._flushes.add(flush)
            if flush.task.done() and not self._is_answering:
                # The store answered at once. Answers to the writes that follow go through the loop (the flag), so
                # that one fast run cannot starve the others.
                self._is_answering = True
                try:
                    self._on_answer(flush, flush.task)
                finally:
                    self._is_answering = False
            else:
                # Runs are driven from plain callbacks, never from inside a task.
                flush.task.add_done_callback(partial(self._on_answer, flush))

    def _batch_limit(self) -> int:
        """Return the maximum size of the next batch.

        If no batch is in flight, and the store can use two, a large one is sent in halves. Otherwise these runs would
        all wait for the store at the same time, and the store would wait while all of them continue.
        """
        gathered = len(self._dirty)
        is_in_flight = len(self._flushes) > len(self._held_up)
        if self._limit == 1 or is_in_flight or gathered < 2 * WORTH_A_COMMIT:
            return BATCH_LIMIT
        return min(BATCH_LIMIT, (gathered + 1) // 2)

    def _gather(self, limit: int) -> tuple[list[CheckpointSource], list[Checkpoint]]:
        """Return the next batch. A run whose last checkpoint is in flight stays for a later batch."""
        sources: list[CheckpointSource] = []
        batch: list[Checkpoint] = []
        for source in list(self._dirty):
            if len(batch) == limit:
                break
            if source in self._busy:
                continue
            del self._dirty[source]
            checkpoint = source.take_checkpoint()
            if checkpoint is not None:
                sources.append(source)
                batch.append(checkpoint)
        return sources, batch

    def _send(self, batch: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:
        try:
            return asyncio.ensure_future(self._store.checkpoint(batch))
        except Exception as error:  # noqa: BLE001 - `_on_answer` handles it like every failed answer
            refused: asyncio.Future[Verdicts] = self._loop.create_future()
            refused.set_exception(error)
            return refused

    def _on_answer(self, flush: Flush, sent: asyncio.Future[Verdicts]) -> None:
        if sent.cancelled():
            self._remove(flush)
        elif (error := sent.exception()) is None:
            self._sync(sent.result().now)
            self._deliver(flush, sent.result().verdicts)
        elif self._is_closed:
            self._remove(flush)
        elif _is_held_up(error):
            self._scatter(flush, error)
        else:
            self._troubled.add(flush)
            self._retry(flush, error)

    def _retry(self, flush: Flush, error: BaseException) -> None:
        flush.task = self._loop.create_task(self._write_until_answered(flush.batch, error))
        flush.task.add_done_callback(partial(self._on_retried, flush))

    def _scatter(self, flush: Flush, error: BaseException) -> None:
        """Write each checkpoint of a batch alone, because one of them is held up and the others need not wait."""
        self._remove(flush)
        for source, checkpoint in zip(flush.sources, flush.batch, strict=True):
            alone = Flush([checkpoint], [source], flush.task)
            self._flushes.add(alone)
            self._held_up.add(alone)
            self._busy.add(source)
            self._retry(alone, error)
        self._flush()

    def _on_retried(self, flush: Flush, task: asyncio.Future[list[Answer]]) -> None:
        if task.cancelled():
            self._remove(flush)
        elif (error := task.exception()) is not None:
            self._scatter(flush, error)
        else:
            self._deliver(flush, task.result())

    def _remove(self, flush: Flush) -> None:
        self._flushes.discard(flush)
        self._troubled.discard(flush)
        self._held_up.discard(flush)
        self._busy.difference_update(flush.sources)

    def _deliver(self, flush: Flush, answers: Sequence[Answer]) -> None:
        self._remove(flush)
        if self._signal_sender is not None and self._signal_sender.signals.is_used:
            self._signal_sender.send_flushed(len(flush.batch), perf_counter() - flush.began)
        self._is_scheduled = True  # so that the next checkpoints of these runs share a commit, too
        try:
            for source, answer in zip(flush.sources, answers, strict=True):
                try:
                    if isinstance(answer, Verdict):
                        source.on_written(answer)
                    else:
                        source.on_refused(answer)
                except Exception as error:  # noqa: BLE001 - the answers that follow belong to other runs
                    message = "exception while a run handled the answer to its checkpoint"
                    self._loop.call_exception_handler({"message": message, "exception": error})
        finally:
            self._flush()

    async def _write_until_answered(
        self, batch: Sequence[Checkpoint], error: BaseException | None = None
    ) -> list[Answer]:
        """Write a batch and retry until the store answers.

        If the store refuses a batch, halve it until the refused checkpoint is found. Raises only if a batch of several
        checkpoints is held up.
        """
        waits = pauses()
        while True:
            if _is_held_up(error) and len(batch) > 1:
                raise error
            if isinstance(error, StoreUnavailable | SchemaOutOfDate):
                self._outage.failed(error)
                await asyncio.sleep(next(waits))
            elif isinstance(error, Exception):
                if len(batch) == 1:
                    self._outage.worked()  # the store has answered, even though it refuses the checkpoint
                    return [error]
                middle = len(batch) // 2
                return [
                    *await self._write_until_answered(batch[:middle]),
                    *await self._write_until_answered(batch[middle:]),
                ]
            try:
                answer = await self._store.checkpoint(batch)
            except Exception as again:  # noqa: BLE001 - one refused checkpoint must not stop the others
                error = again
            else:
                self._outage.worked()
                self._sync(answer.now)
                return list(answer.verdicts)


def _is_held_up(error: BaseException | None) -> TypeGuard[StoreUnavailable]:
    return isinstance(error, StoreUnavailable) and error.is_held_up


Report = Callable[[Transacted | Exception], None]


class Transactor:
    """Executes transactions in parallel with checkpoints of other runs. A run has one transaction at a time."""

    def __init__(self, database: Database, sync: Callable[[Micros], None]) -> None:
        self._database = database
        self._sync = sync
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Transacted]] = set()
        self._outage = Outage(_log, "cannot execute transactions; trying again", "executing transactions works again")

    def start(
        self, checkpoint: Checkpoint, location: str, transaction: Transaction, report: Report
    ) -> asyncio.Future[Transacted]:
        """Execute a transaction. A plain callback calls `report`, unless the returned future is cancelled."""
        # Repeating is safe: if the store committed the transaction and the answer got lost, the store says so.
        transact = partial(self._database.transact, checkpoint, location, transaction)
        task = self._loop.create_task(self._outage.retry(transact))
        self._tasks.add(task)
        # Runs are driven from plain callbacks, never from inside a task.
        task.add_done_callback(partial(self._on_answer, report))
        return task

    async def close(self) -> None:
        """Cancel all transactions in flight. The store may or may not have committed them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _on_answer(self, report: Report, task: asyncio.Task[Transacted]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._sync(task.result().now)
            report(task.result())
        else:
            assert isinstance(error, Exception)
            report(error)
