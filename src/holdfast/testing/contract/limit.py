"""Limits: how many runs of a type are worked on at once, by type and by key, and who is next."""

from __future__ import annotations

from holdfast.core.checkpoint import ContinueAsNew, LeaseRequest, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, ChangeTypes
from holdfast.core.limits import PARKED_AT_ONCE, level_of
from holdfast.core.model import Lease, TypeChange, Wait, WaitKind
from holdfast.core.ports import Store
from holdfast.core.questions import CountSlots, FindOrphans, SlotUse
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
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
    facts_of,
    for_message,
    held,
    picture_of,
    start,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

SLOT = f"type:{TYPE}"


async def limit(store: Store, concurrency: int | None = 1, *, type: str = TYPE, **change: object) -> None:
    await store.apply(ChangeTypes(changes=[TypeChange(name=type, concurrency=concurrency, **change)]))  # type: ignore[arg-type]


async def starting(store: Store, *numbers: int, **options: object) -> None:
    await start(store, *(an_intent(number, **options) for number in numbers))


async def parked_at(store: Store, number: int) -> str | None:
    """The name of the slot that a run is parked for."""
    details = await store.get(an_id(number))
    assert details is not None
    names = [wait.names for wait in details.waits if wait.kind is WaitKind.SLOT]
    return names[0][0] if names else None


async def occupied(store: Store) -> Lease:
    """The first of two runs, which has the only slot; the second is parked."""
    await limit(store)
    await starting(store, 1, 2)
    (lease,) = (await claim(store)).leases
    assert lease.run.id == an_id(1)
    assert await parked_at(store, 2) == SLOT
    return lease


async def is_next(store: Store, number: int = 2) -> bool:
    """Whether a run was given its slot, and is what a claim gets."""
    run = await the_run(store, number)
    assert await store.stats(FindOrphans(limit=10)) == []
    return run.slots == (SLOT,) and run.ready_at is not None and await claimed_ids(store, limit=1) == [run.id]


