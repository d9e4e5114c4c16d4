"""Leases on Postgres: a locked run does not cost other runs their leases."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from holdfast.core.clock import SECOND
from holdfast.core.model import Holding, Lease
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.claims import PATIENCE
from holdfast.testing.contract.arrange import LEASE, a_worker, an_id, checkpoint_for, held, the_run, write

LONGER = LEASE + 10_000 * SECOND


async def locked(store: PostgresStore, outsider: psycopg.Connection[Any]) -> list[Holding]:
    leases: list[Lease] = [await held(store, number) for number in (1, 2)]
    outsider.execute("select from holdfast.runs where id = %s for no key update", (an_id(1),))
    return [Holding(run_id=lease.run.id, token=lease.run.token) for lease in leases]


async def test_a_run_that_stays_locked_does_not_cost_the_others_their_leases(
    store: PostgresStore, outsider: psycopg.Connection[Any]
) -> None:
    holdings = await locked(store, outsider)
    before = (await the_run(store, 1)).ready_at

    told = await asyncio.to_thread(
        store.renew, a_worker(), holdings, PATIENCE * SECOND // 4
    )  # so that it gives up soon

    assert [verdict.is_lost for verdict in told.verdicts] == [False, False]
    assert (await the_run(store, 1)).ready_at == before
    assert (await the_run(store, 2)).ready_at != before


async def test_a_run_is_renewed_as_soon_as_it_is_unlocked(
    store: PostgresStore, outsider: psycopg.Connection[Any]
) -> None:
    holdings = await locked(store, outsider)
    second = (await the_run(store, 2)).ready_at
    renewing = asyncio.create_task(asyncio.to_thread(store.renew, a_worker(), holdings, LONGER))
    while (await the_run(store, 2)).ready_at == second:
        await asyncio.sleep(0.005)
    first = (await the_run(store, 1)).ready_at

    outsider.rollback()
    await renewing

    assert (await the_run(store, 1)).ready_at != first


async def test_a_renewal_does_not_wait_for_a_run_that_does_not_exist(store: PostgresStore) -> None:
    told = await asyncio.to_thread(store.renew, a_worker(), [Holding(run_id=an_id(9), token=1)], LONGER)

    assert [verdict.is_lost for verdict in told.verdicts] == [True]


async def test_few_more_than_the_last_hundred_heartbeats_are_kept(
    store: PostgresStore, outsider: psycopg.Connection[Any]
) -> None:
    lease = await held(store)
    for number in range(1, 221):
        await write(store, checkpoint_for(lease, beat=number))

    kept = outsider.execute("select count(*) from holdfast.audits where run_id = %s", (an_id(1),)).fetchone()

    assert kept is not None
    assert kept[0] < 100 + 50 + 1
