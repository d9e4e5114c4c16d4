"""The transactor: has the store carry out transactions of runs, each as often as it takes until there is an answer."""

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
    """Carries out transactions beside the checkpoints of other runs. Of one run there is one at a time."""

    def __init__(self, database: Database, told: Callable[[Micros], None]) -> None:
        self._database = database
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Transacted]] = set()
        self._outage = Outage(
            _log, "cannot carry out transactions; trying again", "carrying out transactions works again"
        )

    def start(
        self, checkpoint: Checkpoint, location: str, transaction: Transaction, report: Report
    ) -> asyncio.Future[Transacted]:
        """Have a transaction carried out; `report` is called from a plain callback, unless the answer is cancelled."""
        # The store may have committed it, and the answer got lost; asked again, it says so.
        transact = partial(self._database.transact, checkpoint, location, transaction)
        task = self._loop.create_task(self._outage.retry(transact))
        self._tasks.add(task)
        # Runs are driven from plain callbacks, never from inside a task.
        task.add_done_callback(partial(self._answered, report))
        return task

    async def close(self) -> None:
        """Wait for no answer any more; what is under way is left to its fate."""
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
