"""A function that keeps its transaction idle for too long: its attempt fails, like that of any step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast import Context, Holdfast, Retry, RunFailed
from holdfast.testing.patience import wait_until

LIMIT = "options=-c%20idle_in_transaction_session_timeout%3D500"
IS_THERE = "select true from pg_stat_activity where pid = %s"


@pytest_asyncio.fixture
async def hf(postgres_store_url: str) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"{postgres_store_url}&{LIMIT}") as hf:
        yield hf


def outlast(connection: psycopg.Connection[Any], url: str) -> None:
    """Take so long that the server ends the session."""
    with psycopg.connect(url, autocommit=True) as observer:
        pid = connection.info.backend_pid
        wait_until("the server ends the session", lambda: observer.execute(IS_THERE, (pid,)).fetchone() is None)


async def test_a_transaction_that_the_server_ended_is_a_failed_attempt(hf: Holdfast, postgres_store_url: str) -> None:
    called: list[int] = []

    def dawdle(connection: psycopg.Connection[Any]) -> None:
        connection.execute("create table never (id int)")
        called.append(1)
        outlast(connection, postgres_store_url)

    @hf.workflow("dawdler")
    async def dawdler(ctx: Context) -> None:
        await ctx.tx("dawdle", dawdle, retry=Retry(max_attempts=2, initial=0.01))

    async with hf.worker():
        with pytest.raises(RunFailed, match=r"failed after 2 attempts: TimeoutError: the server ended"):
            await hf.execute(dawdler)
    with hf.connection() as connection:
        assert connection.execute("select to_regclass('never')").fetchone() == (None,)
    assert len(called) == 2


async def test_the_next_attempt_may_be_quicker(hf: Holdfast, postgres_store_url: str) -> None:
    called: list[int] = []

    def learn(connection: psycopg.Connection[Any]) -> str:
        called.append(1)
        if len(called) == 1:
            outlast(connection, postgres_store_url)
        return "learned"

    @hf.workflow("learner")
    async def learner(ctx: Context) -> str:
        return await ctx.tx("learn", learn, retry=Retry(initial=0.01))

    async with hf.worker():
        assert await hf.execute(learner) == "learned"
    assert len(called) > 1
