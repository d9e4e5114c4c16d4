"""Contract of children: their creation, their end as an arrival at the parent, and their close policy."""

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
    """The end of a child is an arrival at its parent. The end of a parent may cancel its children."""

    async def test_the_parents_checkpoint_creates_children(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, children: the parent's checkpoint creates the child."""
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

    async def test_one_checkpoint_creates_a_thousand_children(self, store: Store) -> None:
        """SEMANTICS, children: at most 1,000 children per checkpoint."""
        lease = await held(store)

        await write(store, checkpoint_for(lease, children=tuple(an_intent(n, **CHILD) for n in range(2, 1_002))))

        assert await store.stats(CountRuns()) == {TYPE: {RunState.RUNNING: 1}, "child": {RunState.PENDING: 1_000}}

    async def test_a_child_with_an_existing_id_leaves_that_run_unchanged(self, store: Store) -> None:
        """SEMANTICS, starting: a start with an id that exists never touches the existing run."""
        await start(store, an_intent(2, payload='"old"'))
        before = await picture_of(store, 2)
        lease = await held(store)

        verdict = await write(store, checkpoint_for(lease, children=(an_intent(2, **CHILD, payload='"new"'),)))

        assert not verdict.is_lost
        assert await picture_of(store, 2) == before

    # Its end

    async def test_the_end_of_a_child_is_an_arrival_at_its_parent(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, children: the child's final transaction writes its end as an arrival at the parent."""
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
        """T1: a parent that is suspended on a matching wait is ready now."""
        await suspended(store, 1, for_child(2), for_message("go"))
        child = await held(store, 2, **CHILD)
        clock.advance(SECOND)

        await write(store, checkpoint_for(child, succeed("2")))

        assert (await the_run(store)).ready_at == START + SECOND
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.data) == ("woken", {"cause": "child", "name": an_id(2)})
        assert [arrival.payload for arrival in (await claim_one(store)).arrivals] == ["2"]

    async def test_the_end_of_another_child_does_not_wake_the_parent(self, store: Store) -> None:
        """T1: only a matching wait wakes the parent. The arrival stays in the inbox until the parent asks for it."""
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
        """S3, T9: regardless of the order of the two checkpoints."""
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
        """T9: the parent gets one arrival per child, each with its own number."""
        await suspended(store, 1, for_child(2))
        children = [await held(store, number, **CHILD) for number in (2, 3, 4)]

        await store.checkpoint([checkpoint_for(child, succeed()) for child in children])

        arrivals = (await claim_one(store)).arrivals
        assert [(arrival.number, arrival.name) for arrival in arrivals] == [(1, an_id(2)), (2, an_id(3)), (3, an_id(4))]

    async def test_a_child_that_is_released_suspended_or_blocked_has_not_ended(self, store: Store) -> None:
        """SEMANTICS, children: only an end is an arrival at the parent."""
        await held(store)
        for number, next in ((2, Release()), (3, Suspend()), (4, block())):
            await write(store, checkpoint_for(await held(store, number, **CHILD), next, waits=(for_message("go"),)))

        assert (await the_run(store)).arrivals == 0

    async def test_a_child_of_an_unknown_parent_can_end(self, store: Store) -> None:
        """SEMANTICS, children: lineage is kept. The end of a child needs no parent."""
        child = await held(store, 2, parent_id=an_id(9))

        verdict = await write(store, checkpoint_for(child, succeed()))

        assert not verdict.is_lost
        assert (await the_run(store, 2)).state is RunState.SUCCEEDED

    # Its parent's end

    async def test_the_end_of_a_parent_cancels_children_by_their_close_policy(self, store: Store) -> None:
        """SEMANTICS, children: the close policy `on_close` is fixed at creation."""
        parent = await held(store)
        holder = await held(store, 2, **CHILD, on_close="cancel")
        await start(store, an_intent(3, **CHILD, on_close="cancel"), an_intent(4, **CHILD, on_close="abandon"))

        await write(store, checkpoint_for(parent, succeed()))

        states = [(await the_run(store, number)).state for number in (1, 2, 3, 4)]
        assert states == [RunState.SUCCEEDED, RunState.CANCELLED, RunState.CANCELLED, RunState.PENDING]
        assert (await renew(store, holding_of(holder))).verdicts[0].is_lost
        assert await facts_of(store, 2) == ["claimed", "cancelled"]

    async def test_the_end_of_a_parent_reaches_grandchildren(self, store: Store) -> None:
        """SEMANTICS, control: children follow their close policy, one level after the other."""
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

    async def test_the_end_of_a_run_cancels_the_last_child_of_a_long_chain(self, store: Store) -> None:
        """SEMANTICS, children: the close policy works at any depth."""
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
        """S2: the checkpoint applies wholly: it creates the child and then closes it."""
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

    async def test_parent_and_child_that_end_in_one_batch_each_have_one_end(self, store: Store) -> None:
        """PROMISES 2, T9: the batch applies in order. A child that its parent's end cancelled is fenced off."""
        parent, child = await held(store, 1), await held(store, 2, **CHILD, on_close="cancel")
        verdicts = (
            await store.checkpoint([checkpoint_for(parent, succeed()), checkpoint_for(child, succeed())])
        ).verdicts

        assert [verdict.is_lost for verdict in verdicts] == [False, True]
        assert (await the_run(store, 2)).state is RunState.CANCELLED

    # Cancelling children

    async def test_a_parent_cancels_children_with_its_checkpoint(self, store: Store) -> None:
        """SEMANTICS, children: `handle.cancel()`. The end of the child arrives like any other end."""
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
