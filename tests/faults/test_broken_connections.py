"""Connections break, hang and slow down under load: nothing is lost or duplicated, and the work continues.

`HOLDFAST_PROCESS_SECONDS` makes it last longer.
"""

from __future__ import annotations

import asyncio
import os
import time

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.stores.postgres.connections import SessionLimits
from holdfast.testing.patience import until
from tests.duration import lasting
from tests.faults.app import Post
from tests.postgres import PostgresProxy

SECONDS = float(os.environ.get("HOLDFAST_PROCESS_SECONDS", "8")) / 4
PAUSE_SECONDS = 0.2
LEASE_SECONDS = 10.0
"""A lease that is not lost here, even on a busy machine."""
BREAKS = SECONDS / PAUSE_SECONDS
"""Minimum number of broken connections."""

_END_ALL = """
select count(pg_terminate_backend(pid))
from pg_stat_activity
where application_name = 'holdfast'
  and datname = current_database()
"""

pytestmark = lasting(SECONDS)


@pytest.fixture
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time that connections wait for an answer."""
    monkeypatch.setattr(
        SessionLimits, "answer_seconds", property(lambda limits: 1.0 if limits.statement_seconds else 0.0)
    )


async def test_sessions_may_be_terminated_all_the_time(hf: Holdfast, postgres_url: str) -> None:
    post = Post(hf)
    ended = 0
    async with (
        hf.worker(lease_seconds=LEASE_SECONDS),
        await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as administrator,
        post.sending(),
    ):
        until_then = time.monotonic() + SECONDS
        while time.monotonic() < until_then or ended < BREAKS:
            await asyncio.sleep(PAUSE_SECONDS)
            ended += (await (await administrator.execute(_END_ALL)).fetchone() or (0,))[0]

    await post.check(may_be_late=True)


async def test_connections_may_be_cut_all_the_time(hf: Holdfast, proxy: PostgresProxy) -> None:
    post = Post(hf)
    cut = 0
    async with hf.worker(lease_seconds=LEASE_SECONDS), post.sending():
        until_then = time.monotonic() + SECONDS
        while time.monotonic() < until_then or cut < BREAKS:
            await asyncio.sleep(PAUSE_SECONDS)
            cut += await asyncio.to_thread(proxy.cut)

    await post.check(may_be_late=True)


async def test_slow_answers_are_waited_for(hf: Holdfast, proxy: PostgresProxy) -> None:
    post = Post(hf)
    async with hf.worker(), post.sending():
        await asyncio.to_thread(proxy.delay, to_server=0.05, to_client=0.05)
        await asyncio.sleep(SECONDS)
        await asyncio.to_thread(proxy.heal)

    await post.check()


@pytest.mark.usefixtures("is_impatient")
async def test_connections_without_answers_are_given_up(
    hf: Holdfast, proxy: PostgresProxy, caplog: pytest.LogCaptureFixture
) -> None:
    post = Post(hf)
    async with hf.worker(lease_seconds=LEASE_SECONDS), post.sending():
        await until("some parcels are sent", lambda: len(post.runs) > 3)
        await asyncio.to_thread(proxy.black_hole)
        await until("the silence is noticed", lambda: "does not answer" in caplog.text)
        accepted = proxy.accepted
        await until("another connection is tried", lambda: proxy.accepted > accepted)
        # The delayed data arrives now, late, and no client waits for the answer.
        await asyncio.to_thread(proxy.heal)
        sent = len(post.runs)
        await until("more parcels are sent", lambda: len(post.runs) > sent + 3)

    await post.check(may_be_late=True)
