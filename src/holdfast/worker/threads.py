"""A lean pool of threads for sync step bodies, which hands results back in batches.

One wake-up of the event loop carries every result that is there: with hundreds of short bodies in flight
that costs a few microseconds each, where `run_in_executor` costs a wake-up each. Threads are daemons: a body
that hangs must not keep the process from ending.
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
"""Runs in a thread; what it returns runs on the loop."""


class Threads:
    """Grows to `limit` threads as needed; idle ones end by themselves."""

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
        """Run a job as soon as a thread is free; there is one for each job that is not finished, up to the limit.

        Raises `RuntimeError` if there is none at all, because the system gives no more.
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
                    return  # those that are there see to it, one after another
                self._unfinished -= 1
                self._jobs.get_nowait()  # without a thread there is no other job in there
            raise

    def close(self) -> None:
        """Let every thread end after the job it has."""
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
            del job, finished  # an idle thread must not keep alive what the last body used

    def _hand_back(self, finished: Callable[[], None]) -> None:
        # Appended before the flag is read; the loop clears the flag before it drains: no result is left behind.
        self._finished.append(finished)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # The loop is closed: the process is ending, and what was not recorded will be done again.
                self._finished.clear()

    def _drain(self) -> None:
        self._is_woken = False
        while self._finished:
            finished = self._finished.popleft()
            try:
                finished()
            except Exception as error:  # noqa: BLE001 - the results behind it are those of other runs
                message = "exception while a step's result was taken in"
                self._loop.call_exception_handler({"message": message, "exception": error})


def attempt(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """Call a body; its result, or what it raised."""
    try:
        return function(*args), None
    except BaseException as error:  # noqa: BLE001 - a body may raise anything, and its outcome is data
        return None, error
