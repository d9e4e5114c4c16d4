"""A worker that freezes longer than its lease and then continues: all its later writes are refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Registry, RunState
from holdfast.app import session_of
from holdfast.core.clock import SECOND
from holdfast.core.questions import Query
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from holdfast.testing.patience import guarded, until
from holdfast.worker.worker import Worker
from tests.stage import Stage, facts

LEASE_SECONDS = 30


class Scene:
    """Two workers on one store, of which the first can be frozen."""

    def __init__(self, h: Harness, first: Worker, faults: FaultyStore) -> None:
        self.h = h
        self.first = first
        self.faults = faults

    async def take_over(self) -> None:
        """Let the first worker's leases end while it is frozen, and start a second worker."""
        await guarded("the first worker is frozen", self.faults.frozen.wait())
        while self.faults.under_way:
            await asyncio.sleep(0.001)
        self.h.clock.pass_to(self.h.clock.now() + (LEASE_SECONDS + 1) * SECOND)
        second = await self.h.start_worker()
        while not (second.is_idle or second.is_executing):
            await asyncio.sleep(0.001)
        await self.h.settle()

    async def go_on(self) -> None:
        """Let the first worker continue until it is idle."""
        self.faults.thaw()
        await self.rest()

    async def rest(self) -> None:
        """Wait until the first worker is idle, and pending hints have reached it."""
        rounds = 0
        while rounds < 10:
            await asyncio.sleep(0.001)
            rounds = rounds + 1 if self.first.is_quiet and self.first.is_idle else 0


@contextlib.asynccontextmanager
async def scene(stage: Stage, app: Registry, *, has_endless_bodies: bool = False) -> AsyncIterator[Scene]:
    async with stage.harness(app, has_endless_bodies=has_endless_bodies) as h:
        await h.stop_worker()
        faults = FaultyStore(session_of(h).store)
        first = Worker(faults, app, clock=h.clock, poll=None, has_heart=False, lease_seconds=LEASE_SECONDS)
        await first.start()
        try:
            yield Scene(h, first, faults)
        finally:
            faults.thaw()
            await first.kill()


async def steady(worker: Worker) -> None:
    while not worker.is_executing:
        await asyncio.sleep(0.001)


async def test_a_result_written_after_another_worker_took_over_is_refused(stage: Stage) -> None:
    """T8: every write carries the token; no write of a worker that lost its lease is accepted."""
    app = Registry()
    begun: list[int] = []

    def draw() -> int:
        begun.append(1)
        return len(begun)

    @app.workflow
    async def shop(ctx: Context) -> int:
        drawn = await ctx.step("draw", draw)
        await ctx.receive("go")
        return drawn

    async with scene(stage, app) as s:
        s.faults.freeze("checkpoint")
        run = await s.h.start(shop)
        await s.take_over()
        assert [entry.result for entry in await run.history()] == [2]
        await s.go_on()
        assert [entry.result for entry in await run.history()] == [2]
        await run.send("go")
        assert await run.result() == 2
        assert len(begun) == 2


@pytest.mark.parametrize("does", ["ends", "suspends", "sends"])
async def test_any_write_to_a_run_that_another_worker_holds_is_refused(stage: Stage, does: str) -> None:
    """T8: only the token decides, because the run is held and in the same state for both."""
    app = Registry()
    begun: list[int] = []
    opened = asyncio.Event()

    async def draw() -> int:
        begun.append(1)
        return len(begun)

    @app.workflow
    async def listener(ctx: Context) -> Any:
        return await ctx.receive("x", timeout=3600)

    @app.workflow
    async def shop(ctx: Context, to: str) -> str:
        drawn = await ctx.step("draw", draw)
        if drawn == 1 and does == "suspends":
            await ctx.receive("never")
        if drawn == 1 and does == "sends":
            ctx.send(to, "x", "by the first")
            await ctx.step("more", opened.wait)
        if drawn == 2:
            await ctx.step("slow", opened.wait)
        return f"drawn {drawn}"

    async with scene(stage, app, has_endless_bodies=True) as s:
        other = await s.h.start(listener, delay=3600)
        await s.rest()
        s.faults.freeze("checkpoint")
        run = await s.h.start(shop, other.id)
        await s.take_over()
        while len(begun) < 2 or (await run.info()).state is not RunState.RUNNING:
            await asyncio.sleep(0.001)
        await s.go_on()
        assert (await run.info()).state is RunState.RUNNING
        opened.set()
        assert await run.result() == "drawn 2"
        details = await session_of(s.h).store.list(Query(type="listener"))
        assert details[0].run.arrivals == 0


