"""Contract of rate limits: the number of runs of a type that begin per period."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import ContinueAsNew, LeaseRequest, Release, Suspend
from holdfast.core.clock import SECOND, Micros
from holdfast.core.commands import Cancel, ChangeTypes, Pause, Resume, Rewind, SendMessages, Wake
from holdfast.core.model import Rate, TypeChange
from holdfast.core.ports import Store
from holdfast.core.questions import CountSlots, FindOrphans, SlotUse
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    PYTHON,
    TYPE,
    WORKER,
    a_message,
    a_step,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    claim_one,
    claimed_ids,
    facts_of,
    for_message,
    picture_of,
    start,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock
from holdfast.testing.contract.limit import SLOT, parked_at, starting

RATE = f"rate:{TYPE}"
PERIOD: Micros = SECOND


async def set_rate(store: Store, count: int | None = 1, *, period: Micros = PERIOD, **change: object) -> None:
    rate = None if count is None else Rate(count=count, period=period)
    await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, rate=rate, **change)]))  # type: ignore[arg-type]


class RateContract(Contract):
    """No period sees more runs begin than the rate allows, and no run waits longer than necessary."""

    async def test_no_more_runs_begin_than_a_rate_allows(self, store: Store, clock: SettableClock) -> None:
        """I9: limits are never exceeded."""
        await set_rate(store, 2)
        await starting(store, 1, 2, 3, 4, 5)

        assert await claimed_ids(store) == [an_id(1), an_id(2)]
        clock.advance(PERIOD - 1)
        assert await claimed_ids(store) == []
        clock.advance(1)
        begun = await claimed_ids(store)
        begun += await claimed_ids(store)
        assert begun == [an_id(3), an_id(4)]
        assert await claimed_ids(store) == []

    async def test_only_the_first_run_that_waits_for_a_rate_has_a_ready_time(self, store: Store) -> None:
        """T5: the claim says when the first of them may begin, so that an idle worker sleeps until then."""
        await set_rate(store)
        await starting(store, 1, 2, 3)

        claimed = await claim(store)

        assert claimed.next_ready_at == START + PERIOD
        runs = [await the_run(store, number) for number in (2, 3)]
        assert [run.ready_at for run in runs] == [START + PERIOD, None]
        assert [await parked_at(store, number) for number in (2, 3)] == [RATE, RATE]
        assert [await facts_of(store, number) for number in (2, 3)] == [["parked"], ["parked"]]
        assert await store.stats(FindOrphans(limit=10)) == []

    async def test_runs_that_may_begin_together_are_ready_together(self, store: Store, clock: SettableClock) -> None:
        """The first claim gets one run and admits the others. The next claim gets these."""
        await set_rate(store, 3)
        await starting(store, *range(1, 9))
        await claim(store)
        clock.advance(PERIOD)

        first = await claim(store)

        assert [lease.run.id for lease in first.leases] == [an_id(4)]
        assert first.has_more
        assert (await the_run(store, 5)).slots == (RATE,)
        assert await store.stats(CountSlots()) == [SlotUse(name=RATE, used=2, waiting=2)]
        assert await claimed_ids(store) == [an_id(5), an_id(6)]
        assert (await the_run(store, 7)).ready_at == START + 2 * PERIOD

    async def test_runs_that_were_not_claimed_in_time_do_not_begin_all_at_once(
        self, store: Store, clock: SettableClock
    ) -> None:
        """I9: the time of the claim counts, not the time at which a run was allowed to begin."""
        await set_rate(store, 2)
        await starting(store, *range(1, 7))
        await claim(store)
        clock.advance(5 * PERIOD)

        begun = await claimed_ids(store)
        begun += await claimed_ids(store)
        clock.advance(PERIOD - 1)
        begun += await claimed_ids(store)

        assert begun == [an_id(3), an_id(4)]

    async def test_an_admitted_run_counts_toward_the_rate_from_its_claim(
        self, store: Store, clock: SettableClock
    ) -> None:
        await set_rate(store, 2)
        await starting(store, *range(1, 7))
        await claim(store)
        clock.advance(PERIOD)
        assert await claimed_ids(store) == [an_id(3)]  # this claim also admits 4
        clock.advance(PERIOD // 2)
        assert await claimed_ids(store) == [an_id(4)]

        clock.advance(PERIOD // 2)

        assert await claimed_ids(store) == [an_id(5)]
        assert await claimed_ids(store) == []
        clock.advance(PERIOD // 2)
        assert await claimed_ids(store) == [an_id(6)]

    async def test_priority_decides_among_runs_that_wait_for_a_rate(self, store: Store, clock: SettableClock) -> None:
        """S4: claim order holds among waiting runs."""
        await set_rate(store)
        await starting(store, 1, 2)
        await claim(store)
        await starting(store, 3, priority=0)
        await claim(store)
        clock.advance(PERIOD)

        order = await claimed_ids(store)
        clock.advance(PERIOD)
        order += await claimed_ids(store)

        assert order == [an_id(3), an_id(2)]

    async def test_a_new_run_does_not_overtake_runs_that_wait_for_a_rate(
        self, store: Store, clock: SettableClock
    ) -> None:
        await set_rate(store)
        await starting(store, 2, 3)
        await claim(store)
        clock.advance(PERIOD - 1)
        await starting(store, 1)
        clock.advance(1)

        assert await claimed_ids(store) == [an_id(3)]
        assert await parked_at(store, 1) == RATE

    async def test_only_first_claims_count_toward_a_rate(self, store: Store, clock: SettableClock) -> None:
        """A run that is woken, released, rewound, continued as new or taken over has begun before."""
        await set_rate(store, period=2 * LEASE)
        await starting(store, 1)
        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, Release(), entries=(a_step(),)))
        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))
        await store.apply(SendMessages(messages=[a_message()]))
        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, Release()))
        await store.apply(Rewind(run_id=an_id(1), id="r", location="charge"))
        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, ContinueAsNew(payload="{}")))
        lease = await claim_one(store)
        clock.advance(LEASE)
        assert (await claim_one(store, worker=OTHER_WORKER)).run.crashes == 1

        clock.advance(LEASE - 1)
        await starting(store, 2)
        assert await claimed_ids(store) == []
        clock.advance(1)

        assert an_id(2) in await claimed_ids(store)

    async def test_a_start_leases_no_run_of_a_type_with_a_rate(self, store: Store) -> None:
        await set_rate(store)
        request = LeaseRequest(worker=WORKER, claim_id="c", lease=LEASE, python=PYTHON)

        created = await store.create([an_intent(1)], request)

        assert created.runs[0].lease is None

    @pytest.mark.parametrize("how", ["pause", "cancel"])
    async def test_a_paused_or_cancelled_waiter_leaves_its_turn_to_the_next_run(
        self, store: Store, clock: SettableClock, how: str
    ) -> None:
        """PROMISES 8: no silent stop."""
        await set_rate(store)
        await starting(store, 1, 2, 3)
        await claim(store)

        await store.apply(Pause(run_id=an_id(2), id="p") if how == "pause" else Cancel(run_id=an_id(2), id="c"))

        assert (await the_run(store, 3)).ready_at == START + PERIOD
        clock.advance(PERIOD)
        assert await claimed_ids(store) == [an_id(3)]

    @pytest.mark.parametrize("how", ["pause", "cancel"])
    async def test_an_admitted_run_that_is_paused_or_cancelled_leaves_its_turn_to_the_next(
        self, store: Store, clock: SettableClock, how: str
    ) -> None:
        await set_rate(store, 2)
        await starting(store, 1, 2, 3, 4, 5)
        await claim(store)
        clock.advance(PERIOD)
        assert await claimed_ids(store) == [an_id(3)]
        assert (await the_run(store, 4)).slots == (RATE,)

        await store.apply(Pause(run_id=an_id(4), id="p") if how == "pause" else Cancel(run_id=an_id(4), id="c"))

        assert await claimed_ids(store) == [an_id(5)]

    async def test_wake_does_nothing_to_a_run_that_waits_for_a_rate(self, store: Store) -> None:
        await set_rate(store)
        await starting(store, 1, 2)
        await claim(store)
        before = await picture_of(store, 2)

        assert not await store.apply(Wake(run_id=an_id(2), id="w"))

        assert await picture_of(store, 2) == before

    async def test_a_resumed_run_waits_for_the_rate_again(self, store: Store, clock: SettableClock) -> None:
        await set_rate(store)
        await starting(store, 1, 2)
        await claim(store)
        await store.apply(Pause(run_id=an_id(2), id="p"))

        await store.apply(Resume(run_id=an_id(2), id="r"))

        assert (await claim(store)).next_ready_at == START + PERIOD
        assert (await the_run(store, 2)).ready_at == START + PERIOD
        clock.advance(PERIOD)
        assert an_id(2) in await claimed_ids(store)

    # Changing it

    async def test_a_raised_rate_admits_more_runs_and_counts_those_that_have_begun(self, store: Store) -> None:
        await set_rate(store)
        await starting(store, *range(1, 6))
        await claim(store)

        await set_rate(store, 3)

        assert await claimed_ids(store) == [an_id(2), an_id(3)]
        assert (await the_run(store, 4)).ready_at == START + PERIOD

    async def test_a_lowered_rate_takes_turns_back_from_runs_that_are_not_claimed(
        self, store: Store, clock: SettableClock
    ) -> None:
        await set_rate(store, 3)
        await starting(store, *range(1, 8))
        await claim(store)
        clock.advance(PERIOD)
        assert await claimed_ids(store) == [an_id(4)]  # this claim also admits two more

        await set_rate(store, 2)

        assert [run.slots for run in [await the_run(store, number) for number in (5, 6)]] == [(RATE,), ()]
        assert await claimed_ids(store) == [an_id(5)]
        assert await claimed_ids(store) == []

    async def test_removing_a_rate_admits_all_runs(self, store: Store) -> None:
        await set_rate(store)
        await starting(store, 1, 2, 3)
        await claim(store)

        await set_rate(store, None)

        assert await claimed_ids(store) == [an_id(2), an_id(3)]

    async def test_a_rate_that_is_removed_and_set_again_starts_from_zero(self, store: Store) -> None:
        await set_rate(store)
        await starting(store, 1, 2)
        await claim(store)

        await set_rate(store, None)
        await set_rate(store)

        assert await claimed_ids(store) == [an_id(2)]

    # With slots

    async def test_a_run_needs_both_its_turn_and_a_slot(self, store: Store, clock: SettableClock) -> None:
        await set_rate(store, 2, concurrency=1)
        await starting(store, 1, 2, 3, 4)
        lease = await claim_one(store)
        await claim(store)
        assert [await parked_at(store, number) for number in (2, 3)] == [RATE, RATE]

        await write(store, checkpoint_for(lease, succeed()))
        lease = await claim_one(store)
        assert (lease.run.id, lease.run.slots) == (an_id(2), (SLOT,))
        await write(store, checkpoint_for(lease, succeed()))

        assert await claimed_ids(store) == []  # a slot is free, but the rate does not allow it yet
        assert (await the_run(store, 3)).ready_at == START + PERIOD
        clock.advance(PERIOD)
        lease = await claim_one(store)
        assert lease.run.id == an_id(3)
        assert await claimed_ids(store) == []  # the rate allows it, but no slot is free
        assert (await the_run(store, 4)).ready_at is None
        await write(store, checkpoint_for(lease, succeed()))
        assert await claimed_ids(store) == [an_id(4)]

    async def test_runs_that_waited_for_slots_do_not_begin_all_at_once(
        self, store: Store, clock: SettableClock
    ) -> None:
        """I9: time without a free slot does not accumulate."""
        await set_rate(store, 1, concurrency=1)
        await starting(store, 1, 2, 3)
        lease = await claim_one(store)
        await claim(store)
        clock.advance(10 * PERIOD)
        await write(store, checkpoint_for(lease, succeed()))

        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, succeed()))

        assert lease.run.id == an_id(2)
        assert await claimed_ids(store) == []

    async def test_a_woken_run_overtakes_runs_that_may_not_begin_yet(self, store: Store) -> None:
        await set_rate(store, 1, concurrency=1)
        await starting(store, 1, 2, 3)
        lease = await claim_one(store)
        await claim(store)
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))
        assert await claimed_ids(store) == []

        await store.apply(SendMessages(messages=[a_message()]))

        assert await claimed_ids(store) == [an_id(1)]

    async def test_a_run_without_a_slot_of_its_key_leaves_its_turn_to_the_next(
        self, store: Store, clock: SettableClock
    ) -> None:
        await set_rate(store, 1, per_key={"tenant": 1})
        tags = [{"tenant": "a"}, {"tenant": "b"}, {"tenant": "b"}, {"tenant": "c"}]
        await start(store, *(an_intent(number, tags=one) for number, one in enumerate(tags, 1)))
        await claim(store)
        assert [await parked_at(store, number) for number in (2, 3, 4)] == [RATE, RATE, RATE]
        clock.advance(PERIOD)
        two = await claim_one(store)
        clock.advance(PERIOD)

        begun = await claimed_ids(store, worker=OTHER_WORKER)
        begun += await claimed_ids(store, worker=OTHER_WORKER)

        assert an_id(4) in begun
        assert await parked_at(store, 3) == f"{SLOT} tenant=b"
        assert two.run.id == an_id(2)
        assert (await the_run(store, 3)).state is RunState.PENDING
