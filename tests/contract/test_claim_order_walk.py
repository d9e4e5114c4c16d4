"""Random walks with many runs: a store claims the same runs as the model, in the same order, limited or not.

The machine of `test_model.py` uses every operation, but only a few runs: too few for a store to load only part of the
due ones, or of those that wait for a slot.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Next, Release
from holdfast.core.claim_order import Shares, after_claims
from holdfast.core.clock import SECOND
from holdfast.core.commands import ChangeTypes
from holdfast.core.model import Lease, Rate, TypeChange
from holdfast.core.ports import Store
from holdfast.core.questions import CountSlots, Query
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.redis import redis_store
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import LEASE, PYTHON, an_id, an_intent, block, checkpoint_for, succeed
from tests.contract.key_value_stores import dictionary_store
from tests.duration import lasting
from tests.plugin.tiers import amount

WALKS = amount(short=1, long=40, variable="HOLDFAST_MODEL_EXAMPLES")
STORES = {"sqlite": WALKS, "postgres": WALKS, "redis": WALKS, "dictionary": max(2, WALKS // 4)}
"""Number of walks on each store. On a dictionary all claims are decided by the shared operations, on Redis few are."""
STEPS = 150
TYPES = ("a", "b", "c", "d", "e", "f")
LIMITS: tuple[dict[str, Any], ...] = (
    *({"concurrency": count} for count in (None, 1, 3, 20)),
    *({"per_key": per_key} for per_key in ({}, {"tenant": 1}, {"tenant": 20})),
    *({"rate": rate} for rate in (None, Rate(count=2, period=SECOND))),
)
NEXTS: tuple[Next, ...] = (succeed(), Release(), block(SECOND))


class Walker:
    """Applies the same calls to the model and to another store, and compares their answers."""

    def __init__(self, seed: int, model: Store, other: Store, clock: SettableClock) -> None:
        self.random = random.Random(seed)
        self.model, self.other, self.clock = model, other, clock
        self.leases: list[Lease] = []
        self.shares = Shares()
        self.number = 0

    async def step(self) -> None:
        await self.random.choice([self.create, self.claim, self.claim, self.write, self.write, self.limit, self.wait])()
        await self.both(lambda store: store.stats(CountSlots()))
        await self.both(lambda store: store.list(Query(limit=1_000)))

    async def both(self, operation: Callable[[Store], Awaitable[Any]]) -> Any:
        answer = await operation(self.model)
        assert await operation(self.other) == answer
        return answer

    async def create(self) -> None:
        """Create many runs of one kind, so that those of other kinds are far behind them."""
        first, self.number = self.number, self.number + self.random.choice([3, 40])
        options = {
            "type": self.random.choice(TYPES),
            "priority": self.random.choice([100, 100, 50]),
            "delay": self.random.choice([0, SECOND]),
            **self.random.choice([{}, {"parent_id": an_id(0)}]),
        }
        tenants = self.random.choice(["x", "xy"])
        intents = [
            an_intent(number, tags={"tenant": self.random.choice(tenants)}, **options)
            for number in range(first, self.number)
        ]
        await self.both(lambda store: store.create(intents))

    async def claim(self) -> None:
        self.number += 1
        request = ClaimRequest(
            id=f"c{self.number}",
            worker="w",
            types=TYPES,
            limit=self.random.choice([1, 4, 30]),
            lease=self.random.choice([LEASE, SECOND]),
            python=PYTHON,
            may_suspect=self.random.random() < 0.8,
            shares=self.shares,
        )

        async def claim(store: Store) -> Claimed:
            claimed = await store.claim(request)
            is_full = len(claimed.leases) == request.limit
            return replace(claimed, next_ready_at=None) if is_full else claimed

        claimed = await self.both(claim)
        self.leases += claimed.leases
        self.shares = after_claims(self.shares, [lease.run for lease in claimed.leases])

    async def write(self) -> None:
        """Release some runs. Those whose lease has ended may be held by another worker by now."""
        self.random.shuffle(self.leases)
        some, self.leases = self.leases[:8], self.leases[8:]
        batch: dict[str, Checkpoint] = {lease.run.id: checkpoint_for(lease, self.next(), seen=1_000) for lease in some}
        if batch:
            await self.both(lambda store: store.checkpoint([*batch.values()]))

    def next(self) -> Next:
        chosen = self.random.choice(NEXTS)
        return replace(chosen, retry_at=self.clock.now() + SECOND) if hasattr(chosen, "retry_at") else chosen

    async def limit(self) -> None:
        change = TypeChange(name=self.random.choice(TYPES[:3]), **self.random.choice(LIMITS))
        await self.both(lambda store: store.apply(ChangeTypes(changes=[change])))

    async def wait(self) -> None:
        self.clock.advance(self.random.choice([1, SECOND // 2, SECOND, LEASE]))


@pytest.mark.both_tiers
@lasting(WALKS * 4)
@pytest.mark.parametrize(("store", "seed"), [(store, seed) for store in STORES for seed in range(STORES[store])])
async def test_many_runs_are_claimed_as_in_the_model(
    store: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    clock = SettableClock()
    model = MemoryStore(clock=clock)
    match store:
        case "sqlite":
            other: Store = SqliteStore(tmp_path / "runs.db", clock=clock)
        case "postgres":
            other = PostgresStore(request.getfixturevalue("postgres_store_url"), clock=clock)
        case "redis":
            other = redis_store(request.getfixturevalue("redis_url"), clock=clock)
        case _:
            other = dictionary_store(clock)
    await model.open()
    await other.open()
    try:
        walker = Walker(seed, model, other, clock)
        for _ in range(STEPS):
            await walker.step()
    finally:
        await other.close()
