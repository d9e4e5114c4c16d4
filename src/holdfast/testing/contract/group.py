"""Groups: many children awaited by one wait that is counted down, and slots that siblings hand on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.checkpoint import ContinueAsNew, Hold, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel
from holdfast.core.model import Intent, Wait, WaitKind
from holdfast.core.ports import Store
from holdfast.core.questions import FindOrphans
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    WORKER,
    an_id,
    an_intent,
    checkpoint_for,
    claim_one,
    claimed_ids,
    fail,
    held,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

FAN = f"{an_id(1)}/fan"


def member(number: int, *, is_parked: bool = False, group: str = "fan") -> Intent:
    return an_intent(
        number, parent_id=an_id(1), parent_location=f"{group}/{number}", on_close="cancel", is_parked=is_parked
    )


def for_group(count: int) -> Wait:
    return Wait(location="fan", kind=WaitKind.CHILDREN, since=START, names=(FAN,), count=count)


async def end(store: Store, number: int) -> None:
    await store.apply(Cancel(run_id=an_id(number), id=f"c{number}"))


class GroupContract(Contract):
    """A parent of many is woken once; a limit lets the next one go when one ends."""

    async def test_a_wait_for_a_group_is_over_when_the_last_of_it_has_ended(self, store: Store) -> None:
        """SEMANTICS, children: woken once, by a wait that is counted down."""
        await suspended(store, 1, for_group(3))
        await start(store, member(2), member(3), member(4))
        counts = []
        for number in (3, 2):
            await end(store, number)
            details = await store.get(an_id(1))
            assert details is not None
            counts.append((details.waits[0].count, details.run.ready_at))
        assert counts == [(2, None), (1, None)]

        await end(store, 4)

        assert (await the_run(store)).ready_at == START
        woken = await claim_one(store)
        assert [(one.name, one.group) for one in woken.arrivals] == [(an_id(n), FAN) for n in (3, 2, 4)]

    async def test_children_of_another_group_or_of_none_do_not_count(self, store: Store) -> None:
        await suspended(store, 1, for_group(1))
        await start(store, member(2, group="fan/0/fan"), member(3, group="other"), an_intent(4, parent_id=an_id(1)))

        for number in (2, 3, 4):
            await end(store, number)

        assert (await the_run(store)).ready_at is None

    async def test_a_group_that_ended_before_the_parent_suspends_never_lets_it_sleep(self, store: Store) -> None:
        """S3: a wait satisfied before or while it is written never sleeps."""
        lease = await held(store)
        await start(store, member(2))
        await end(store, 2)

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_group(1),)))

        assert verdict.is_held
        assert [one.name for one in verdict.arrivals] == [an_id(2)]

    async def test_a_held_parent_is_told_of_each_end_and_its_wait_is_not_counted_down(self, store: Store) -> None:
        """T1: it never touches a held run; the holder counts for itself."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_group(2),)))
        await start(store, member(2))
        await end(store, 2)

        details = await store.get(an_id(1))
        assert details is not None
        assert details.waits == (for_group(2),)

    async def test_a_parked_child_is_not_ready_and_says_what_it_waits_for(self, store: Store) -> None:
        """SEMANTICS, limits: parked with a wait of kind `slot`."""
        await held(store)
        await start(store, member(2, is_parked=True))

        details = await store.get(an_id(2))
        assert details is not None
        assert (details.run.state, details.run.ready_at) == (RunState.PENDING, None)
        assert [(wait.kind, wait.names) for wait in details.waits] == [(WaitKind.SLOT, (FAN,))]
        assert await claimed_ids(store) == []
        assert await store.stats(FindOrphans(limit=10)) == []

    @pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled"])
    async def test_whoever_ends_hands_its_slot_to_the_next_in_line(
        self, store: Store, clock: SettableClock, how: str
    ) -> None:
        """SEMANTICS, limits: whoever gives a slot back readies the next one in the same transaction."""
        await held(store)
        await start(store, member(2), member(4, is_parked=True), member(3, is_parked=True))
        lease = await claim_one(store)
        clock.advance(SECOND)

        if how == "cancelled":
            await end(store, 2)
        else:
            await write(store, checkpoint_for(lease, succeed() if how == "succeeded" else fail()))

        assert [(await the_run(store, number)).ready_at for number in (3, 4)] == [START + SECOND, None]
        assert await claimed_ids(store) == [an_id(3)]

    async def test_of_children_with_a_limit_as_many_get_a_slot_as_their_siblings_have_left(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, children: with a limit only so many run at once; PROMISES 8: and none is forgotten."""
        lease = await held(store)
        await start(store, member(2), member(3, is_parked=True), member(4), member(5, group="other"))
        await end(store, 4)  # which hands its slot to number 3
        clock.advance(SECOND)
        limited = [replace(member(number), limit=3) for number in (6, 7, 8)]

        await write(store, checkpoint_for(lease, Hold(), children=tuple(limited)))
        await write(store, checkpoint_for(lease, Hold(), children=(*limited, replace(member(9), limit=4))))

        runs = [await the_run(store, number) for number in (6, 7, 8, 9)]
        assert [run.ready_at for run in runs] == [START + SECOND, None, None, START + SECOND]
        for number, next in ((2, 7), (3, 8)):
            await end(store, number)
            assert (await the_run(store, next)).ready_at == START + SECOND

    async def test_a_child_with_a_limit_has_a_slot_if_all_its_siblings_have_ended(self, store: Store) -> None:
        lease = await held(store)
        await start(store, member(2))
        await end(store, 2)

        await write(store, checkpoint_for(lease, Hold(), children=(replace(member(3), limit=1),)))

        assert (await the_run(store, 3)).ready_at == START

    async def test_a_parked_child_that_is_cancelled_has_no_slot_to_hand_on(self, store: Store) -> None:
        await held(store)
        await start(store, member(2), member(3, is_parked=True), member(4, is_parked=True))

        await end(store, 3)

        assert (await the_run(store, 4)).ready_at is None
        await end(store, 2)
        assert (await the_run(store, 4)).ready_at == START

    async def test_a_slot_is_of_one_group(self, store: Store) -> None:
        await held(store)
        await start(store, member(2), member(3, is_parked=True, group="other"))

        await end(store, 2)

        assert (await the_run(store, 3)).ready_at is None

    async def test_children_that_wait_for_a_slot_end_with_their_parent(self, store: Store) -> None:
        lease = await held(store, worker=WORKER)
        await start(store, member(2), member(3, is_parked=True), member(4, is_parked=True))

        await write(store, checkpoint_for(lease, succeed()))

        states = [(await the_run(store, number)).state for number in (2, 3, 4)]
        assert states == [RunState.CANCELLED] * 3
        assert await claimed_ids(store) == []

    async def test_children_without_a_slot_get_one_when_the_generation_that_limited_them_is_over(
        self, store: Store
    ) -> None:
        """PROMISES 8: no silent stop. What hands slots on is the map of a generation, and it is over."""
        lease = await held(store)
        abandoned = [replace(member(number, is_parked=number > 2), on_close="abandon") for number in (2, 3, 4)]
        await start(store, *abandoned, member(5, is_parked=True, group="other"))

        await write(store, checkpoint_for(lease, ContinueAsNew(payload="{}")))

        runs = [await the_run(store, number) for number in (2, 3, 4)]
        assert [run.ready_at for run in runs] == [START, START, START]
        assert (await the_run(store, 5)).state is RunState.CANCELLED
        for number in (2, 3, 4):
            details = await store.get(an_id(number))
            assert details is not None
            assert details.waits == ()
