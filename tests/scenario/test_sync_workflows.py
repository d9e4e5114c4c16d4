"""Workflows that are plain `def` functions: every operation blocks, survives, and holds nothing while it waits."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from holdfast import (
    ChildFailed,
    Context,
    Fatal,
    Holdfast,
    InvalidRequest,
    Registry,
    Retry,
    RunCancelled,
    RunFailed,
    StepFailed,
    SyncContext,
    WaitTimeout,
    step_info,
)
from tests.rows import each_row
from tests.stage import Stage, complaints, facts

ONCE = Retry(max_attempts=1)


@pytest.mark.every_store
async def test_a_run_continues_from_its_last_record_in_any_worker(stage: Stage) -> None:
    app = Registry()

    @app.step
    def charge(card: str, cents: int = 5) -> str:
        return f"{card} paid {cents}"

    @app.step
    async def pack(order: str) -> str:
        return f"{order} packed"

    @app.workflow("shop.checkout.v1")
    def checkout(ctx: SyncContext, order: str, card: str) -> list[Any]:
        paid = charge.blocking(card, cents=7)
        ctx.sleep(timedelta(days=1))
        answer = ctx.receive("approve", timeout=60)
        return [paid, answer, pack.blocking(order), ctx.step("count", len, order)]

    async with stage.harness(app) as h:
        run = await h.start(checkout, "book", "visa")
        await h.advance(3600)
    async with stage.harness(app) as h:
        run = h.run(run.id)
        await h.advance(86400 - 3600)
        await run.send("approve", {"by": "ada"})
        assert await run.result() == ["visa paid 7", {"by": "ada"}, "book packed", 4]
        assert await facts(run) == [
            "charge step done",
            "sleep timer done",
            "receive:approve message done",
            "pack step done",
            "count step done",
        ]


def test_a_workflow_function_called_directly_is_the_plain_function() -> None:
    app = Registry()

    @app.step
    def double(number: int) -> int:
        return 2 * number

    @app.workflow
    def shop(ctx: SyncContext, number: int) -> int:
        return double.blocking(number) + 1

    ctx: Any = object()

    assert shop(ctx, 3) == 7


async def test_every_operation_blocks_and_returns_its_value(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    def ear(ctx: SyncContext) -> Any:
        return [ctx.receive("hello", type=str), ctx.wait_event("bell", type=int)]

    @app.workflow
    def shop(ctx: SyncContext) -> Any:
        child = ctx.start(ear, name="listener")
        child.send("hello", "you")
        ctx.send(ctx.run.id, "self", [1])
        mine = ctx.receive(["self", "other"])
        ctx.sleep(1)
        ctx.emit("bell", 5)
        heard = child.result()
        ctx.set_value("progress", "half")
        ctx.sleep_until(ctx.now() + timedelta(hours=1))
        drawn = [ctx.random.random(), str(ctx.uuid()), ctx.now().isoformat()]
        assert ctx.step("draw", lambda: drawn) == drawn
        return [mine, heard, child.id != ctx.run.id]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.advance(10)
        assert await run.value("progress") == "half"
        assert await run.result() == [["self", [1]], ["you", 5], True]


async def test_timeouts_and_failures_are_raised_where_the_code_waits(stage: Stage) -> None:
    app = Registry()

    @app.task("leaf.v1", retry=ONCE)
    def leaf() -> None:
        raise ValueError("no leaf")

    def hopeless() -> None:
        raise Fatal("never")

    def flaky() -> int:
        if step_info().attempt < 3:
            raise OSError("busy")
        return step_info().attempt

    @app.workflow
    def shop(ctx: SyncContext) -> list[Any]:
        found: list[Any] = [ctx.step("flaky", flaky, retry=Retry(max_attempts=5, initial=20, jitter=0))]
        with pytest.raises(StepFailed, match="never"):
            ctx.step("hopeless", hopeless)
        with pytest.raises(WaitTimeout):
            ctx.receive("never", timeout=60)
        with pytest.raises(WaitTimeout):
            ctx.wait_event("never", timeout=60)
        with pytest.raises(ChildFailed, match="no leaf"):
            ctx.call(leaf)
        return found

    async with stage.harness(app) as h:
        assert await h.execute(shop) == [3]


async def test_sync_and_async_workflows_call_each_other(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    def inner(ctx: SyncContext, number: int) -> int:
        ctx.sleep(5)
        return number + 1

    @app.workflow
    async def middle(ctx: Context, number: int) -> int:
        return await ctx.call(inner, number) * 2

    @app.workflow
    def outer(ctx: SyncContext, number: int) -> int:
        return ctx.call(middle, number) + ctx.start(inner, number).result()

    async with stage.harness(app) as h:
        assert await h.execute(outer, 1) == 6


async def test_a_child_can_be_cancelled_from_a_def_workflow(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    def sleeper(ctx: SyncContext) -> None:
        ctx.receive("never")

    @app.workflow
    def shop(ctx: SyncContext) -> str:
        child = ctx.start(sleeper)
        ctx.sleep(1)
        child.cancel()
        with pytest.raises(ChildFailed) as failed:
            child.result()
        return failed.value.kind

    async with stage.harness(app) as h:
        assert await h.execute(shop) == "cancelled"


async def test_a_cancelled_run_does_nothing_more(stage: Stage) -> None:
    app = Registry()
    swept: list[str] = []

    @app.workflow
    def shop(ctx: SyncContext) -> None:
        try:
            ctx.receive("never")
        finally:
            ctx.step("sweep", lambda: swept.append("swept"))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.cancel("enough")
        with pytest.raises(RunCancelled):
            await run.result()
        assert swept == []
        assert await facts(run) == []


def threads() -> int:
    """Return the number of threads, without the session threads of a Postgres store, which start on demand."""
    return sum(not thread.name.startswith("holdfast-postgres-") for thread in threading.enumerate())


async def test_suspended_runs_hold_no_thread_and_no_slot(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    app = Registry()

    @app.workflow
    def waiter(ctx: SyncContext, number: int) -> int:
        return number + int(ctx.receive("go"))

    async with stage.harness(app) as h:
        first = await h.start(waiter, 0)
        await h.settle()
        before = threads()
        runs = await h.start_many(waiter, [(number,) for number in range(100)])
        await h.settle()
        assert threads() == before
        for run in [first, *runs]:
            await run.send("go", 1)
        assert [await run.result() for run in runs] == list(range(1, 101))
    assert complaints(caplog) == []


USES: dict[str, Callable[[SyncContext], Any]] = {
    "step": lambda ctx: ctx.step("inner", lambda: 1),
    "sleep": lambda ctx: ctx.sleep(1),
    "receive": lambda ctx: ctx.receive("x"),
    "call": lambda ctx: ctx.call("child.v1"),
    "send": lambda ctx: ctx.send("somebody", "x"),
    "set_value": lambda ctx: ctx.set_value("x", 1),
}


@each_row("use", USES)
@each_row("place", ["step", "thread"])
async def test_a_blocking_call_elsewhere_is_refused_and_leaves_no_trace(stage: Stage, use: str, place: str) -> None:
    app = Registry()

    @app.workflow
    def shop(ctx: SyncContext) -> str:
        said: list[str] = []

        def body() -> str:
            with pytest.raises(InvalidRequest) as refused:
                USES[use](ctx)
            said.append(str(refused.value))
            return said[0]

        if place == "step":
            return ctx.step("outer", body)
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        ctx.sleep(5)
        return said[0]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert "outside of its workflow code" in await run.result()
        assert await facts(run) == (["outer step done"] if place == "step" else ["sleep timer done"])
        assert await run.value("x") is None
        assert [info async for info in h.list(parent_id=run.id)] == []


async def test_a_decorated_step_inside_a_body_is_a_plain_call(stage: Stage) -> None:
    app = Registry()

    @app.step
    def inner() -> int:
        return 5

    @app.step
    def outer() -> int:
        return inner.blocking() + 1

    @app.workflow
    def shop(ctx: SyncContext) -> int:
        return outer.blocking()

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == 6
        assert await facts(run) == ["outer step done"]


async def test_io_of_an_event_loop_in_a_def_workflow_blocks_the_run(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    def shop(ctx: SyncContext) -> None:
        asyncio.get_running_loop().run_in_executor(None, print)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert (await run.info()).state == "blocked"
        assert "test_sync_workflows.py" in await run.explain()


async def test_code_that_no_longer_fits_blocks_a_def_workflow_too(stage: Stage) -> None:
    old, new = Registry(), Registry()

    @old.workflow("shop.v1")
    def before(ctx: SyncContext) -> None:
        ctx.step("a", int)
        ctx.receive("go")

    @new.workflow("shop.v1")
    def after(ctx: SyncContext) -> None:
        ctx.receive("go")

    async with stage.harness(old) as h:
        run = await h.start(before)
        await h.settle()
    async with stage.harness(new) as h:
        run = h.run(run.id)
        await run.send("go")
        await h.settle()
        assert (await run.info()).state == "blocked"
        assert "HistoryDiverged" in await run.explain()


async def test_an_error_ends_the_run_as_failed(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    def shop(ctx: SyncContext) -> None:
        ctx.sleep(5)
        raise LookupError("nothing there")

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="nothing there"):
            await h.execute(shop)


def work_through(new_loop: Callable[[], asyncio.AbstractEventLoop], results: list[Any]) -> None:
    """Execute runs with a real worker. Some of them are still waiting when it stops."""
    hf = Holdfast("memory://")

    @hf.step
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @hf.workflow
    def shop(ctx: SyncContext, number: int) -> int:
        ctx.sleep(0.001)
        found: int = min(range(3), key=lambda one: double.blocking(-one)) + number
        if number == 7:
            ctx.sleep(0.5)  # so soon that the run stays in memory
        return found

    async def main() -> None:
        async with hf, hf.worker():
            await hf.start(shop, 7)
            results.append([await hf.execute(shop, number) for number in range(3)])

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_workers_on_several_threads_and_kinds_of_event_loop_drive_def_workflows(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    results: list[Any] = []
    threads = [
        threading.Thread(target=work_through, args=(new_loop, results))
        for new_loop in (asyncio.new_event_loop, uvloop.new_event_loop)
    ]
    for thread in threads:
        thread.start()
    work_through(asyncio.new_event_loop, results)
    for thread in threads:
        thread.join()

    assert results == [[2, 3, 4]] * 3
    assert complaints(caplog) == []
    assert capfd.readouterr() == ("", "")


async def test_code_that_blocks_the_worker_is_named(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    app = Registry()

    @app.workflow("shop.slow.v1")
    def slow(ctx: SyncContext) -> None:
        time.sleep(0.12)

    async with stage.harness(app) as h:
        run = await h.start(slow)
        await run.result()
    assert f"the code of run {run.id} (shop.slow.v1) blocked the worker's loop" in caplog.text


class Program:
    """A random program: its seed determines it, and `mark` checks that every replay sees the same."""

    def __init__(self, ctx: SyncContext, seed: int, note: Callable[[int], int]) -> None:
        self.ctx = ctx
        self.chance = random.Random(seed)
        self.note = note
        self.trace: list[Any] = []

    def act(self, depth: int) -> Any:
        kinds = ["step", "sleep", "late", "leaf", "sort", "mark", *(["deep"] * (4 - depth))]
        act: Callable[..., Any] = getattr(self, self.chance.choice(kinds))
        self.trace.append(act(self.chance.randint(1, 9), depth))
        return self.trace[-1]

    def step(self, number: int, depth: int) -> int:
        return self.ctx.step("note", self.note, number)

    def sleep(self, number: int, depth: int) -> None:
        self.ctx.sleep(number)

    def late(self, number: int, depth: int) -> str:
        with pytest.raises(WaitTimeout):
            self.ctx.receive("never", timeout=number)
        return "late"

    def leaf(self, number: int, depth: int) -> int:
        return int(self.ctx.call("leaf", {"number": number}))

    def sort(self, number: int, depth: int) -> list[int]:
        return sorted(range(number), key=lambda one: self.ctx.step("note", self.note, -one))

    def mark(self, number: int, depth: int) -> int:
        seen = [*self.trace, self.ctx.random.random(), str(self.ctx.uuid()), self.ctx.now().isoformat()]
        recorded = self.ctx.step("mark", lambda: seen)
        assert recorded == seen, f"a replay went another way: {recorded} was {seen}"
        return number

    def deep(self, number: int, depth: int) -> list[Any]:
        return [self.act(depth + 1) for _ in range(number % 3 + 1)]


@pytest.mark.parametrize("seed", range(20))
async def test_random_programs_see_the_same_on_every_replay(stage: Stage, seed: int) -> None:
    app = Registry()
    noted: list[int] = []

    def note(number: int) -> int:
        noted.append(number)
        return number

    @app.workflow
    def leaf(ctx: SyncContext, number: int) -> int:
        ctx.sleep(number)
        return number

    @app.workflow
    def program(ctx: SyncContext, seed: int) -> list[Any]:
        player = Program(ctx, seed, note)
        return [player.act(0) for _ in range(6)]

    async with stage.harness(app) as h:
        run = await h.start(program, seed)
        assert len(await run.result()) == 6
        assert len(noted) == sum(fact.startswith("note") for fact in await facts(run))
