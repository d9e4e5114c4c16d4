"""The cost of a claim on Redis, which does not depend on the number of sleeping runs."""

from __future__ import annotations

import statistics
import sys
import time

from holdfast.core.checkpoint import Suspend
from holdfast.core.ports import Store
from holdfast.stores.kv.store import CLAIMED_AT_ONCE
from holdfast.stores.redis import redis_store
from holdfast.testing.contract.arrange import an_intent, checkpoint_for, claim, claim_one, for_time, succeed
from tests.redis import RedisServer

SLEEPING = 20_000
AT_ONCE = CLAIMED_AT_ONCE
CLAIMS = 500
FAR_AWAY = 4_000_000_000_000_000
"""A time in the year 2096, in microseconds."""
MOST_TIMES_DEARER = 1.3


async def test_a_claim_does_not_depend_on_sleeping_runs() -> None:
    """Two namespaces of one server, in turns: one with sleeping runs, one without."""
    took: dict[int, list[float]] = {0: [], SLEEPING: []}
    with RedisServer({"appendfsync": "everysec"}) as server:
        stores = {sleeping: redis_store(server.url_of(namespace=f"beside-{sleeping}")) for sleeping in took}
        for sleeping, store in stores.items():
            await store.open()
            for first in range(0, sleeping, AT_ONCE):
                await put_to_sleep(store, range(first, first + AT_ONCE))
        for number in range(SLEEPING, SLEEPING + CLAIMS):
            for sleeping, store in stores.items():
                took[sleeping].append(await claim_seconds(store, number))
        for store in stores.values():
            await store.close()

    alone, beside = (statistics.median(seconds) for seconds in took.values())
    sys.stdout.write(
        f"figure: a claim p50 {alone * 1e3:.2f} ms beside none, {beside * 1e3:.2f} ms beside {SLEEPING:,} sleeping "
        f"runs: {beside / alone:.2f} x\n"
    )
    assert beside / alone <= MOST_TIMES_DEARER


async def put_to_sleep(store: Store, numbers: range) -> None:
    await store.create([an_intent(number) for number in numbers])
    leases = (await claim(store, limit=len(numbers))).leases
    assert len(leases) == len(numbers)
    await store.checkpoint([checkpoint_for(lease, Suspend(), waits=(for_time(FAR_AWAY),)) for lease in leases])


async def claim_seconds(store: Store, number: int) -> float:
    """Return how long the claim of a new run takes; then end the run."""
    await store.create([an_intent(number)])
    begun = time.perf_counter()
    lease = await claim_one(store)
    took = time.perf_counter() - begun
    await store.checkpoint([checkpoint_for(lease, succeed())])
    return took
