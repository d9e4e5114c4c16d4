"""Contract of `recover`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.checkpoint import Block, Finish, Release, StartRollback
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, Recover, Rewind
from holdfast.core.errors import RunNotFound
from holdfast.core.model import Entry, EntryKind, EntryState, WaitKind
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    a_child,
    a_step,
    an_error,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    ended,
    fail,
    for_message,
    held,
    picture_of,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock


def failed_at(*locations: str) -> Finish:
    """Build the failed end of a run whose error comes from these locations."""
    return Finish(state=RunState.FAILED, error=replace(an_error("no luck"), locations=locations))


def a_failure(location: str, position: int, since: int = 0) -> Entry:
    error = an_error("exhausted")
    return a_step(location, position, None, state=EntryState.FAILED, error=error, since=since, attempts=4)


def an_undo(location: str, position: int, state: EntryState = EntryState.DONE) -> Entry:
    at = f"~undo/{location}"
    return a_step(at, position, None, kind=EntryKind.UNDO, state=state)


async def locations(store: Store, number: int = 1) -> list[str]:
    return [entry.location for entry in await store.history(an_id(number))]


class RecoverContract(Contract):
    """A recovered run tries again what failed, and keeps the rest of its history."""

    async def test_exhausted_steps_are_reset_and_finished_steps_stay(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, control: recover resets exhausted steps and failed branches, then requeues the run."""
        lease = await held(store)
        entries = (a_step("a", 1), a_failure("b", 2, 1))
        await write(store, checkpoint_for(lease, failed_at("b"), entries=entries))
        clock.advance(SECOND)

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True

        assert await locations(store) == ["a"]
        run = await the_run(store)
        assert (run.state, run.ready_at, run.error, run.finished_at) == (RunState.PENDING, START + SECOND, None, None)
        assert (run.token, run.attempt, run.start_at) == (lease.run.token + 1, 2, START + SECOND)
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.data) == ("recovered", {"dropped": 1, "request": "r"})

    async def test_a_blocked_run_is_tried_again_with_a_clean_slate(self, store: Store) -> None:
        """Only `recover` continues a run that a crash loop has blocked. It resets the count of crashes."""
        await write(store, checkpoint_for(await held(store), block(), entries=(a_step("a", 1),)))

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True

        run = await the_run(store)
        assert (run.state, run.ready_at, run.crashes, run.error) == (RunState.PENDING, START, 0, None)
        assert await locations(store) == ["a"]

    async def test_recover_drops_undone_entries_and_all_later_ones(self, store: Store) -> None:
        """SEMANTICS, rollback: `recover` drops undone entries, and later entries, which relied on them."""
        entries = (a_step("a", 1), a_step("b", 2, has_undo=True), a_step("c", 3))
        await write(store, checkpoint_for(await held(store), entries=entries))
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        undone = Finish(state=RunState.CANCELLED, error=an_error("enough"))
        await write(store, checkpoint_for(await claim_one(store), undone, entries=(an_undo("b", 5),)))

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True

        assert await locations(store) == ["a", "~rounds"]
        assert (await the_run(store)).rollback is None

    async def test_completed_undos_are_counted_in_rounds(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, idempotency key: a recover or rewind that drops completed undos writes `~rounds` at position 0."""
        for number in (1, 2, 3):
            lease = await held(store) if number == 1 else await claim_one(store)
            entries = (a_step("a", 1, has_undo=True), a_step("b", 2), a_failure("c", 3, 2))
            rollback = StartRollback(end=RunState.FAILED, error=an_error("no luck"))
            await write(store, checkpoint_for(lease, rollback, entries=entries))
            undone = Finish(state=RunState.FAILED, error=an_error("no luck"))
            await write(store, checkpoint_for(await claim_one(store), undone, entries=(an_undo("a", 5),)))
            clock.advance(SECOND)
            request = (
                Rewind(run_id=an_id(1), id="w", location="b")
                if number == 2
                else Recover(run_id=an_id(1), id=f"r{number}")
            )

            assert await store.apply(request) is True

            (rounds,) = await store.history(an_id(1))
            assert (rounds.location, rounds.kind, rounds.state) == ("~rounds", EntryKind.ROUNDS, EntryState.DONE)
            assert (rounds.position, rounds.result, rounds.finished_at) == (0, f'{{"a":{number}}}', clock.now())

    async def test_a_run_blocked_while_it_rolls_back_goes_on_rolling_back(self, store: Store) -> None:
        """SEMANTICS, rollback: an exhausted undo leaves the run blocked with the rest still to do."""
        entries = (a_step("a", 1, has_undo=True), a_step("b", 2, has_undo=True))
        await write(store, checkpoint_for(await held(store), entries=entries))
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        undos = (an_undo("b", 4), an_undo("a", 5, EntryState.FAILED))
        await write(store, checkpoint_for(await claim_one(store), Block(error=an_error("stuck")), entries=undos))

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True

        run = await the_run(store)
        assert (run.state, run.rollback, run.ready_at) == (RunState.ROLLING_BACK, RunState.CANCELLED, START)
        assert await locations(store) == ["a", "b", "~rollback", "~undo/b"]

    async def test_recover_gives_a_timed_out_wait_its_full_time_again(self, store: Store, clock: SettableClock) -> None:
        """The entry before the wait keeps the instant from which the timeout counts again."""
        late = a_step("receive", 2, None, kind=EntryKind.MESSAGE, state=EntryState.TIMED_OUT, since=1)
        await write(store, checkpoint_for(await held(store), failed_at("receive"), entries=(a_step("a", 1), late)))
        clock.advance(SECOND)

        await store.apply(Recover(run_id=an_id(1), id="r"))

        (kept,) = await store.history(an_id(1))
        assert (kept.location, kept.retry_at) == ("a", START + SECOND)

    async def test_recover_gives_a_failed_step_its_full_time_again(self, store: Store, clock: SettableClock) -> None:
        """A timeout that began with the step begins again at the recovery."""
        entries = (a_step("a", 1), a_failure("b", 2, since=1))
        await write(store, checkpoint_for(await held(store), failed_at("b"), entries=entries))
        clock.advance(SECOND)

        await store.apply(Recover(run_id=an_id(1), id="r"))

        (kept,) = await store.history(an_id(1))
        assert (kept.location, kept.retry_at) == ("a", START + SECOND)

    async def test_recover_to_the_very_start_sets_a_new_time_zero(self, store: Store, clock: SettableClock) -> None:
        """T6: the instant of the first claim is time zero."""
        await write(store, checkpoint_for(await held(store), failed_at("b"), entries=(a_failure("b", 1),)))
        clock.advance(SECOND)

        await store.apply(Recover(run_id=an_id(1), id="r"))

        assert (await claim_one(store)).run.first_claimed_at == START + SECOND

    # Children

    async def test_recover_delivers_the_end_of_a_child_that_ended_after_its_parent(self, store: Store) -> None:
        """Without this arrival, the reopened run would wait for ever."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type="child")
        await write(store, checkpoint_for(lease, children=(child,), entries=(a_child(2),)))
        await write(store, checkpoint_for(lease, fail()))
        await write(store, checkpoint_for(await claim_one(store, type="child"), succeed("7")))

        await store.apply(Recover(run_id=an_id(1), id="r"))

        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.kind, arrival.name, arrival.payload) == (WaitKind.CHILD, an_id(2), "7")

    async def test_a_reopened_child_reports_its_end_to_the_reopened_parent(self, store: Store) -> None:
        """The child has reported its first end to the ended parent. The reopened parent waits for the next one."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type="child")
        await write(store, checkpoint_for(lease, children=(child,), entries=(a_child(2),)))
        await write(store, checkpoint_for(lease, fail()))
        await write(store, checkpoint_for(await claim_one(store, type="child"), fail()))
        await store.apply(Recover(run_id=an_id(2), id="r2"))
        await store.apply(Recover(run_id=an_id(1), id="r1"))
        await write(store, checkpoint_for(await claim_one(store, type="child"), succeed("7")))

        (arrival,) = (await claim_one(store)).arrivals

        assert (arrival.name, arrival.state) == (an_id(2), RunState.SUCCEEDED)

    # Repeating and refusing

    async def test_recover_does_nothing_to_a_run_that_is_alive_or_has_succeeded(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: such a recover returns False, so a bulk may name any run."""
        await held(store, 2)
        await write(store, checkpoint_for(await held(store, 4), Release()))
        await suspended(store, 3, for_message("go"))
        await start(store, an_intent(1))
        await ended(store, 5)
        before = await picture_of(store, *range(1, 6))

        for number in (1, 2, 3, 4, 5):
            for is_forced in (False, True):
                assert await store.apply(Recover(run_id=an_id(number), id="r", force=is_forced)) is False
        with pytest.raises(RunNotFound):
            await store.apply(Recover(run_id=an_id(9), id="r"))
        assert await picture_of(store, *range(1, 6)) == before

    async def test_a_repeated_recovery_changes_nothing_and_gives_the_same_answer(self, store: Store) -> None:
        """S6: even if the run has failed again since."""
        await ended(store, 1, RunState.FAILED)
        await store.apply(Recover(run_id=an_id(1), id="r"))
        await write(store, checkpoint_for(await claim_one(store), fail()))
        before = await picture_of(store, 1)

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True
        assert await picture_of(store, 1) == before
