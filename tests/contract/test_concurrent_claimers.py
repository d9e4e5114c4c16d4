"""Eight claimers on one database, each on its own thread with its own store: no lease is given twice.

`HOLDFAST_CLAIMED_RUNS=2000 pytest tests/contract/test_concurrent_claimers.py` lets them claim that many runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import Micros
from holdfast.core.commands import ChangeTypes
from holdfast.core.model import Lease, TypeChange, new_id
from holdfast.core.ports import Store
from holdfast.core.questions import CountRuns, Query
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import LEASE, PYTHON, TYPE, an_id, an_intent, checkpoint_for, start, succeed
from holdfast.testing.patience import GUARD_SECONDS
from tests.plugin.tiers import amount

CLAIMERS = 8
RUNS = amount(short=200, long=200, variable="HOLDFAST_CLAIMED_RUNS")
PRIORITIES = 3

MakeStore = Callable[[], Store]


async def prepare(make_store: MakeStore, priorities: int = 1) -> None:
    store = make_store()
    await store.open()
    await start(store, *(an_intent(number, priority=number % priorities) for number in range(RUNS)))
    await store.close()


async def claim(store: Store, worker: str, *, limit: int = 3, lease: Micros = LEASE) -> tuple[Lease, ...]:
    request = ClaimRequest(id=new_id(), worker=worker, types=(TYPE,), limit=limit, lease=lease, python=PYTHON)
    return (await store.claim(request)).leases


def on_threads(make_store: MakeStore, claimer: Callable[[Store, str], Awaitable[list[Lease]]]) -> list[Lease]:
    """Run each claimer on its own thread, loop and store, all starting together; return what they claimed."""
    return [lease for leases in by_claimer(make_store, claimer) for lease in leases]


def by_claimer(make_store: MakeStore, claimer: Callable[[Store, str], Awaitable[list[Lease]]]) -> list[list[Lease]]:
    """Do the same, and return what each of them claimed, in its order."""
    together = Barrier(CLAIMERS)

    async def run(worker: str) -> list[Lease]:
        store = make_store()
        await store.open()
        together.wait(timeout=GUARD_SECONDS)
        try:
            return await claimer(store, worker)
        finally:
            await store.close()

    with ThreadPoolExecutor(CLAIMERS) as threads:
        return list(threads.map(lambda number: asyncio.run(run(f"worker-{number}")), range(CLAIMERS)))


async def take_all(store: Store, worker: str) -> list[Lease]:
    won: list[Lease] = []
    while leases := await claim(store, worker):
        won += leases
    return won


async def take_turns(store: Store, worker: str) -> list[Lease]:
    """Claim with leases that end at once, so that every run can be taken from its holder."""
    return [lease for _ in range(20) for lease in await claim(store, worker, limit=20, lease=0)]


async def finish_all(store: Store, worker: str) -> list[Lease]:
    won: list[Lease] = []
    while leases := await claim(store, worker):
        verdicts = (await store.checkpoint([checkpoint_for(lease, succeed()) for lease in leases])).verdicts
        won += [lease for lease, verdict in zip(leases, verdicts, strict=True) if not verdict.is_lost]
    return won


def test_eight_claimers_on_threads_share_no_run_and_leave_none(make_store: MakeStore) -> None:
    asyncio.run(prepare(make_store))

    won = on_threads(make_store, take_all)

    assert sorted(lease.run.id for lease in won) == [an_id(number) for number in range(RUNS)]
    assert {lease.run.token for lease in won} == {1}


def test_eight_claimers_on_threads_take_urgent_runs_first(
    make_store: MakeStore, request: pytest.FixtureRequest
) -> None:
    # On Postgres a claim passes over runs that another claim has locked, and may come back to one of them.
    is_strict = "postgres" not in request.node.name
    asyncio.run(prepare(make_store, PRIORITIES))

    won = by_claimer(make_store, take_all)

    assert sorted(lease.run.id for leases in won for lease in leases) == [an_id(number) for number in range(RUNS)]
    for leases in won:
        priorities = [lease.run.priority for lease in leases]
        assert priorities == sorted(priorities) or not is_strict


def test_no_token_is_given_twice_when_leases_run_out_under_the_claimers(make_store: MakeStore) -> None:
    asyncio.run(prepare(make_store))

    won = on_threads(make_store, take_turns)

    times = Counter(lease.run.id for lease in won)
    assert max(times.values()) > 1
    assert sorted((lease.run.id, lease.run.token) for lease in won) == [
        (run_id, token) for run_id in sorted(times) for token in range(1, times[run_id] + 1)
    ]


def test_eight_workers_on_threads_end_every_run_once(make_store: MakeStore) -> None:
    asyncio.run(prepare(make_store))

    ended = on_threads(make_store, finish_all)

    assert sorted(lease.run.id for lease in ended) == [an_id(number) for number in range(RUNS)]
    assert asyncio.run(states(make_store)) == {RunState.SUCCEEDED: RUNS}


async def states(make_store: MakeStore) -> Counter[RunState]:
    store = make_store()
    await store.open()
    listed = await store.list(Query(limit=RUNS))
    await store.close()
    return Counter(details.run.state for details in listed)


async def test_eight_claimers_as_tasks_on_several_stores_share_no_run_and_leave_none(make_store: MakeStore) -> None:
    await prepare(make_store)
    stores = [make_store() for _ in range(3)]
    for store in stores:
        await store.open()

    won = await asyncio.gather(*(take_all(stores[number % 3], f"worker-{number}") for number in range(CLAIMERS)))
    for store in stores:
        await store.close()

    assert sorted(lease.run.id for leases in won for lease in leases) == [an_id(number) for number in range(RUNS)]


# Limits

LIMIT = 5


async def prepare_limited(make_store: MakeStore) -> None:
    await prepare(make_store)
    store = make_store()
    await store.open()
    await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=LIMIT)]))
    await store.close()


async def finish_limited(store: Store, worker: str) -> list[Lease]:
    """Claim and end runs until none is left, and record each time how many are held."""
    won: list[Lease] = []
    while (await store.stats(CountRuns()))[TYPE].get(RunState.SUCCEEDED, 0) < RUNS:
        for lease in await claim(store, worker):
            listed = await store.list(Query(states=frozenset({RunState.RUNNING}), limit=RUNS))
            assert sum(details.run.is_held for details in listed) <= LIMIT
            (verdict,) = (await store.checkpoint([checkpoint_for(lease, succeed())])).verdicts
            assert not verdict.is_lost
            won.append(lease)
    return won


def test_eight_workers_on_threads_never_exceed_a_limit_and_end_every_run(make_store: MakeStore) -> None:
    """I9: limits are never exceeded."""
    asyncio.run(prepare_limited(make_store))

    ended = on_threads(make_store, finish_limited)

    assert sorted(lease.run.id for lease in ended) == [an_id(number) for number in range(RUNS)]
    assert {lease.run.token for lease in ended} == {1}
