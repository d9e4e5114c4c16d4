"""The executor: bodies of every kind, interrupted in every way, reported at most once."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import pytest
import pytest_asyncio

from holdfast import step_info
from holdfast.core.codec import Codec
from holdfast.runner.operation import StepCall, StepOptions
from holdfast.testing.patience import GUARD_SECONDS, guard
from holdfast.worker.executor import Body, Executor


class Bench:
    """An executor, and its reports."""

    def __init__(self, *, steps: int = 100, threads: int = 4, is_open: bool = True) -> None:
        self.executor = Executor(steps=steps, threads=threads, is_open=is_open)
        self.reported: list[Body] = []
        self.changed = asyncio.Event()

    def start(self, function: Callable[..., Any], *args: Any, name: str = "s", timeout: float | None = None) -> Body:
        call = StepCall(name, function, args, Codec(Any), StepOptions(timeout=timeout))
        return self.executor.start(call, call.info("run", 1, lambda _: None), self._report)

    def _report(self, body: Body) -> None:
        assert body not in self.reported, "reported twice"
        self.reported.append(body)
        self.changed.set()

    async def wait_for(self, count: int) -> list[Body]:
        async with guard(f"{count} bodies are reported"):
            while len(self.reported) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.reported


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.executor.close()
    await asyncio.sleep(0)


async def an_async(value: int) -> int:
    await asyncio.sleep(0)
    return value


def a_sync(value: int) -> int:
    return value


class AsyncCallable:
    async def __call__(self, value: int) -> int:
        return value


@pytest.mark.parametrize(
    "function",
    [an_async, a_sync, AsyncCallable(), functools.partial(an_async), lambda value: an_async(value + 0)],
    ids=["async", "sync", "async callable", "partial", "lambda"],
)
async def test_a_body_of_any_kind_is_executed_and_reported(bench: Bench, function: Callable[..., Any]) -> None:
    bench.start(function, 5)
    (body,) = await bench.wait_for(1)
    assert (body.value, body.error, body.is_timed_out) == (5, None, False)


@pytest.mark.parametrize("function", [an_async, a_sync, AsyncCallable()], ids=["async", "sync", "async callable"])
async def test_a_body_called_with_wrong_arguments_is_reported_and_not_at_once(
    bench: Bench, function: Callable[..., Any]
) -> None:
    body = bench.start(function, 1, 2, 3)
    assert bench.reported == []  # the caller must know the body before its report
    assert await bench.wait_for(1) == [body]
    assert isinstance(body.error, TypeError)


async def test_bodies_over_the_limit_wait_even_if_many_fail_at_once() -> None:
    bench = Bench(steps=1)
    for _ in range(3_000):
        bench.start(an_async)
    assert len(await bench.wait_for(3_000)) == 3_000
    bench.executor.close()


async def test_bodies_wait_until_the_executor_is_open() -> None:
    bench, begun = Bench(is_open=False), list[int]()

    async def body(number: int) -> None:
        begun.append(number)

    abandoned = bench.start(body, 0)
    bench.start(body, 1)
    abandoned.abandon()
    await asyncio.sleep(0)
    assert begun == []
    bench.executor.open()
    await bench.wait_for(1)
    assert begun == [1]
    bench.executor.close()


async def test_an_abandoned_body_is_cancelled_and_not_reported(bench: Bench) -> None:
    ended: list[bool] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(step_info().is_cancelled)

    body = bench.start(endless)
    await asyncio.sleep(0.001)
    body.abandon()
    bench.start(an_async, 1)
    (other,) = await bench.wait_for(1)
    assert other.value == 1
    assert ended == [True]


async def test_an_abandoned_body_says_when_it_has_ended(bench: Bench) -> None:
    ended: list[Body] = []
    is_over, may_end = asyncio.Event(), threading.Event()

    def on_end(body: Body) -> None:
        ended.append(body)
        if len(ended) == 2:
            is_over.set()

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)

    bodies = [bench.start(cleans_up, name="async"), bench.start(may_end.wait, name="thread")]
    await asyncio.sleep(0)
    assert [body.abandon(on_end) for body in bodies] == [True, True]
    assert ended == []
    may_end.set()
    async with guard("both bodies have ended"):
        await is_over.wait()
    assert {body.call.location for body in ended} == {"async", "thread"}
    assert bench.reported == []


async def test_an_abandoned_body_that_waits_for_its_turn_has_nothing_to_end() -> None:
    bench = Bench(steps=1)
    bench.start(asyncio.Event().wait)
    waiting = bench.start(an_async, 1)

    assert not waiting.abandon()
    bench.executor.close()
    await asyncio.sleep(0)


async def test_a_body_that_is_abandoned_before_its_first_step_is_never_started(bench: Bench) -> None:
    begun: list[int] = []

    async def body() -> None:
        begun.append(1)

    bench.start(body).abandon()
    bench.start(an_async, 1)
    await bench.wait_for(1)
    assert begun == []
    assert bench.executor.is_idle


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_body_that_is_cancelled_by_other_code_is_reported(bench: Bench, has_begun: bool) -> None:
    known = asyncio.all_tasks()
    bench.start(asyncio.Event().wait)
    if has_begun:
        await asyncio.sleep(0)
    (task,) = asyncio.all_tasks() - known
    task.cancel()
    (body,) = await bench.wait_for(1)
    assert isinstance(body.error, asyncio.CancelledError)
    assert bench.executor.is_idle


TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("others", [0, 2])
async def test_a_body_does_not_leak_its_context_variables(bench: Bench, pause: bool, others: int) -> None:
    async def serve(tenant: str) -> str:
        before = TENANT.get()
        TENANT.set(tenant)
        if pause:
            await asyncio.sleep(0)
        return before

    report = bench._report

    def report_and_go_on(body: Body) -> None:
        assert TENANT.get() == "nobody"
        report(body)
        if len(bench.reported) <= others + 1:  # as a run does, whose next step follows from this one
            bench.start(serve, "the next")

    bench._report = report_and_go_on  # type: ignore[method-assign]
    TENANT.set("who starts it")  # as a request that starts a run for a worker in the same process
    for number in range(others + 1):
        bench.start(serve, f"tenant {number}")
    reported = await bench.wait_for(2 * (others + 1))
    assert {body.value for body in reported} == {"nobody"}


async def test_a_report_of_a_start_names_its_step(bench: Bench) -> None:
    call = StepCall("s", an_async, (1,), Codec(Any), StepOptions())
    told: list[str] = []
    bench.executor.start(
        call,
        call.info("run", 1, lambda _: None),
        bench._report,
        lambda body: told.append(body.context.run(lambda: step_info().idempotency_key)),
    )
    (body,) = await bench.wait_for(1)
    assert told == [body.info.idempotency_key]


async def test_a_result_that_cannot_be_handled_does_not_block_others(bench: Bench) -> None:
    loop, troubles = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda _, context: troubles.append(context["exception"]))
    first = bench.start(an_async, 1)
    first.report = lambda body: 1 // 0  # type: ignore[assignment]
    bench.start(an_async, 2)
    (other,) = await bench.wait_for(1)
    assert other.value == 2
    assert [type(trouble) for trouble in troubles] == [ZeroDivisionError]


async def test_a_body_that_is_abandoned_while_it_waits_for_a_thread_is_never_started() -> None:
    bench, release = Bench(threads=1), threading.Event()
    begun: list[int] = []
    bench.start(release.wait, GUARD_SECONDS)
    waiting = bench.start(lambda: begun.append(1))
    waiting.abandon()
    bench.start(a_sync, 7)
    release.set()
    assert [body.value for body in await bench.wait_for(2)] == [True, 7]
    assert begun == []
    bench.executor.close()


async def test_the_time_a_body_waits_for_a_thread_does_not_count_for_its_timeout() -> None:
    bench, release = Bench(threads=1), threading.Event()
    bench.start(release.wait, GUARD_SECONDS)
    patient = bench.start(a_sync, 7, timeout=GUARD_SECONDS)
    await asyncio.sleep(0.01)
    assert patient.timer is None
    release.set()
    assert [body.value for body in await bench.wait_for(2)] == [True, 7]
    bench.executor.close()


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_body_that_takes_too_long_is_reported_once_as_timed_out(bench: Bench, kind: str) -> None:
    release = threading.Event()

    async def endless() -> None:
        await asyncio.Event().wait()

    body = (
        bench.start(endless, timeout=0.01)
        if kind == "async"
        else bench.start(release.wait, GUARD_SECONDS, timeout=0.01)
    )
    assert await bench.wait_for(1) == [body]
    assert body.is_timed_out
    release.set()
    bench.start(a_sync, 1)
    await bench.wait_for(2)


async def test_a_body_that_ends_in_time_is_not_timed_out_later(bench: Bench) -> None:
    bench.start(an_async, 1, timeout=GUARD_SECONDS)
    bench.start(a_sync, 2, timeout=GUARD_SECONDS)
    await bench.wait_for(2)
    await asyncio.sleep(0)
    assert all(body.timer is None or body.timer.cancelled() for body in bench.reported)


async def test_each_body_has_its_own_context_and_identity(bench: Bench) -> None:
    async def who() -> str:
        await asyncio.sleep(0)
        return step_info().location

    for name in ("a", "b"):
        bench.start(who, name=name)
        bench.start(lambda: step_info().location, name=name)
    found = await bench.wait_for(4)
    assert sorted(body.value for body in found) == ["a", "a", "b", "b"]


async def test_closing_abandons_running_and_waiting_bodies() -> None:
    bench = Bench(steps=1)

    async def endless() -> None:
        await asyncio.Event().wait()

    bodies = [bench.start(endless), bench.start(an_async, 1)]
    await asyncio.sleep(0)
    bench.executor.close()
    await asyncio.sleep(0.001)
    assert all(body.is_abandoned for body in bodies)
    assert bench.reported == []


@pytest.mark.parametrize("steps", [100, 1])
async def test_a_body_for_which_there_is_no_thread_is_a_failed_attempt(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    bench = Bench(steps=steps)

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bench.executor._threads, "submit", refuse)
    bodies = [bench.start(a_sync, 1, name="a"), bench.start(an_async, 2, name="b")]
    assert bench.reported == []  # never before the caller knows the body
    await bench.wait_for(2)
    assert [(str(body.error), body.value) for body in bodies] == [("can't start new thread", None), ("None", 2)]
    assert bench.executor.is_idle