async def test_an_end_written_after_another_worker_took_over_is_not_a_second_end(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        ctx.send("listener", "x", 1)
        ctx.emit("news", 1)
        ctx.start(listener, name="child")
        return "done"

    @app.workflow
    async def listener(ctx: Context) -> Any:
        return [await ctx.receive("x"), await ctx.receive("x", timeout=3600)]

    async with scene(stage, app) as s:
        s.faults.freeze("checkpoint")
        run = await s.h.start(shop)
        await s.take_over()
        await s.go_on()
        assert await run.result() == "done"
        events = [fact.event for fact in await run.audit()]
        assert events.count("succeeded") == 1
        assert events.count("claimed") == 2
        assert len([info async for info in s.h.list(parent_id=run.id)]) == 1


async def test_a_body_that_ends_after_another_worker_took_over_is_ignored(stage: Stage) -> None:
    app = Registry()
    gates = [asyncio.Event(), asyncio.Event()]
    begun: list[int] = []

    async def body() -> str:
        number = len(begun)
        begun.append(number)
        await gates[number].wait()
        return f"from body {number}"

    @app.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step("slow", body)

    async with scene(stage, app, has_endless_bodies=True) as s:
        run = await s.h.start(shop)
        await steady(s.first)
        s.faults.freeze()
        await s.take_over()
        assert begun == [0, 1]
        gates[0].set()
        await s.go_on()
        assert (await run.info()).state is RunState.RUNNING
        gates[1].set()
        assert await run.result() == "from body 1"


async def test_an_expired_lease_alone_ends_nothing(tmp_path: Path) -> None:
    """T8: until another worker claims, the holder's checkpoints are accepted."""
    stage = Stage("memory", tmp_path)  # on a file, its own next claim might come before the checkpoint
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        return await ctx.step("draw", lambda: 1)

    async with scene(stage, app) as s:
        s.faults.freeze("checkpoint")
        run = await s.h.start(shop)
        await guarded("the first worker is frozen", s.faults.frozen.wait())
        s.h.clock.pass_to(s.h.clock.now() + 100 * LEASE_SECONDS * SECOND)
        await s.go_on()
        assert (await run.info()).state is RunState.SUCCEEDED
        assert [fact.event for fact in await run.audit()].count("claimed") == 1


async def test_a_claim_whose_answer_comes_too_late_returns_nothing(stage: Stage) -> None:
    app = Registry()
    begun: list[str] = []

    @app.workflow
    async def shop(ctx: Context, name: str) -> str:
        begun.append(name)
        return await ctx.step("work", lambda: name)

    async with scene(stage, app) as s:
        runs = [await s.h.start(shop, name, delay=1) for name in "ab"]
        await s.rest()
        s.faults.freeze("claim", when="after")
        s.h.clock.pass_to(s.h.clock.now() + SECOND)
        s.first._claimer.wake()
        await s.take_over()
        assert [await run.result() for run in runs] == ["a", "b"]
        await s.go_on()
        for run in runs:
            events = [fact.event for fact in await run.audit()]
            assert events == ["created", "claimed", "claimed", "succeeded"]


async def test_a_suspension_written_too_late_does_not_suspend_the_run(stage: Stage) -> None:
    app = Registry()
    opened = asyncio.Event()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.receive("go")
        await ctx.step("slow", opened.wait)
        return "done"

    async with scene(stage, app, has_endless_bodies=True) as s:
        s.faults.freeze("checkpoint")
        run = await s.h.start(shop)
        await guarded("the first worker is frozen", s.faults.frozen.wait())
        await run.send("go")
        await s.take_over()
        await s.go_on()
        assert (await run.info()).state is RunState.RUNNING
        opened.set()
        assert await run.result() == "done"


async def test_a_cancelled_run_stays_cancelled_whatever_a_frozen_worker_writes(stage: Stage) -> None:
    """T8: a control that takes a held run away raises the token too."""
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.step("work", lambda: None)
        ctx.emit("news", 1)
        return "done"

    @app.workflow
    async def listener(ctx: Context) -> Any:
        return await ctx.wait_event("news")

    async with scene(stage, app) as s:
        other = await s.h.start(listener)
        while (await other.info()).state is not RunState.SUSPENDED:
            await asyncio.sleep(0.001)
        s.faults.freeze("checkpoint")
        run = await s.h.start(shop)
        await guarded("the first worker is frozen", s.faults.frozen.wait())
        assert await run.cancel("enough")
        await s.go_on()
        assert (await run.info()).state is RunState.CANCELLED
        assert list(await run.history()) == []
        assert (await other.info()).state is RunState.SUSPENDED


async def test_renewing_a_run_that_another_worker_holds_fails_and_changes_nothing(stage: Stage) -> None:
    app = Registry()
    opened = asyncio.Event()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.step("slow", opened.wait)
        return "done"

    async with scene(stage, app, has_endless_bodies=True) as s:
        run = await s.h.start(shop)
        await steady(s.first)
        s.faults.freeze()
        await s.take_over()
        before = await run.info()
        s.faults.thaw()
        await s.first.renew()
        await until("the first worker has nothing to do", lambda: s.first.is_idle)
        after = await run.info()
        assert (after.worker, after.ready_at) == (before.worker, before.ready_at)
        opened.set()
        assert await run.result() == "done"


@pytest.mark.parametrize("name", ["checkpoint", "claim"])
async def test_a_worker_that_thaws_continues_with_other_runs(stage: Stage, name: str) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context, number: int) -> int:
        return await ctx.step("work", lambda: number)

    async with scene(stage, app) as s:
        first = await s.h.start(shop, 1, delay=0.001)
        await s.rest()
        s.faults.freeze(name, when="after")
        s.h.clock.pass_to(s.h.clock.now() + SECOND)
        s.first._claimer.wake()
        await s.take_over()
        assert await first.result() == 1
        await s.h.stop_worker()
        await s.go_on()
        second = await s.h.start(shop, 2)
        while not (await second.info()).state.is_end:
            await asyncio.sleep(0.001)
        assert await second.result() == 2
        assert await facts(second) == ["work step done"]
