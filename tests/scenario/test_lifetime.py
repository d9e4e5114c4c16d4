"""Lifetimes: opening and closing, several event loops in a row, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, InvalidRequest, Registry, RunState
from holdfast.app import session_of
from holdfast.core.questions import CountRuns, FindOrphans
from holdfast.testing.harness import Harness
from holdfast.testing.patience import GUARD_SECONDS, until
from tests.stage import Stage, complaints

URLS = ["memory://", "sqlite:///{folder}/runs.db"]


def application(url: str, folder: Path) -> Holdfast:
    hf = Holdfast(url.format(folder=folder))

    @hf.step
    def double(number: int) -> int:
        return number * 2

    @hf.workflow("shop.v1")
    async def shop(ctx: Context, number: int) -> int:
        await ctx.sleep(0.001)
        return await double(number)

    @hf.workflow("wait.v1")
    async def wait(ctx: Context) -> Any:
        return await ctx.receive("go")

    return hf


@pytest.fixture(params=URLS, ids=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Holdfast:
    return application(request.param, tmp_path)


def test_the_same_object_serves_two_event_loops_one_after_the_other(hf: Holdfast) -> None:
    async def first() -> str:
        async with hf.worker():
            assert await hf.execute("shop.v1", {"number": 2}) == 4
        return (await hf.start("wait.v1", key="k")).id

    async def second(run_id: str) -> int:
        async with hf, hf.worker():
            await hf.run(key="k").send("go", 7)
            return int(await hf.run(run_id).result(timeout=GUARD_SECONDS))

    run_id = asyncio.run(first())  # not closed: the event loop just ends
    assert asyncio.run(second(run_id)) == 7


def test_an_object_in_use_on_one_loop_is_refused_on_another(tmp_path: Path) -> None:
    hf = application("memory://", tmp_path)

    async def use() -> None:
        await hf.start("wait.v1")
        with pytest.raises(InvalidRequest, match="another event loop that still runs"):
            await asyncio.to_thread(lambda: asyncio.run(hf.start("wait.v1")))

    asyncio.run(use())


async def test_closing_ends_threads_and_tasks_and_the_object_may_be_used_again(hf: Holdfast) -> None:
    before = set(threading.enumerate())
    tasks = asyncio.all_tasks()
    async with hf, hf.worker():
        assert await hf.execute("shop.v1", {"number": 2}) == 4
        run = await hf.start("wait.v1", key="k")

        async def is_suspended() -> bool:
            return (await run.info()).state is RunState.SUSPENDED

        await until("the run is suspended", is_suspended)  # otherwise it could be given back before it has started
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    left = {thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("asyncio")}
    for thread in left:
        await asyncio.to_thread(thread.join, GUARD_SECONDS)
    assert not [thread.name for thread in left if thread.is_alive()]
    async with hf:
        assert (await hf.run(key="k").info()).state is RunState.SUSPENDED


async def test_close_stops_workers_that_were_not_stopped(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    worker = hf.worker(grace_seconds=0)
    await worker.start()
    run = await hf.start("wait.v1")
    await hf.close()
    async with hf:
        assert (await run.info()).worker is None
    assert complaints(caplog) == []


async def test_waiting_for_a_result_is_cancelled_when_the_object_is_closed(hf: Holdfast) -> None:
    run = await hf.start("wait.v1")
    waiting = asyncio.create_task(run.result())
    await asyncio.sleep(0.01)
    await hf.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.long
async def test_a_thousand_runs_leave_memory_without_a_log_line(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    app = Registry()

    @app.workflow
    async def wait(ctx: Context, number: int) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.receive("go"))
                group.create_task(ctx.sleep(3600))
        finally:
            await ctx.step("never", lambda: None)

    async with stage.harness(app) as h:
        await h.start_many(wait, [(n,) for n in range(1_000)])
        await h.settle()
        counts = await session_of(h).store.stats(CountRuns())
        assert counts["wait"] == {RunState.SUSPENDED: 1_000}
        assert list(await session_of(h).store.stats(FindOrphans(limit=10))) == []
    gc.collect()
    assert complaints(caplog) == []


@pytest.mark.parametrize("url", URLS, ids=["memory", "sqlite"])
async def test_a_start_that_meets_a_stopping_worker_is_given_back_at_once(url: str, tmp_path: Path) -> None:
    for rounds in range(20):
        hf = application(url, tmp_path)
        async with hf:
            worker = hf.worker()
            await worker.start()
            for _ in range(10):
                await asyncio.sleep(0)
            starting = asyncio.create_task(hf.start("shop.v1", {"number": 2}))
            for _ in range(rounds):
                await asyncio.sleep(0)
            await worker.stop(grace_seconds=0)
            run = await starting
            info = await run.info()
            if info.state is not RunState.SUCCEEDED:
                assert info.worker is None, f"left with a worker that has gone, in round {rounds}"


async def test_the_harness_fixture_is_open_and_accepts_later_includes(harness: Harness) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        await ctx.sleep(86400)
        return await ctx.step("charge", lambda: "for real")

    harness.include(app)
    harness.stub("charge", returns="paid")
    assert await harness.execute(shop) == "paid"


async def test_make_harness_makes_harnesses_with_options(make_harness: Any) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.sleep(86400)
        return "done"

    async with make_harness(app, always_replay=True) as h:
        assert await h.execute(shop) == "done"


async def test_a_start_whose_caller_stops_waiting_is_executed_all_the_same(hf: Holdfast) -> None:
    async with hf, hf.worker():
        await asyncio.sleep(0.01)
        starting = asyncio.create_task(hf.start("shop.v1", {"number": 2}, key="k"))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        found = [info async for info in hf.list(key="k")]
        if found:
            assert await hf.run(key="k").result(timeout=GUARD_SECONDS) == 4
            assert [fact.event for fact in await hf.run(key="k").audit()].count("claimed") == 1


async def test_namespaces_of_one_file_are_isolated_from_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    names = ["", "?namespace=blue", "?namespace=b-2"]
    whole, blue, two = [Holdfast(f"{url}{name}") for name in names]
    async with whole, blue, two:
        started = await blue.start("shop.v1", {"number": 1})

        assert [[info.id async for info in hf.list()] for hf in (whole, blue, two)] == [[], [started.id], []]
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["runs.b-2.db", "runs.blue.db", "runs.db"]


@pytest.mark.parametrize("namespace", ["", "../up", "a/b", "a.b", "x" * 41])
def test_an_invalid_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 40 letters"):
        Holdfast(f"sqlite:///runs.db?namespace={namespace}")
