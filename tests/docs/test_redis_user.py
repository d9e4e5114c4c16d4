"""The user of the page about Redis may do all that the store needs, and touch nothing but its namespace."""

from __future__ import annotations

import shlex

import pytest
from redis.exceptions import NoPermissionError

from holdfast import Context, Holdfast
from holdfast.app import session_of
from tests.docs.page import DOCS, Page
from tests.redis import RedisServer, connect


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    """The URL of the documented user, on a server that has it."""
    (line,) = [block.text for block in Page(DOCS / "redis.md").blocks("text") if block.text.startswith("ACL SETUSER")]
    redis_server.ask(*shlex.split(line))
    return redis_server.url_of("shop", "secret")


async def test_the_user_can_do_everything(url: str) -> None:
    hf = Holdfast(url)

    @hf.workflow("child")
    async def child(_ctx: Context) -> int:
        return 1

    @hf.workflow("shop")
    async def shop(ctx: Context) -> list[int]:
        return [await ctx.receive("sent"), await ctx.wait_event("told"), await ctx.call(child)]

    async with hf, hf.worker() as worker:
        run = await hf.start(shop, key="k")
        await run.send("sent", 2)
        await worker.run_until_idle()
        await hf.emit("told", 3)
        assert await run.result() == [2, 3, 1]
        await (await hf.start("nobody")).cancel()
        await session_of(hf).store.prune(100)
        levels = {finding.subject: finding.level for finding in await session_of(hf).store.check()}

    assert (levels["server"], levels["eviction"], levels["memory"]) == ("ok", "ok", "ok")


def test_the_user_cannot_touch_other_keys(url: str) -> None:
    with connect(url) as client:
        with pytest.raises(NoPermissionError):
            client.set("other", "1")
        with pytest.raises(NoPermissionError):
            client.flushdb()
        with pytest.raises(NoPermissionError):
            client.config_set("maxmemory-policy", "allkeys-lru")
