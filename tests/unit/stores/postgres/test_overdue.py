"""A function that keeps its transaction waiting for too long: its attempt fails, like that of any step."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast import Context, Holdfast, Retry, RunFailed

LIMIT = "options=-c%20idle_in_transaction_session_timeout%3D300"


@pytest_asyncio.fixture
async def hf(postgres_store_url: str) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"{postgres_store_url}&{LIMIT}") as hf:
        yield hf


async def test_a_transaction_that_the_server_ended_is_a_failed_attempt(hf: Holdfast) -> None:
    called: list[int] = []

    def dawdle(connection: psycopg.Connection[Any]) -> None:
        connection.execute("create table never (id int)")
        called.append(1)
        time.sleep(0.8)

    @hf.workflow("dawdler")
    async def dawdler(ctx: Context) -> None:
        await ctx.tx("dawdle", dawdle, retry=Retry(max_attempts=2, initial=0.01))

    async with hf.worker():
        with pytest.raises(RunFailed, match=r"failed after 2 attempts: TimeoutError: the server has ended"):
            await hf.execute(dawdler)
    with hf.connection() as connection:
        assert connection.execute("select to_regclass('never')").fetchone() == (None,)
    assert len(called) == 2


async def test_the_next_attempt_may_be_quicker(hf: Holdfast) -> None:
    pauses = [0.8, 0.0]

    def learn(_connection: psycopg.Connection[Any]) -> int:
        time.sleep(pauses.pop(0))
        return len(pauses)

    @hf.workflow("learner")
    async def learner(ctx: Context) -> int:
        return await ctx.tx("learn", learn, retry=Retry(initial=0.01))

    async with hf.worker():
        assert await hf.execute(learner) == 0
