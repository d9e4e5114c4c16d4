"""A producer process: job after job at a steady pace, until it is stopped; then it finishes its open jobs.

`python -m tests.chaos.producer URL --slot … --seed … --pace … --most … --kinds … --book … --journal …`
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import signal
from collections.abc import Iterator

from holdfast import Holdfast
from holdfast.app import session_of
from tests.chaos import load
from tests.chaos.jobs import Job
from tests.chaos.journal import Journal
from tests.faults.app import insist
from tests.process.app import workflows

WIDTH = 20
"""Maximum number of open jobs of one producer."""


class Producer:
    """Executes the jobs of one slot. The seed determines their order."""

    def __init__(self, hf: Holdfast, options: argparse.Namespace) -> None:
        self._hf = hf
        self._options = options
        self._journal = Journal(options.journal)
        self._kinds = sorted(options.kinds.split(","))
        self._is_over = asyncio.Event()
        if options.closing:
            self.end()

    def end(self) -> None:
        self._is_over.set()

    async def produce(self) -> None:
        places = asyncio.Semaphore(WIDTH)
        async with asyncio.TaskGroup() as group:
            for number, is_new in self._numbers():
                if is_new and self._is_over.is_set():
                    break
                await places.acquire()
                job = group.create_task(self._job(number))
                job.add_done_callback(lambda _: places.release())
                if is_new:
                    await self._rest()

    def _numbers(self) -> Iterator[tuple[int, bool]]:
        """Yield the open jobs of a predecessor, then new ones."""
        *old, first = self._journal.unfinished()
        yield from ((number, False) for number in old)
        numbers = range(first, self._options.most) if self._options.most else itertools.count(first)
        yield from ((number, True) for number in numbers)

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(1 / self._options.pace):
                await self._is_over.wait()
        except TimeoutError:
            pass

    async def _job(self, number: int) -> None:
        item = f"{self._options.slot}-{number}"
        job = Job(self._hf, self._journal, self._options.book, item, self._options.seed)
        await job.do(job.chance.choice(self._kinds))


async def main(options: argparse.Namespace) -> None:
    hf = Holdfast(options.url)
    hf.include(workflows)
    hf.include(load.workflows)
    async with hf:
        producer = Producer(hf, options)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, producer.end)
        await insist(session_of(hf).open)
        await producer.produce()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--pace", type=float, default=8, help="jobs a second")
    parser.add_argument("--most", type=int, default=0, help="how many jobs; 0: no end")
    parser.add_argument("--kinds", required=True, help="the kinds of jobs, with a comma between them")
    parser.add_argument("--closing", type=int, default=0, help="1: only what a predecessor has begun")
    parser.add_argument("--book", required=True)
    parser.add_argument("--journal", required=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    asyncio.run(main(parser.parse_args()))
