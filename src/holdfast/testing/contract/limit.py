"""Contract of concurrency limits per type and per key: the number of held runs, and the next run in line."""

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
    """Return the name of the slot that a run is parked for."""
    details = await store.get(an_id(number))
    assert details is not None
    names = [wait.names for wait in details.waits if wait.kind is WaitKind.SLOT]
    return names[0][0] if names else None


async def occupied(store: Store) -> Lease:
    """Start two runs of a type with one slot. Return the lease of the first; the second is parked."""
    await limit(store)
    await starting(store, 1, 2)
    (lease,) = (await claim(store)).leases
    assert lease.run.id == an_id(1)
    assert await parked_at(store, 2) == SLOT
    return lease


async def is_next(store: Store, number: int = 2) -> bool:
    """Return True if a run has its slot and the next claim returns it."""
    run = await the_run(store, number)
    assert await store.stats(FindOrphans(limit=10)) == []
    return run.slots == (SLOT,) and run.ready_at is not None and await claimed_ids(store, limit=1) == [run.id]


class LimitContract(Contract):
    """A claim never exceeds a limit, and no run waits while a slot is free."""

    # Claiming and parking

    async def test_no_more_runs_are_claimed_than_a_limit_allows(self, store: Store) -> None:
        """I9: limits are never exceeded."""
        await limit(store, 2)
        await starting(store, 1, 2, 3, 4)

        assert await claimed_ids(store) == [an_id(1), an_id(2)]
        assert await claimed_ids(store, worker=OTHER_WORKER) == []
        assert [run.slots for run in [await the_run(store, number) for number in (1, 2, 3)]] == [(SLOT,), (SLOT,), ()]

    async def test_a_run_beyond_a_limit_is_parked_with_a_wait_for_its_slot(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, limits: a run that finds its limit reached is parked, with a wait of kind `slot`."""
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
        """SEMANTICS, limits: a claim never steps over parked runs, because it does not look at them."""
        await occupied(store)
        before = await picture_of(store, 2)

        claimed = await claim(store, worker=OTHER_WORKER)

        assert (claimed.leases, claimed.next_ready_at) == ((), START + LEASE)
        assert await picture_of(store, 2) == before

    async def test_a_limit_does_not_affect_other_types(self, store: Store) -> None:
        await limit(store)
        await starting(store, 1, 2)
        await starting(store, 3, 4, type="other")

        assert await claimed_ids(store, types=[TYPE, "other"]) == [an_id(1), an_id(3), an_id(4)]

    async def test_a_claim_that_parks_many_runs_says_that_there_are_more(self, store: Store) -> None:
        """A claim parks a bounded number of runs, so that others get a turn. The worker claims again at once."""
        await limit(store)
        await starting(store, *range(1, PARKED_AT_ONCE + 4))
        await starting(store, PARKED_AT_ONCE + 4, type="other", priority=200)

        first = await claim(store, types=[TYPE, "other"])
        second = await claim(store, types=[TYPE, "other"])

        assert ([lease.run.id for lease in first.leases], first.has_more) == ([an_id(1)], True)
        assert ([lease.run.id for lease in second.leases], second.has_more) == ([an_id(PARKED_AT_ONCE + 4)], False)
        assert [one.waiting for one in await store.stats(CountSlots())] == [PARKED_AT_ONCE + 2]

    async def test_a_start_leases_no_run_of_a_type_with_limits(self, store: Store) -> None:
        """DESIGN, run ahead: a start leases its run in the same commit only if the type has no limit."""
        await limit(store, 5)
        request = LeaseRequest(worker=WORKER, claim_id="c", lease=LEASE, python=PYTHON)

        created = await store.create([an_intent(1), an_intent(2, type="other")], request)

        assert [run.lease is not None for run in created.runs] == [False, True]
        assert await claimed_ids(store) == [an_id(1)]

    async def test_slots_in_use_and_waiting_runs_are_counted(self, store: Store) -> None:
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

    async def test_a_free_slot_goes_by_priority_and_then_to_the_longest_wait(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S4: parked runs get slots in claim order."""
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

    async def test_a_run_that_gets_its_slot_keeps_its_place_in_the_claim_order(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S4: `ready_at` stays at the time when the run could first have begun, so later runs do not overtake it."""
        lease = await occupied(store)
        clock.advance(SECOND)
        await starting(store, 3, type="other")

        await write(store, checkpoint_for(lease, succeed()))

        assert (await the_run(store, 2)).ready_at == START
        assert await claimed_ids(store, types=[TYPE, "other"]) == [an_id(2), an_id(3)]

    async def test_a_new_run_does_not_take_a_slot_that_was_passed_on(self, store: Store) -> None:
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

    async def test_a_run_that_lacks_a_second_slot_waits_for_it_without_blocking_others(self, store: Store) -> None:
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

        await write(store, checkpoint_for(one, succeed()))  # frees tenant a, but region y stays taken

        assert await claimed_ids(store) == [an_id(4)]
        await write(store, checkpoint_for(two, succeed()))
        assert await parked_at(store, 3) == f"{SLOT} tenant=a"
        assert await claimed_ids(store) == []

    async def test_a_slot_of_the_type_goes_to_the_first_waiting_run_of_any_key(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, limits: otherwise one key could keep all others waiting."""
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
        # Only the first run of tenant a waits for the slot of the type. The second would need both slots.
        assert [await parked_at(store, number) for number in (3, 4)] == [SLOT, f"{SLOT} tenant=a"]
        await write(store, checkpoint_for(lease, succeed()))
        assert await claimed_ids(store) == [an_id(3)]

    async def test_the_next_run_of_a_key_takes_the_place_of_a_cancelled_first_waiter(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S5: no wake-up is lost."""
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

    async def test_a_raised_limit_admits_the_next_runs(self, store: Store) -> None:
        await occupied(store)
        await starting(store, 3, 4)
        await claim(store)
        listening = HintRecorder(store)

        await limit(store, 3)

        await listening.until("ready", TYPE)
        listening.stop()
        assert await claimed_ids(store) == [an_id(2), an_id(3)]
        assert await parked_at(store, 4) == SLOT

    async def test_removing_a_limit_admits_all_runs(self, store: Store) -> None:
        await occupied(store)
        await starting(store, 3, 4)
        await claim(store)

        await limit(store, None)

        assert await claimed_ids(store) == [an_id(2), an_id(3), an_id(4)]
        assert [run.slots for run in [await the_run(store, number) for number in (1, 2)]] == [(), ()]
        assert await store.stats(CountSlots()) == []

    async def test_a_lowered_limit_counts_runs_that_are_held(self, store: Store) -> None:
        await limit(store, 3)
        await starting(store, 1, 2, 3, 4, 5)
        leases = (await claim(store)).leases

        await limit(store, 1)

        await write(store, checkpoint_for(leases[0], succeed()))
        await write(store, checkpoint_for(leases[1], succeed()))
        assert await claimed_ids(store) == []
        await write(store, checkpoint_for(leases[2], succeed()))
        assert await claimed_ids(store) == [an_id(4)]

    async def test_a_lowered_limit_takes_slots_from_runs_that_are_not_claimed(self, store: Store) -> None:
        """I9: a valid claim never exceeds the current limit."""
        await limit(store, 2)
        await starting(store, 1, 2, 3, 4)
        leases = (await claim(store)).leases
        await store.checkpoint([checkpoint_for(lease, succeed()) for lease in leases])

        await limit(store, 1)

        assert [run.slots for run in [await the_run(store, number) for number in (3, 4)]] == [(SLOT,), ()]
        assert await claimed_ids(store) == [an_id(3)]
        assert await parked_at(store, 4) == SLOT

    async def test_a_new_limit_counts_runs_that_are_already_held(self, store: Store) -> None:
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

    async def test_a_limit_per_key_may_replace_a_limit_per_type(self, store: Store) -> None:
        await limit(store, 1)
        for number in (1, 2, 3, 4):
            await start(store, an_intent(number, tags={"tenant": "a" if number < 4 else "b"}))
        await claim(store)

        await limit(store, None, per_key={"tenant": 2})

        assert await claimed_ids(store) == [an_id(2), an_id(4)]
        assert await parked_at(store, 3) == f"{SLOT} tenant=a"

    async def test_a_change_without_a_new_limit_moves_no_run(self, store: Store) -> None:
        await occupied(store)
        before = await picture_of(store, 1, 2)

        await store.apply(
            ChangeTypes(changes=[TypeChange(name=TYPE, description="x", is_enabled=False, concurrency=1)])
        )

        assert await picture_of(store, 1, 2) == before

    async def test_a_disabled_type_still_passes_its_slots_on(self, store: Store) -> None:
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
        # A new generation releases children that wait for siblings, but not those that wait for their type.
        await write(store, checkpoint_for(parent, ContinueAsNew(payload="{}")))
        assert await parked_at(store, 3) == SLOT
        await write(store, checkpoint_for(four, succeed()))
        assert await is_next(store, 3)
