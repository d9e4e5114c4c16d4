"""Races for slots: stores on one database claim, end, cancel, pause and change limits concurrently.

The number of held runs never exceeds a limit, no run waits while a slot is free, and all runs end.
`HOLDFAST_RACES=10000 pytest tests/contract/long/test_limit_races.py` runs longer.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Sequence
from typing import Any

from holdfast.core.checkpoint import Checkpoint, Next, Release, Suspend
from holdfast.core.commands import Cancel, ChangeTypes, Pause, Resume, RunControl, SendMessages
from holdfast.core.limits import parked_at, type_slot
from holdfast.core.model import Intent, Lease, MessageToRun, TypeChange, new_id
from holdfast.core.ports import Store
from holdfast.core.questions import CountSlots, ListTypes, Query
from holdfast.core.states import RunState
from holdfast.stores.memory.state import Record, State
from holdfast.testing.contract.arrange import an_id, checkpoint_for, claim, fail, for_message, succeed
from tests.contract.slots import check_slots
from tests.contract.test_races import RACES, stores
from tests.duration import lasting

__all__ = ["stores"]

TYPES = ("first", "second")
TENANTS = ("x", "y", "z")
LIMIT = 3
RUNS = max(60, RACES // 4)
ROUNDS = max(20, RACES // 10)
LIVE = frozenset(state for state in RunState if not state.is_end)

Stores = Sequence[Store]

pytestmark = lasting(RACES / 50)


def some_runs(count: int = RUNS) -> list[Intent]:
    """Runs of two types and three tenants, some of them children that end with the run before them."""
    return [
        Intent(
            id=an_id(number),
            type=TYPES[number % 2],
            payload="{}",
            priority=(100, 50, 150)[number % 3],
            tags={"tenant": TENANTS[number % 3]},
            parent_id=an_id(number - 1) if number % 5 == 4 else None,
            parent_location="child" if number % 5 == 4 else None,
            on_close="cancel",
        )
        for number in range(count)
    ]


class Crew:
    """Executes runs on several stores at once, until none is left."""

    def __init__(self, stores: Stores, nexts: Sequence[Next]) -> None:
        self.stores = stores
        self.nexts = nexts
        self.chance = random.Random(RACES)
        self.is_over = False
        self.most = 0
        """Maximum number of runs held at one time."""

    async def work(self) -> None:
        """Claim and write on all stores, check on one of them, and wake sleeping runs."""
        watch = asyncio.create_task(self._watch())
        try:
            await asyncio.gather(*map(self._work, range(len(self.stores))))
        finally:
            self.is_over = True
            await watch

    async def _work(self, number: int) -> None:
        while await self.take_turn(number):
            pass

    async def take_turn(self, number: int) -> bool:
        """Claim runs, write their progress, and wake some sleeping ones. Return True if any is left."""
        store = self.stores[number]
        claimed = await claim(store, worker=f"w{number}", types=TYPES, limit=self.chance.randint(1, 6))
        if batch := [self._checkpoint(lease) for lease in claimed.leases]:
            await store.checkpoint(self.chance.sample(batch, len(batch)))
        alive = await store.list(Query(states=LIVE, limit=1_000))
        asleep = [one.run.id for one in alive if one.run.state in (RunState.SUSPENDED, RunState.PAUSED)]
        for run_id in self.chance.sample(asleep, min(3, len(asleep))):
            await store.apply(Resume(run_id=run_id, id=new_id()))
            await store.apply(SendMessages(messages=[MessageToRun(id=new_id(), name="go", payload="1", run_id=run_id)]))
        return bool(alive)

    async def meddle(self, store: Store) -> None:
        """Cancel or pause a random run."""
        run_id = an_id(self.chance.randrange(RUNS))
        wishes: list[RunControl] = [Cancel(run_id=run_id, id=new_id(), force=True), Pause(run_id=run_id, id=new_id())]
        await store.apply(self.chance.choice(wishes))

    def _checkpoint(self, lease: Lease) -> Checkpoint:
        # A run that slept before ends now, so that the race terminates.
        next = self.chance.choice(self.nexts) if lease.run.token < 3 else succeed()
        waits = (for_message("go"),) if isinstance(next, Suspend) else None
        return checkpoint_for(lease, next, waits=waits)

    async def _watch(self) -> None:
        while not self.is_over:
            running = await self.stores[0].list(Query(states=frozenset({RunState.RUNNING}), type=TYPES[0], limit=1_000))
            self.most = max(self.most, len(running))
            used = {use.name: use.used for use in await self.stores[0].stats(CountSlots(type=TYPES[0]))}
            self.most = max(self.most, used.get(type_slot(TYPES[0]), 0))
            await asyncio.sleep(0)


async def check_all_over(store: Store) -> None:
    """Check that every run has ended and left nothing behind."""
    assert await store.list(Query(states=LIVE, limit=1_000)) == []
    assert list(await store.stats(CountSlots())) == []


async def test_a_limit_is_never_exceeded_while_runs_are_claimed_ended_and_cancelled(stores: Stores) -> None:
    await stores[0].apply(
        ChangeTypes(changes=[TypeChange(name=type, concurrency=LIMIT, per_key={"tenant": 2}) for type in TYPES])
    )
    await stores[0].create(some_runs())
    crew = Crew(stores, [succeed(), fail(), Suspend(), Release(), Suspend()])

    async def meddle(store: Store) -> None:
        for _ in range(ROUNDS):
            await crew.meddle(store)

    await asyncio.gather(crew.work(), *map(meddle, stores))

    assert 0 < crew.most <= LIMIT
    await check_all_over(stores[1])


async def check_slots_of(store: Store) -> None:
    """Check that a run with slots has what it needs, and that no run waits while a slot is free."""
    state = State(types={rule.name: rule for rule in await store.catalog(ListTypes())})
    for details in await store.list(Query(limit=1_000)):
        run = details.run
        state.records[run.id] = Record(run, waits=details.waits)
        for slot in run.slots:
            state.slots[slot].add(run.id)
        if (wait := parked_at(details.waits)) is not None:
            heapq.heappush(state.parked[wait.names[0]], (wait.after, wait.since, run.id))
    check_slots(state, await store.now())
    uses = {use.name: use.used for use in await store.stats(CountSlots()) if use.used}
    assert uses == {slot: len(runs) for slot, runs in state.slots.items() if runs}


async def test_changing_limits_while_runs_are_claimed_and_end_loses_no_run(stores: Stores) -> None:
    await stores[0].create(some_runs())
    crew = Crew(stores, [succeed(), Suspend(), Release()])
    changes: list[dict[str, Any]] = [
        *({"concurrency": count} for count in (None, 1, 2, LIMIT)),
        *({"per_key": per_key} for per_key in ({}, {"tenant": 1}, {"tenant": 2})),
    ]

    async def change(store: Store) -> None:
        names = crew.chance.sample(TYPES, crew.chance.randint(1, 2))
        await store.apply(ChangeTypes(changes=[TypeChange(name=name, **crew.chance.choice(changes)) for name in names]))

    for _ in range(ROUNDS):
        meddling = [crew.meddle(store) for store in stores]
        await asyncio.gather(*map(crew.take_turn, range(3)), change(stores[1]), change(stores[2]), *meddling)
        await check_slots_of(stores[0])

    await crew.work()
    await check_all_over(stores[1])


async def test_a_limit_that_is_set_during_claims_counts_all_held_runs(stores: Stores) -> None:
    """A claim under the old rules ends before the new ones apply, or follows them."""
    for number in range(ROUNDS // 2):
        type = f"type-{number}"
        await stores[0].create([Intent(id=new_id(), type=type, payload="{}") for _ in range(6)])

        async def take(store: Store, type: str = type) -> list[Lease]:
            return [*(await claim(store, worker=new_id(), types=[type], limit=2)).leases]

        won = await asyncio.gather(
            take(stores[0]),
            stores[1].apply(ChangeTypes(changes=[TypeChange(name=type, concurrency=3)])),
            take(stores[2]),
            take(stores[1]),
        )
        held = [lease for leases in won if leases for lease in leases]

        (use,) = await stores[2].stats(CountSlots(type=type))
        assert use.used == len(held)  # runs claimed before may be too many, but they count
        ends = await stores[1].checkpoint([checkpoint_for(lease, succeed()) for lease in held])
        assert not any(verdict.is_lost for verdict in ends.verdicts)
        assert len(await take(stores[0])) == min(2, 6 - len(held))
