"""Contract of slots: a run that stops passes its slot on, and a run that goes on keeps it."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import Block, ContinueAsNew, Finish, Next, Release, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, Fork, Pause, Recover, Resume, Rewind, RunControl, SendMessages, Wake
from holdfast.core.ports import Store
from holdfast.core.questions import CountSlots
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    TYPE,
    HintRecorder,
    a_message,
    a_step,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim,
    claim_one,
    claimed_ids,
    facts_of,
    fail,
    for_message,
    for_time,
    held,
    holding_of,
    name_of,
    picture_of,
    renew,
    start,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock
from holdfast.testing.contract.limit import SLOT, is_next, limit, occupied, parked_at, starting


class SlotContract(Contract):
    """The transaction that gives a slot back also readies the next parked run."""

    # Passing slots on

    @pytest.mark.parametrize(
        "next",
        [
            succeed(),
            fail(),
            Finish(state=RunState.CANCELLED),
            Suspend(),
            block(),
            Block(error=fail().error, retry_at=START + SECOND),  # type: ignore[arg-type]
        ],
        ids=name_of,
    )
    async def test_a_run_that_stops_passes_its_slot_on_in_the_same_transaction(self, store: Store, next: Next) -> None:
        """SEMANTICS, limits: the transaction that gives a slot back also readies the next parked run."""
        lease = await occupied(store)
        listening = HintRecorder(store)

        await write(store, checkpoint_for(lease, next, waits=(for_message("go"),)))

        await listening.until("ready", TYPE)
        listening.stop()
        assert (await the_run(store)).slots == ()
        assert await is_next(store)

    async def test_a_run_that_pauses_passes_its_slot_on(self, store: Store) -> None:
        lease = await occupied(store)
        await store.apply(Pause(run_id=an_id(1), id="p"))
        assert await parked_at(store, 2) == SLOT  # run 1 stays held until its next standstill

        await write(store, checkpoint_for(lease, Release()))

        assert (await the_run(store)).state is RunState.PAUSED
        assert await is_next(store)

    @pytest.mark.parametrize("force", [True, False])
    async def test_a_cancelled_run_passes_its_slot_on(self, store: Store, force: bool) -> None:  # noqa: FBT001
        await occupied(store)

        await store.apply(Cancel(run_id=an_id(1), id="c", force=force))

        assert await is_next(store)

    async def test_a_run_that_rolls_back_keeps_its_slot(self, store: Store) -> None:
        lease = await occupied(store)
        await write(store, checkpoint_for(lease, entries=(a_step(has_undo=True),)))

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert await claimed_ids(store) == [an_id(1)]
        assert await parked_at(store, 2) == SLOT

    @pytest.mark.parametrize("next", [Release(), ContinueAsNew(payload="{}")], ids=name_of)
    async def test_a_run_that_is_ready_at_once_keeps_its_slot(self, store: Store, next: Next) -> None:
        lease = await occupied(store)

        await write(store, checkpoint_for(lease, next))

        assert (await the_run(store)).slots == (SLOT,)
        assert await claimed_ids(store) == [an_id(1)]
        assert await parked_at(store, 2) == SLOT

    async def test_a_suspension_that_is_due_at_once_keeps_the_slot(self, store: Store) -> None:
        lease = await occupied(store)

        await write(store, checkpoint_for(lease, Suspend(), waits=(for_time(START),)))

        assert await claimed_ids(store) == [an_id(1)]

    @pytest.mark.parametrize("how", ["pause", "cancel"])
    async def test_a_run_that_pauses_before_its_claim_passes_its_slot_on_again(self, store: Store, how: str) -> None:
        lease = await occupied(store)
        await starting(store, 3)
        await claim(store)
        await write(store, checkpoint_for(lease, succeed()))

        await store.apply(Pause(run_id=an_id(2), id="p") if how == "pause" else Cancel(run_id=an_id(2), id="c"))

        assert (await the_run(store, 2)).slots == ()
        assert await is_next(store, 3)

    async def test_a_batch_passes_on_every_slot_that_it_gives_back(self, store: Store) -> None:
        await limit(store, 2)
        await starting(store, 1, 2, 3, 4, 5)
        leases = (await claim(store)).leases

        await store.checkpoint([checkpoint_for(lease, succeed()) for lease in leases])

        assert await claimed_ids(store) == [an_id(3), an_id(4)]

    async def test_children_that_end_with_their_parent_pass_their_slots_on(self, store: Store) -> None:
        parent = await held(store, 1, type="parent")
        await limit(store)
        await start(store, an_intent(2, parent_id=an_id(1), on_close="cancel"), an_intent(3))
        assert await claimed_ids(store) == [an_id(2)]

        await write(store, checkpoint_for(parent, succeed()))

        assert (await the_run(store, 2)).state is RunState.CANCELLED
        assert await is_next(store, 3)

    # Leases

    async def test_a_run_of_a_lost_worker_keeps_its_slot(self, store: Store, clock: SettableClock) -> None:
        """I9: the worker may still be alive and executing bodies, so its slot is not given away."""
        await occupied(store)
        clock.advance(LEASE)

        claimed = await claim(store, worker=OTHER_WORKER)

        assert [(lease.run.id, lease.run.crashes, lease.run.slots) for lease in claimed.leases] == [
            (an_id(1), 1, (SLOT,))
        ]
        assert await parked_at(store, 2) == SLOT

    async def test_a_renewal_keeps_the_slot(self, store: Store, clock: SettableClock) -> None:
        lease = await occupied(store)
        clock.advance(LEASE)

        await renew(store, holding_of(lease))

        assert await claimed_ids(store, worker=OTHER_WORKER) == []
        assert (await the_run(store)).slots == (SLOT,)

    # Repeats

    async def test_a_repeated_claim_gets_the_same_leases_and_takes_no_more_slots(self, store: Store) -> None:
        """S6, T8: a repeated claim with the same claim id gets the same leases."""
        await limit(store, 2)
        await starting(store, 1, 2, 3)
        first = await claim(store, id="claim-1", limit=1)

        again = await claim(store, id="claim-1", limit=1, is_repeat=True)

        assert again.leases == first.leases
        assert [(one.used, one.waiting) for one in await store.stats(CountSlots())] == [(1, 0)]
        assert await claimed_ids(store) == [an_id(2)]

    async def test_a_repeated_claim_parks_no_run_twice(self, store: Store) -> None:
        await occupied(store)
        await starting(store, 3)
        await claim(store, id="claim-2", worker=OTHER_WORKER)
        before = await picture_of(store, 1, 2, 3)

        again = await claim(store, id="claim-2", worker=OTHER_WORKER, is_repeat=True)

        assert again.leases == ()
        assert await picture_of(store, 1, 2, 3) == before

    async def test_a_repeated_checkpoint_passes_no_slot_on_twice(self, store: Store) -> None:
        """S6: the answer to the first call was lost."""
        lease = await occupied(store)
        await starting(store, 3)
        await claim(store)
        checkpoint = checkpoint_for(lease, Suspend(), waits=(for_message("go"),))
        await write(store, checkpoint)
        before = await picture_of(store, 1, 2, 3)

        await write(store, checkpoint)

        assert await picture_of(store, 1, 2, 3) == before
        assert await claimed_ids(store) == [an_id(2)]

    # Coming back

    async def test_a_woken_run_needs_a_slot_again(self, store: Store) -> None:
        lease = await occupied(store)
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))
        other = await claim_one(store)
        assert other.run.id == an_id(2)

        await store.apply(SendMessages(messages=[a_message()]))

        assert await claimed_ids(store) == []
        assert await parked_at(store, 1) == SLOT
        await write(store, checkpoint_for(other, succeed()))
        again = await claim_one(store)
        assert (again.run.id, [arrival.ref for arrival in again.arrivals]) == (an_id(1), ["m1"])
        details = await store.get(an_id(1))
        assert details is not None
        assert details.waits == (for_message("go"),)

    async def test_a_message_does_not_wake_a_parked_run_but_is_delivered_later(self, store: Store) -> None:
        """PROMISES 5: no message is missed because of timing."""
        lease = await occupied(store)
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))
        other = await claim_one(store)
        await store.apply(SendMessages(messages=[a_message()]))
        await claim(store)

        await store.apply(SendMessages(messages=[a_message(id="m2")]))

        assert (await the_run(store)).ready_at is None
        assert await facts_of(store) == ["claimed", "suspended", "woken", "parked"]
        await write(store, checkpoint_for(other, succeed()))
        assert [arrival.ref for arrival in (await claim_one(store)).arrivals] == ["m1", "m2"]

    # By hand

    async def test_wake_does_nothing_to_a_parked_run(self, store: Store) -> None:
        """A wake would not help: the run would only be parked again."""
        lease = await occupied(store)
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))
        await claim_one(store)
        await store.apply(Wake(run_id=an_id(1), id="w1"))
        await claim(store)
        await starting(store, 3)
        await claim(store)
        before = await picture_of(store, 1, 3)

        assert not await store.apply(Wake(run_id=an_id(1), id="w2"))
        assert not await store.apply(Wake(run_id=an_id(3), id="w3"))

        assert await picture_of(store, 1, 3) == before

    async def test_a_parked_run_that_is_paused_leaves_the_queue(self, store: Store) -> None:
        lease = await occupied(store)
        await starting(store, 3)
        await claim(store)

        await store.apply(Pause(run_id=an_id(2), id="p"))
        await write(store, checkpoint_for(lease, succeed()))

        assert (await parked_at(store, 2), (await the_run(store, 2)).state) == (None, RunState.PAUSED)
        assert await is_next(store, 3)

    async def test_a_parked_run_that_was_paused_queues_again_when_it_is_resumed(
        self, store: Store, clock: SettableClock
    ) -> None:
        lease = await occupied(store)
        await store.apply(Pause(run_id=an_id(2), id="p"))
        clock.advance(SECOND)

        await store.apply(Resume(run_id=an_id(2), id="r"))

        assert await claimed_ids(store) == []
        assert await parked_at(store, 2) == SLOT
        await write(store, checkpoint_for(lease, succeed()))
        assert await is_next(store)

    async def test_a_parked_run_that_is_cancelled_leaves_the_queue(self, store: Store) -> None:
        lease = await occupied(store)
        await starting(store, 3)
        await claim(store)

        await store.apply(Cancel(run_id=an_id(2), id="c"))
        await write(store, checkpoint_for(lease, succeed()))

        assert await parked_at(store, 2) is None
        assert await is_next(store, 3)

    async def test_a_run_that_is_rewound_keeps_its_slot(self, store: Store) -> None:
        lease = await occupied(store)
        await write(store, checkpoint_for(lease, entries=(a_step(),)))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="charge", force=True))

        assert await claimed_ids(store) == [an_id(1)]
        assert await parked_at(store, 2) == SLOT

    @pytest.mark.parametrize("how", ["rewind", "recover", "fork"])
    async def test_a_run_that_is_reopened_or_forked_needs_a_slot(self, store: Store, how: str) -> None:
        lease = await occupied(store)
        await write(store, checkpoint_for(lease, fail(), entries=(a_step(),)))
        other = await claim_one(store)

        requests: dict[str, RunControl] = {
            "rewind": Rewind(run_id=an_id(1), id="x", location="charge"),
            "recover": Recover(run_id=an_id(1), id="x"),
            "fork": Fork(run_id=an_id(1), id="x", new_run_id=an_id(3), location="charge"),
        }
        await store.apply(requests[how])

        number = 3 if how == "fork" else 1
        assert await claimed_ids(store) == []
        assert (await parked_at(store, number), (await the_run(store, number)).slots) == (SLOT, ())
        await write(store, checkpoint_for(other, succeed()))
        assert await is_next(store, number)

    async def test_a_parked_run_that_is_rewound_queues_again(self, store: Store) -> None:
        lease = await occupied(store)
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),), entries=(a_step(),)))
        other = await claim_one(store)
        await store.apply(SendMessages(messages=[a_message()]))
        await claim(store)
        assert await parked_at(store, 1) == SLOT

        await store.apply(Rewind(run_id=an_id(1), id="r", location="charge"))

        assert await claimed_ids(store) == []
        await write(store, checkpoint_for(other, succeed()))
        assert await is_next(store, 1)
