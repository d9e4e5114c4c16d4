"""Contract of rollback: a failure or a cancel starts it, and the run ends when all undos are done."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import Block, Finish, Release, StartRollback, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, EmitEvents
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import EntryKind, Lease
from holdfast.core.ports import Store
from holdfast.core.questions import FindOrphans
from holdfast.core.rules import ROLLBACK_LOCATION, rollback_entry
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    a_step,
    an_error,
    an_event,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    claimed_ids,
    facts_of,
    for_event,
    for_message,
    for_time,
    held,
    picture_of,
    start,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

ROLLBACK = StartRollback(end=RunState.FAILED, error=an_error("no luck"))
CHARGE = a_step("charge", 1, has_undo=True)


async def rolling_back(store: Store, number: int = 1, rollback: StartRollback = ROLLBACK) -> None:
    """Create a run that has failed after a step with an undo, and is ready to roll back."""
    lease = await held(store, number)
    entries = (CHARGE, rollback_entry(rollback, 2, START))
    verdict = await write(store, checkpoint_for(lease, rollback, entries=entries))
    assert not verdict.is_held


def undone(lease: Lease, end: RunState) -> Finish:
    return Finish(state=end, error=lease.run.error)  # type: ignore[arg-type]  # no success


class RollbackContract(Contract):
    """The workflow code stops when the rollback starts. The run ends when all undos are done."""

    async def test_a_run_whose_rollback_starts_is_rolling_back_and_ready(self, store: Store) -> None:
        """SEMANTICS, rollback: on an uncaught error the run is `rolling_back`."""
        await rolling_back(store)

        run = await the_run(store)
        assert (run.state, run.rollback, run.ready_at, run.worker) == (
            RunState.ROLLING_BACK,
            RunState.FAILED,
            START,
            None,
        )
        assert run.error == an_error("no luck")
        assert await facts_of(store) == ["claimed", "rolling_back"]
        assert await store.stats(FindOrphans(limit=10)) == []

    async def test_a_rollback_continues_across_claims_releases_and_waits(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, rollback: each undo is retried like a step and survives crashes."""
        await rolling_back(store)
        states = []
        for next in (Release(), Suspend()):
            lease = await claim_one(store)
            states.append(lease.run.state)
            waits = (for_time(START + SECOND),) if isinstance(next, Suspend) else None
            await write(store, checkpoint_for(lease, next, waits=waits))
            states.append((await the_run(store)).state)
        clock.advance(SECOND)
        lease = await claim_one(store)

        assert {*states, lease.run.state} == {RunState.ROLLING_BACK}
        assert lease.run.error == an_error("no luck")

    @pytest.mark.parametrize("end", [RunState.FAILED, RunState.CANCELLED])
    async def test_a_rollback_ends_in_the_state_that_its_start_names(self, store: Store, end: RunState) -> None:
        await rolling_back(store, rollback=StartRollback(end=end, error=an_error("x")))  # type: ignore[arg-type]
        lease = await claim_one(store)

        await write(store, checkpoint_for(lease, undone(lease, end)))

        run = await the_run(store)
        assert (run.state, run.rollback, run.error) == (end, None, an_error("x"))

    async def test_a_run_blocked_during_a_rollback_continues_it_when_tried_again(self, store: Store) -> None:
        """SEMANTICS, rollback: an undo that is not found leaves the run blocked with the rest still to do."""
        await rolling_back(store)
        await write(store, checkpoint_for(await claim_one(store), block(retry_at=START)))
        assert (await the_run(store)).state is RunState.BLOCKED

        lease = await claim_one(store)

        assert (lease.run.state, lease.run.rollback) == (RunState.ROLLING_BACK, RunState.FAILED)

    async def test_the_start_of_a_rollback_withdraws_waits_and_closes_children(self, store: Store) -> None:
        lease = await held(store)
        await start(store, an_intent(2, parent_id=an_id(1), on_close="cancel"), an_intent(3, parent_id=an_id(1)))
        await write(store, checkpoint_for(lease, entries=(CHARGE,), waits=(for_message("go"), for_event("paid"))))

        await write(store, checkpoint_for(lease, ROLLBACK, entries=(rollback_entry(ROLLBACK, 2, START),)))

        details = await store.get(an_id(1))
        assert details is not None
        assert details.waits == ()
        assert await store.apply(EmitEvents(events=[an_event()])) == [0]
        assert [(await the_run(store, number)).state for number in (2, 3)] == [RunState.CANCELLED, RunState.PENDING]

    async def test_a_repeated_start_of_a_rollback_changes_nothing(self, store: Store) -> None:
        """S6: a lost answer is safe."""
        lease = await held(store)
        started = checkpoint_for(lease, ROLLBACK, entries=(CHARGE, rollback_entry(ROLLBACK, 2, START)))
        await write(store, started)
        before = await picture_of(store, 1)

        verdict = await write(store, started)

        assert (verdict.is_lost, verdict.is_held) == (False, False)
        assert await picture_of(store, 1) == before

    # Cancel

    async def test_a_cancelled_run_with_something_to_undo_rolls_back(self, store: Store) -> None:
        """SEMANTICS, control: with undo, the run is `rolling_back` and ready, under a new token."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(CHARGE, a_step("other", 2)), waits=(for_message("go"),)))

        assert await store.apply(Cancel(run_id=an_id(1), id="c", reason="enough")) is True

        run = await the_run(store)
        assert (run.state, run.rollback, run.ready_at) == (RunState.ROLLING_BACK, RunState.CANCELLED, START)
        assert (run.token, run.worker) == (lease.run.token + 1, None)
        assert run.error == ErrorRecord(type="Cancelled", message="enough")
        (entry,) = [one for one in await store.history(an_id(1)) if one.kind is EntryKind.ROLLBACK]
        assert (entry.location, entry.position, entry.error) == (ROLLBACK_LOCATION, 3, run.error)
        assert (await write(store, checkpoint_for(lease, entries=(a_step("late", 3),)))).is_lost

    async def test_the_rollback_of_a_cancelled_run_follows_its_remaining_history(self, store: Store) -> None:
        lease, other = await held(store, 2), await held(store, 1)
        await write(store, checkpoint_for(lease, entries=(CHARGE, a_step("loop/1/a", 2), a_step("loop/1/b", 3))))

        await store.checkpoint(
            [checkpoint_for(lease, pruned=("loop/1",)), checkpoint_for(other, cancels=(lease.run.id,))]
        )

        history = await store.history(lease.run.id)
        assert [(entry.location, entry.position) for entry in history] == [("charge", 1), (ROLLBACK_LOCATION, 2)]

    async def test_force_skips_undo(self, store: Store) -> None:
        """SEMANTICS, control: `force` skips undo."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(CHARGE,)))

        assert await store.apply(Cancel(run_id=an_id(1), id="c", force=True)) is True

        assert (await the_run(store)).state is RunState.CANCELLED

    async def test_a_run_that_rolls_back_is_cancelled_only_by_force(self, store: Store) -> None:
        await rolling_back(store)
        before = await picture_of(store, 1)

        assert await store.apply(Cancel(run_id=an_id(1), id="c")) is False
        assert await picture_of(store, 1) == before
        assert await store.apply(Cancel(run_id=an_id(1), id="d", force=True)) is True

        run = await the_run(store)
        assert (run.state, run.rollback) == (RunState.CANCELLED, None)
        assert await claimed_ids(store) == []

    async def test_a_run_whose_steps_have_no_undo_is_cancelled_at_once(self, store: Store) -> None:
        """SEMANTICS, control: without undo, the run is `cancelled` in that transaction."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_step(),)))

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert (await the_run(store)).state is RunState.CANCELLED

    async def test_a_child_that_is_cancelled_with_its_parent_rolls_back_on_its_own(self, store: Store) -> None:
        await held(store, 1)
        child = await held(store, 2, parent_id=an_id(1), on_close="cancel")
        await write(store, checkpoint_for(child, entries=(CHARGE,)))

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert (await the_run(store, 1)).state is RunState.CANCELLED
        assert (await the_run(store, 2)).state is RunState.ROLLING_BACK

    async def test_a_parent_gets_the_end_of_a_child_after_its_rollback(self, store: Store) -> None:
        parent = await held(store, 1)
        child = await held(store, 2, parent_id=an_id(1))
        entries = (CHARGE, rollback_entry(ROLLBACK, 2, START))
        await write(store, checkpoint_for(child, ROLLBACK, entries=entries))
        assert (await write(store, checkpoint_for(parent))).arrivals == ()

        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, undone(lease, RunState.FAILED)))

        (end,) = (await write(store, checkpoint_for(parent))).arrivals
        assert (end.name, end.state) == (an_id(2), RunState.FAILED)

    async def test_a_run_may_end_as_cancelled_by_its_holder(self, store: Store) -> None:
        """SEMANTICS, starting: `max_run` and `max_suspend` end the run as `cancelled` with the reason."""
        lease = await held(store)
        reason = ErrorRecord(type="Cancelled", message="too long")

        await write(store, checkpoint_for(lease, Finish(state=RunState.CANCELLED, error=reason)))

        run = await the_run(store)
        assert (run.state, run.error) == (RunState.CANCELLED, reason)

    async def test_a_rollback_may_be_blocked_without_a_next_try(self, store: Store) -> None:
        await rolling_back(store)
        await write(store, checkpoint_for(await claim_one(store), Block(error=an_error("undo"))))

        run = await the_run(store)
        assert (run.state, run.ready_at, run.rollback) == (RunState.BLOCKED, None, RunState.FAILED)
        assert await store.stats(FindOrphans(limit=10)) == []
