"""The transactor: has the store carry out transactions of runs, each as often as it takes until there is an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.clock import Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Database, Transacted, Transaction
from holdfast.worker.alarm import loudness

_FIRST_PAUSE_SECONDS = 0.05
_LAST_PAUSE_SECONDS = 1.0

_log = logging.getLogger("holdfast.worker")

Report = Callable[[Transacted | Exception], None]


class Transactor:
    """Carries out transactions beside the checkpoints of other runs. Of one run there is one at a time."""

    def __init__(self, database: Database, told: Callable[[Micros], None]) -> None:
        self._database = database
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Transacted]] = set()

    def start(
        self, checkpoint: Checkpoint, location: str, transaction: Transaction, report: Report
    ) -> asyncio.Future[Transacted]:
        """Have a transaction carried out; `report` is called from a plain callback, unless the answer is cancelled."""
        task = self._loop.create_task(self._insist(checkpoint, location, transaction))
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

    async def _insist(self, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
        """Ask until the store answers. It may have committed and the answer got lost; then it says so."""
        pause, level = 0.0, logging.WARNING
        while True:
            try:
                answer = await self._database.transact(checkpoint, location, transaction)
            except StoreUnavailable as error:
                if pause == 0.0:
                    level = loudness(error)
                    _log.log(level, "cannot write; trying again until it works: %s", error)
                pause = min(_LAST_PAUSE_SECONDS, pause * 2 or _FIRST_PAUSE_SECONDS)
                await asyncio.sleep(pause)
            else:
                if pause:
                    _log.log(level, "writing works again")
                return answer

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
