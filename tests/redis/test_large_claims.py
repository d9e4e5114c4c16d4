"""A claim of many runs is answered in pieces, so that the first runs work while the next ones are leased."""

from __future__ import annotations

from holdfast.stores.kv.store import CLAIMED_AT_ONCE
from holdfast.stores.redis import redis_store
from holdfast.testing.contract.arrange import an_id, an_intent, claim, start


async def test_a_claim_that_is_cut_says_that_there_are_more(redis_url: str) -> None:
    store = redis_store(redis_url)
    await store.open()
    try:
        await start(store, *(an_intent(number) for number in range(CLAIMED_AT_ONCE + 1)))

        first = await claim(store, limit=2 * CLAIMED_AT_ONCE)
        second = await claim(store, limit=2 * CLAIMED_AT_ONCE)

        assert [len(claimed.leases) for claimed in (first, second)] == [CLAIMED_AT_ONCE, 1]
        assert [claimed.has_more for claimed in (first, second)] == [True, False]
        claimed_ids = {lease.run.id for claimed in (first, second) for lease in claimed.leases}
        assert claimed_ids == {an_id(number) for number in range(CLAIMED_AT_ONCE + 1)}
    finally:
        await store.close()
