"""Contract of the claim order: which runs a worker gets first, and that no rank starves."""

from __future__ import annotations

from typing import Any

from holdfast.core.checkpoint import Release
from holdfast.core.claim_order import BEGUN, CHILD, NEW, SHARE, Shares, after_claims, counted, next_rank, rank_before
from holdfast.core.clock import SECOND
from holdfast.core.commands import ChangeTypes, SendMessages
from holdfast.core.model import Lease, Rate, TypeChange
from holdfast.core.ports import Store
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    TYPE,
    a_message,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    claimed_ids,
    for_message,
    held,
    start,
    succeed,
    suspended,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import SettableClock

PARENT = 900


async def begun(store: Store, *numbers: int, **options: Any) -> None:
    """Create runs that a worker has claimed and released."""
    for number in numbers:
        lease = await held(store, number, **options)
        await write(store, checkpoint_for(lease, Release()))


async def children(store: Store, *numbers: int, **options: Any) -> None:
    """Create children that no worker has claimed yet."""
    await start(store, *(an_intent(number, parent_id=an_id(PARENT), **options) for number in numbers))


async def new(store: Store, *numbers: int, **options: Any) -> None:
    await start(store, *(an_intent(number, **options) for number in numbers))


def ids(*numbers: int) -> list[str]:
    return [an_id(number) for number in numbers]


def sequence(counts: dict[int, int], shares: Shares | None = None) -> list[int]:
    """Return the expected ranks in claim order, given the number of ready runs per rank."""
    shares, left, order = shares or Shares(), dict(counts), []
    while left := {rank: count for rank, count in left.items() if count}:
        rank = next_rank(shares, left)
        shares = counted(shares, rank)
        left[rank] -= 1
        order.append(rank)
    return order


async def claimed_kinds(store: Store, size: int, shares: Shares | None = None) -> list[int]:
    """Claim all runs in batches of `size`, as a worker that keeps count, and return their ranks in order."""
    shares, kinds = shares or Shares(), []
    while leases := (await claim(store, limit=size, shares=shares)).leases:
        shares = after_claims(shares, [lease.run for lease in leases])
        kinds += [rank_before(lease.run) for lease in leases]
    return kinds


