"""The transactor: executes transactions of runs in the store, and repeats each until the store answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.clock import Micros
from holdfast.core.outage import Outage
from holdfast.core.ports import Database, Transacted, Transaction

_log = logging.getLogger("holdfast.worker")

Report = Callable[[Transacted | Exception], None]


class Transactor:
    """Executes transactions in parallel with checkpoints of other runs. A run has one transaction at a time."""

    def __init__(self, database: Database, told: Callable[[Micros], None]) -> None:
        self._database = database
        self._told = told
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
        task.add_done_callback(partial(self._answered, report))
        return task

    async def close(self) -> None:
        """Cancel all transactions in flight. The store may or may not have committed them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _answered(self, report: Report, task: asyncio.Task[Transacted]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._told(task.result().now)
            report(task.result())
        else:
            assert isinstance(error, Exception)
            report(error)
