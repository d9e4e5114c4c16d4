"""Runs whose keys were edited by hand: each is marked or blocked, and harms no other run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from holdfast import Context, Registry, RunState, Unreadable
from holdfast.stores.redis import redis_store
from holdfast.testing.clock import VirtualClock
from holdfast.testing.harness import Harness
from tests.redis import connect, namespace_of

app = Registry()
producer = Registry()


@app.workflow("shop.order.v1")
async def order(ctx: Context, number: int) -> int:
    return await ctx.step("double", lambda: number * 2)


@app.workflow("shop.wait.v1")
async def wait(ctx: Context) -> object:
    await ctx.step("prepare", lambda: 1)
    return await ctx.receive("go")


REST = 'null,null,0,1,null,null,0,0,false,null,null,0,"shop.order.v1",100]'

DAMAGES = {
    "body is no JSON": ("r", "b", "oops"),
    "body of another kind": ("r", "b", '{"id": 5}'),
    "body with a lone surrogate": ("r", "b", r'{"id":"x","type":"\ud800"}'),
    "body that is nested deeply": ("r", "b", '{"tags":' + "[" * 2_000 + "]" * 2_000 + "}"),
    "state is no JSON": ("r", "m", "oops"),
    "state is another kind": ("r", "m", '{"state": "pending"}'),
    "state with a token that is no number": ("r", "m", f'["pending","x",{REST}'),
    "ready time is no number": ("r", "t", "soon"),
}


def harness_on(url: str, source: Registry) -> Harness:
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    return Harness(source, clock=clock, store=redis_store(url, clock=clock))


def damage(url: str, run_id: str, kind: str, field: str, value: str) -> None:
    with connect(url) as client:
        client.hset(f"{{{namespace_of(url)}}}:{kind}:{run_id}", field, value)


@pytest_asyncio.fixture
async def shop(redis_url: str) -> AsyncIterator[Harness]:
    async with harness_on(redis_url, app) as harness:
        yield harness


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("is_limited", [False, True], ids=["free", "limited"])
async def test_a_worker_blocks_an_unreadable_run_and_nothing_else(name: str, is_limited: bool, redis_url: str) -> None:
    async with harness_on(redis_url, producer) as h:
        if is_limited:
            await h.types.set("shop.order.v1", concurrency=10)
        runs = [await h.start("shop.order.v1", {"number": number}) for number in range(5)]
        damage(redis_url, runs[2].id, *DAMAGES[name])
        infos = {info.id: info async for info in h.list()}
        assert len(infos) == 5
        assert [run.id for run in runs if infos[run.id].unreadable is not None] == [runs[2].id]

    async with harness_on(redis_url, app) as h:
        await h.settle()
        infos = {info.id: info async for info in h.list()}
        assert [infos[run.id].state for run in runs if run is not runs[2]] == [RunState.SUCCEEDED] * 4
        odd = infos[runs[2].id]
        assert odd.state is RunState.BLOCKED
        assert odd.error is not None
        assert odd.error.type == "Unreadable"
        assert await (await h.start("shop.order.v1", {"number": 7})).result() == 14


@pytest.mark.parametrize(("kind", "field"), [("h", "prepare"), ("i", "1")], ids=["history", "inbox"])
async def test_an_unreadable_history_or_inbox_blocks_its_run_alone(
    shop: Harness, redis_url: str, kind: str, field: str
) -> None:
    runs = [await shop.start(wait) for _ in range(3)]
    await shop.settle()
    await runs[1].pause()
    for run in runs:
        await run.send("go", 5)
    damage(redis_url, runs[1].id, kind, field, "oops")

    await runs[1].resume()
    await shop.settle()

    assert [(await run.info()).state for run in runs] == [RunState.SUCCEEDED, RunState.BLOCKED, RunState.SUCCEEDED]
    if kind == "h":
        with pytest.raises(Unreadable, match="history of run"):
            await runs[1].history()


async def test_a_message_to_an_unreadable_run_is_refused_with_the_reason(shop: Harness, redis_url: str) -> None:
    run = await shop.start(wait)
    await shop.settle()
    damage(redis_url, run.id, "r", "b", "oops")

    with pytest.raises(Unreadable, match=run.id):
        await run.send("go", 5)


async def test_a_stale_place_in_the_queue_blocks_no_run(shop: Harness, redis_url: str) -> None:
    run = await shop.start(wait)
    await shop.settle()
    with connect(redis_url) as client:
        client.zadd(f"{{{namespace_of(redis_url)}}}:Q:q0:100:shop.wait.v1", {run.id: 1})
    await shop.start(wait)
    await shop.settle()

    assert (await run.info()).state is RunState.SUSPENDED
    await run.send("go", 5)
    assert await run.result() == 5
