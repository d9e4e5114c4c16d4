"""Children: how they are made, how their end reaches the parent, and what the parent's end does to them."""

from __future__ import annotations

from holdfast.core.checkpoint import Release, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel
from holdfast.core.model import Arrival, WaitKind
from holdfast.core.ports import Store
from holdfast.core.questions import CountRuns
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    TYPE,
    a_step,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    claimed_ids,
    facts_of,
    fail,
    for_child,
    for_message,
    held,
    holding_of,
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

CHILD = {"parent_id": an_id(1), "parent_location": "call", "type": "child"}


class ChildContract(Contract):
    """A child's end is an arrival at its parent, and a parent's end may be its child's."""

    async def test_children_are_made_by_the_parents_checkpoint(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, children: creation is in the parent's checkpoint."""
        lease = await held(store)
        clock.advance(SECOND)
        children = (
            an_intent(2, **CHILD, payload='{"n":2}', priority=3, tags={"a": "b"}),
            an_intent(3, **CHILD, delay=SECOND, on_close="cancel"),
        )

        await write(store, checkpoint_for(lease, children=children))

        run = await the_run(store, 2)
        assert (run.state, run.type, run.payload, run.priority) == (RunState.PENDING, "child", '{"n":2}', 3)
        assert (run.parent_id, run.parent_location, run.created_at) == (an_id(1), "call", START + SECOND)
        assert (await the_run(store, 3)).ready_at == START + 2 * SECOND
        assert await claimed_ids(store, types=["child"]) == [an_id(2)]

    async def test_a_thousand_children_are_made_by_one_checkpoint(self, store: Store) -> None:
        """SEMANTICS, children: at most 1,000 children per checkpoint."""
        lease = await held(store)

        await write(store, checkpoint_for(lease, children=tuple(an_intent(n, **CHILD) for n in range(2, 1_002))))

        assert await store.stats(CountRuns()) == {TYPE: {RunState.RUNNING: 1}, "child": {RunState.PENDING: 1_000}}

    async def test_a_child_whose_id_exists_is_left_alone(self, store: Store) -> None:
        """SEMANTICS, starting: an id that exists never touches the existing run."""
        await start(store, an_intent(2, payload='"old"'))
        before = await picture_of(store, 2)
        lease = await held(store)

        verdict = await write(store, checkpoint_for(lease, children=(an_intent(2, **CHILD, payload='"new"'),)))

        assert not verdict.is_lost
        assert await picture_of(store, 2) == before

    # Its end

    async def test_the_end_of_a_child_is_an_arrival_at_its_parent(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, children: the end is an arrival at the parent in the child's final transaction."""
        parent = await held(store)
        good, bad = await held(store, 2, **CHILD), await held(store, 3, **CHILD)
        await start(store, an_intent(4, **CHILD))
        clock.advance(SECOND)
        await write(store, checkpoint_for(good, succeed('{"ok":1}')))
        await write(store, checkpoint_for(bad, fail("no luck")))
        await store.apply(Cancel(run_id=an_id(4), id="c", reason="enough"))

        verdict = await write(store, checkpoint_for(parent))

        errors = [(await the_run(store, number)).error for number in (2, 3, 4)]
        states = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)
        assert verdict.arrivals == tuple(
            Arrival(
                number=index + 1,
                kind=WaitKind.CHILD,
                name=an_id(index + 2),
                at=START + SECOND,
                payload='{"ok":1}' if index == 0 else None,
                state=states[index],
                error=errors[index],
            )
            for index in range(3)
        )
        assert [error and error.message for error in errors] == [None, "no luck", "enough"]

    async def test_the_end_of_a_child_wakes_a_parent_that_waits_for_it(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T1: suspended on a matching wait, the parent is ready now."""
        await suspended(store, 1, for_child(2), for_message("go"))
        child = await held(store, 2, **CHILD)
        clock.advance(SECOND)

        await write(store, checkpoint_for(child, succeed("2")))

        assert (await the_run(store)).ready_at == START + SECOND
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.data) == ("woken", {"cause": "child", "name": an_id(2)})
        assert [arrival.payload for arrival in (await claim_one(store)).arrivals] == ["2"]

    async def test_the_end_of_another_child_does_not_wake_the_parent(self, store: Store) -> None:
        """T1: only a matching wait. It waits in the inbox until it is asked for."""
        await suspended(store, 1, for_child(2))
        await write(store, checkpoint_for(await held(store, 3, **CHILD), succeed()))

        run = await the_run(store)
        assert (run.ready_at, run.arrivals) == (None, 1)
        assert await facts_of(store) == ["claimed", "suspended"]

    async def test_a_child_that_ends_before_its_parent_waits_is_not_lost(self, store: Store) -> None:
        """S3: a wait satisfied before it is written never sleeps."""
        parent = await held(store)
        await write(store, checkpoint_for(await held(store, 2, **CHILD), succeed("2")))

        verdict = await write(store, checkpoint_for(parent, Suspend(), waits=(for_child(2),)))

        assert verdict.is_held
        assert [arrival.payload for arrival in verdict.arrivals] == ["2"]

    async def test_a_child_that_ends_in_the_batch_in_which_its_parent_suspends_is_not_lost(self, store: Store) -> None:
        """S3, T9: whichever of the two is written first."""
        for parent_number, child_number, is_child_first in ((1, 2, True), (3, 4, False)):
            parent = await held(store, parent_number)
            child = await held(store, child_number, parent_id=an_id(parent_number))
            batch = [
                checkpoint_for(child, succeed()),
                checkpoint_for(parent, Suspend(), waits=(for_child(child_number),)),
            ]

            verdicts = (await store.checkpoint(batch if is_child_first else batch[::-1])).verdicts

            run = await the_run(store, parent_number)
            assert [verdict.is_lost for verdict in verdicts] == [False, False]
            assert (run.arrivals, run.is_held) == (1, is_child_first)
            assert is_child_first or run.ready_at == START

    async def test_all_children_that_end_in_one_batch_reach_their_parent(self, store: Store) -> None:
        """T9: one arrival each, under numbers of their own."""
        await suspended(store, 1, for_child(2))
        children = [await held(store, number, **CHILD) for number in (2, 3, 4)]

        await store.checkpoint([checkpoint_for(child, succeed()) for child in children])

        arrivals = (await claim_one(store)).arrivals
        assert [(arrival.number, arrival.name) for arrival in arrivals] == [(1, an_id(2)), (2, an_id(3)), (3, an_id(4))]

    async def test_a_child_that_is_released_suspended_or_blocked_has_not_ended(self, store: Store) -> None:
        """SEMANTICS, children: only an end is an end."""
        await held(store)
        for number, next in ((2, Release()), (3, Suspend()), (4, block())):
            await write(store, checkpoint_for(await held(store, number, **CHILD), next, waits=(for_message("go"),)))

        assert (await the_run(store)).arrivals == 0

    async def test_a_child_outlives_a_parent_that_nobody_knows(self, store: Store) -> None:
        """SEMANTICS, children: lineage is kept; an end that nobody waits for is just an end."""
        child = await held(store, 2, parent_id=an_id(9))

        verdict = await write(store, checkpoint_for(child, succeed()))

        assert not verdict.is_lost
        assert (await the_run(store, 2)).state is RunState.SUCCEEDED

    # Its parent's end

    async def test_the_end_of_a_parent_cancels_the_children_it_was_told_to(self, store: Store) -> None:
        """SEMANTICS, children: `on_close`, fixed at creation."""
        parent = await held(store)
        holder = await held(store, 2, **CHILD, on_close="cancel")
        await start(store, an_intent(3, **CHILD, on_close="cancel"), an_intent(4, **CHILD, on_close="abandon"))

        await write(store, checkpoint_for(parent, succeed()))

        states = [(await the_run(store, number)).state for number in (1, 2, 3, 4)]
        assert states == [RunState.SUCCEEDED, RunState.CANCELLED, RunState.CANCELLED, RunState.PENDING]
        assert (await renew(store, holding_of(holder))).verdicts[0].is_lost
        assert await facts_of(store, 2) == ["claimed", "cancelled"]

    async def test_the_end_of_a_parent_reaches_grandchildren(self, store: Store) -> None:
        """SEMANTICS, control: children follow their close policy, level by level."""
        parent = await held(store)
        await start(
            store,
            an_intent(2, parent_id=an_id(1), on_close="cancel"),
            an_intent(3, parent_id=an_id(2), on_close="cancel"),
            an_intent(4, parent_id=an_id(3), on_close="abandon"),
            an_intent(5, parent_id=an_id(4), on_close="cancel"),
        )

        await write(store, checkpoint_for(parent, fail()))

        states = [(await the_run(store, number)).state for number in (2, 3, 4, 5)]
        assert states == [RunState.CANCELLED, RunState.CANCELLED, RunState.PENDING, RunState.PENDING]

    async def test_the_end_of_a_run_reaches_the_last_of_a_long_chain(self, store: Store) -> None:
        """SEMANTICS, children: `on_close`, however many generations of children there are."""
        length = 1_000
        below = (an_intent(n, parent_id=an_id(n - 1), on_close="cancel") for n in range(2, length + 1))
        await start(store, an_intent(1), *below)

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert (await the_run(store, length)).state is RunState.CANCELLED

    async def test_cancelling_a_parent_cancels_its_children(self, store: Store) -> None:
        """SEMANTICS, control: children follow their close policy."""
        await suspended(store, 1, for_child(2))
        await suspended(store, 2, for_message("go"), **CHILD, on_close="cancel")

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert [(await the_run(store, number)).state for number in (1, 2)] == [RunState.CANCELLED] * 2
        assert await facts_of(store, 1) == ["claimed", "suspended", "cancelled"]

    async def test_a_child_made_by_its_parents_last_checkpoint_follows_its_close_policy(self, store: Store) -> None:
        """S2: the checkpoint applies wholly, the child is made and then closed."""
        parent = await held(store)
        children = (an_intent(2, **CHILD, on_close="cancel"), an_intent(3, **CHILD))

        await write(store, checkpoint_for(parent, succeed(), children=children))

        states = [(await the_run(store, number)).state for number in (2, 3)]
        assert states == [RunState.CANCELLED, RunState.PENDING]

    async def test_a_child_that_had_ended_is_not_cancelled(self, store: Store) -> None:
        """S5: an ended run changes only by `recover` or `rewind`."""
        parent = await held(store)
        await write(store, checkpoint_for(await held(store, 2, **CHILD, on_close="cancel"), succeed()))
        before = await picture_of(store, 2)

        await write(store, checkpoint_for(parent, succeed()))

        assert await picture_of(store, 2) == before

    async def test_parent_and_child_that_end_in_one_batch_both_have_their_end(self, store: Store) -> None:
        """PROMISES 2, T9: in the order of the batch; a child cancelled by its parent's end is fenced off."""
        parent, child = await held(store, 1), await held(store, 2, **CHILD, on_close="cancel")
        verdicts = (
            await store.checkpoint([checkpoint_for(parent, succeed()), checkpoint_for(child, succeed())])
        ).verdicts

        assert [verdict.is_lost for verdict in verdicts] == [False, True]
        assert (await the_run(store, 2)).state is RunState.CANCELLED

    # Cancelling children

    async def test_a_parent_cancels_children_with_its_checkpoint(self, store: Store) -> None:
        """SEMANTICS, children: `handle.cancel()`. The end comes back as any end does."""
        parent = await held(store)
        await start(store, an_intent(2, **CHILD))
        holder = await held(store, 3, **CHILD)
        await write(store, checkpoint_for(await held(store, 4, **CHILD), succeed()))

        verdict = await write(
            store, checkpoint_for(parent, seen=1, cancels=(an_id(2), an_id(3), an_id(4), an_id(9)), entries=(a_step(),))
        )

        assert [(arrival.name, arrival.state) for arrival in verdict.arrivals] == [
            (an_id(2), RunState.CANCELLED),
            (an_id(3), RunState.CANCELLED),
        ]
        assert (await write(store, checkpoint_for(holder, succeed()))).is_lost
        assert (await the_run(store, 4)).state is RunState.SUCCEEDED
