"""Contract of `delete`: it hides a run at once, and pruning removes it a day later."""

from __future__ import annotations

import pytest

from holdfast.core.clock import SECOND
from holdfast.core.commands import (
    Cancel,
    Delete,
    DropMessage,
    Fork,
    Pause,
    Recover,
    ReplayDeadLetters,
    Resume,
    Rewind,
    RunControl,
    SendMessages,
    Wake,
)
from holdfast.core.errors import RunBusy, RunNotFound
from holdfast.core.model import DeadLetter, MessageToRun, RunOptions
from holdfast.core.ports import Pruned, Store
from holdfast.core.questions import CountRuns, EndsOf, FindOrphans, ListDeadLetters, Query
from holdfast.core.retention import DELETED_RETENTION
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    TYPE,
    a_child,
    a_message,
    a_step,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    claimed_ids,
    ended,
    facts_of,
    for_child,
    for_message,
    held,
    holder_of,
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

CONTROLS: tuple[RunControl, ...] = (
    Cancel(run_id=an_id(1), id="x"),
    Pause(run_id=an_id(1), id="x"),
    Resume(run_id=an_id(1), id="x"),
    Wake(run_id=an_id(1), id="x"),
    DropMessage(run_id=an_id(1), id="x", message_id="m"),
    Rewind(run_id=an_id(1), id="x", location="charge", force=True),
    Recover(run_id=an_id(1), id="x", force=True),
    Fork(run_id=an_id(1), id="x", new_run_id=an_id(9), location="charge", force=True),
    Delete(run_id=an_id(1), id="x", force=True),
)


async def deleted(store: Store) -> list[str]:
    return [details.run.id for details in await store.list(Query(is_deleted=True))]