class ClaimOrderContract(Contract):
    """Runs that have begun go first, then children, then new starts. No rank starves."""

    async def test_begun_runs_go_before_children_and_children_before_new_starts(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S4: rank counts before ready time."""
        await new(store, 1, 2)
        clock.advance(SECOND)
        await children(store, 3, 4)
        clock.advance(SECOND)
        await begun(store, 5, 6)

        assert await claimed_ids(store) == ids(5, 6, 3, 4, 1, 2)

    async def test_priority_decides_before_rank(self, store: Store) -> None:
        """S4: priority, then rank."""
        await begun(store, 1, priority=50)
        await children(store, 2, priority=40)
        await new(store, 3, priority=30)
        await begun(store, 4, priority=30)

        assert await claimed_ids(store) == ids(4, 3, 2, 1)

    async def test_within_a_rank_ready_time_decides_and_then_the_id(self, store: Store, clock: SettableClock) -> None:
        """S4: then ready time, then id, across types."""
        for number, delay, type in ((1, 3, "a"), (2, 1, "b"), (3, 2, "a"), (4, 1, "a")):
            await children(store, number, type=type, delay=delay)
            await new(store, number + 10, type=type, delay=delay)
        clock.advance(SECOND)

        assert await claimed_ids(store, types=["a", "b"]) == ids(2, 4, 3, 1, 12, 14, 13, 11)

    async def test_a_message_wakes_a_run_that_goes_before_a_backlog_of_starts(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, claim order: a backlog of new starts never delays work in progress."""
        await suspended(store, 1, for_message("go"))
        await new(store, *range(2, 40))
        clock.advance(SECOND)
        await store.apply(SendMessages(messages=[a_message(1)]))

        assert await claimed_ids(store, limit=1) == ids(1)

    async def test_a_run_whose_worker_died_ranks_as_begun(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, claim order: a run has begun if a worker has claimed it before."""
        await held(store, 1, worker=OTHER_WORKER)
        await new(store, 2)
        await children(store, 3)
        clock.advance(LEASE)

        assert await claimed_ids(store) == ids(1, 3, 2)

    async def test_a_delayed_start_is_a_new_start_when_its_time_has_come(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S4: a delayed start has the rank of a new start once it is ready."""
        await new(store, 1, delay=SECOND)
        await begun(store, 2)
        clock.advance(2 * SECOND)

        assert await claimed_ids(store) == ids(2, 1)

    async def test_one_in_eight_is_a_new_start_and_one_in_eight_of_the_others_a_child(self, store: Store) -> None:
        """SEMANTICS, claim order: no rank starves."""
        counts = {BEGUN: 60, CHILD: 9, NEW: 10}
        await begun(store, *range(1, 61))
        await children(store, *range(61, 70))
        await new(store, *range(70, 80))

        kinds = await claimed_kinds(store, 100)

        assert kinds == sequence(counts)
        assert kinds[: 2 * SHARE] == [*[BEGUN] * 7, NEW, CHILD, *[BEGUN] * 6, NEW]

    async def test_the_shares_do_not_depend_on_the_size_of_a_claim(self, store: Store) -> None:
        """SEMANTICS, claim order: the worker counts across its claims."""
        counts = {BEGUN: 20, CHILD: 5, NEW: 5}
        for round, size in enumerate((1, 3, 8, 11)):
            first = 100 * round
            await begun(store, *range(first, first + 20))
            await children(store, *range(first + 20, first + 25))
            await new(store, *range(first + 25, first + 30))

            assert await claimed_kinds(store, size) == sequence(counts), size

    async def test_a_worker_that_has_claimed_enough_of_the_others_gets_a_new_start_first(self, store: Store) -> None:
        """SEMANTICS, claim order: the counts travel with each claim."""
        await begun(store, 1)
        await children(store, 2)
        await new(store, 3)

        claimed = await claim(store, limit=3, shares=Shares(since_new=SHARE - 1, since_child=SHARE - 1))

        assert [lease.run.id for lease in claimed.leases] == ids(3, 2, 1)

    async def test_each_priority_begins_with_the_counts_of_the_worker(self, store: Store) -> None:
        """SEMANTICS, claim order: the shares hold within a priority."""
        shares = Shares(since_new=SHARE - 2)
        for priority in (10, 20):
            await begun(store, *range(priority, priority + 3), priority=priority)
            await new(store, priority + 5, priority=priority)

        claimed = await claim(store, limit=20, shares=shares)

        assert [lease.run.id for lease in claimed.leases] == ids(10, 15, 11, 12, 20, 25, 21, 22)

    async def test_a_claim_of_many_types_finds_the_few_that_are_ready(self, store: Store) -> None:
        """S8: neither idle types that the worker offers nor types that it does not offer get in the way."""
        offered = [f"offered.{number:04}" for number in range(1_000)]
        await new(store, 1, type="offered.0999")
        await new(store, 2, type="offered.0000", priority=50)
        await children(store, 3, type="offered.0500")
        await begun(store, 4, type="offered.0001")
        await new(store, 5, type="another")
        await new(store, 6, type="offered.1000")
        await new(store, 7, type="offered.0500", delay=SECOND)

        claimed = await claim(store, types=offered)

        assert [lease.run.id for lease in claimed.leases] == ids(2, 4, 3, 1)
        assert claimed.next_ready_at == claimed.now + SECOND

    # Limits

    async def test_parked_runs_get_the_slots_of_a_limit_in_claim_order(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, claim order: parked runs get the slots of a limit in claim order."""
        await suspended(store, 1, for_message("go"))
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=1)]))
        await new(store, 2)
        (holder,) = (await claim(store)).leases
        await new(store, 3, 4)
        await children(store, 5)
        await new(store, 6, priority=50)
        assert await claimed_ids(store) == []
        clock.advance(SECOND)
        await store.apply(SendMessages(messages=[a_message(1)]))
        assert await claimed_ids(store) == []

        assert await _drained(store, holder) == ids(6, 1, 5, 3, 4)

    async def test_the_slots_of_a_limit_are_shared_by_rank(self, store: Store) -> None:
        """SEMANTICS, claim order: no rank starves, also among runs that wait for a slot."""
        await begun(store, *range(1, 21))
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=1)]))
        await children(store, *range(21, 24))
        await new(store, *range(24, 27))
        (holder,) = (await claim(store, limit=1)).leases
        while (await claim(store, limit=40)).has_more:
            pass

        drained = await _drained(store, holder)

        kinds = [BEGUN if an_id(20) >= run_id else CHILD if an_id(23) >= run_id else NEW for run_id in drained]
        assert kinds == sequence({BEGUN: 19, CHILD: 3, NEW: 3})

    async def test_children_go_before_new_starts_where_a_rate_limits_both_and_neither_starves(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, claim order: a rate limit admits runs in claim order."""
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, rate=Rate(count=1, period=SECOND))]))
        await new(store, 0)
        assert await claimed_ids(store) == ids(0)
        await new(store, *range(1, 4))
        await children(store, *range(4, 14))
        kinds: list[int] = []
        for _ in range(100):
            if len(kinds) == 13:
                break
            leases = (await claim(store, limit=40)).leases
            kinds += [rank_before(lease.run) for lease in leases]
            clock.advance(SECOND // 2)

        assert kinds == sequence({CHILD: 10, NEW: 3})


async def _drained(store: Store, holder: Lease) -> list[str]:
    """End one run after the other. Return the ids of the runs that get the slot, in order."""
    served: list[str] = []
    leases: tuple[Lease, ...] = (holder,)
    while leases:
        (lease,) = leases
        await write(store, checkpoint_for(lease, succeed()))
        leases = (await claim(store)).leases
        served += [one.run.id for one in leases]
    return served
