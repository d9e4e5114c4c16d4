"""The pool of threads: as many as there is work for, up to a limit, and no result is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from holdfast.testing.patience import GUARD_SECONDS, guard, until, wait_for
from holdfast.worker.executor import Threads


class Bench:
    """A pool, and the results it has handed back to the loop."""

    def __init__(self, limit: int) -> None:
        self.threads = Threads(limit, asyncio.get_running_loop())
        self.results: list[object] = []
        self.changed = asyncio.Event()

    def submit(self, body: Callable[[], object]) -> None:
        def job() -> Callable[[], None]:
            result = body()
            return lambda: self._take(result)

        self.threads.submit(job)

    def _take(self, result: object) -> None:
        self.results.append(result)
        self.changed.set()

    async def wait_for(self, count: int) -> list[object]:
        async with guard(f"{count} results are there"):
            while len(self.results) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.results


async def test_results_come_back_on_the_loop() -> None:
    bench = Bench(4)
    for number in range(1_000):
        bench.submit(lambda number=number: number)  # type: ignore[misc]
    assert sorted(await bench.wait_for(1_000)) == list(range(1_000))  # type: ignore[type-var]
    bench.threads.close()


async def test_there_is_a_thread_for_each_job_up_to_the_limit() -> None:
    bench, release = Bench(3), threading.Event()
    running: set[str] = set()
    peak: list[int] = []

    def body() -> None:
        name = threading.current_thread().name + str(threading.get_ident())
        running.add(name)
        peak.append(len(running))
        release.wait(GUARD_SECONDS)
        running.discard(name)

    for _ in range(7):
        bench.submit(body)
    await until("three jobs are under way", lambda: len(peak) >= 3)
    release.set()
    await bench.wait_for(7)
    assert max(peak) == 3
    bench.threads.close()


async def test_a_job_that_waits_for_a_later_one_does_not_keep_it_from_running() -> None:
    """A thread that has just taken a job is not idle, although it may look idle for a moment."""
    bench = Bench(2)
    for _ in range(300):
        told = threading.Event()
        done = len(bench.results)
        bench.submit(lambda told=told: told.wait(GUARD_SECONDS))  # type: ignore[misc]
        bench.submit(told.set)
        await bench.wait_for(done + 2)
    assert False not in bench.results
    bench.threads.close()


async def test_idle_threads_end_and_come_back_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.executor.IDLE_SECONDS", 0.01)
    bench = Bench(2)
    bench.submit(lambda: 1)
    await bench.wait_for(1)
    await until("no thread is left", lambda: bench.threads._count == 0)
    bench.submit(lambda: 2)
    assert await bench.wait_for(2) == [1, 2]
    bench.threads.close()


async def test_a_result_that_cannot_be_handled_does_not_block_later_ones() -> None:
    bench = Bench(1)
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(str(context["exception"])))

    def refuse() -> None:
        raise ValueError("not mine")

    bench.threads.submit(lambda: refuse)
    bench.submit(lambda: "next")
    assert await bench.wait_for(1) == ["next"]
    assert heard == ["not mine"]
    bench.threads.close()


async def test_a_closed_pool_lets_its_threads_end() -> None:
    before = threading.active_count()
    bench = Bench(5)
    for _ in range(5):
        bench.submit(lambda: None)
    await bench.wait_for(5)
    bench.threads.close()
    await until("its threads have ended", lambda: threading.active_count() <= before)


def test_a_result_that_comes_after_the_loop_is_closed_is_dropped() -> None:
    release, ended = threading.Event(), threading.Event()

    async def begin() -> None:
        bench = Bench(1)
        bench.submit(lambda: release.wait(GUARD_SECONDS))
        bench.submit(ended.set)

    asyncio.run(begin())
    release.set()
    wait_for("the second job is done", ended)


def refuse(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the system refuse new threads a given number of times."""
    left, start = iter(range(times)), threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        if thread.name == "holdfast-step" and next(left, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)


async def test_without_any_thread_a_job_is_refused_and_the_next_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(2)
    refuse(monkeypatch, 1)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        bench.submit(lambda: "refused")
    bench.submit(lambda: "done")
    assert await bench.wait_for(1) == ["done"]
    bench.threads.close()


async def test_with_too_few_threads_jobs_wait_for_existing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, release = Bench(4), threading.Event()
    bench.submit(lambda: release.wait(GUARD_SECONDS))
    refuse(monkeypatch, 2)
    for name in ("a", "b"):
        bench.submit(lambda name=name: name)  # type: ignore[misc]
    release.set()
    assert await bench.wait_for(3) == [True, "a", "b"]
    bench.threads.close()
