"""Contract of loop pruning and `continue_as_new`: the parts of a living run that a store drops or keeps."""

from __future__ import annotations

from holdfast.core.checkpoint import ContinueAsNew, Hold, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, EmitEvents, SendMessages
from holdfast.core.model import EntryState, RunOptions, Wait, WaitKind
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    a_message,
    a_step,
    an_event,
    an_id,
    an_intent,
    checkpoint_for,
    claim_one,
    facts_of,
    for_child,
    for_event,
    for_message,
    held,
    picture_of,
    start,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock


class GenerationContract(Contract):
    """A checkpoint may prune scopes of the history. A new generation begins without a history."""

    async def test_pruning_a_scope_removes_its_entries_and_no_others(self, store: Store) -> None:
        """SEMANTICS, loop: a checkpoint prunes old iterations."""
        lease = await held(store)
        kept = ("l", "l/~10", "l/~10/a", "l/~1a", "l/~11/x", "l#2/~1/a", "before", "l/~1-", "l/~10/~1/a")
        gone = ("l/~1", "l/~1/a", "l/~1/inner/~1/a", "l/~1/+1/b", "l/~1/\U0001f98a", "l/~1/a#2")
        steps = tuple(a_step(at, place) for place, at in enumerate((*kept, *gone), 1))
        await write(store, checkpoint_for(lease, entries=steps))

        await write(store, checkpoint_for(lease, entries=(a_step("l/~1/late", 99),), pruned=("l/~1",)))

        assert {entry.location for entry in await store.history(an_id(1))} == set(kept)

    async def test_pruning_keeps_entries_that_have_an_undo(self, store: Store) -> None:
        """SEMANTICS, loop: entries that undo needs are kept."""
        lease = await held(store)
        steps = (a_step("l/~1/a", 1, has_undo=True), a_step("l/~1/b", 2))
        await write(store, checkpoint_for(lease, entries=steps))

        await write(store, checkpoint_for(lease, pruned=("l/~1",)))

        assert tuple(await store.history(an_id(1))) == (steps[0],)

    async def test_the_next_generation_begins_without_history_and_keeps_id_and_key(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, continue_as_new: the run keeps its id, begins the next generation and drops its history."""
        lease = await held(store, key="k")
        await write(store, checkpoint_for(lease, entries=(a_step(),), waits=(for_message("go"),)))
        clock.advance(SECOND)
        cursor = a_step("~events", 0, state=EntryState.STARTED)

        verdict = await write(store, checkpoint_for(lease, ContinueAsNew(payload='{"n":2}'), entries=(cursor,)))

        assert (verdict.is_lost, verdict.is_held) == (False, False)
        run = await the_run(store)
        assert (run.state, run.generation, run.ready_at) == (RunState.PENDING, 2, START + SECOND)
        assert (run.payload, run.input, run.key, run.first_claimed_at) == ("{}", '{"n":2}', "k", None)
        assert tuple(await store.history(an_id(1))) == (cursor,)
        assert await facts_of(store) == ["claimed", "continued"]
        details = await store.get(an_id(1))
        assert details is not None
        assert details.waits == ()
        again = await claim_one(store)
        assert (again.run.input, again.run.first_claimed_at, again.entries) == ('{"n":2}', START + SECOND, (cursor,))

    async def test_only_unread_messages_go_over_to_the_next_generation(self, store: Store) -> None:
        """SEMANTICS, continue_as_new: unread messages are kept."""
        lease = await held(store)
        await start(store, an_intent(2, parent_id=an_id(1)))
        await write(store, checkpoint_for(lease, waits=(for_event("paid"), for_child(2))))
        await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m2", payload="2")]))
        await store.apply(EmitEvents(events=[an_event()]))
        await store.apply(Cancel(run_id=an_id(2), id="c"))

        await write(store, checkpoint_for(lease, ContinueAsNew(payload="{}"), consumed=(1,)))

        renewed = await claim_one(store)
        assert [(one.number, one.ref) for one in renewed.arrivals] == [(2, "m2")]
        assert [sent.refused for sent in await store.apply(SendMessages(messages=[a_message(id="m1")]))] == [None]
        # The first message was consumed, so its repeat adds no arrival.
        assert (await the_run(store)).arrivals == renewed.run.arrivals

    async def test_children_of_an_earlier_generation_follow_their_policy_and_do_not_report(self, store: Store) -> None:
        """SEMANTICS, continue_as_new: children follow their close policy."""
        lease = await held(store)
        closing = an_intent(2, parent_id=an_id(1), on_close="cancel")
        await start(store, closing, an_intent(3, parent_id=an_id(1)))

        await write(store, checkpoint_for(lease, ContinueAsNew(payload="{}")))
        await store.apply(Cancel(run_id=an_id(3), id="c"))

        assert (await the_run(store, 2)).state is RunState.CANCELLED
        run = await the_run(store, 3)
        assert (run.parent_id, run.state) == (an_id(1), RunState.CANCELLED)
        assert (await claim_one(store)).arrivals == ()

    async def test_a_repeated_continue_as_new_begins_one_generation(self, store: Store) -> None:
        """S6: a lost answer is safe."""
        lease = await held(store)
        renew = checkpoint_for(lease, ContinueAsNew(payload='{"n":2}'))
        await write(store, renew)
        before = await picture_of(store, 1)

        verdict = await write(store, renew)

        assert (verdict.is_lost, verdict.is_held) == (False, False)
        assert await picture_of(store, 1) == before

    async def test_a_start_by_key_finds_a_run_in_a_later_generation(self, store: Store) -> None:
        """SEMANTICS, starting: the same key with the same type and payload returns the existing run."""
        lease = await held(store, key="k")
        await write(store, checkpoint_for(lease, ContinueAsNew(payload='{"n":2}')))

        (created,) = (await store.create([an_intent(2, key="k")])).runs

        assert (created.run_id, created.created) == (an_id(1), False)

    async def test_the_history_returns_since_and_has_undo_of_an_entry(self, store: Store) -> None:
        """The port: the history returns entries unchanged."""
        lease = await held(store)
        entries = (a_step("a", 1, since=0, has_undo=True), a_step("b", 2, since=1))
        await write(store, checkpoint_for(lease, Hold(), entries=entries))

        assert tuple(await store.history(an_id(1))) == entries

    async def test_max_suspend_counts_from_the_since_of_its_wait(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, starting: `max_suspend` limits one suspension. The time until its commit counts too."""
        await start(store, an_intent(1, options=RunOptions(max_suspend=5 * SECOND)))
        lease = await claim_one(store)
        limit = Wait(location="~max_suspend", kind=WaitKind.TIME, since=START, deadline=START + 5 * SECOND)
        clock.advance(SECOND)

        await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"), limit)))

        assert (await the_run(store)).suspended_at == START

    async def test_a_run_stores_when_its_suspension_began(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, starting: `max_suspend` limits one suspension, so the run stores when it began."""
        await suspended(store, 1, for_message("go"))
        assert (await the_run(store)).suspended_at == START
        clock.advance(SECOND)
        await store.apply(SendMessages(messages=[a_message()]))
        again = await claim_one(store)
        assert again.run.suspended_at == START