class LimitContract(Contract):
    """A limit is never exceeded by a claim, and nobody waits while there is a free slot."""

    # Having and waiting

    async def test_no_more_are_claimed_than_a_limit_allows(self, store: Store) -> None:
        """I9: limits are never exceeded."""
        await limit(store, 2)
        await starting(store, 1, 2, 3, 4)

        assert await claimed_ids(store) == [an_id(1), an_id(2)]
        assert await claimed_ids(store, worker=OTHER_WORKER) == []
        assert [run.slots for run in [await the_run(store, number) for number in (1, 2, 3)]] == [(SLOT,), (SLOT,), ()]

    async def test_a_run_beyond_a_limit_is_parked_and_says_for_what(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, limits: parked with a wait of kind `slot`."""
        await limit(store)
        await starting(store, 1, 2)
        clock.advance(SECOND)

        claimed = await claim(store)

        details = await store.get(an_id(2))
        assert details is not None
        assert (details.run.state, details.run.ready_at, details.run.token) == (RunState.PENDING, None, 0)
        level = level_of(details.run)
        assert details.waits == (Wait(location="~limit", kind=WaitKind.SLOT, since=START, names=(SLOT,), after=level),)
        assert await facts_of(store, 2) == ["parked"]
        assert (len(claimed.leases), claimed.next_ready_at, claimed.has_more) == (1, None, False)
        assert await store.stats(FindOrphans(limit=10)) == []

    async def test_a_claim_does_not_look_at_parked_runs(self, store: Store) -> None:
        """SEMANTICS, limits: a claim never steps over parked runs."""
        await occupied(store)
        before = await picture_of(store, 2)

        claimed = await claim(store, worker=OTHER_WORKER)

        assert (claimed.leases, claimed.next_ready_at) == ((), START + LEASE)
        assert await picture_of(store, 2) == before

    async def test_other_types_are_not_concerned(self, store: Store) -> None:
        await limit(store)
        await starting(store, 1, 2)
        await starting(store, 3, 4, type="other")

        assert await claimed_ids(store, types=[TYPE, "other"]) == [an_id(1), an_id(3), an_id(4)]

    async def test_a_claim_that_has_parked_many_says_that_there_is_more(self, store: Store) -> None:
        """A claim that parks gives others a turn, and is made again at once."""
        await limit(store)
        await starting(store, *range(1, PARKED_AT_ONCE + 4))
        await starting(store, PARKED_AT_ONCE + 4, type="other", priority=200)

        first = await claim(store, types=[TYPE, "other"])
        second = await claim(store, types=[TYPE, "other"])

        assert ([lease.run.id for lease in first.leases], first.has_more) == ([an_id(1)], True)
        assert ([lease.run.id for lease in second.leases], second.has_more) == ([an_id(PARKED_AT_ONCE + 4)], False)
        assert [one.waiting for one in await store.stats(CountSlots())] == [PARKED_AT_ONCE + 2]

    async def test_a_start_leases_no_run_of_a_type_with_limits(self, store: Store) -> None:
        """DESIGN, run ahead: created and leased in one commit only if the type has no limit."""
        await limit(store, 5)
        request = LeaseRequest(worker=WORKER, claim_id="c", lease=LEASE, python=PYTHON)

        created = await store.create([an_intent(1), an_intent(2, type="other")], request)

        assert [run.lease is not None for run in created.runs] == [False, True]
        assert await claimed_ids(store) == [an_id(1)]

    async def test_the_use_of_slots_is_told(self, store: Store) -> None:
        await limit(store, 1, per_key={"tenant": 1})
        await start(
            store,
            an_intent(1, tags={"tenant": "a"}),
            an_intent(2, tags={"tenant": "a"}),
            an_intent(3, tags={"tenant": "b"}),
            an_intent(4, type="other"),
        )
        await limit(store, 1, type="other")
        await claim(store, types=[TYPE, "other"])

        of_tenant = SlotUse(name=f"{SLOT} tenant=a", used=1, waiting=1)
        of_type = SlotUse(name=SLOT, used=1, waiting=1)
        assert await store.stats(CountSlots()) == [of_type, of_tenant, SlotUse(name="type:other", used=1, waiting=0)]
        assert await store.stats(CountSlots(type=TYPE)) == [of_type, of_tenant]

    # Order

    async def test_the_next_one_is_the_one_of_best_priority_that_waits_longest(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S4: claim order is that of those who wait, too."""
        await limit(store)
        await starting(store, 9)
        lease = await claim_one(store)
        for number, priority, at in ((4, 100, 2), (3, 100, 1), (5, 50, 3), (2, 100, 2), (1, 255, 0)):
            await start(store, an_intent(number, priority=priority, delay=at))
        for _ in range(4):
            await claim(store)
            clock.advance(1)

        order = []
        for _ in range(5):
            await write(store, checkpoint_for(lease, succeed()))
            lease = await claim_one(store)
            order.append(lease.run.id)

        assert order == [an_id(number) for number in (5, 3, 2, 4, 1)]

    async def test_whoever_gets_its_slot_keeps_the_place_it_had(self, store: Store, clock: SettableClock) -> None:
        """S4: it is ready since when it could first have begun, so those who came later do not overtake it."""
        lease = await occupied(store)
        clock.advance(SECOND)
        await starting(store, 3, type="other")

        await write(store, checkpoint_for(lease, succeed()))

        assert (await the_run(store, 2)).ready_at == START
        assert await claimed_ids(store, types=[TYPE, "other"]) == [an_id(2), an_id(3)]

    async def test_a_newcomer_gets_no_slot_that_was_handed_on(self, store: Store) -> None:
        lease = await occupied(store)
        await write(store, checkpoint_for(lease, succeed()))
        await starting(store, 3, priority=0)

        assert await claimed_ids(store) == [an_id(2)]
        assert await parked_at(store, 3) == SLOT

    # Keys

    async def test_a_limit_per_key_counts_runs_with_the_same_value_of_a_tag(self, store: Store) -> None:
        await limit(store, None, per_key={"tenant": 1})
        for number, tags in enumerate([{"tenant": "a"}, {"tenant": "a"}, {"tenant": "b"}, {}, {}], 1):
            await start(store, an_intent(number, tags=tags))

        assert await claimed_ids(store) == [an_id(1), an_id(3), an_id(4), an_id(5)]
        assert await parked_at(store, 2) == f"{SLOT} tenant=a"
        assert (await the_run(store, 3)).slots == (f"{SLOT} tenant=b",)
        assert (await the_run(store, 4)).slots == ()

    async def test_a_run_needs_a_slot_of_each_limit_that_counts_it(self, store: Store) -> None:
        await limit(store, 2, per_key={"tenant": 1, "region": 1})
        for number, tags in enumerate(
            [
                {"tenant": "a", "region": "x"},
                {"tenant": "a", "region": "y"},
                {"tenant": "b", "region": "x"},
                {"tenant": "b", "region": "y"},
                {"tenant": "c", "region": "z"},
            ],
            1,
        ):
            await start(store, an_intent(number, tags=tags))

        assert await claimed_ids(store) == [an_id(1), an_id(4)]
        assert [await parked_at(store, number) for number in (2, 3, 5)] == [
            f"{SLOT} tenant=a",
            f"{SLOT} region=x",
            SLOT,
        ]
        assert (await the_run(store)).slots == (f"{SLOT} region=x", f"{SLOT} tenant=a", SLOT)

    async def test_whoever_lacks_another_slot_too_waits_for_that_and_holds_nobody_up(self, store: Store) -> None:
        await limit(store, 2, per_key={"tenant": 1, "region": 1})
        first, second, third = (
            {"tenant": "a", "region": "x"},
            {"tenant": "b", "region": "y"},
            {"tenant": "a", "region": "y"},
        )
        await start(store, *(an_intent(number, tags=tags) for number, tags in enumerate((first, second, third), 1)))
        await start(store, an_intent(4, tags={"tenant": "a", "region": "z"}))
        one, two = (await claim(store)).leases
        assert await parked_at(store, 3) == f"{SLOT} region=y"

        await write(store, checkpoint_for(one, succeed()))  # tenant a is free, region y is not

        assert await claimed_ids(store) == [an_id(4)]
        await write(store, checkpoint_for(two, succeed()))
        assert await parked_at(store, 3) == f"{SLOT} tenant=a"
        assert await claimed_ids(store) == []

    async def test_a_slot_of_the_type_goes_to_the_first_of_all_who_wait_for_it_whatever_their_keys(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, limits: or else one key could keep all others waiting."""
        await limit(store, 1, per_key={"tenant": 1})
        await start(store, an_intent(1, tags={"tenant": "a"}))
        (lease,) = (await claim(store)).leases
        for number, tenant in ((2, "b"), (3, "a"), (4, "a")):
            clock.advance(1)
            await start(store, an_intent(number, tags={"tenant": tenant}))
            assert await claimed_ids(store) == []

        await write(store, checkpoint_for(lease, succeed()))

        lease = await claim_one(store)
        assert lease.run.id == an_id(2)
        # One of the others waits for what all share; the last one would only wait for both.
        assert [await parked_at(store, number) for number in (3, 4)] == [SLOT, f"{SLOT} tenant=a"]
        await write(store, checkpoint_for(lease, succeed()))
        assert await claimed_ids(store) == [an_id(3)]

    async def test_whoever_stood_in_front_of_others_of_its_key_and_leaves_lets_the_next_one_do_so(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S5: no lost wake-up."""
        await limit(store, 1, per_key={"tenant": 1})
        await start(store, an_intent(1, tags={"tenant": "a"}))
        first = await claim_one(store)
        for number, tenant in ((2, "b"), (3, "a"), (4, "a")):
            clock.advance(1)
            await start(store, an_intent(number, tags={"tenant": tenant}))
            assert await claimed_ids(store) == []
        await write(store, checkpoint_for(first, succeed()))
        second = await claim_one(store)

        await store.apply(Cancel(run_id=an_id(3), id="c"))

        assert await parked_at(store, 4) == SLOT
        await write(store, checkpoint_for(second, succeed()))
        assert await claimed_ids(store) == [an_id(4)]

    async def test_values_of_tags_are_taken_literally(self, store: Store) -> None:
        await limit(store, None, per_key={"it's": 1})
        for number, value in enumerate(["a", "a ", "A", "%", "a b=c", 'say "hi"', "Ü\n"], 1):
            await start(store, an_intent(number, tags={"it's": value}))

        assert len(await claimed_ids(store)) == 7

    # Changing limits

    async def test_a_limit_that_is_raised_lets_the_next_ones_go(self, store: Store) -> None:
        await occupied(store)
        await starting(store, 3, 4)
        await claim(store)
        listening = HintRecorder(store)

        await limit(store, 3)

        await listening.until("ready", TYPE)
        listening.stop()
        assert await claimed_ids(store) == [an_id(2), an_id(3)]
        assert await parked_at(store, 4) == SLOT

    async def test_a_limit_that_is_lifted_lets_all_go(self, store: Store) -> None:
        await occupied(store)
        await starting(store, 3, 4)
        await claim(store)

        await limit(store, None)

        assert await claimed_ids(store) == [an_id(2), an_id(3), an_id(4)]
        assert [run.slots for run in [await the_run(store, number) for number in (1, 2)]] == [(), ()]
        assert await store.stats(CountSlots()) == []

    async def test_a_limit_that_is_lowered_counts_whoever_is_held(self, store: Store) -> None:
        await limit(store, 3)
        await starting(store, 1, 2, 3, 4, 5)
        leases = (await claim(store)).leases

        await limit(store, 1)

        await write(store, checkpoint_for(leases[0], succeed()))
        await write(store, checkpoint_for(leases[1], succeed()))
        assert await claimed_ids(store) == []
        await write(store, checkpoint_for(leases[2], succeed()))
        assert await claimed_ids(store) == [an_id(4)]

    async def test_a_limit_that_is_lowered_takes_slots_from_those_that_nobody_has_claimed(self, store: Store) -> None:
        """I9: a valid claim never exceeds the limit there is."""
        await limit(store, 2)
        await starting(store, 1, 2, 3, 4)
        leases = (await claim(store)).leases
        await store.checkpoint([checkpoint_for(lease, succeed()) for lease in leases])

        await limit(store, 1)

        assert [run.slots for run in [await the_run(store, number) for number in (3, 4)]] == [(SLOT,), ()]
        assert await claimed_ids(store) == [an_id(3)]
        assert await parked_at(store, 4) == SLOT

    async def test_a_limit_that_comes_late_counts_whoever_is_held_already(self, store: Store) -> None:
        lease = await held(store, 1, tags={"tenant": "a"})
        await starting(store, 2, 3)

        await limit(store, 1, per_key={"tenant": 2})

        assert (await the_run(store)).slots == (f"{SLOT} tenant=a", SLOT)
        assert await claimed_ids(store) == []
        await write(store, checkpoint_for(lease, succeed()))
        assert await is_next(store, 2)

    async def test_a_limit_does_not_count_runs_that_sleep(self, store: Store) -> None:
        await limit(store, 5)
        await starting(store, 1, 2)
        (one, _) = (await claim(store)).leases
        await write(store, checkpoint_for(one, Suspend(), waits=(for_message("go"),)))

        await limit(store, 1)

        assert await store.stats(CountSlots()) == [SlotUse(name=SLOT, used=1, waiting=0)]

    async def test_one_kind_of_limit_may_take_the_place_of_another(self, store: Store) -> None:
        await limit(store, 1)
        for number in (1, 2, 3, 4):
            await start(store, an_intent(number, tags={"tenant": "a" if number < 4 else "b"}))
        await claim(store)

        await limit(store, None, per_key={"tenant": 2})

        assert await claimed_ids(store) == [an_id(2), an_id(4)]
        assert await parked_at(store, 3) == f"{SLOT} tenant=a"

    async def test_a_change_that_concerns_no_limit_moves_nobody(self, store: Store) -> None:
        await occupied(store)
        before = await picture_of(store, 1, 2)

        await store.apply(
            ChangeTypes(changes=[TypeChange(name=TYPE, description="x", is_enabled=False, concurrency=1)])
        )

        assert await picture_of(store, 1, 2) == before

    async def test_a_type_that_is_switched_off_hands_its_slots_on_all_the_same(self, store: Store) -> None:
        lease = await occupied(store)
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, is_enabled=False)]))

        await write(store, checkpoint_for(lease, succeed()))

        assert (await the_run(store, 2)).slots == (SLOT,)
        assert await claimed_ids(store) == []
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, is_enabled=True)]))
        assert await claimed_ids(store) == [an_id(2)]

    # A limit of a type and one of siblings

    async def test_a_child_may_wait_for_its_siblings_first_and_then_for_its_type(self, store: Store) -> None:
        parent = await held(store, 1, type="parent")
        await limit(store)
        await start(store, an_intent(2, parent_id=an_id(1), parent_location="fan/2"), an_intent(4))
        await start(store, an_intent(3, parent_id=an_id(1), parent_location="fan/3", is_parked=True))
        two = await claim_one(store)
        await claim(store)
        assert (await parked_at(store, 3), await parked_at(store, 4)) == (f"{an_id(1)}/fan", SLOT)

        await write(store, checkpoint_for(two, succeed()))

        four = await claim_one(store)
        assert four.run.id == an_id(4)
        await claim(store)
        assert await parked_at(store, 3) == SLOT
        # This lets go of those that wait for siblings.
        await write(store, checkpoint_for(parent, ContinueAsNew(payload="{}")))
        assert await parked_at(store, 3) == SLOT
        await write(store, checkpoint_for(four, succeed()))
        assert await is_next(store, 3)
