"""Limits during connection failures: they hold, every slot is given back, and all runs end."""

from __future__ import annotations

import asyncio
import os
from functools import partial

import psycopg
import pytest

from holdfast import Holdfast, step_info
from holdfast.testing.patience import guard
from tests.faults.app import BOOK, Post, insist
from tests.postgres import PostgresProxy

ROUNDS = round(float(os.environ.get("HOLDFAST_PROCESS_SECONDS", "8")))
"""Number of times that all connections are cut."""

ERRANDS_A_ROUND = 3
"""Number of errands that end between two cuts. On a slow machine that takes longer, and nothing starves."""

LEASE_SECONDS = 300.0
"""Longer than the test: no worker dies here, so none may seem dead, however busy the machine is."""

LIMIT = 2

_USE = """
select
    count(*) filter (where worker is not null),
    count(*) filter (where slots is not null),
    count(*) filter (where state = 'succeeded')
from holdfast.runs
where type = 'errand'
"""
_LEFT = "select count(*) from holdfast.slots"

pytestmark = pytest.mark.timeout(300 + 10 * ROUNDS)


async def test_limits_hold_and_slots_are_given_back_while_connections_are_cut(
    hf: Holdfast, proxy: PostgresProxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The children of parcels are errands, whose number at once is limited."""
    post = Post(hf, (ROUNDS + 1) * ERRANDS_A_ROUND)
    may_go_on = asyncio.Event()
    most = done = cut = 0

    async def rest() -> None:
        if step_info().location == "there":
            await may_go_on.wait()

    monkeypatch.setattr(BOOK, "rest", rest)
    await hf.types.set("errand", concurrency=LIMIT)
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as onlooker:

        async def check_until(*, taken: int = 0, ended: int = 0) -> None:
            nonlocal most, done
            async with guard(f"{taken} slots are taken and {ended} errands have ended"):
                while most < taken or done < ended:
                    ((held, have, done),) = await (await onlooker.execute(_USE)).fetchall()
                    most = max(most, held, have)

        async with hf.worker(lease_seconds=LEASE_SECONDS), hf.worker(lease_seconds=LEASE_SECONDS), post.sending():
            await check_until(taken=LIMIT)
            for wanted in range(ERRANDS_A_ROUND, (ROUNDS + 1) * ERRANDS_A_ROUND, ERRANDS_A_ROUND):
                cut += await asyncio.to_thread(proxy.cut)
                # Set the limit of the type in between: that waits for all current claims.
                await insist(partial(hf.types.set, "errand", concurrency=LIMIT, description=f"after {cut} cuts"))
                may_go_on.set()
                await check_until(ended=wanted)

        assert cut >= ROUNDS
        assert most == LIMIT
        await post.check()
        assert await (await onlooker.execute(_LEFT)).fetchone() == (0,)
