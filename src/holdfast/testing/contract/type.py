"""Contract of types: their settings and offers, and disabled types."""

from __future__ import annotations

from holdfast.core.checkpoint import LeaseRequest
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import ChangeTypes, OfferTypes
from holdfast.core.model import Rate, TypeChange, TypeOffer, TypeRule
from holdfast.core.ports import Store
from holdfast.core.questions import FindOrphans, ListTypes
from holdfast.testing.contract.arrange import (
    HOSTILE,
    LEASE,
    OTHER_WORKER,
    PYTHON,
    TYPE,
    WORKER,
    HintRecorder,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    claim_one,
    claimed_ids,
    held,
    start,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

OTHER_TYPE = "contract.other.v1"


async def switch(store: Store, *, on: bool, type: str = TYPE) -> None:
    await store.apply(ChangeTypes(changes=[TypeChange(name=type, is_enabled=on)]))


class TypeContract(Contract):
    """Settings of a type persist, and runs of a disabled type are not claimed."""

    # Settings and offers

    async def test_a_type_without_settings_or_offers_is_not_listed(self, store: Store) -> None:
        await start(store, an_intent(1))

        assert await store.catalog(ListTypes()) == []

    async def test_a_change_keeps_settings_that_it_does_not_name(self, store: Store) -> None:
        rate = Rate(count=5, period=SECOND)
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=3, per_key={"tenant": 2}, rate=rate)]))
        await store.apply(
            ChangeTypes(changes=[TypeChange(name=TYPE, description="bills", retention=DAY, runtime="go")])
        )
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=None, is_enabled=False)]))

        assert await store.catalog(ListTypes()) == [
            TypeRule(
                name=TYPE,
                runtime="go",
                description="bills",
                is_enabled=False,
                per_key={"tenant": 2},
                rate=rate,
                retention=DAY,
            )
        ]

    async def test_every_setting_of_a_type_can_be_reset(self, store: Store) -> None:
        said = TypeChange(
            name=TYPE,
            concurrency=3,
            per_key={"a": 1},
            rate=Rate(count=1, period=1),
            retention=DAY,
            is_enabled=False,
            description="x",
            runtime="go",
        )
        unsaid = TypeChange(
            name=TYPE,
            concurrency=None,
            per_key={},
            rate=None,
            retention=None,
            is_enabled=True,
            description="",
            runtime="",
        )

        await store.apply(ChangeTypes(changes=[said]))
        await store.apply(ChangeTypes(changes=[unsaid]))

        assert await store.catalog(ListTypes()) == [TypeRule(name=TYPE)]

    async def test_several_changes_of_one_call_apply_in_order(self, store: Store) -> None:
        await store.apply(
            ChangeTypes(
                changes=[
                    TypeChange(name="b", concurrency=1),
                    TypeChange(name="a", concurrency=2),
                    TypeChange(name="b", concurrency=3),
                ]
            )
        )

        assert [(rule.name, rule.concurrency) for rule in await store.catalog(ListTypes())] == [("a", 2), ("b", 3)]

    async def test_a_change_may_be_repeated(self, store: Store) -> None:
        """S6: a lost answer is safe."""
        change = TypeChange(name=TYPE, concurrency=1, rate=Rate(count=1, period=SECOND), is_enabled=False)
        await store.apply(ChangeTypes(changes=[change]))
        before = await store.catalog(ListTypes())

        await store.apply(ChangeTypes(changes=[change]))

        assert await store.catalog(ListTypes()) == before

    async def test_names_of_types_are_taken_literally(self, store: Store) -> None:
        await store.apply(ChangeTypes(changes=[TypeChange(name=name, description=name) for name in HOSTILE]))

        assert {rule.name: rule.description for rule in await store.catalog(ListTypes())} == {
            name: name for name in HOSTILE
        }

    async def test_an_offer_records_the_worker_and_the_time(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, routing: the registry records type, runtime and the worker last seen."""
        await store.apply(
            OfferTypes(worker="one", offers=[TypeOffer(name=TYPE, runtime="python", description="bills")])
        )
        clock.advance(SECOND)
        await store.apply(
            OfferTypes(worker="two", offers=[TypeOffer(name=TYPE, runtime="python"), TypeOffer(name="z", runtime="go")])
        )

        assert await store.catalog(ListTypes()) == [
            TypeRule(name=TYPE, runtime="python", description="bills", seen_by="two", seen_at=START + SECOND),
            TypeRule(name="z", runtime="go", seen_by="two", seen_at=START + SECOND),
        ]

    async def test_an_offer_does_not_change_the_settings_of_a_person(self, store: Store) -> None:
        await store.apply(
            ChangeTypes(changes=[TypeChange(name=TYPE, is_enabled=False, concurrency=2, description="mine")])
        )

        await store.apply(
            OfferTypes(worker="one", offers=[TypeOffer(name=TYPE, runtime="python", description="its own")])
        )

        assert await store.catalog(ListTypes()) == [
            TypeRule(
                name=TYPE,
                runtime="python",
                description="mine",
                is_enabled=False,
                concurrency=2,
                seen_by="one",
                seen_at=START,
            )
        ]

    async def test_an_offer_records_the_plan_of_a_pipeline(self, store: Store) -> None:
        """FLOWS, pipelines: the plan is stored with the type, in order, and the last offer replaces it."""
        plan = tuple(f"step {name}" for name in HOSTILE)
        await store.apply(OfferTypes(worker="one", offers=[TypeOffer(name=TYPE, runtime="python", plan=plan)]))
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=1)]))

        (rule,) = await store.catalog(ListTypes())
        assert rule.plan == plan

        await store.apply(OfferTypes(worker="two", offers=[TypeOffer(name=TYPE, runtime="python", plan=plan[::-1])]))
        (rule,) = await store.catalog(ListTypes())
        assert (rule.plan, rule.concurrency) == (plan[::-1], 1)

        await store.apply(OfferTypes(worker="two", offers=[TypeOffer(name=TYPE, runtime="python")]))
        (rule,) = await store.catalog(ListTypes())
        assert rule.plan == ()

    async def test_a_change_keeps_the_worker_last_seen(self, store: Store) -> None:
        await store.apply(OfferTypes(worker="one", offers=[TypeOffer(name=TYPE, runtime="python")]))
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=1)]))

        (rule,) = await store.catalog(ListTypes())
        assert (rule.seen_by, rule.seen_at, rule.concurrency) == ("one", START, 1)

    # Disabled types

    async def test_runs_of_a_disabled_type_are_not_claimed(self, store: Store) -> None:
        """SEMANTICS, routing: a disabled type is not claimed."""
        await start(store, an_intent(1), an_intent(2, type=OTHER_TYPE))
        await switch(store, on=False)

        claimed = await claim(store, types=[TYPE, OTHER_TYPE])

        assert [lease.run.id for lease in claimed.leases] == [an_id(2)]
        assert (await claim(store)).next_ready_at is None

    async def test_enabling_a_type_makes_its_runs_claimable_and_sends_a_hint(self, store: Store) -> None:
        await switch(store, on=False)
        await start(store, an_intent(1))
        listening = HintRecorder(store)

        await switch(store, on=True)

        await listening.until("ready", TYPE)
        listening.stop()
        assert await claimed_ids(store) == [an_id(1)]

    async def test_runs_of_a_disabled_type_are_accepted(self, store: Store) -> None:
        """PROMISES 1: accepted means durable, even if no worker exists."""
        await switch(store, on=False)

        await start(store, an_intent(1))

        assert (await the_run(store)).ready_at == START
        assert await store.stats(FindOrphans(limit=10)) == []

    async def test_a_start_leases_no_run_of_a_disabled_type(self, store: Store) -> None:
        await switch(store, on=False)
        request = LeaseRequest(worker=WORKER, claim_id="c", lease=LEASE, python=PYTHON)

        created = await store.create([an_intent(1), an_intent(2, type=OTHER_TYPE)], request)

        assert [run.lease is not None for run in created.runs] == [False, True]
        assert not (await the_run(store)).is_held

    async def test_the_holder_of_a_run_of_a_disabled_type_goes_on(self, store: Store) -> None:
        lease = await held(store)

        await switch(store, on=False)

        assert (await write(store, checkpoint_for(lease))).is_held
        assert not (await write(store, checkpoint_for(lease, succeed()))).is_lost

    async def test_a_disabled_type_does_not_hide_others_from_a_claim_of_limited_types(
        self, store: Store, clock: SettableClock
    ) -> None:
        limited = "contract.limited.v1"
        await store.apply(ChangeTypes(changes=[TypeChange(name=limited, concurrency=10)]))
        await switch(store, on=False)
        await start(store, *(an_intent(number) for number in range(1, 10)))
        clock.advance(1)
        await start(store, an_intent(10, type=OTHER_TYPE))
        clock.advance(1)
        await start(store, an_intent(11, type=limited), an_intent(12, type=limited))

        assert await claimed_ids(store, types=(TYPE, OTHER_TYPE, limited), limit=2) == [an_id(10), an_id(11)]

    async def test_an_expired_lease_of_a_disabled_type_is_not_claimed(self, store: Store, clock: SettableClock) -> None:
        await held(store)
        await switch(store, on=False)
        clock.advance(LEASE)

        claimed = await claim(store, worker=OTHER_WORKER)

        assert (claimed.leases, claimed.next_ready_at) == ((), None)
        await switch(store, on=True)
        assert (await claim_one(store, worker=OTHER_WORKER)).run.crashes == 1

    async def test_a_repeated_claim_returns_leases_of_a_type_disabled_since(self, store: Store) -> None:
        """T8: a repeated claim with the same claim id gets the same leases."""
        await start(store, an_intent(1))
        first = await claim(store, id="claim-1")
        await switch(store, on=False)

        again = await claim(store, id="claim-1", is_repeat=True)

        assert again.leases == first.leases
