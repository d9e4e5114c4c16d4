"""Contract of claims: `claim`."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.checkpoint import Hold, Release, Suspend
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import SendMessages
from holdfast.core.model import Lease
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    HOSTILE,
    LEASE,
    OTHER_WORKER,
    PYTHON,
    TYPE,
    WORKER,
    a_message,
    a_retry,
    a_step,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim,
    claim_one,
    claimed_ids,
    ended,
    facts_of,
    for_message,
    for_time,
    held,
    picture_of,
    start,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock


class ClaimContract(Contract):
    """A claim gives ready runs to one worker, in order. If that worker is lost, another can claim them."""

    async def test_a_claimed_run_belongs_to_its_claimer_for_the_length_of_the_lease(self, store: Store) -> None:
        """T5: `ready_at` of a held run is the end of its lease. T8: the token grows with each claim."""
        await start(store, an_intent(1))

        claimed = await claim(store, id="claim-1")

        assert claimed.now == START
        (lease,) = claimed.leases
        run = lease.run
        assert run == await the_run(store)
        assert (run.state, run.worker, run.claim_id, run.token) == (RunState.RUNNING, WORKER, "claim-1", 1)
        assert (run.ready_at, run.first_claimed_at, run.updated_at) == (START + LEASE, START, START)
        assert (run.python, run.attempt, run.crashes) == (PYTHON, 1, 0)
        assert await facts_of(store) == ["claimed"]

    async def test_history_and_arrivals_come_with_the_lease(self, store: Store) -> None:
        """DESIGN, the walk: history and arrivals come back in the same round trip."""
        lease = await held(store)
        entries = (a_step("b", 1), a_step("a", 2), a_retry("z"))
        await write(store, checkpoint_for(lease, Release(), entries=tuple(reversed(entries))))
        await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m2", payload="2")]))

        again = await claim_one(store)

        assert again.entries == entries
        assert [(arrival.number, arrival.ref, arrival.payload) for arrival in again.arrivals] == [
            (1, "m1", "1"),
            (2, "m2", "2"),
        ]
        assert again.run.arrivals == 2

    # Types

    async def test_a_claim_matches_types_exactly(self, store: Store) -> None:
        """S8, the port: types are exact names, neither prefixes nor patterns."""
        types = ["shop", "shop.order", "shop.order.v1", "shop.orders", "Shop.order", "shop_order", "shop%"]
        await start(store, *(an_intent(number, type=type) for number, type in enumerate(types)))

        for number, type in enumerate(types):
            assert await claimed_ids(store, types=[type]) == [an_id(number)]

    async def test_types_are_taken_literally(self, store: Store) -> None:
        """S8: no character of a type has a special meaning to the store."""
        await start(store, *(an_intent(number, type=type) for number, type in enumerate(HOSTILE)))

        assert await claimed_ids(store, types=["100", "it", "%", "_", "*", "a*"]) == []
        for number, type in enumerate(HOSTILE):
            assert await claimed_ids(store, types=[type]) == [an_id(number)]

    async def test_a_claim_without_types_returns_no_runs(self, store: Store) -> None:
        """The port: a claim returns only runs of the types that it names."""
        await start(store, an_intent(1))

        claimed = await claim(store, types=[])

        assert (claimed.leases, claimed.next_ready_at) == ((), None)

    # Order

    async def test_order_is_priority_then_ready_time_then_id(self, store: Store, clock: SettableClock) -> None:
        """S4: claim order."""
        wanted = [(6, 0, 9), (5, 100, 1), (2, 100, 2), (4, 100, 2), (1, 255, 0), (3, 255, 1)]
        await start(store, *(an_intent(number, priority=priority, delay=at) for number, priority, at in sorted(wanted)))
        clock.advance(9)

        assert await claimed_ids(store) == [an_id(number) for number, _, _ in wanted]

    async def test_order_does_not_depend_on_the_order_of_types(self, store: Store) -> None:
        """S4: one order applies to all types of the claim."""
        await start(
            store,
            an_intent(1, type="a", priority=3),
            an_intent(2, type="b", priority=2),
            an_intent(3, type="a", priority=1),
            an_intent(4, type="c", priority=2),
        )

        assert await claimed_ids(store, types=["a", "c", "b"]) == [an_id(3), an_id(2), an_id(4), an_id(1)]

    async def test_a_run_with_an_expired_lease_is_claimed_in_the_same_order(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S4, T5: a run with an expired lease is a ready run like any other."""
        await held(store, 1, priority=5)
        clock.advance(LEASE)
        await start(store, an_intent(2, priority=4), an_intent(3, priority=5), an_intent(4, priority=6))

        assert await claimed_ids(store, worker=OTHER_WORKER) == [an_id(number) for number in (2, 1, 3, 4)]

    async def test_a_claim_returns_the_first_runs_up_to_its_limit(self, store: Store) -> None:
        """S4: the limit takes the first runs of the order."""
        await start(store, *(an_intent(number) for number in range(5)))

        assert await claimed_ids(store, limit=2) == [an_id(0), an_id(1)]
        assert await claimed_ids(store, limit=10) == [an_id(2), an_id(3), an_id(4)]

    async def test_two_claimers_never_share_a_run(self, store: Store) -> None:
        """S4: also under concurrency."""
        await start(store, *(an_intent(number) for number in range(40)))

        answers = await asyncio.gather(*(claim(store, worker=f"w{number}", limit=7) for number in range(8)))

        won = [lease.run.id for answer in answers for lease in answer.leases]
        assert sorted(won) == [an_id(number) for number in range(40)]

    # Runs that are not ready

    async def test_held_suspended_blocked_and_ended_runs_are_not_claimed(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T5: `ready_at` of such a run is null or in the future."""
        await suspended(store, 1, for_message("go"))
        await suspended(store, 2, for_time(START + DAY))
        await write(store, checkpoint_for(await held(store, 3), block()))
        await write(store, checkpoint_for(await held(store, 4), block(retry_at=START + DAY)))
        await ended(store, 5)
        await held(store, 6)

        clock.advance(LEASE - 1)
        assert await claimed_ids(store, worker=OTHER_WORKER) == []

    async def test_a_deadline_or_a_retry_time_makes_a_run_ready(self, store: Store, clock: SettableClock) -> None:
        """T5: a suspended run is ready at its earliest deadline, a blocked run at its next try."""
        await suspended(store, 1, for_time(START + 5 * SECOND), for_message("go", deadline=START + 3 * SECOND))
        await write(store, checkpoint_for(await held(store, 2), block(retry_at=START + 4 * SECOND)))

        clock.advance(3 * SECOND - 1)
        assert await claimed_ids(store) == []
        clock.advance(1)
        assert await claimed_ids(store) == [an_id(1)]
        clock.advance(SECOND)
        (lease,) = (await claim(store)).leases
        assert (lease.run.id, lease.run.state, lease.run.attempt, lease.run.crashes) == (
            an_id(2),
            RunState.RUNNING,
            2,
            0,
        )

    # The time of the next claim

    async def test_a_claim_says_when_the_next_run_becomes_ready(self, store: Store) -> None:
        """The port: the answer says when the next such run becomes ready."""
        await start(store, an_intent(1, delay=9 * SECOND), an_intent(2, type="other", delay=SECOND))
        await suspended(store, 3, for_time(START + 5 * SECOND))
        await suspended(store, 4, for_message("go"))

        assert (await claim(store)).next_ready_at == START + 5 * SECOND
        assert (await claim(store, types=["other", TYPE])).next_ready_at == START + SECOND
        assert (await claim(store, types=["third"])).next_ready_at is None

    async def test_a_claim_that_reaches_its_limit_says_that_more_runs_are_ready(self, store: Store) -> None:
        """The port: if the limit leaves ready runs behind, the answer says that a run is ready now."""
        await start(store, an_intent(1), an_intent(2))

        next_ready_at = (await claim(store, limit=1)).next_ready_at

        assert next_ready_at is not None
        assert next_ready_at <= START

    async def test_a_claim_says_when_the_lease_of_another_worker_ends(self, store: Store) -> None:
        """T5: a held run becomes ready when its lease ends. A worker need not wait for its own leases."""
        await held(store, 1, worker=WORKER)

        assert (await claim(store, worker=WORKER)).next_ready_at is None
        assert (await claim(store, worker=OTHER_WORKER)).next_ready_at == START + LEASE

    # Crashes

    async def test_an_expired_lease_goes_to_another_worker_and_counts_a_crash(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T5: a claim that finds `worker` set counts a crash. S7: it succeeds at the end of the lease, not before."""
        await held(store)
        clock.advance(LEASE - 1)
        assert await claimed_ids(store, worker=OTHER_WORKER) == []
        clock.advance(1)

        run = (await claim_one(store, worker=OTHER_WORKER)).run

        assert (run.worker, run.token, run.state) == (OTHER_WORKER, 2, RunState.RUNNING)
        assert (run.crashes, run.attempt) == (1, 2)
        assert (run.first_claimed_at, run.ready_at) == (START, START + 2 * LEASE)
        (_, fact) = await store.audit(an_id(1))
        assert fact.data == {"worker": OTHER_WORKER, "token": 2, "crashes": 1, "lost": WORKER}

    async def test_a_later_claim_keeps_the_python_and_the_instant_of_the_first(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T6: the instant of the first claim is time zero."""
        await held(store)
        clock.advance(LEASE)

        (lease,) = (await claim(store, python="3.14")).leases

        assert (lease.run.first_claimed_at, lease.run.python) == (START, PYTHON)

    async def test_suspending_or_releasing_counts_no_crash(self, store: Store) -> None:
        """T5: suspend, release and end clear `worker`, so the next claim counts no crash."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, Release()))
        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))
        await store.apply(SendMessages(messages=[a_message()]))

        run = (await claim_one(store)).run

        assert (run.crashes, run.attempt, run.token) == (0, 1, 3)

    async def test_crashes_add_up_until_they_are_charged(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, steps: the next checkpoint charges the crashes to the open steps and resets the count to 0."""
        await held(store)
        clock.advance(LEASE)
        await claim_one(store)
        clock.advance(LEASE)
        lease = await claim_one(store)
        assert lease.run.crashes == 2

        await write(store, checkpoint_for(lease, Hold()))
        assert (await the_run(store)).crashes == 2
        await write(store, checkpoint_for(lease, Hold(), charged=True))
        assert (await the_run(store)).crashes == 0

    @pytest.mark.parametrize("charged", [False, True])
    async def test_a_release_resets_the_crashes_only_if_it_charges_them(
        self,
        store: Store,
        clock: SettableClock,
        charged: bool,  # noqa: FBT001
    ) -> None:
        """SEMANTICS, steps: a checkpoint that charges the crashes resets the count to 0. A shutdown is not charged."""
        await held(store)
        clock.advance(LEASE)
        lease = await claim_one(store)

        await write(store, checkpoint_for(lease, Release(), charged=charged))

        assert (await the_run(store)).crashes == (0 if charged else 1)

    async def test_a_suspension_resets_the_crashes(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, steps: only crashes without such a checkpoint between them add up."""
        await held(store)
        clock.advance(LEASE)

        await write(store, checkpoint_for(await claim_one(store), Suspend(), waits=(for_message("go"),)))

        assert (await the_run(store)).crashes == 0

    async def test_a_run_that_crashed_twice_goes_only_to_a_worker_without_another_such_run(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, steps: a run that has crashed twice is claimed only by a worker that holds no other such run."""
        await self._crash_twice(store, clock, 1, 2)
        await start(store, an_intent(3))

        assert await claimed_ids(store, may_suspect=False) == [an_id(3)]
        assert await claimed_ids(store, may_suspect=True) == [an_id(1)]
        assert await claimed_ids(store, worker=OTHER_WORKER) == [an_id(2)]

    async def test_runs_that_crashed_twice_do_not_block_the_claim_of_others(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, steps: the limit counts runs that the claim returns, not suspects that it skips."""
        await self._crash_twice(store, clock, 1, 2, 3)
        await start(store, an_intent(4), an_intent(5), an_intent(6))

        assert await claimed_ids(store, limit=3) == [an_id(1), an_id(4), an_id(5)]

    async def _crash_twice(self, store: Store, clock: SettableClock, *numbers: int) -> None:
        """Create runs whose next claim counts their second crash."""
        for number in numbers:
            await held(store, number)
        clock.advance(LEASE)
        for _ in numbers:
            assert len((await claim(store, limit=1)).leases) == 1
        clock.advance(LEASE)

    # Repeats

    async def test_a_repeated_claim_returns_the_same_leases(self, store: Store) -> None:
        """S6, T8: a repeated claim with the same claim id gives the same leases."""
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, Release(), entries=(a_step(),)))
        await start(store, an_intent(2), an_intent(3))
        first = await claim(store, id="claim-1", limit=2)
        before = await picture_of(store, 1, 2, 3)

        again = await claim(store, id="claim-1", limit=2, is_repeat=True)

        assert sorted(again.leases, key=_id) == sorted(first.leases, key=_id)
        assert await picture_of(store, 1, 2, 3) == before

    async def test_a_repeated_claim_claims_if_the_first_call_never_arrived(self, store: Store) -> None:
        """S6: it does not matter if the first call or its answer was lost."""
        await start(store, an_intent(1))

        claimed = await claim(store, id="claim-1", is_repeat=True)

        assert [lease.run.token for lease in claimed.leases] == [1]

    async def test_a_repeated_claim_leaves_out_runs_that_were_lost_since(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T8: a lease is current only while its run is held under it."""
        await start(store, an_intent(1), an_intent(2))
        first = await claim(store, id="claim-1")
        clock.advance(LEASE)
        taken = (await claim(store, worker=OTHER_WORKER, limit=1)).leases[0]

        again = await claim(store, id="claim-1", is_repeat=True)

        assert len(first.leases) == 2
        assert [lease.run.id for lease in again.leases] == [
            lease.run.id for lease in first.leases if lease.run.id != taken.run.id
        ]

    # Audit

    async def test_the_audit_keeps_the_last_hundred_routine_facts(self, store: Store) -> None:
        """SEMANTICS, seeing: of claims, suspensions and wake-ups the last 100 per run are kept; of other facts, all."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_retry(),)))
        for number in range(40):
            await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))
            await store.apply(SendMessages(messages=[a_message(id=f"m{number}")]))
            lease = await claim_one(store)

        facts = await facts_of(store)

        assert len(facts) == 101
        assert facts[0] == "retried"
        assert facts[1:] == (["claimed", "suspended", "woken"] * 41)[:121][-100:]


def _id(lease: Lease) -> str:
    return lease.run.id
