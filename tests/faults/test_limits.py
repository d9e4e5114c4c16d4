"""Limits while connections break: they are kept, every slot is given back, and all comes to its end."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.testing.postgres import PostgresProxy
from tests.faults.app import Post, insist

SECONDS = float(os.environ.get("HOLDFAST_PROCESS_SECONDS", "8")) / 4
PAUSE_SECONDS = 0.2
LEASE_SECONDS = 3.0
LIMIT = 2

_USE = """
select count(*) filter (where worker is not null), count(*) filter (where slots is not null)
from holdfast.runs
where type = 'errand'
"""
_LEFT = "select count(*) from holdfast.slots"

pytestmark = pytest.mark.timeout(SECONDS * 10 + 60)


async def test_limits_are_kept_and_slots_given_back_while_connections_are_cut(
    hf: Holdfast, proxy: PostgresProxy, postgres_url: str
) -> None:
    """The children of parcels are errands, of which only so many are worked on at once."""
    post = Post(hf)
    most = cut = 0
    await hf.type("errand", concurrency=LIMIT)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as onlooker:

        async def look() -> int:
            ((held, have),) = await (await onlooker.execute(_USE)).fetchall()
            return int(max(held, have))

        async with hf.worker(lease_seconds=LEASE_SECONDS), hf.worker(lease_seconds=LEASE_SECONDS), post.sending():
            until_then = time.monotonic() + SECONDS
            cut_at = time.monotonic()
            while time.monotonic() < until_then:
                most = max(most, await look())
                if time.monotonic() >= cut_at:
                    cut += await asyncio.to_thread(proxy.cut)
                    cut_at = time.monotonic() + PAUSE_SECONDS
                    # With what is said of the type in between: it begins with waiting for all who claim.
                    await insist(partial(hf.type, "errand", concurrency=LIMIT, description=f"after {cut} cuts"))

        assert cut > SECONDS / PAUSE_SECONDS
        assert 0 < most <= LIMIT
        await post.check(may_be_late=True)
        assert await (await onlooker.execute(_LEFT)).fetchone() == (0,)
