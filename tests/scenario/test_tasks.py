"""Tasks: plain functions that run durably, their context, and their progress as others see it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast import (
    Context,
    InvalidRequest,
    LeaseLost,
    Registry,
    Retry,
    RunCancelled,
    RunFailed,
    RunHandle,
    RunState,
    TaskContext,
    step_info,
)
from holdfast.app import session_of
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.ports import Store
from holdfast.testing.harness import Harness
from holdfast.testing.patience import until, wait_for, wait_until
from tests.stage import Stage, facts


class Gate:
    """A gate where a body waits until the test releases it. It signals that the body has arrived."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.opened = threading.Semaphore(0)

    def wait(self) -> None:
        self.reached.release()
        wait_for("the gate is opened", self.opened)

    async def wait_on_loop(self) -> None:
        self.reached.release()
        await asyncio.to_thread(wait_for, "the gate is opened", self.opened)

    async def until_reached(self, h: Harness) -> None:
        await asyncio.to_thread(wait_for, "the body comes to the gate", self.reached)
        await h.settle()

    def open(self) -> None:
        self.opened.release()


async def events(run: RunHandle[Any]) -> list[str]:
    return [fact.event for fact in await run.audit()]


# The context of a task


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.every_store
async def test_a_task_knows_its_run_its_attempt_and_its_key(stage: Stage, is_async: bool) -> None:
    app = Registry()
    known: list[list[Any]] = []

    def tell(ctx: TaskContext, to: str) -> str:
        known.append([ctx.run_id, ctx.type, ctx.attempt, ctx.idempotency_key, ctx.is_cancelled])
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return f"sent to {to}"

    async def tell_on_loop(ctx: TaskContext, to: str) -> str:
        return tell(ctx, to)

    send = app.task("mail.send.v1", retry=Retry(max_attempts=2))(tell_on_loop if is_async else tell)

    async with stage.harness(app) as h:
        run = await h.start(send, "ada")
        assert await run.result() == "sent to ada"
        key = f"{run.id}:1:mail.send.v1"
        assert known == [[run.id, "mail.send.v1", 1, key, False], [run.id, "mail.send.v1", 2, key, False]]
        assert await facts(run) == ["mail.send.v1 step done"]
        details = await session_of(h).store.get(run.id)
        assert details is not None
        assert json.loads(details.run.payload) == {"to": "ada"}


async def test_the_context_equals_step_info(stage: Stage) -> None:
    app = Registry()

    @app.task
    def same(ctx: TaskContext) -> bool:
        return step_info() is ctx

    async with stage.harness(app) as h:
        assert await h.execute(same)


async def test_a_task_with_a_context_can_be_a_child_and_take_keywords(stage: Stage) -> None:
    app = Registry()

    @app.task("child.v1")
    def child(ctx: TaskContext, number: int, *, factor: int = 2) -> list[int]:
        return [number * factor, ctx.attempt]

    async with stage.harness(app) as h:
        run = await h.start("child.v1", {"number": 4, "factor": 3})
        assert await run.result() == [12, 1]
        assert await h.execute(child, 4) == [8, 1]


async def test_the_logger_of_a_task_names_the_run(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    app = Registry()

    @app.task("mail.send.v1")
    def send(ctx: TaskContext) -> None:
        ctx.logger.warning("the postman is late")

    async with stage.harness(app) as h:
        with caplog.at_level(logging.INFO, logger="holdfast.task"):
            run = await h.start(send)
            await run.result()
    (record,) = (one for one in caplog.records if one.name == "holdfast.task")
    assert (record.__dict__["run_id"], record.__dict__["run_type"]) == (run.id, "mail.send.v1")


# Progress


async def test_progress_is_seen_while_a_task_runs_in_a_thread(stage: Stage) -> None:
    app, gate = Registry(), Gate()

    @app.task
    def export(ctx: TaskContext) -> str:
        ctx.progress(0.4)
        gate.wait()
        return "done"

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(export)
        await gate.until_reached(h)
        assert await run.value("progress") == 0.4
        assert (await run.info()).state is RunState.RUNNING
        gate.open()
        assert await run.result() == "done"
        assert await run.value("progress") == 0.4


async def test_progress_is_seen_while_a_task_runs_on_the_loop(stage: Stage) -> None:
    app, gate = Registry(), Gate()

    @app.task
    async def export(ctx: TaskContext) -> str:
        ctx.progress({"rows": 10, "of": 25})
        await gate.wait_on_loop()
        return "done"

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(export)
        await gate.until_reached(h)
        assert await run.value("progress") == {"rows": 10, "of": 25}
        gate.open()
        assert await run.result() == "done"


async def test_later_progress_is_written_after_a_minimum_interval(stage: Stage) -> None:
    app, gate = Registry(), Gate()

    @app.task
    def export(ctx: TaskContext) -> None:
        for done in (1, 2, 3):
            ctx.progress(done)
            gate.wait()

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(export)
        await gate.until_reached(h)
        gate.open()
        await gate.until_reached(h)
        assert await run.value("progress") == 1  # no time has passed since
        await h.advance(0.25)
        assert await run.value("progress") == 2
        gate.open()
        await gate.until_reached(h)
        gate.open()
        await run.result()
        assert await run.value("progress") == 3  # with the end, however soon that comes


class Counting:
    """Counts checkpoints."""

    def __init__(self, store: Store, counted: list[Checkpoint]) -> None:
        self._store = store
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Any:
        self._counted.extend(checkpoints)
        return self._store.checkpoint(checkpoints)


async def test_a_task_that_reports_every_row_does_not_flood_the_store(stage: Stage) -> None:
    app = Registry()
    counted: list[Checkpoint] = []

    @app.task
    def export(ctx: TaskContext) -> int:
        for row in range(20_000):
            ctx.progress(row)
            ctx.heartbeat()
        return 20_000

    async with stage.harness(app, wrap=lambda store: Counting(store, counted)) as h:
        run = await h.start(export)
        assert await run.result() == 20_000
        assert await run.value("progress") == 19_999
    assert len(counted) <= 2  # no time has passed: the first value, and the end


async def test_progress_that_is_not_json_fails_the_task_at_the_call(stage: Stage) -> None:
    app = Registry()

    @app.task
    def export(ctx: TaskContext) -> None:
        ctx.progress(object())

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="progress cannot be stored as JSON"):
            await h.execute(export)


