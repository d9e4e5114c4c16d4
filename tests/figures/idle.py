"""The number of queries of an idle worker."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast import Holdfast
from tests.faults.app import letters, workflows
from tests.faults.test_pooler import Ear
from tests.postgres import PostgresProxy
from tests.redis import RedisProxy

IDLE_SECONDS = 120.0
"""Long enough for events that come once a minute."""
LIMIT_PER_SECOND = 1.0


async def test_an_idle_worker_on_postgres_queries_rarely(postgres_url: str) -> None:
    with PostgresProxy(postgres_url) as proxy:
        async with idle_worker(proxy.url):
            ear = Ear(proxy)
            begun = time.monotonic()
            await asyncio.sleep(IDLE_SECONDS)
            rate = len(ear.statements) / (time.monotonic() - begun)

    sys.stdout.write(f"figure: {rate:.2f} statements a second\n")
    assert rate < LIMIT_PER_SECOND, ear.statements


async def test_an_idle_worker_on_redis_asks_rarely(redis_url: str) -> None:
    with RedisProxy(redis_url) as proxy:
        async with idle_worker(proxy.url):
            proxy.commands.clear()
            begun = time.monotonic()
            await asyncio.sleep(IDLE_SECONDS)
            rate = proxy.requests / (time.monotonic() - begun)

    sys.stdout.write(f"figure: {rate:.2f} commands a second\n")
    assert rate < LIMIT_PER_SECOND, proxy.commands


@asynccontextmanager
async def idle_worker(url: str) -> AsyncIterator[None]:
    """A worker with a run that waits for a message and one that waits for its time."""
    hf = Holdfast(url)
    hf.include(workflows)
    async with hf, hf.worker():
        await hf.start(letters, 1)
        await hf.start(letters, 0, delay=3600)
        await asyncio.sleep(2)  # so that every backoff has reached its limit
        yield
