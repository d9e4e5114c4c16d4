"""Contract of `cancel`."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.checkpoint import Release
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, EmitEvents, SendMessages
from holdfast.core.errors import RunNotFound
from holdfast.core.model import EntryKind
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    a_message,
    a_step,
    an_event,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim,
    claimed_ids,
    ended,
    facts_of,
    for_event,
    for_message,
    for_time,
    held,
    holder_of,
    picture_of,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock


class ControlContract(Contract):
    """Cancel never refuses a live run, and never changes an ended one."""

    async def test_a_cancel_ends_the_run_in_the_same_transaction(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, control: without undo, the run is `cancelled` at once, with the reason."""
        await start(store, an_intent(1))
        clock.advance(SECOND)

        assert await store.apply(Cancel(run_id=an_id(1), id="c", reason="it's ☃ %s")) is True

        run = await the_run(store)
        assert (run.state, run.ready_at, run.finished_at) == (RunState.CANCELLED, None, START + SECOND)
        assert run.error is not None
        assert (run.error.type, run.error.message) == ("Cancelled", "it's ☃ %s")
        (fact,) = await store.audit(an_id(1))
        assert (fact.event, fact.at, fact.data) == (
            "cancelled",
            START + SECOND,
            {"reason": "it's ☃ %s", "request": "c"},
        )

    async def test_a_run_in_any_live_state_can_be_cancelled(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, control: cancel never refuses. T5: `ready_at` of an ended run is null."""
        await start(store, an_intent(1), an_intent(2, delay=SECOND))
        await held(store, 3)
        await suspended(store, 4, for_message("go"))
        await suspended(store, 5, for_time(START + SECOND))
        await write(store, checkpoint_for(await held(store, 6), block()))
        await write(store, checkpoint_for(await held(store, 7), block(retry_at=START + SECOND)))
        await write(store, checkpoint_for(await held(store, 8), Release()))
        numbers = range(1, 9)

        answers = [await store.apply(Cancel(run_id=an_id(number), id=f"c{number}")) for number in numbers]

        assert answers == [True] * 8
        runs = [await the_run(store, number) for number in numbers]
        assert {(run.state, run.ready_at, run.worker) for run in runs} == {(RunState.CANCELLED, None, None)}
        clock.advance(10 * LEASE)
        claimed = await claim(store, worker=OTHER_WORKER)
        assert (claimed.leases, claimed.next_ready_at) == ((), None)

    async def test_a_cancel_raises_the_token(self, store: Store) -> None:
        """T8: the token grows with each control that takes a held run away."""
        lease = await held(store)

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert (await the_run(store)).token == lease.run.token + 1

    async def test_a_cancelled_run_keeps_its_history_and_loses_its_waits(self, store: Store) -> None:
        """S5: no event or message reaches an ended run."""
        lease = await held(store)
        waits = (for_message("go"), for_event("paid"))
        await write(store, checkpoint_for(lease, entries=(a_step(),), waits=waits, values={"done": "1"}))
        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert await store.apply(EmitEvents(events=[an_event()])) == [0]
        assert [sent.refused for sent in await store.apply(SendMessages(messages=[a_message()]))] == ["finished"]
        details = await store.get(an_id(1))
        assert details is not None
        assert (details.waits, details.values) == ((), {"done": "1"})
        assert tuple(await store.history(an_id(1))) == (a_step(),)

    @pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED])
    async def test_cancelling_an_ended_run_changes_nothing_and_returns_false(
        self, store: Store, state: RunState
    ) -> None:
        """S5, SEMANTICS: cancelling a finished run returns False."""
        await ended(store, 1, state)
        before = await picture_of(store, 1)

        assert await store.apply(Cancel(run_id=an_id(1), id="c", reason="late")) is False
        assert await picture_of(store, 1) == before

    async def test_a_repeated_cancel_changes_nothing_and_gives_the_same_answer(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S6: requests carry an id, and repeats are no-ops. Another request finds nothing to change."""
        await start(store, an_intent(1))
        await store.apply(Cancel(run_id=an_id(1), id="c", reason="first"))
        before = await picture_of(store, 1)
        clock.advance(SECOND)

        assert await store.apply(Cancel(run_id=an_id(1), id="c", reason="first")) is True
        assert await store.apply(Cancel(run_id=an_id(1), id="d", reason="second")) is False
        assert await picture_of(store, 1) == before

    async def test_cancelling_an_unknown_run_is_an_error(self, store: Store) -> None:
        """The port: `RunNotFound` for an unknown run."""
        with pytest.raises(RunNotFound):
            await store.apply(Cancel(run_id=an_id(9), id="c"))

    async def test_only_one_of_a_racing_cancel_and_end_wins(self, store: Store) -> None:
        """PROMISES 2: a run has one end."""
        leases = [await held(store, number) for number in range(8)]

        await asyncio.gather(
            *(
                one
                for lease in leases
                for one in (
                    write(store, checkpoint_for(lease, succeed())),
                    store.apply(Cancel(run_id=lease.run.id, id=lease.run.id)),
                )
            )
        )

        for number in range(8):
            facts = await facts_of(store, number)
            state = (await the_run(store, number)).state
            assert facts == ["claimed", state.value]
            assert state.is_end

    async def test_a_run_with_something_to_undo_is_rolled_back_under_a_new_token(self, store: Store) -> None:
        """SEMANTICS, control: with undo, the run is `rolling_back` and ready. All entries before that are undone."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_step(has_undo=True),), waits=(for_message("go"),)))

        assert await store.apply(Cancel(run_id=an_id(1), id="c", reason="enough")) is True

        run = await the_run(store)
        assert (run.state, run.rollback, run.ready_at) == (RunState.ROLLING_BACK, RunState.CANCELLED, START)
        assert (run.worker, run.token) == (None, lease.run.token + 1)
        turn = (await store.history(an_id(1)))[-1]
        assert (turn.kind, turn.position, turn.error and turn.error.message) == (EntryKind.ROLLBACK, 2, "enough")
        details = await store.get(an_id(1))
        assert details is not None
        assert details.waits == ()
        assert (await store.audit(an_id(1)))[-1].data == {"reason": "enough", "request": "c"}

    async def test_a_forced_cancel_skips_undo(self, store: Store) -> None:
        """SEMANTICS, control: `force` skips undo."""
        await write(store, checkpoint_for(await held(store), entries=(a_step(has_undo=True),)))

        assert await store.apply(Cancel(run_id=an_id(1), id="c", force=True)) is True

        assert (await the_run(store)).state is RunState.CANCELLED

    async def test_only_force_ends_a_run_that_rolls_back(self, store: Store) -> None:
        """SEMANTICS, control: a rollback ends by itself, so a second cancel changes nothing."""
        await write(store, checkpoint_for(await held(store), entries=(a_step(has_undo=True),)))
        await store.apply(Cancel(run_id=an_id(1), id="c", reason="first"))

        assert await store.apply(Cancel(run_id=an_id(1), id="d", reason="second")) is False
        assert await store.apply(Cancel(run_id=an_id(1), id="e", reason="now", force=True)) is True

        run = await the_run(store)
        assert (run.state, run.rollback, run.error and run.error.message) == (RunState.CANCELLED, None, "now")

    async def test_a_cancelled_run_keeps_its_key(self, store: Store) -> None:
        """SEMANTICS, starting: a finished run holds its key."""
        await start(store, an_intent(1, key="k"))
        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert await holder_of(store, "k") == an_id(1)
        assert await claimed_ids(store) == []