class DeleteContract(Contract):
    """A deleted run is hidden at once, and pruned after a day."""

    async def test_a_deleted_run_is_hidden(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, seeing: soft delete hides a run and makes it unclaimable."""
        await start(store, an_intent(1, key="k", tags={"it's": "%"}), an_intent(2))
        clock.advance(SECOND)

        assert await store.apply(Delete(run_id=an_id(1), id="d")) is True

        assert await store.get(an_id(1)) is None
        assert await holder_of(store, "k") is None
        for query in (
            Query(),
            Query(type=TYPE),
            Query(tags={"it's": "%"}),
            Query(id_prefix=an_id(1)),
            Query(states=frozenset({RunState.CANCELLED})),
        ):
            assert an_id(1) not in [details.run.id for details in await store.list(query)]
        assert await store.stats(CountRuns()) == {TYPE: {RunState.PENDING: 1}}
        assert await store.stats(FindOrphans(limit=10)) == []
        assert await claimed_ids(store) == [an_id(2)]

    async def test_deleted_runs_are_listed_on_request(self, store: Store, clock: SettableClock) -> None:
        """All other filters of a list apply too."""
        await start(store, an_intent(1, tags={"it's": "%"}), an_intent(2, parent_id=an_id(1)))
        await ended(store, 3, type="other")
        await ended(store, 4)
        for number in (1, 2, 3):
            await store.apply(Delete(run_id=an_id(number), id="d"))

        found = [
            [details.run.id for details in await store.list(query)]
            for query in (
                Query(is_deleted=True),
                Query(is_deleted=True, type="other"),
                Query(is_deleted=True, type="other.*"),
                Query(is_deleted=True, tags={"it's": "%"}),
                Query(is_deleted=True, parent_id=an_id(1)),
                Query(is_deleted=True, id_prefix=an_id(3)),
                Query(is_deleted=True, states=frozenset({RunState.SUCCEEDED})),
                Query(is_deleted=True, states=frozenset({RunState.CANCELLED}), limit=1),
                Query(is_deleted=True, before=(START, an_id(2))),
            )
        ]

        one, two, three = map(an_id, (1, 2, 3))
        assert found == [[three, two, one], [three], [], [one], [two], [three], [three], [two], [one]]

    async def test_an_ended_run_is_deleted_without_changing_its_end(self, store: Store, clock: SettableClock) -> None:
        """S5: its end does not change. The delete is audited. The run goes after a day, regardless of its retention."""
        await ended(store, 1, retention=100 * DELETED_RETENTION, key="k")
        clock.advance(SECOND)

        assert await store.apply(Delete(run_id=an_id(1), id="d")) is True

        (details,) = await store.list(Query(is_deleted=True))
        run = details.run
        assert (run.state, run.result, run.key) == (RunState.SUCCEEDED, '"done"', None)
        assert (run.deleted_at, run.purge_at) == (START + SECOND, START + SECOND + DELETED_RETENTION)
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.at, fact.data) == ("deleted", START + SECOND, {"request": "d"})
        clock.advance(DELETED_RETENTION - 1)
        early = await store.prune(10)
        clock.advance(1)
        assert (early, await store.prune(10)) == (Pruned(), Pruned(runs={TYPE: 1}))
        assert await deleted(store) == []

    async def test_deleting_a_live_run_cancels_it_without_undo(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, control: delete acts like a forced cancel. Callers that wait for the run get its end."""
        lease = await held(store, 1, options=RunOptions(undelivered="dead_letter"))
        await store.apply(SendMessages(messages=[a_message()]))
        step = a_step(has_undo=True)
        await write(store, checkpoint_for(lease, seen=1, entries=(step,)))
        await write(store, checkpoint_for(lease, block(), seen=1))

        assert await store.apply(Delete(run_id=an_id(1), id="d")) is True

        (run,) = await store.changes(EndsOf(run_ids=[an_id(1)]))
        assert run.error is not None
        assert (run.state, run.error.message, run.finished_at) == (RunState.CANCELLED, "deleted", START)
        assert [type(letter) for letter in await store.catalog(ListDeadLetters())] == [DeadLetter]
        assert (await facts_of(store))[-2:] == ["cancelled", "deleted"]

    async def test_a_held_run_is_deleted_only_by_force_which_fences_its_holder(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, control: `RunBusy` while a worker holds the run unless `force`. PROMISES: fenced."""
        lease = await held(store)
        before = await picture_of(store, 1)

        with pytest.raises(RunBusy, match=an_id(1)):
            await store.apply(Delete(run_id=an_id(1), id="d"))
        assert await picture_of(store, 1) == before
        assert await store.apply(Delete(run_id=an_id(1), id="d", force=True)) is True

        (verdict,) = (await renew(store, holding_of(lease))).verdicts
        assert verdict.is_lost
        assert (await write(store, checkpoint_for(lease, succeed()))).is_lost
        (run,) = await store.changes(EndsOf(run_ids=[an_id(1)]))
        assert (run.state, run.token) == (RunState.CANCELLED, lease.run.token + 1)

    async def test_a_repeated_delete_changes_nothing(self, store: Store, clock: SettableClock) -> None:
        """S6: a lost answer is safe."""
        await start(store, an_intent(1))
        await store.apply(Delete(run_id=an_id(1), id="d"))
        before = (await store.list(Query(is_deleted=True)), await store.audit(an_id(1)))
        clock.advance(SECOND)

        assert await store.apply(Delete(run_id=an_id(1), id="d")) is True
        assert (await store.list(Query(is_deleted=True)), await store.audit(an_id(1))) == before

    @pytest.mark.parametrize("request_", CONTROLS, ids=lambda control: type(control).__name__)
    async def test_controls_of_a_deleted_run_are_refused(self, store: Store, request_: RunControl) -> None:
        """It cannot be recovered or rewound either: every control answers that the run does not exist."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, succeed(), entries=(a_step(),)))
        await store.apply(Delete(run_id=an_id(1), id="d"))

        with pytest.raises(RunNotFound, match=an_id(1)):
            await store.apply(request_)
        assert await deleted(store) == [an_id(1)]

    async def test_a_message_to_a_deleted_run_is_refused_as_to_an_unknown_one(self, store: Store) -> None:
        """SEMANTICS, messages: by id, by key, from a run, and as a replayed dead letter."""
        lease = await held(store, 2, options=RunOptions(undelivered="dead_letter"))
        await start(store, an_intent(1, key="k", options=RunOptions(undelivered="dead_letter")))
        await store.apply(SendMessages(messages=[a_message(1)]))
        await store.apply(Delete(run_id=an_id(1), id="d"))

        by_id, by_key = await store.apply(
            SendMessages(messages=[a_message(1, id="m2"), MessageToRun(id="m4", name="go", payload="1", key="k")])
        )
        await write(store, checkpoint_for(lease, messages=(a_message(1, id="m3"),)))

        assert (by_id.refused, by_key.refused) == ("unknown", "unknown")
        (dropped,) = [fact for fact in await store.audit(an_id(2)) if fact.event == "dropped"]
        assert dropped.data["why"] == "unknown"
        assert await store.apply(ReplayDeadLetters(numbers=[1])) == 0

    async def test_the_key_of_a_deleted_run_is_free_and_its_id_is_not(self, store: Store) -> None:
        """SEMANTICS, starting: a start with an id that exists never touches the existing run."""
        await start(store, an_intent(1, key="k"))
        await store.apply(Delete(run_id=an_id(1), id="d"))

        (by_key, by_id) = (await store.create([an_intent(2, key="k", payload='{"a":1}'), an_intent(1)])).runs

        assert (by_key.run_id, by_key.created) == (an_id(2), True)
        assert (by_id.run_id, by_id.created) == (an_id(1), False)
        assert await holder_of(store, "k") == an_id(2)
        assert await deleted(store) == [an_id(1)]

    async def test_the_parent_of_a_deleted_run_learns_of_its_end(self, store: Store) -> None:
        """SEMANTICS, children: the end of a child is an arrival at its parent."""
        await suspended(store, 1, for_child(2))
        await start(store, an_intent(2, parent_id=an_id(1)))

        await store.apply(Delete(run_id=an_id(2), id="d"))

        lease = await claim_one(store)
        assert [(one.name, one.state) for one in lease.arrivals] == [(an_id(2), RunState.CANCELLED)]

    async def test_the_children_of_a_deleted_run_follow_their_close_policy(self, store: Store) -> None:
        """SEMANTICS, control: a child that is cancelled with it stays visible, because it was not deleted."""
        await suspended(store, 1, for_message("go"))
        await start(
            store,
            an_intent(2, parent_id=an_id(1), on_close="cancel"),
            an_intent(3, parent_id=an_id(1)),
        )

        await store.apply(Delete(run_id=an_id(1), id="d"))

        assert [(await the_run(store, number)).state for number in (2, 3)] == [RunState.CANCELLED, RunState.PENDING]
        assert await deleted(store) == [an_id(1)]

    async def test_a_deleted_child_is_pruned_before_its_parent(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, recovering a parent: the child no longer exists. A recovered parent starts it again."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_child(2, "child2"),)))
        await ended(store, 2, RunState.FAILED, parent_id=an_id(1))
        await store.apply(Delete(run_id=an_id(2), id="d"))
        clock.advance(DELETED_RETENTION)

        assert await store.prune(10) == Pruned(runs={TYPE: 1})

    async def test_an_unknown_run_cannot_be_deleted(self, store: Store) -> None:
        """Every control raises `RunNotFound` for an unknown run."""
        with pytest.raises(RunNotFound, match=an_id(1)):
            await store.apply(Delete(run_id=an_id(1), id="d"))
