"""Contract of repeats: a caller may repeat any operation whose answer was lost."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import Hold, Next, Release, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import EmitEvents, SendMessages
from holdfast.core.ports import Store
from holdfast.core.questions import Query
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    a_message,
    a_retry,
    a_step,
    an_event,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    ended,
    facts_of,
    fail,
    for_child,
    for_event,
    for_message,
    for_time,
    held,
    name_of,
    picture_of,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

EVERY_NEXT: tuple[Next, ...] = (Hold(), Suspend(), succeed(), fail(), block(START + 9 * SECOND), Release())


class RepeatContract(Contract):
    """S6: a lost answer is safe."""

    @pytest.mark.parametrize("next", EVERY_NEXT, ids=name_of)
    async def test_a_repeated_checkpoint_is_applied_once(self, store: Store, clock: SettableClock, next: Next) -> None:
        """S6, T8: the answer is the same, and no entry, audit row, child, message or event appears twice."""
        await suspended(store, 1, for_child(2))
        await start(store, an_intent(3, type="target"), an_intent(5))
        await suspended(store, 4, for_event("paid"))
        await ended(store, 6)
        lease = await held(store, 2, parent_id=an_id(1))
        await store.apply(SendMessages(messages=[a_message(2, id="in")]))
        checkpoint = checkpoint_for(
            lease,
            next,
            seen=1,
            entries=(a_step(), a_retry("other")),
            consumed=(1,),
            waits=(for_message("go"), for_event("topic"), for_time(START + 60 * SECOND)),
            children=(an_intent(7, parent_id=an_id(2)),),
            messages=(a_message(3, id="out"), a_message(6, id="dropped"), a_message(9, id="nobody")),
            events=(an_event("e1"),),
            cancels=(an_id(5),),
            values={"done": "1"},
            beat=1,
            charged=True,
        )
        first = await write(store, checkpoint)
        before = await picture_of(store, 1, 2, 3, 4, 5, 6, 7)
        clock.advance(SECOND)

        again = await write(store, checkpoint)

        assert (first.is_lost, again) == (False, first)
        assert await picture_of(store, 1, 2, 3, 4, 5, 6, 7) == before
        assert [arrival.ref for arrival in (await claim_one(store, type="target")).arrivals] == ["out"]

    async def test_a_repeated_end_reaches_the_parent_once(self, store: Store) -> None:
        """S6: the parent gets one arrival for the end of a child."""
        parent = await held(store, 1)
        child = await held(store, 2, parent_id=an_id(1))
        checkpoint = checkpoint_for(child, succeed())
        await write(store, checkpoint)
        await write(store, checkpoint)

        verdict = await write(store, checkpoint_for(parent))

        assert [arrival.name for arrival in verdict.arrivals] == [an_id(2)]

    async def test_a_repeated_end_after_the_parent_took_it_is_not_delivered_again(self, store: Store) -> None:
        """S6: also when the parent has already consumed the arrival."""
        parent = await held(store, 1)
        child = await held(store, 2, parent_id=an_id(1))
        checkpoint = checkpoint_for(child, succeed())
        await write(store, checkpoint)
        await write(store, checkpoint_for(parent, seen=1, consumed=(1,), entries=(a_step(),)))

        again = await write(store, checkpoint)

        assert (again.is_lost, again.is_held) == (False, False)
        assert (await write(store, checkpoint_for(parent))).arrivals == ()

    async def test_a_suspension_refused_for_an_arrival_is_refused_again(self, store: Store) -> None:
        """S6, T4: both answers carry the arrival."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message()]))
        checkpoint = checkpoint_for(lease, Suspend(), waits=(for_message("go"),))

        first, again = await write(store, checkpoint), await write(store, checkpoint)

        assert first.is_held
        assert again == first

    async def test_a_repeated_suspension_of_a_run_that_woke_since_is_applied(self, store: Store) -> None:
        """S6, T8: if the token is the same and no worker holds the run, this checkpoint released it."""
        lease = await held(store)
        checkpoint = checkpoint_for(lease, Suspend(), waits=(for_message("go"),))
        await write(store, checkpoint)
        await store.apply(SendMessages(messages=[a_message()]))
        before = await picture_of(store, 1)

        again = await write(store, checkpoint)

        assert (again.is_lost, again.is_held) == (False, False)
        assert await picture_of(store, 1) == before

    async def test_a_repeated_suspension_of_a_run_that_was_claimed_since_is_lost(self, store: Store) -> None:
        """T8: the token fences off repeats too."""
        lease = await held(store)
        checkpoint = checkpoint_for(lease, Suspend(), waits=(for_message("go"),))
        await write(store, checkpoint)
        await store.apply(SendMessages(messages=[a_message()]))
        await claim_one(store)
        before = await picture_of(store, 1)

        again = await write(store, checkpoint)

        assert (again.is_lost, again.is_held) == (True, False)
        assert await picture_of(store, 1) == before

    async def test_a_repeated_wait_for_an_event_gets_it_once(self, store: Store) -> None:
        """S6, S3: writing a wait again does not collect its event again."""
        lease = await held(store)
        await store.apply(EmitEvents(events=[an_event("e1"), an_event("e2")]))
        checkpoint = checkpoint_for(lease, waits=(for_event("paid"),))

        first, again = await write(store, checkpoint), await write(store, checkpoint)

        assert [arrival.payload for arrival in first.arrivals] == ["1"]
        assert again == first

    async def test_a_message_that_was_dropped_is_noted_once_for_each(self, store: Store) -> None:
        """SEMANTICS, waiting: a message to an ended run is dropped and audited. T8: a repeat adds no audit row."""
        await ended(store, 2)
        lease = await held(store, 1)
        checkpoint = checkpoint_for(lease, messages=(a_message(2, id="m1"), a_message(2, id="m2")))

        await write(store, checkpoint)
        await write(store, checkpoint)

        assert await facts_of(store) == ["claimed", "dropped", "dropped"]

    async def test_a_repeated_start_makes_no_second_run(self, store: Store) -> None:
        """S6: the id of the run makes a start repeatable, even without a key."""
        intents = [an_intent(1), an_intent(2, key="k")]
        await store.create(intents)

        again = await store.create(intents)

        assert [(run.run_id, run.created) for run in again.runs] == [(an_id(1), False), (an_id(2), False)]
        assert len(await store.list(Query())) == 2

    async def test_a_start_repeated_after_the_run_ended_does_not_reopen_it(self, store: Store) -> None:
        """S5, S6: a repeated start does not touch the ended run that it made, not even if it may reuse the key."""
        await ended(store, 1, key="k")
        before = await picture_of(store, 1)

        again = await store.create([an_intent(1, key="k", reuse="after_end")])

        assert [(run.run_id, run.created) for run in again.runs] == [(an_id(1), False)]
        assert await picture_of(store, 1) == before

    async def test_a_checkpoint_repeated_in_a_batch_of_others_is_applied_once(self, store: Store) -> None:
        """T9: a worker repeats a batch with an unknown outcome as a whole, perhaps with newer checkpoints."""
        one, two = await held(store, 1), await held(store, 2)
        first = checkpoint_for(one, succeed(), entries=(a_step(),))
        await write(store, first)

        verdicts = (await store.checkpoint([first, checkpoint_for(two, succeed())])).verdicts

        assert [(verdict.is_lost, verdict.is_held) for verdict in verdicts] == [(False, False)] * 2
        assert [(await the_run(store, number)).state for number in (1, 2)] == [RunState.SUCCEEDED] * 2

    async def test_another_checkpoint_of_an_ended_run_changes_nothing(self, store: Store) -> None:
        """S5: not even its last holder can change an ended run."""
        lease = await ended(store, 1)
        before = await picture_of(store, 1)

        await write(store, checkpoint_for(lease, fail(), entries=(a_step(),), values={"x": "1"}))

        assert await picture_of(store, 1) == before
