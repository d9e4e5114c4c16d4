"""Contract of groups: one countdown wait for many children, and slots that siblings pass on."""

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
    """A group wakes its parent once. With a limit, the end of a child starts the next one."""

    async def test_a_group_wakes_its_parent_when_its_last_child_ends(self, store: Store) -> None:
        """SEMANTICS, children: the parent is woken once, by a wait that counts down."""
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

    async def test_a_parent_does_not_suspend_on_a_group_that_has_ended(self, store: Store) -> None:
        """S3: a wait satisfied before or while it is written never sleeps."""
        lease = await held(store)
        await start(store, member(2))
        await end(store, 2)

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_group(1),)))

        assert verdict.is_held
        assert [one.name for one in verdict.arrivals] == [an_id(2)]

    async def test_the_group_wait_of_a_held_parent_is_not_counted_down(self, store: Store) -> None:
        """T1: the end of a child does not change a held parent. The holder counts itself."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_group(2),)))
        await start(store, member(2))
        await end(store, 2)

        details = await store.get(an_id(1))
        assert details is not None
        assert details.waits == (for_group(2),)

    async def test_a_parked_child_is_not_ready_and_waits_for_a_slot(self, store: Store) -> None:
        """SEMANTICS, limits: a parked run has a wait of kind `slot`."""
        await held(store)
        await start(store, member(2, is_parked=True))

        details = await store.get(an_id(2))
        assert details is not None
        assert (details.run.state, details.run.ready_at) == (RunState.PENDING, None)
        assert [(wait.kind, wait.names) for wait in details.waits] == [(WaitKind.SLOT, (FAN,))]
        assert await claimed_ids(store) == []
        assert await store.stats(FindOrphans(limit=10)) == []

    @pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled"])
    async def test_a_child_that_ends_passes_its_slot_to_the_next(
        self, store: Store, clock: SettableClock, how: str
    ) -> None:
        """SEMANTICS, limits: the transaction that gives a slot back also readies the next parked run."""
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

    async def test_new_children_get_only_the_slots_that_their_siblings_leave_free(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, children: at most `limit` children run at once. PROMISES 8: none of them stops silently."""
        lease = await held(store)
        await start(store, member(2), member(3, is_parked=True), member(4), member(5, group="other"))
        await end(store, 4)  # passes its slot to number 3
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

    async def test_a_parked_child_that_is_cancelled_passes_no_slot_on(self, store: Store) -> None:
        await held(store)
        await start(store, member(2), member(3, is_parked=True), member(4, is_parked=True))

        await end(store, 3)

        assert (await the_run(store, 4)).ready_at is None
        await end(store, 2)
        assert (await the_run(store, 4)).ready_at == START

    async def test_a_slot_belongs_to_one_group(self, store: Store) -> None:
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

    async def test_parked_children_become_ready_when_their_generation_ends(self, store: Store) -> None:
        """PROMISES 8: no silent stop. The map that passed the slots on has ended with its generation."""
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