async def has_failed(h: Harness, run: RunHandle[None]) -> bool:
    await h.settle()
    return (await run.info()).state is not RunState.RUNNING


async def test_a_failed_attempt_leaves_its_progress_until_the_next_one_reports_its_own(stage: Stage) -> None:
    app, gate = Registry(), Gate()

    @app.task(retry=Retry(max_attempts=2, initial=60, max_delay=60, jitter=0))
    def export(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            ctx.progress("half")
            raise ConnectionError("cut off")
        gate.wait()
        ctx.progress("all")

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(export)
        await until("the first attempt has failed", lambda: has_failed(h, run))
        assert await run.value("progress") == "half"
        await h.advance(60)
        await gate.until_reached(h)
        gate.open()
        await run.result()
        assert await run.value("progress") == "all"


async def test_a_worker_that_dies_leaves_the_progress_that_was_written(stage: Stage) -> None:
    app, gate = Registry(), Gate()

    @app.task(retry=Retry(max_attempts=2))
    def export(ctx: TaskContext) -> int:
        ctx.progress(ctx.attempt)
        gate.wait()
        return ctx.attempt

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(export)
        await gate.until_reached(h)
        await h.crash_worker()
        gate.open()
        assert await run.value("progress") == 1
        await h.advance(31)
        await h.start_worker()
        await gate.until_reached(h)
        assert await run.value("progress") == 2
        gate.open()
        assert await run.result() == 2


# Heartbeats


@pytest.mark.parametrize("is_async", [False, True])
async def test_heartbeats_are_recorded_once_a_minute(stage: Stage, is_async: bool) -> None:
    app, gate = Registry(), Gate()

    def watch(ctx: TaskContext) -> None:
        for _ in range(4):
            ctx.heartbeat()
            gate.wait()

    async def watch_on_loop(ctx: TaskContext) -> None:
        for _ in range(4):
            ctx.heartbeat()
            await gate.wait_on_loop()

    task = app.task("watch.v1")(watch_on_loop if is_async else watch)

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(task)
        noted: list[int] = []
        for seconds in (30, 31, 30, 30):
            await gate.until_reached(h)
            noted.append((await events(run)).count("heartbeat"))
            await h.advance(seconds)
            gate.open()
        await run.result()
        beats = [fact for fact in await run.audit() if fact.event == "heartbeat"]

    # At 0 the claim is less than a minute old; at 30 too; at 61 it is not; at 91 the last note is.
    assert noted == [0, 0, 1, 1]
    assert [fact.data["beat"] for fact in beats] == ["1.1"]


async def test_a_task_that_is_cancelled_sees_it_in_its_thread(stage: Stage) -> None:
    app = Registry()
    begun, over = threading.Event(), threading.Event()
    heard: list[str] = []

    @app.task
    def spin(ctx: TaskContext) -> None:
        begun.set()
        wait_until("the body sees that it is cancelled", lambda: ctx.is_cancelled)
        for speak in (ctx.heartbeat, lambda: ctx.progress(1)):
            try:
                speak()
            except LeaseLost as lost:
                heard.append(str(lost))
        over.set()

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(spin)
        await asyncio.to_thread(wait_for, "the body has begun", begun)
        assert await run.cancel("enough")
        with pytest.raises(RunCancelled):
            await run.result()
        await asyncio.to_thread(wait_for, "the body is over", over)
        assert await run.value("progress") is None
    assert len(heard) == 2
    assert "no longer counts" in heard[0]


async def test_a_task_that_times_out_sees_it(stage: Stage) -> None:
    app = Registry()
    ended: list[bool] = []
    over = threading.Event()

    @app.task(timeout=0.01)
    def spin(ctx: TaskContext) -> None:
        wait_until("the body sees that it is cancelled", lambda: ctx.is_cancelled)
        ended.append(ctx.is_cancelled)
        over.set()

    async with stage.harness(app, has_endless_bodies=True) as h:
        with pytest.raises(RunFailed, match="longer than"):
            await h.execute(spin)
        await asyncio.to_thread(wait_for, "the body is over", over)
    assert ended == [True]


async def test_a_task_with_a_pause_request_runs_to_its_end(stage: Stage) -> None:
    app, gate = Registry(), Gate()

    @app.task
    def work(ctx: TaskContext) -> bool:
        gate.wait()
        ctx.heartbeat()
        return ctx.is_cancelled

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(work)
        await gate.until_reached(h)
        await run.pause()
        await h.settle()
        gate.open()
        assert await run.result() is False


# Retrying


async def test_by_default_a_task_is_retried_after_one_and_four_minutes_and_never_earlier(stage: Stage) -> None:
    app = Registry()

    async with stage.harness(app) as h:

        @app.task
        def call(ctx: TaskContext) -> None:
            called.append(h.now)
            raise ConnectionError("nobody there")

        called: list[Any] = []
        with pytest.raises(RunFailed, match="nobody there"):
            await h.execute(call)

    first, second = (later - earlier for earlier, later in pairwise(called))
    assert len(called) == 3
    assert timedelta(seconds=60) <= first <= timedelta(seconds=66)
    assert timedelta(seconds=240) <= second <= timedelta(seconds=264)


# Declaring


@pytest.mark.parametrize("is_task", [True, False])
async def test_a_max_suspend_that_is_shorter_than_the_pause_before_a_retry_cancels(stage: Stage, is_task: bool) -> None:
    app = Registry()
    attempts: list[int] = []

    @app.task("flaky.v1", retry=Retry(max_attempts=2, initial=3600, max_delay=3600, jitter=0))
    def flaky(ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        raise ConnectionError("not yet")

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("flaky", fail, retry=Retry(max_attempts=2, initial=3600, max_delay=3600, jitter=0))

    def fail() -> None:
        attempts.append(step_info().attempt)
        raise ConnectionError("not yet")

    async with stage.harness(app) as h:
        run = await h.start(flaky, max_suspend=60) if is_task else await h.start(shop, max_suspend=60)
        await h.advance(59)
        assert (await run.info()).state is RunState.SUSPENDED
        await h.advance(2)
        info = await run.info()
        assert info.state is RunState.CANCELLED
        assert info.error is not None
        assert info.error.message == "it was suspended longer than its max_suspend of 60 s"
        await h.advance(7200)
        assert attempts == [1]


@pytest.mark.parametrize("max_suspend", [3600, 3601])
async def test_a_max_suspend_that_is_no_shorter_than_the_pause_before_a_retry_lets_it_happen(
    stage: Stage, max_suspend: int
) -> None:
    app = Registry()

    @app.task("flaky.v1", retry=Retry(max_attempts=2, initial=3600, max_delay=3600, jitter=0))
    def flaky(ctx: TaskContext) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("not yet")
        return ctx.attempt

    async with stage.harness(app) as h:
        assert await h.execute(flaky, max_suspend=max_suspend) == 2


def test_a_context_parameter_comes_first_and_has_its_type_declared() -> None:
    app = Registry()

    def late(number: int, ctx: TaskContext) -> None: ...

    def other(ctx: str) -> None: ...

    def by_type(context: TaskContext, number: int) -> None: ...

    def by_name(ctx, number: int) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidRequest, match="must be the first parameter"):
        app.task(late)
    with pytest.raises(InvalidRequest, match="declares it as str"):
        app.task(other)
    assert app.task(by_type).signature.names == ("number",)
    assert app.task(by_name).signature.names == ("number",)


def test_a_task_that_is_called_directly_has_a_context_without_effect() -> None:
    app = Registry()

    @app.task("mail.send.v1")
    def send(ctx: TaskContext, to: str) -> str:
        ctx.progress(0.5)
        ctx.heartbeat()
        return f"{ctx.type} {ctx.attempt} {to}"

    assert send("ada") == "mail.send.v1 1 ada"
