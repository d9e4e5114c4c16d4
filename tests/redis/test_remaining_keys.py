"""After everything has ended and was pruned, only a small, known set of keys remains."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast import Context, Registry, Rollback
from holdfast.app import session_of
from holdfast.stores.redis import redis_store
from holdfast.testing.clock import VirtualClock
from holdfast.testing.harness import Harness
from tests.redis import connect, keys_of

app = Registry()

LASTING = {"#", "meta", "states", "types", "ruled", "topics", "event-numbers", "letter-numbers", "epochs", "workers"}
"""Counters, catalogues of names, and settings that people made."""
BY_TYPE = {"t", "L", "T"}
"""Rules of types, and names of lanes: the next claim of the type removes those of empty lanes."""
EXPIRING = ("g:", "n:", "w:", "p:")
"""Versions without fields, which expire."""


@app.task("leaf.v1")
def leaf(number: int) -> int:
    return number


@app.workflow("child.v1")
async def child(ctx: Context, number: int) -> int:
    return await ctx.receive("go")


@app.workflow("rich.v1")
async def rich(ctx: Context) -> int:
    ctx.set_value("state", "begun")
    leaves = await ctx.map(leaf, [(number,) for number in range(5)], limit=2)
    await ctx.start(child, 1)
    question = await ctx.receive_message("ask")
    await question.reply(5)
    await ctx.wait_event("paid")
    await ctx.emit("shipped", 1)
    await ctx.sleep(60)
    return sum(leaves)


@app.workflow("undone.v1")
async def undone(ctx: Context) -> None:
    await ctx.step("reserve", lambda: 1, undo=lambda _: None)
    raise Rollback("no stock")


async def test_no_key_remains_that_is_neither_live_nor_expiring(redis_url: str) -> None:
    clock = VirtualClock(datetime(2030, 1, 1, tzinfo=UTC))
    async with Harness(app, clock=clock, store=redis_store(redis_url, clock=clock)) as h:
        await h.types.set("leaf.v1", concurrency=1)
        await h.topics.set("jobs", mode="queue")
        await h.schedules.put("tick", "leaf.v1", {"number": 1}, every=3600)
        run = await h.start(rich, key="rich", tags={"shop": "a"})
        await h.start(undone)
        cancelled = await h.start(child, 2)
        await h.settle()
        assert await run.request("ask", timeout=600) == 5
        await h.emit("paid", 1)
        await h.emit("jobs", {"unused": True})
        await cancelled.cancel()
        await h.advance(timedelta(hours=3))
        assert await run.result() == 10
        await h.schedules.remove("tick")
        for info in [info async for info in h.list(state=["suspended", "pending", "blocked", "paused"])]:
            await h.run(info.id).cancel(force=True)
        await h.settle()
        await h.advance(timedelta(days=40))
        store = session_of(h).store
        while (await store.prune(100)).has_more:
            pass
        await store.prune(100)
        letters = [letter async for letter in h.dead_letters.list()]
        await h.dead_letters.purge([letter.number for letter in letters])
        assert [info async for info in h.list()] == []

    left = {name.partition(":")[0] for name in keys_of(redis_url) if not name.startswith(EXPIRING)}
    assert left <= LASTING | BY_TYPE
    with connect(redis_url) as client:
        expiring = [key for key in client.scan_iter() if key.decode().partition("}:")[2].startswith(EXPIRING)]
        assert expiring
        assert all(client.pttl(key) > 0 for key in expiring)
