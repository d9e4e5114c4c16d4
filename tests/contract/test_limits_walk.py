"""Long random walks of the model: no limit is exceeded, and no run waits while a slot is free.

`HOLDFAST_MODEL_EXAMPLES=2000 pytest tests/contract/test_limits_walk.py` walks longer.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

import pytest

from holdfast.core import limits
from holdfast.core.checkpoint import ClaimRequest, ContinueAsNew, LeaseRequest, Next, Release, Suspend
from holdfast.core.clock import SECOND, Micros
from holdfast.core.commands import (
    Cancel,
    ChangeTypes,
    Fork,
    Pause,
    Recover,
    Resume,
    Rewind,
    RunControl,
    SendMessages,
    Wake,
)
from holdfast.core.errors import InvalidRequest, RunBusy
from holdfast.core.model import Holding, Intent, Lease, MessageToRun, Rate, Run, TypeChange, TypeRule, Wait
from holdfast.core.questions import FindOrphans
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.state import State
from holdfast.stores.memory.unit_of_work import StateWaits
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    LEASE,
    PYTHON,
    a_step,
    a_worker,
    an_id,
    block,
    checkpoint_for,
    claim,
    fail,
    for_message,
    for_time,
    succeed,
)
from tests.contract.slots import check_slots
from tests.duration import lasting
from tests.plugin.tiers import amount

TYPES = ("a", "b")
TAGS: tuple[dict[str, str], ...] = (
    {},
    *({"tenant": one} for one in "xy"),
    *({"tenant": one, "region": other} for one in "xy" for other in "mn"),
)
KEYS: tuple[dict[str, int], ...] = ({}, {"tenant": 1}, {"tenant": 2}, {"tenant": 1, "region": 1})
WALKS = amount(short=4, long=24, variable="HOLDFAST_MODEL_EXAMPLES")
STEPS = 300


class Walker:
    """Applies random operations to a store, and checks the invariants after each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = SettableClock()
        self.store = MemoryStore(clock=self.clock)
        self.leases: list[Lease] = []
        self.number = 0
        self.begins: dict[str, list[Micros]] = defaultdict(list)

    async def step(self) -> None:
        await getattr(self, self.random.choice(ACTIONS))()
        check_slots(self.state, self.clock.now())
        assert await self.store.stats(FindOrphans(limit=1)) == []

    @property
    def state(self) -> State:
        return self.store._state

    def rule(self, type: str) -> TypeRule:
        return self.state.types.get(type) or TypeRule(name=type)

    def new_id(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    # Actions

    async def create(self) -> None:
        id = self.new_id("c")
        intent = Intent(
            id=an_id(self.number),
            type=self.random.choice(TYPES),
            payload="{}",
            priority=self.random.choice([100, 100, 50]),
            delay=self.random.choice([0, 0, SECOND]),
            tags=self.random.choice(TAGS),
        )
        request = LeaseRequest(worker="w1", claim_id=id, lease=LEASE, python=PYTHON)
        created = await self.store.create([intent], self.random.choice([None, request]))
        self.leases += [one.lease for one in created.runs if one.lease is not None]

    async def claim(self) -> None:
        counted = {slot: len(runs) for slot, runs in self.state.slots.items()}
        before = {run_id: record.run for run_id, record in self.state.records.items()}
        request = ClaimRequest(
            id=self.new_id("c"),
            worker=self.random.choice(["w1", "w2"]),
            types=TYPES,
            limit=self.random.choice([1, 3]),
            lease=LEASE,
            python=PYTHON,
        )
        claimed = await self.store.claim(request)
        for lease in claimed.leases:
            assert self.rule(lease.run.type).is_enabled
            if not before[lease.run.id].is_held:
                self.check_claim(before[lease.run.id], counted)
        self.leases += claimed.leases

    def check_claim(self, before: Run, counted: dict[str, int]) -> None:
        """Check that there was a slot of each kind for a claimed run, when this many had one."""
        rule, now = self.rule(before.type), self.clock.now()
        for slot, count in limits.slots_of(rule, before).items():
            assert slot in before.slots or counted.get(slot, 0) < count
            assert len(self.state.slots[slot]) <= max(count, counted.get(slot, 0))
        if rule.rate is not None and before.token == 0:
            self.begins[rule.name].append(now)
            recent = [at for at in self.begins[rule.name] if at > now - rule.rate.period]
            assert len(recent) <= rule.rate.count

    def held(self) -> list[Lease]:
        runs = {run_id: record.run for run_id, record in self.state.records.items()}
        self.leases = [one for one in self.leases if runs[one.run.id].token == one.run.token]
        return [one for one in self.leases if runs[one.run.id].is_held]

    async def write(self) -> None:
        if not (held := self.held()):
            return
        lease, now = self.random.choice(held), self.clock.now()
        plans: list[tuple[Next, tuple[Wait, ...] | None]] = [
            *[(succeed(), None)] * 2,
            (fail(), None),
            (Suspend(), (for_message("go"),)),
            *((Suspend(), (for_time(at),)) for at in (now, now + SECOND)),
            (Release(), None),
            (ContinueAsNew(payload="{}"), None),
            (block(), None),
            (block(now + SECOND), None),
        ]
        next, waits = self.random.choice(plans)
        entries = (a_step("a", 1, has_undo=self.random.random() < 0.2),) if self.random.random() < 0.3 else ()
        if self.state.records[lease.run.id].run.rollback is not None:
            next, waits, entries = fail(), None, ()
        checkpoint = checkpoint_for(lease, next, waits=waits, seen=1_000, entries=entries)
        await self.store.checkpoint([checkpoint] * self.random.choice([1, 2]))

    async def send(self) -> None:
        if self.state.records:
            run_id = self.random.choice(list(self.state.records))
            await self.store.apply(
                SendMessages(messages=[MessageToRun(id=self.new_id("m"), name="go", payload="1", run_id=run_id)])
            )

    async def control(self) -> None:
        if not self.state.records:
            return
        run_id = self.random.choice(list(self.state.records))
        id, force = self.new_id("r"), self.random.random() < 0.5
        requests: list[RunControl] = [
            Cancel(run_id=run_id, id=id, force=force),
            *[Pause(run_id=run_id, id=id)] * 2,
            *[Resume(run_id=run_id, id=id)] * 2,
            Wake(run_id=run_id, id=id),
            Rewind(run_id=run_id, id=id, location="a", force=force),
            Recover(run_id=run_id, id=id, force=force),
            Fork(run_id=run_id, id=id, new_run_id=an_id(self.number), location="a", force=force),
        ]
        with suppress(InvalidRequest, RunBusy):
            await self.store.apply(self.random.choice(requests))

    async def renew(self) -> None:
        holdings = [Holding(run_id=one.run.id, token=one.run.token) for one in self.held()]
        self.store.renew(a_worker("w1"), holdings, LEASE)

    async def change(self) -> None:
        type = self.random.choice(TYPES)
        rates = [None, Rate(count=1, period=SECOND), Rate(count=3, period=SECOND)]
        change = self.random.choice(
            [
                TypeChange(name=type, concurrency=self.random.choice([None, 1, 2, 4])),
                TypeChange(name=type, per_key=self.random.choice(KEYS)),
                TypeChange(name=type, rate=self.random.choice(rates)),
                TypeChange(name=type, is_enabled=self.random.random() < 0.8),
            ]
        )
        if self.rule(type).rate is None:
            self.begins[type].clear()
        await self.store.apply(ChangeTypes(changes=[change]))

    async def advance(self) -> None:
        self.clock.advance(self.random.choice([1, SECOND // 4, SECOND // 2, SECOND, SECOND, LEASE]))


ACTIONS = (
    *["create"] * 4,
    *["claim"] * 5,
    *["write"] * 5,
    "send",
    *["control"] * 2,
    "renew",
    "change",
    *["advance"] * 2,
)


@pytest.mark.both_tiers
@lasting(WALKS / 20)
async def test_limits_hold_and_no_run_waits_in_vain_after_any_operations() -> None:
    for seed in range(WALKS):
        walker = Walker(seed)
        for _ in range(STEPS):
            await walker.step()


async def test_a_slot_that_is_handed_on_does_not_wake_all_waiting_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, moved = SettableClock(), 0
    store = MemoryStore(clock=clock)
    put = StateWaits.put

    def counted(of: StateWaits, run_id: str, waits: Sequence[Wait]) -> None:
        nonlocal moved
        moved += 1
        put(of, run_id, waits)

    await store.apply(
        ChangeTypes(changes=[TypeChange(name="a", per_key={"tenant": 1}, rate=Rate(count=1, period=SECOND))])
    )
    await store.create([Intent(id=an_id(n), type="a", payload="{}", tags={"tenant": "x"}) for n in range(1, 101)])
    (lease,) = (await claim(store, types=("a",))).leases
    monkeypatch.setattr(StateWaits, "put", counted)

    for _ in range(5):
        await store.checkpoint([checkpoint_for(lease, succeed())])
        clock.advance(SECOND)
        (lease,) = (await claim(store, types=("a",))).leases

    assert moved <= 15
