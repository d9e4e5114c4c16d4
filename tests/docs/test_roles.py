"""The roles of the page about Postgres are sufficient: one migrates, the other works, and cannot change tables."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from holdfast import Context, Holdfast, StoreUnavailable
from holdfast.app import session_of
from tests.docs.page import DOCS, Page

OWNER, WORKER = "shop_owner", "shop_worker"


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """A database with the roles of the page, under other names, because roles belong to the whole server."""
    block = next(block for block in Page(DOCS / "postgres.md").blocks("sql") if OWNER in block.text)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for role in (OWNER, WORKER):
            connection.execute(f"drop role if exists tested_{role}".encode())
        connection.execute(block.text.replace("shop_", "tested_shop_").encode(), prepare=False)
        yield postgres_url
        for role in (WORKER, OWNER):
            connection.execute(f"drop owned by tested_{role} cascade".encode())
            connection.execute(f"drop role tested_{role}".encode())


def as_role(url: str, role: str) -> str:
    return f"{url}&options=-c%20role%3Dtested_{role}"


async def test_a_worker_reports_that_another_role_has_to_migrate(url: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"run `holdfast migrate` as 'tested_shop_owner'"):
        await session_of(Holdfast(as_role(url, WORKER))).open()


async def test_after_the_owner_has_migrated_a_worker_can_do_everything(url: str) -> None:
    async with Holdfast(as_role(url, OWNER)):
        pass
    async with Holdfast(as_role(url, WORKER)) as hf:
        await _everything(hf)
        with hf.connection() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("alter table holdfast.runs add column oops text")


async def _everything(hf: Holdfast) -> None:
    @hf.workflow("child")
    async def child(_ctx: Context) -> int:
        return 1

    @hf.workflow("shop")
    async def shop(ctx: Context) -> list[int]:
        sent, told = await ctx.receive("sent"), await ctx.wait_event("told")
        return [sent, told, await ctx.call(child), await ctx.tx("tx", lambda _: 4)]

    await hf.topics.set("queue", mode="queue", max_pending=1)
    async with hf.worker() as worker:
        run = await hf.start(shop)
        await run.send("sent", 2)
        await worker.run_until_idle()
        for topic in ("told", "queue", "queue"):
            await hf.emit(topic, 3)
        assert await run.result() == [2, 3, 1, 4]
        await (await hf.start("nobody")).cancel()
    await session_of(hf).store.prune(100)
    assert [letter.topic async for letter in hf.dead_letters.list()] == ["queue"]
    assert await session_of(hf).store.check()
