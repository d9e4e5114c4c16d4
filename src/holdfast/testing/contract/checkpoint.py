"""Contract of checkpoints: the effect of `checkpoint` on its own run."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.checkpoint import Checkpoint, Hold, Next, Release, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, SendMessages
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Entry, EntryKind, EntryState, Lease
from holdfast.core.ports import Store
from holdfast.core.questions import CountRuns
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    HOSTILE,
    LEASE,
    OTHER_WORKER,
    a_message,
    a_retry,
    a_step,
    an_event,
    an_id,
    an_intent,
    another,
    block,
    checkpoint_for,
    claim,
    claim_one,
    claimed_ids,
    facts_of,
    fail,
    for_event,
    for_message,
    for_time,
    held,
    name_of,
    picture_of,
    start,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

EVERY_NEXT: tuple[Next, ...] = (Hold(), Suspend(), succeed(), fail(), block(), Release())


class CheckpointContract(Contract):
    """A checkpoint is written wholly or not at all, and only for the lease holder."""

    async def test_a_hold_writes_entries_and_keeps_the_run_held(self, store: Store, clock: SettableClock) -> None:
        """S2: a checkpoint applies wholly under a current token."""
        lease = await held(store)
        clock.advance(SECOND)
        entries = (a_step("a", 1), a_step("b", 2, result=None), a_step("c", 3, kind=EntryKind.TIMER, result=None))

        answer = await store.checkpoint([checkpoint_for(lease, Hold(), entries=entries)])

        (verdict,) = answer.verdicts
        assert (verdict.is_lost, verdict.is_held, verdict.arrivals) == (False, True, ())
        assert answer.now == START + SECOND
        assert tuple(await store.history(an_id(1))) == entries
        assert await the_run(store) == lease.run

    async def test_history_is_in_commit_order_with_unsettled_entries_last(self, store: Store) -> None:
        """T2: positions follow the commit order."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_retry("z"), a_step("y", 1), a_retry("a"))))
        await write(store, checkpoint_for(lease, entries=(a_step("x", 3), a_step("w", 2))))

        assert [entry.location for entry in await store.history(an_id(1))] == ["y", "w", "x", "a", "z"]

    async def test_the_history_returns_all_fields_of_an_entry(self, store: Store) -> None:
        """PROMISES: every store returns entries unchanged."""
        cause = ErrorRecord(type="OSError", message="disk ☃ \\ 'full'", types=("OSError", "Exception"), traceback="…")
        error = ErrorRecord(type="StepFailed", message='"no"', types=("x.StepFailed",), attempts=4, cause=cause)
        entries = (
            a_step("join/key/step#2", 1, result='{"Ünïcödé":"☃ 🦊 \\u2028"}', finished_at=START + 7, attempts=3),
            a_step("failed", 2, result=None, state=EntryState.FAILED, error=error, attempts=4),
            a_step("late", 3, result=None, state=EntryState.TIMED_OUT, kind=EntryKind.MESSAGE),
            a_step("got", 4, kind=EntryKind.EVENT, ref="12"),
            *(a_step(f"{text}", 5 + index, result=f"{index}") for index, text in enumerate(HOSTILE)),
            a_step("begun", 0, result=None, kind=EntryKind.CHILD, state=EntryState.STARTED, ref=an_id(7), attempts=0),
            a_retry("retrying", attempts=2),
        )
        lease = await held(store)
        await write(store, checkpoint_for(lease, Release(), entries=entries))

        assert tuple(await store.history(an_id(1))) == entries
        assert (await claim_one(store)).entries == entries

    # Entries

    async def test_a_settled_entry_never_changes(self, store: Store) -> None:
        """PROMISES 3: one recorded result per location. A step that returned nothing is done too."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_step("a", 1, result=None), a_step("b", 2))))

        await write(store, checkpoint_for(lease, entries=(a_step("a", 3, result="2"), a_retry("b", attempts=9))))

        assert tuple(await store.history(an_id(1))) == (a_step("a", 1, result=None), a_step("b", 2))

    async def test_a_retrying_entry_is_replaced_only_by_a_later_attempt(self, store: Store) -> None:
        """SEMANTICS, steps: a failed attempt is recorded with its number. T8: repeats are harmless."""
        lease = await held(store)
        for attempts in (1, 2, 2, 1):
            await write(store, checkpoint_for(lease, entries=(a_retry(attempts=attempts),)))

        assert tuple(await store.history(an_id(1))) == (a_retry(attempts=2),)
        facts = [fact.data for fact in await store.audit(an_id(1)) if fact.event == "retried"]
        assert [(fact["location"], fact["attempt"]) for fact in facts] == [("charge", 1), ("charge", 2)]

    async def test_a_result_replaces_an_unsettled_entry(self, store: Store) -> None:
        """SEMANTICS, steps: a result is recorded exactly once and replaces an unsettled entry."""
        lease = await held(store)
        begun = a_step("child", 0, kind=EntryKind.CHILD, state=EntryState.STARTED, attempts=0, ref=an_id(2))
        await write(store, checkpoint_for(lease, entries=(a_retry("step", attempts=3), begun)))

        settled = (a_step("child", 1, kind=EntryKind.CHILD, ref=an_id(2)), a_step("step", 2, attempts=3))
        await write(store, checkpoint_for(lease, entries=settled))

        assert tuple(await store.history(an_id(1))) == settled

    # Values and waits

    async def test_values_are_published_and_replaced_by_name(self, store: Store) -> None:
        """SEMANTICS, seeing: `set_value` publishes named progress, which stays readable after the end."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, values={"done": "1", "it's ☃": '"x"'}))
        await write(store, checkpoint_for(lease, succeed(), values={"done": "2"}))

        details = await store.get(an_id(1))
        assert details is not None
        assert details.values == {"done": "2", "it's ☃": '"x"'}

    async def test_the_audit_keeps_the_last_hundred_heartbeats_with_their_numbers(self, store: Store) -> None:
        """SEMANTICS, seeing: the audit records heartbeats and keeps the last 100.

        A heartbeat has no `request`, so it does not hide who paused the run.
        """
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_retry(),)))
        for number in range(1, 121):
            await write(store, checkpoint_for(lease, beat=number, values={"progress": f"{number}"}))

        told = await store.audit(an_id(1))
        beats = [fact for fact in told if fact.event == "heartbeat"]
        assert [fact.event for fact in told if fact not in beats] == ["retried"]
        assert not any("request" in fact.data for fact in beats)
        assert [fact.data["beat"] for fact in beats] == [f"1.{number}" for number in range(21, 121)]

    async def test_a_holder_that_lost_its_run_records_no_heartbeat(self, store: Store) -> None:
        """S2, T8: neither its heartbeat nor its values are written."""
        lease = await held(store)
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        verdict = await write(store, checkpoint_for(lease, beat=1, values={"progress": "1"}))

        details = await store.get(an_id(1))
        assert details is not None
        assert (verdict.is_lost, details.values) == (True, {})
        assert "heartbeat" not in await facts_of(store)

    async def test_waits_are_replaced_as_a_set_and_kept_if_not_given(self, store: Store) -> None:
        """The port: `waits` is the full set of open waits, or None if it did not change."""
        lease = await held(store)
        waits = (for_message("a", "b", deadline=START + SECOND), for_event("t", after=3), for_time(START + SECOND))
        seen = []
        for given in (waits, None, waits[1:], ()):
            await write(store, checkpoint_for(lease, waits=given))
            details = await store.get(an_id(1))
            assert details is not None
            seen.append(set(details.waits))

        assert seen == [set(waits), set(waits), set(waits[1:]), set()]

    # Suspending

    async def test_a_suspended_run_has_no_holder_and_is_ready_at_its_earliest_deadline(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T5: a suspended run is ready at the earliest deadline of its waits."""
        lease = await held(store)
        clock.advance(SECOND)
        waits = (for_message("go", deadline=START + 9 * SECOND), for_time(START + 5 * SECOND), for_event("t"))

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=waits))

        assert (verdict.is_lost, verdict.is_held) == (False, False)
        run = await the_run(store)
        assert (run.state, run.worker, run.claim_id, run.token) == (RunState.SUSPENDED, None, None, 1)
        assert (run.ready_at, run.updated_at) == (START + 5 * SECOND, START + SECOND)
        details = await store.get(an_id(1))
        assert details is not None
        assert set(details.waits) == set(waits)
        assert await facts_of(store) == ["claimed", "suspended"]

    async def test_a_run_suspended_without_a_deadline_has_no_ready_time(self, store: Store) -> None:
        """T5: without a deadline, `ready_at` is null."""
        await write(store, checkpoint_for(await held(store), Suspend(), waits=(for_message("go"),)))

        assert (await the_run(store)).ready_at is None

    async def test_a_suspension_uses_the_deadlines_of_waits_registered_earlier(self, store: Store) -> None:
        """T5: a suspension that does not change the waits uses their deadline."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, Hold(), waits=(for_time(START + 5 * SECOND),)))

        await write(store, checkpoint_for(lease, Suspend()))

        assert (await the_run(store)).ready_at == START + 5 * SECOND

    async def test_a_deadline_in_the_past_makes_a_run_ready_at_once(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, waiting: a deadline in the past returns at once."""
        clock.advance(SECOND)
        await write(store, checkpoint_for(await held(store), Suspend(), waits=(for_time(START),)))

        assert await claimed_ids(store) == [an_id(1)]

    async def test_a_suspension_with_an_unseen_arrival_stays_held(self, store: Store) -> None:
        """S3, T4: if `arrivals` is higher than `seen`, the run stays held and the answer brings the newer arrivals."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),), entries=(a_step(),)))

        assert (verdict.is_lost, verdict.is_held) == (False, True)
        assert [arrival.ref for arrival in verdict.arrivals] == ["m1"]
        run = await the_run(store)
        assert (run.state, run.ready_at) == (RunState.RUNNING, START + LEASE)
        assert tuple(await store.history(an_id(1))) == (a_step(),)
        assert await facts_of(store) == ["claimed"]

    async def test_a_suspension_that_has_seen_all_arrivals_is_applied(self, store: Store) -> None:
        """T4: the holder has seen its inbox and waits for something else."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))

        verdict = await write(store, checkpoint_for(lease, Suspend(), seen=1, waits=(for_message("other"),)))

        assert (verdict.is_held, (await the_run(store)).ready_at) == (False, None)

    # Ends

    async def test_a_success_ends_the_run(self, store: Store, clock: SettableClock) -> None:
        """PROMISES 2: a run has one end. T5: `ready_at` of an ended run is null."""
        lease = await held(store)
        clock.advance(SECOND)

        verdict = await write(store, checkpoint_for(lease, succeed('{"ok":true}'), waits=(for_message("go"),)))

        assert (verdict.is_lost, verdict.is_held) == (False, False)
        details = await store.get(an_id(1))
        assert details is not None
        run = details.run
        assert (run.state, run.result, run.error) == (RunState.SUCCEEDED, '{"ok":true}', None)
        assert (run.finished_at, run.ready_at, run.worker) == (START + SECOND, None, None)
        assert details.waits == ()
        assert await facts_of(store) == ["claimed", "succeeded"]

    async def test_a_failure_ends_the_run_and_keeps_its_error(self, store: Store) -> None:
        """PROMISES 2: a run has one end."""
        await write(store, checkpoint_for(await held(store), fail("no luck")))

        run = await the_run(store)
        assert (run.state, run.result, run.finished_at) == (RunState.FAILED, None, START)
        assert run.error is not None
        assert (run.error.type, run.error.message) == ("ValueError", "no luck")
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.data) == ("failed", {"error": "ValueError: no luck"})

    # Blocking and releasing

    async def test_a_blocked_run_keeps_its_error_until_it_suspends(self, store: Store, clock: SettableClock) -> None:
        """T5: a blocked run is ready at its next try. It keeps the error until it suspends or ends."""
        await write(store, checkpoint_for(await held(store), block(retry_at=START + SECOND)))
        blocked = await the_run(store)
        clock.advance(SECOND)
        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))

        assert (blocked.state, blocked.worker, blocked.ready_at) == (RunState.BLOCKED, None, START + SECOND)
        assert blocked.error is not None
        assert blocked.error.message == "stuck"
        assert lease.run.error == blocked.error
        assert (await the_run(store)).error is None
        assert await facts_of(store) == ["claimed", "blocked", "claimed", "suspended"]

    async def test_a_run_blocked_without_a_next_try_has_no_ready_time(self, store: Store) -> None:
        """T5: without a next try, `ready_at` is null."""
        await write(store, checkpoint_for(await held(store), block()))

        assert (await the_run(store)).ready_at is None

    async def test_a_block_writes_the_facts_fed_before_it(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, blocking never loses a result: entries, consumed arrivals, and requests made before them."""
        await start(store, an_intent(1), an_intent(2))
        lease = await claim_one(store)
        await store.apply(SendMessages(messages=[a_message(1, id="m1"), a_message(1, id="m2")]))
        clock.advance(SECOND)

        verdict = await write(
            store,
            checkpoint_for(
                lease,
                block(retry_at=START + 9 * SECOND),
                entries=(a_step("a", 1), a_retry("b")),
                consumed=(1,),
                waits=(),
                children=(an_intent(3, parent_id=an_id(1), parent_location="child"),),
                messages=(a_message(2, id="m3"),),
                values={"progress": "1"},
            ),
        )

        assert (verdict.is_held, verdict.state) == (False, RunState.BLOCKED)
        details = await store.get(an_id(1))
        assert details is not None
        assert (details.run.ready_at, details.values) == (START + 9 * SECOND, {"progress": "1"})
        clock.advance(9 * SECOND)
        leases = {lease.run.id: lease for lease in (await claim(store, limit=9)).leases}
        assert leases.keys() == {an_id(1), an_id(2), an_id(3)}
        assert leases[an_id(1)].entries == (a_step("a", 1), a_retry("b"))
        assert [arrival.ref for arrival in leases[an_id(1)].arrivals] == ["m2"]
        assert [arrival.ref for arrival in leases[an_id(2)].arrivals] == ["m3"]

    async def test_a_released_run_is_ready_at_once(self, store: Store, clock: SettableClock) -> None:
        """T5: a released run is ready now. SEMANTICS, workers: a shutdown releases leases at once, without charge."""
        lease = await held(store)
        clock.advance(SECOND)

        verdict = await write(store, checkpoint_for(lease, Release(), entries=(a_step(),)))

        assert (verdict.is_lost, verdict.is_held) == (False, False)
        run = await the_run(store)
        assert (run.state, run.worker, run.ready_at) == (RunState.PENDING, None, START + SECOND)
        assert await facts_of(store) == ["claimed", "released"]
        assert (await claim_one(store, worker=OTHER_WORKER)).entries == (a_step(),)

    # The fence

    async def test_a_holder_may_write_after_its_lease_expired_until_another_claim(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T8: expiry alone ends nothing."""
        lease = await held(store)
        clock.advance(10 * LEASE)

        verdict = await write(store, checkpoint_for(lease, succeed()))

        assert not verdict.is_lost
        assert (await the_run(store)).state is RunState.SUCCEEDED

    @pytest.mark.parametrize("next", EVERY_NEXT, ids=name_of)
    async def test_a_checkpoint_after_another_claim_writes_nothing(
        self, store: Store, clock: SettableClock, next: Next
    ) -> None:
        """S2, T8: the store refuses a checkpoint under an old token as a whole."""
        await self._check_fenced(store, clock, next, is_cancelled=False)

    @pytest.mark.parametrize("next", EVERY_NEXT, ids=name_of)
    async def test_a_checkpoint_after_a_cancel_writes_nothing(
        self, store: Store, clock: SettableClock, next: Next
    ) -> None:
        """S5, T8: a cancelled run stays cancelled, regardless of its body."""
        await self._check_fenced(store, clock, next, is_cancelled=True)

    async def _check_fenced(self, store: Store, clock: SettableClock, next: Next, *, is_cancelled: bool) -> None:
        await start(store, an_intent(2), an_intent(3))
        lease = await held(store, type="fenced")
        await store.apply(SendMessages(messages=[a_message(1, id="m1")]))
        if is_cancelled:
            await store.apply(Cancel(run_id=an_id(1), id="c"))
        else:
            clock.advance(LEASE)
            await claim_one(store, type="fenced", worker=OTHER_WORKER)
        before = await picture_of(store, 1, 2, 3)

        verdict = await write(store, _everything(lease, next))

        assert (verdict.is_lost, verdict.is_held, verdict.arrivals) == (True, False, ())
        assert await picture_of(store, 1, 2, 3) == before
        assert await store.get(an_id(4)) is None
        watcher = await held(store, 5)
        assert (await write(store, checkpoint_for(watcher, waits=(for_event("paid"),)))).arrivals == ()

    @pytest.mark.parametrize("entries", [(), (a_step(),), (a_step(), a_retry("other"))], ids=len)
    @pytest.mark.parametrize("next", EVERY_NEXT, ids=name_of)
    async def test_a_checkpoint_after_a_claim_through_another_store_writes_nothing(
        self, store: Store, clock: SettableClock, next: Next, entries: tuple[Entry, ...]
    ) -> None:
        """T8: the store checks the token in its data, not in the memory of the process that leased the run."""
        leases = [await held(store, number) for number in (1, 2, 3)]
        clock.advance(LEASE)
        async with another(store) as twin:
            assert len(await claimed_ids(twin, worker=OTHER_WORKER)) == len(leases)
        before = await picture_of(store, 1, 2, 3)

        waits = (for_message("go"),) if isinstance(next, Suspend) else None
        alone, *together = [checkpoint_for(lease, next, entries=entries, waits=waits) for lease in leases]
        verdicts = await write(store, alone), *(await store.checkpoint(together)).verdicts

        assert [verdict.is_lost for verdict in verdicts] == [True, True, True]
        assert await picture_of(store, 1, 2, 3) == before

    async def test_a_suspension_sees_an_arrival_that_came_through_another_store(self, store: Store) -> None:
        """T4: the store looks for arrivals in its data, not in memory."""
        lease = await held(store)
        async with another(store) as twin:
            await twin.apply(SendMessages(messages=[a_message(1)]))

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))

        assert (verdict.is_held, len(verdict.arrivals)) == (True, 1)
        assert (await the_run(store)).state is RunState.RUNNING

    async def test_a_checkpoint_with_a_wrong_token_or_of_an_unknown_run_is_lost(self, store: Store) -> None:
        """T8: only the current token counts."""
        lease = await held(store)
        stranger = Checkpoint(run_id=an_id(9), token=1, seen=0, next=succeed())

        verdicts = [
            await write(store, checkpoint_for(lease, succeed(), token=2)),
            await write(store, checkpoint_for(lease, succeed(), token=0)),
            await write(store, stranger),
        ]

        assert [verdict.is_lost for verdict in verdicts] == [True, True, True]
        assert (await the_run(store)).state is RunState.RUNNING

    # Batches

    async def test_a_batch_returns_one_verdict_per_run_in_order(self, store: Store) -> None:
        """T9: each verdict is applied or lost, one per run. A lost one does not affect the others."""
        leases = [await held(store, number) for number in (1, 2, 3)]
        await store.apply(Cancel(run_id=an_id(2), id="c"))
        await store.apply(SendMessages(messages=[a_message(3)]))

        verdicts = (await store.checkpoint([checkpoint_for(lease, entries=(a_step(),)) for lease in leases])).verdicts

        assert [(verdict.run_id, verdict.is_lost, len(verdict.arrivals)) for verdict in verdicts] == [
            (an_id(1), False, 0),
            (an_id(2), True, 0),
            (an_id(3), False, 1),
        ]
        assert [len(await store.history(an_id(number))) for number in (1, 2, 3)] == [1, 0, 1]

    async def test_an_empty_batch_returns_only_the_time(self, store: Store) -> None:
        """T6: every answer of a store carries its `now`."""
        answer = await store.checkpoint([])

        assert (answer.verdicts, answer.now) == ((), START)

    async def test_a_large_batch_is_written_whole(self, store: Store) -> None:
        """DESIGN, group commit: a worker sends the checkpoints of all its runs as one batch."""
        leases = [await held(store, number) for number in range(200)]

        answer = await store.checkpoint([checkpoint_for(lease, succeed(), entries=(a_step(),)) for lease in leases])

        assert [verdict.run_id for verdict in answer.verdicts] == [an_id(number) for number in range(200)]
        assert await store.stats(CountRuns()) == {leases[0].run.type: {RunState.SUCCEEDED: 200}}


def _everything(lease: Lease, next: Next) -> Checkpoint:
    """Build a checkpoint of run 1 with all parts: it consumes a message, sends to 2, cancels 3 and creates 4."""
    parts: dict[str, Any] = {
        "seen": 1,
        "entries": (a_step(), a_retry("other")),
        "consumed": (1,),
        "waits": (for_message("go"), for_time(START + SECOND)),
        "children": (an_intent(4, parent_id=an_id(1)),),
        "messages": (a_message(2, id="out"),),
        "events": (an_event("e1"),),
        "cancels": (an_id(3),),
        "values": {"done": "1"},
        "charged": True,
    }
    return checkpoint_for(lease, next, **parts)
