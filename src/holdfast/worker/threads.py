"""A small thread pool for sync step bodies, which hands results back in batches.

One wake-up of the event loop carries all results that are ready. With hundreds of short bodies in flight this costs a
few microseconds per body, while `run_in_executor` costs one wake-up per body. Threads are daemons: a body that hangs
must not keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

IDLE_SECONDS = 10.0

Job = Callable[[], Callable[[], None]]
"""A function that runs in a thread. The function that it returns runs on the loop."""


class Threads:
    """A pool that grows to `limit` threads as needed. Idle threads end by themselves."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._limit = limit
        self._loop = loop
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._finished: deque[Callable[[], None]] = deque()
        self._is_woken = False
        self._count = 0
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, job: Job) -> None:
        """Run a job as soon as a thread is free. The pool has one thread per unfinished job, up to the limit.

        Raises `RuntimeError` if the system cannot start a thread and the pool has none.
        """
        with self._lock:
            self._jobs.put(job)
            self._unfinished += 1
            if self._count >= min(self._unfinished, self._limit):
                return
            self._count += 1
        try:
            threading.Thread(target=self._work, name="holdfast-step", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._count -= 1
                if self._count > 0:
                    return  # the existing threads take the job when they are free
                self._unfinished -= 1
                self._jobs.get_nowait()  # without threads, this job is the only one in the queue
            raise

    def close(self) -> None:
        """End every thread after its current job and the queued jobs."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._count -= 1
                        return
                continue
            if job is None:
                return
            finished = job()
            with self._lock:
                self._unfinished -= 1
            self._hand_back(finished)
            del job, finished  # an idle thread must not keep the objects of the last body alive

    def _hand_back(self, finished: Callable[[], None]) -> None:
        # No result can be left behind: this thread appends before it reads the flag, and the loop clears the flag
        # before it drains the queue.
        self._finished.append(finished)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # The loop is closed: the process is ending. A worker executes the unrecorded steps again later.
                self._finished.clear()

    def _drain(self) -> None:
        self._is_woken = False
        while self._finished:
            finished = self._finished.popleft()
            try:
                finished()
            except Exception as error:  # noqa: BLE001 - the results that follow belong to other runs
                message = "exception while the worker handled a step's result"
                self._loop.call_exception_handler({"message": message, "exception": error})


def attempt(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """Call a body. Return its result, or the exception that it raised."""
    try:
        return function(*args), None
    except BaseException as error:  # noqa: BLE001 - a body may raise anything, and its outcome is data
        return None, error
