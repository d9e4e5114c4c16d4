"""Finding runs: by state, type, key, tags, parent and time, and reading the details of one."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, InvalidRequest, Registry, RunFinished, RunNotFound, RunState
from holdfast.testing.harness import Harness
from tests.stage import Stage

app = Registry()


@app.workflow("shop.order.v1")
async def order(ctx: Context, number: int) -> int:
    return number


@app.workflow("shop.wait.v1")
async def wait(ctx: Context) -> Any:
    return await ctx.receive("go")


@app.workflow("shop.doze.v1")
async def doze(ctx: Context, seconds: float | None) -> None:
    await asyncio.sleep(math.inf if seconds is None else seconds)


@app.workflow("shopping.list.v1")
async def parent(ctx: Context) -> int:
    return await ctx.call(order, 5, tags={"level": "child"})


async def ids(h: Harness, **filters: Any) -> list[str]:
    return [info.id async for info in h.list(**filters)]


@pytest.mark.every_store
async def test_runs_are_listed_newest_first_and_by_state(stage: Stage) -> None:
    async with stage.harness(app) as h:
        done = await h.start(order, 1)
        await done.result()
        await h.advance(1)
        open_ = await h.start(wait)
        await h.settle()
        assert await ids(h) == [open_.id, done.id]
        assert await ids(h, state="suspended") == [open_.id]
        assert await ids(h, state=[RunState.SUCCEEDED, "failed"]) == [done.id]
        with pytest.raises(InvalidRequest, match="asleep"):
            await ids(h, state="asleep")


async def test_a_type_is_matched_exactly_or_by_a_dotted_prefix(stage: Stage) -> None:
    async with stage.harness(app) as h:
        first = await h.start(order, 1)
        second = await h.start(wait)
        other = await h.start(parent)
        await other.result()
        assert first.id in await ids(h, type="shop.order.v1")
        prefixed = await ids(h, type="shop.*")
        assert {first.id, second.id} <= set(prefixed)
        assert other.id not in prefixed
        assert await ids(h, type="shop_order_v1") == []
        assert await ids(h, type="%") == []


async def test_runs_are_found_by_tags_all_of_which_must_match(stage: Stage) -> None:
    async with stage.harness(app) as h:
        both = await h.start(order, 1, tags={"shop": "x", "city": "Köln"})
        one = await h.start(order, 2, tags={"shop": "x"})
        assert set(await ids(h, tags={"shop": "x"})) == {both.id, one.id}
        assert await ids(h, tags={"shop": "x", "city": "Köln"}) == [both.id]
        assert await ids(h, tags={"shop": "y"}) == []
        assert (await both.info()).tags == {"shop": "x", "city": "Köln"}


async def test_runs_are_found_by_key_parent_and_time(stage: Stage) -> None:
    async with stage.harness(app) as h:
        old = await h.start(parent, key="old")
        await old.result()
        (child,) = await ids(h, parent_id=old.id)
        assert (await h.run(child).info()).tags == {"level": "child"}
        await h.advance(3600)
        new = await h.start(order, 2)
        assert await ids(h, key="old") == [old.id]
        assert await ids(h, since=timedelta(minutes=1)) == [new.id]
        assert set(await ids(h, until=h.now - timedelta(minutes=1))) == {old.id, child}
        assert await ids(h, since=h.now) == [new.id]


async def test_a_long_list_is_read_page_by_page_without_gaps_or_repeats(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.stop_worker()
        runs = await h.start_many(order, [(n,) for n in range(2_345)])
        listed = await ids(h)
        assert len(listed) == 2_345
        assert set(listed) == {run.id for run in runs}
        assert await ids(h, limit=7) == listed[:7]
        assert await ids(h, limit=0) == []


async def test_a_run_is_found_by_key_and_receives_messages_by_key(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(wait, key="order-17")
        await h.run(key="order-17").send("go", {"paid": True})
        assert await h.run(key="order-17").result() == {"paid": True}
        assert (await h.run(key="order-17").info()).id == run.id


async def test_an_unknown_run_is_not_found_and_a_finished_one_takes_no_messages(stage: Stage) -> None:
    async with stage.harness(app) as h:
        for unknown in (h.run("nobody"), h.run(key="nobody")):
            with pytest.raises(RunNotFound, match="nobody"):
                await unknown.info()
            with pytest.raises(RunNotFound, match="nobody"):
                await unknown.send("go")
            with pytest.raises(RunNotFound, match="nobody"):
                await unknown.result()
            with pytest.raises(RunNotFound, match="nobody"):
                await unknown.cancel()
        done = await h.start(order, 1)
        await done.result()
        with pytest.raises(RunFinished, match="takes no more messages"):
            await done.send("go")


async def test_a_list_continues_after_a_run_whatever_was_started_meanwhile(stage: Stage) -> None:
    async with stage.harness(app) as h:
        started = [run.id for run in await h.start_many(order, [(number,) for number in range(5)])]
        newest_first = await ids(h)
        assert sorted(newest_first) == sorted(started)
        page = [info async for info in h.list(limit=2)]
        await h.advance(1)
        await h.start(order, 6)
        assert [info.id for info in page] + await ids(h, after=page[-1]) == newest_first
        assert await ids(h, after=newest_first[2], limit=1) == newest_first[3:4]
        assert await ids(h, after=newest_first[-1]) == []
        gone = await h.run(newest_first[0]).info()
        assert await h.run(gone.id).delete(force=True)
        assert await ids(h, after=gone) == newest_first[1:]
        assert await ids(h, after=gone.id, deleted=True) == []
        for unknown in (gone.id, newest_first[1][:-4], "no such run"):
            with pytest.raises(RunNotFound, match="after="):
                await ids(h, after=unknown)


async def test_info_has_every_field_of_a_run(stage: Stage) -> None:
    async with stage.harness(app) as h:
        begun = h.now
        run = await h.start(order, 5, key="k", priority=7, tags={"a": "b"})
        await run.result()
        info = await run.info()
        assert (info.id, info.type, info.state) == (run.id, "shop.order.v1", RunState.SUCCEEDED)
        assert (info.payload, info.result, info.error) == ({"number": 5}, 5, None)
        assert (info.key, info.priority, info.tags) == ("k", 7, {"a": "b"})
        assert (info.attempt, info.generation, info.parent_id, info.worker) == (1, 1, None, None)
        assert (info.created_at, info.finished_at, info.ready_at, info.waits) == (begun, begun, None, ())


@pytest.mark.every_store
@pytest.mark.parametrize("seconds", [None, 1e12])
async def test_a_run_that_sleeps_forever_does_not_hide_the_others(stage: Stage, seconds: float | None) -> None:
    async with stage.harness(app) as h:
        done = await h.start(order, 1)
        asleep = await h.start(doze, seconds)
        await h.settle()
        listed = {info.id: info async for info in h.list()}
        assert set(listed) == {done.id, asleep.id}
        assert (listed[asleep.id].ready_at, listed[asleep.id].waits[0].deadline) == (None, None)
        assert "sleeping forever" in await asleep.explain()


async def test_result_with_a_timeout_changes_nothing(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(wait)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.02)
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        await run.send("go", 1)
        assert await run.result() == 1
