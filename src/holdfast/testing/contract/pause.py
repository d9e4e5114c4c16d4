"""Contract of `pause`, `resume`, `evict` and `wake`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.checkpoint import Release, StartRollback, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, Evict, Pause, Resume, RunControl, SendMessages, Wake
from holdfast.core.errors import RunNotFound
from holdfast.core.ports import Store
from holdfast.core.questions import VerdictsOn
from holdfast.core.states import RunState
from holdfast.core.verbs import StopRequest
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    HintRecorder,
    a_message,
    a_step,
    an_error,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    claimed_ids,
    ended,
    facts_of,
    for_message,
    for_time,
    held,
    holding_of,
    name_of,
    picture_of,
    renew,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

PAUSE = Pause(run_id=an_id(1), id="p", reason="wait a bit")
RESUME = Resume(run_id=an_id(1), id="r")
EVICT = Evict(run_id=an_id(1), id="e")
WAKE = Wake(run_id=an_id(1), id="w")


class PauseContract(Contract):
    """No worker claims a paused run until it is resumed."""

    async def test_a_run_without_a_holder_is_paused_at_once(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, control. T5: `ready_at` of a paused run is null."""
        await start(store, an_intent(1))
        await suspended(store, 2, for_time(START + SECOND))
        await write(store, checkpoint_for(await held(store, 3), block(retry_at=START + SECOND)))

        answers = [await store.apply(replace(PAUSE, run_id=an_id(number))) for number in (1, 2, 3)]

        assert answers == [True] * 3
        runs = [await the_run(store, number) for number in (1, 2, 3)]
        assert {(run.state, run.ready_at, run.is_pausing) for run in runs} == {(RunState.PAUSED, None, False)}
        clock.advance(LEASE)
        assert await claimed_ids(store) == []
        fact = (await store.audit(an_id(2)))[-1]
        assert (fact.event, fact.data) == ("paused", {"reason": "wait a bit", "request": "p"})

    async def test_the_holder_of_a_run_learns_of_a_pause(self, store: Store) -> None:
        """SEMANTICS, control: pause of a held run takes effect at its next standstill."""
        lease = await held(store)
        hints = HintRecorder(store)

        assert await store.apply(PAUSE) is True

        run = await the_run(store)
        assert (run.state, run.worker, run.token, run.is_pausing) == (
            RunState.RUNNING,
            lease.run.worker,
            lease.run.token,
            True,
        )
        await hints.until("arrived", an_id(1))
        hints.stop()
        holding = holding_of(lease)
        told = [
            await write(store, checkpoint_for(lease, entries=(a_step(),))),
            *(await store.changes(VerdictsOn(holdings=[holding]))).verdicts,
            *(await renew(store, holding)).verdicts,
        ]
        assert [(verdict.is_held, verdict.stop) for verdict in told] == [(True, StopRequest.PAUSE)] * 3
        assert (await facts_of(store))[-1] == "pausing"

    @pytest.mark.parametrize("next", [Release(), Suspend(), block(START)], ids=name_of)
    async def test_a_held_run_pauses_when_its_holder_gives_it_up(
        self, store: Store, next: Release, clock: SettableClock
    ) -> None:
        """SEMANTICS, control: a pause takes the place of a suspension, a release or a block."""
        lease = await held(store)
        await store.apply(PAUSE)

        verdict = await write(store, checkpoint_for(lease, next, waits=(for_time(START + SECOND),)))

        assert (verdict.is_lost, verdict.is_held) == (False, False)
        run = await the_run(store)
        assert (run.state, run.ready_at, run.worker, run.is_pausing) == (RunState.PAUSED, None, None, False)
        clock.advance(LEASE)
        assert await claimed_ids(store) == []

    async def test_a_held_run_with_a_pause_request_may_end_instead(self, store: Store) -> None:
        lease = await held(store)
        await store.apply(PAUSE)

        await write(store, checkpoint_for(lease, succeed()))

        run = await the_run(store)
        assert (run.state, run.is_pausing) == (RunState.SUCCEEDED, False)

    async def test_a_pause_request_survives_a_takeover_from_a_dead_worker(
        self, store: Store, clock: SettableClock
    ) -> None:
        """The pause request survives the worker that held the run."""
        await held(store)
        await store.apply(PAUSE)
        clock.advance(LEASE)

        lease = await claim_one(store, worker=OTHER_WORKER)

        assert lease.run.is_pausing

    async def test_the_holder_of_a_run_learns_of_an_eviction_and_releases_the_run(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, evict: no crash is charged, and the run is ready now for any worker."""
        lease = await held(store)
        hints = HintRecorder(store)

        assert await store.apply(EVICT) is True
        assert await store.apply(EVICT) is True  # the same request again
        assert await store.apply(replace(EVICT, id="e2")) is False

        await hints.until("arrived", an_id(1))
        hints.stop()
        assert (await write(store, checkpoint_for(lease, entries=(a_step(),)))).stop is StopRequest.EVICT
        (verdict,) = (await renew(store, holding_of(lease))).verdicts
        assert verdict.stop is StopRequest.EVICT
        clock.advance(SECOND)
        await write(store, checkpoint_for(lease, Release()))
        run = await the_run(store)
        assert (run.state, run.ready_at, run.worker, run.stop, run.crashes) == (
            RunState.PENDING,
            START + SECOND,
            None,
            None,
            0,
        )
        assert (await facts_of(store))[-2:] == ["evicted", "released"]
        assert (await claim_one(store, worker=OTHER_WORKER)).run.stop is None

    async def test_a_run_without_a_holder_is_not_evicted(self, store: Store) -> None:
        """SEMANTICS, evict: False if no worker holds the run."""
        await start(store, an_intent(1))
        await suspended(store, 2, for_time(START + SECOND))
        await ended(store, 3)
        before = [await picture_of(store, number) for number in (1, 2, 3)]

        assert [await store.apply(replace(EVICT, run_id=an_id(number))) for number in (1, 2, 3)] == [False] * 3

        assert [await picture_of(store, number) for number in (1, 2, 3)] == before

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    async def test_an_evicted_run_with_a_pause_request_is_paused(self, store: Store, order: tuple[int, int]) -> None:
        lease = await held(store)

        for place in order:
            assert await store.apply((EVICT, PAUSE)[place]) is True

        assert (await the_run(store)).stop is StopRequest.EVICT_THEN_PAUSE
        assert await store.apply(RESUME) is True
        assert (await the_run(store)).stop is StopRequest.EVICT
        assert await store.apply(replace(PAUSE, id="p2")) is True
        await write(store, checkpoint_for(lease, Release()))
        run = await the_run(store)
        assert (run.state, run.ready_at, run.stop) == (RunState.PAUSED, None, None)

    async def test_a_message_to_a_paused_run_waits_until_it_is_resumed(self, store: Store) -> None:
        """T1: an arrival stays in the inbox and does not resume the run."""
        await suspended(store, 1, for_message("go"))
        await store.apply(PAUSE)

        await store.apply(SendMessages(messages=[a_message()]))

        assert (await the_run(store)).state is RunState.PAUSED
        assert await claimed_ids(store) == []
        await store.apply(RESUME)
        lease = await claim_one(store)
        assert [arrival.ref for arrival in lease.arrivals] == ["m1"]

    async def test_a_resumed_run_is_ready_but_not_before_its_start(self, store: Store, clock: SettableClock) -> None:
        """T5: a resumed run is ready now, but never before its own start time."""
        await start(store, an_intent(1), an_intent(2, delay=10 * SECOND))
        for number in (1, 2):
            await store.apply(replace(PAUSE, run_id=an_id(number)))
        clock.advance(SECOND)

        assert [await store.apply(replace(RESUME, run_id=an_id(number))) for number in (1, 2)] == [True, True]

        runs = [await the_run(store, number) for number in (1, 2)]
        assert [run.state for run in runs] == [RunState.PENDING] * 2
        assert [run.ready_at for run in runs] == [START + SECOND, START + 10 * SECOND]
        assert await facts_of(store) == ["paused", "resumed"]

    async def test_a_run_resumed_before_it_paused_stays_with_its_holder(self, store: Store) -> None:
        lease = await held(store)
        await store.apply(PAUSE)

        assert await store.apply(RESUME) is True

        verdict = await write(store, checkpoint_for(lease))
        assert (verdict.is_held, verdict.stop) == (True, None)

    async def test_a_run_paused_while_it_rolls_back_goes_on_rolling_back(self, store: Store) -> None:
        await write(store, checkpoint_for(await held(store), entries=(a_step(has_undo=True),)))
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        await store.apply(PAUSE)
        assert (await the_run(store)).state is RunState.PAUSED

        await store.apply(RESUME)

        run = await the_run(store)
        assert (run.state, run.rollback, run.ready_at) == (RunState.ROLLING_BACK, RunState.CANCELLED, START)

    async def test_a_run_that_starts_a_rollback_with_a_pause_request_is_paused_first(self, store: Store) -> None:
        lease = await held(store)
        await store.apply(PAUSE)
        rollback = StartRollback(end=RunState.FAILED, error=an_error("no luck"))

        await write(store, checkpoint_for(lease, rollback))

        run = await the_run(store)
        assert (run.state, run.rollback, run.ready_at) == (RunState.PAUSED, RunState.FAILED, None)

    async def test_a_paused_child_that_waits_for_a_slot_still_waits_for_it_when_resumed(self, store: Store) -> None:
        """SEMANTICS, limits: a claim does not look at parked runs."""
        options = {"parent_id": an_id(1), "type": "member"}
        await start(
            store,
            an_intent(2, **options, parent_location="map/0"),
            an_intent(3, **options, parent_location="map/1", is_parked=True),
        )
        await store.apply(replace(PAUSE, run_id=an_id(3)))

        await store.apply(replace(RESUME, run_id=an_id(3)))

        assert (await the_run(store, 3)).ready_at is None
        lease = await claim_one(store, type="member")
        await write(store, checkpoint_for(lease, succeed()))
        assert (await the_run(store, 3)).ready_at == START

    # Waking

    async def test_wake_makes_a_waiting_run_ready(self, store: Store) -> None:
        """SEMANTICS, control: wake makes a run ready if it is suspended, or blocked with a next try."""
        await suspended(store, 1, for_time(START + 60 * SECOND))
        await suspended(store, 2, for_message("go"))
        await write(store, checkpoint_for(await held(store, 3), block(retry_at=START + 60 * SECOND)))

        assert [await store.apply(replace(WAKE, run_id=an_id(number))) for number in (1, 2, 3)] == [True] * 3

        assert await claimed_ids(store) == [an_id(1), an_id(2), an_id(3)]
        fact = (await store.audit(an_id(1)))[-2]
        assert (fact.event, fact.data) == ("woken", {"cause": "wake", "request": "w"})

    async def test_wake_does_nothing_to_a_run_that_neither_waits_nor_retries(self, store: Store) -> None:
        """SEMANTICS, control: wake does nothing to a held run. T5: never before its own start time."""
        await held(store, 1)
        await start(store, an_intent(2), an_intent(3, delay=SECOND))
        await write(store, checkpoint_for(await held(store, 4), block()))
        await start(store, an_intent(5))
        await store.apply(replace(PAUSE, run_id=an_id(5)))
        await ended(store, 6)
        numbers = range(1, 7)
        before = await picture_of(store, *numbers)

        assert [await store.apply(replace(WAKE, run_id=an_id(number))) for number in numbers] == [False] * 6

        assert await picture_of(store, *numbers) == before

    # Repeating and refusing

    @pytest.mark.parametrize("wish", [PAUSE, RESUME], ids=lambda wish: type(wish).__name__)
    async def test_an_ended_run_is_neither_paused_nor_resumed(self, store: Store, wish: RunControl) -> None:
        """S5: an ended run changes only by `recover` or `rewind`."""
        await ended(store)
        before = await picture_of(store, 1)

        assert await store.apply(wish) is False
        assert await picture_of(store, 1) == before

    async def test_a_repeated_pause_changes_nothing_and_gives_the_same_answer(self, store: Store) -> None:
        """S6: even if the opposite request came in between."""
        await suspended(store, 1, for_message("go"))
        await store.apply(PAUSE)
        await store.apply(RESUME)
        before = await picture_of(store, 1)

        assert await store.apply(PAUSE) is True
        assert await store.apply(RESUME) is True
        assert await store.apply(Resume(run_id=an_id(1), id="r2")) is False
        assert await picture_of(store, 1) == before

    @pytest.mark.parametrize("wish", [PAUSE, RESUME, WAKE], ids=lambda wish: type(wish).__name__)
    async def test_pausing_an_unknown_run_is_an_error(self, store: Store, wish: RunControl) -> None:
        with pytest.raises(RunNotFound):
            await store.apply(replace(wish, run_id=an_id(9)))
