"""Retention: when ended runs go away, and what goes with them."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import ContinueAsNew
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import Cancel, ChangeTypes, Delete, Recover, Rewind, SendMessages
from holdfast.core.errors import RunNotFound
from holdfast.core.model import DeadLetter, Reply, RunOptions, TypeChange
from holdfast.core.ports import Pruned, Store
from holdfast.core.questions import CountRuns, EndsOf, ListDeadLetters, Query, RepliesTo
from holdfast.core.retention import PARENT_PATIENCE, RUN_RETENTION
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    TYPE,
    a_child,
    a_message,
    a_step,
    an_id,
    an_intent,
    checkpoint_for,
    claim_one,
    ended,
    facts_of,
    fail,
    for_message,
    held,
    holder_of,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import SettableClock

MANY = 1_000


async def ids(store: Store) -> list[str]:
    return sorted([details.run.id for details in await store.list(Query())])


class RetentionContract(Contract):
    """An ended run is kept as long as was said, and then nothing is left of it; one that lives is never touched."""

    # When

    async def test_an_ended_run_is_kept_for_its_retention_and_no_longer(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, starting: retention after the end; the store's clock decides (S7)."""
        await ended(store, 1, retention=SECOND)
        clock.advance(SECOND - 1)
        early = await store.prune(MANY)
        clock.advance(1)

        assert early == Pruned()
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})
        assert await ids(store) == []
        assert await store.prune(MANY) == Pruned()

    async def test_a_run_that_says_nothing_is_kept_for_thirty_days(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, starting: 30 days, counted from its end, not from its start."""
        lease = await held(store)
        clock.advance(RUN_RETENTION)
        await write(store, checkpoint_for(lease, succeed()))
        clock.advance(RUN_RETENTION - 1)
        early = await store.prune(MANY)
        clock.advance(1)

        assert early == Pruned()
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})

    async def test_what_is_usual_is_said_by_whoever_prunes(self, store: Store, clock: SettableClock) -> None:
        """At once, also for runs that have ended already; not for those that were started with their own."""
        await ended(store, 1)
        await ended(store, 2, retention=DAY)
        await ended(store, 3, type="other")
        clock.advance(SECOND)

        assert await store.prune(MANY, retention=SECOND) == Pruned(runs={TYPE: 1, "other": 1})
        assert await ids(store) == [an_id(2)]

    async def test_what_its_type_says_counts_at_once(self, store: Store, clock: SettableClock) -> None:
        """For runs that have ended already, too; a run that says so itself keeps to that."""
        await ended(store, 1, type="short")
        await ended(store, 2, type="long")
        await ended(store, 3, type="usual")
        await ended(store, 4, type="short", retention=2 * RUN_RETENTION)
        await store.apply(
            ChangeTypes(
                changes=[
                    TypeChange(name="short", retention=SECOND),
                    TypeChange(name="long", retention=2 * RUN_RETENTION),
                ]
            )
        )
        clock.advance(RUN_RETENTION)

        expected = Pruned(runs={"short": 1, "usual": 1})
        assert await store.prune(MANY, is_dry_run=True) == expected
        assert await store.prune(MANY) == expected
        await store.apply(ChangeTypes(changes=[TypeChange(name="long", retention=None)]))
        assert await store.prune(MANY) == Pruned(runs={"long": 1})
        assert await ids(store) == [an_id(4)]

    @pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED])
    async def test_it_does_not_matter_how_a_run_ended(
        self, store: Store, clock: SettableClock, state: RunState
    ) -> None:
        """SEMANTICS, seeing: retention removes finished runs, of each kind and with or without their own."""
        for number, retention in ((1, SECOND), (2, None)):
            if state is RunState.CANCELLED:
                await start(store, an_intent(number, retention=retention))
                await store.apply(Cancel(run_id=an_id(number), id="c"))
            else:
                await ended(store, number, state, retention=retention)
        clock.advance(SECOND)

        assert await store.prune(MANY, retention=SECOND) == Pruned(runs={TYPE: 2})

    async def test_a_run_that_lives_is_kept_whatever_its_age(self, store: Store, clock: SettableClock) -> None:
        """PROMISES: no silent stop."""
        await start(store, an_intent(1, retention=1))
        await held(store, 2, retention=1)
        await suspended(store, 3, for_message("go"), retention=1)
        clock.advance(10 * RUN_RETENTION)

        assert await store.prune(MANY, retention=1) == Pruned()
        assert await ids(store) == [an_id(number) for number in (1, 2, 3)]

    @pytest.mark.parametrize("retention", [SECOND, None])
    async def test_a_run_that_was_reopened_is_kept_until_it_has_ended_again(
        self, store: Store, clock: SettableClock, retention: int | None
    ) -> None:
        """SEMANTICS, control: rewind and recover also reopen ended runs. The retention counts from the last end."""
        await ended(store, 1, RunState.FAILED, retention=retention)
        await store.apply(Recover(run_id=an_id(1), id="r"))
        clock.advance(SECOND)
        live = await store.prune(MANY, retention=SECOND)
        await write(store, checkpoint_for(await claim_one(store), succeed()))
        early = await store.prune(MANY, retention=SECOND)
        clock.advance(SECOND)

        assert (live, early) == (Pruned(), Pruned())
        assert await store.prune(MANY, retention=SECOND) == Pruned(runs={TYPE: 1})

    # What

    async def test_nothing_is_left_of_a_run_but_its_dead_letters(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, seeing: a run that takes its id later begins with nothing."""
        keeps = RunOptions(undelivered="dead_letter")
        lease = await held(store, 1, retention=SECOND, tags={"it's": "%"}, key="k", options=keeps)
        await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m2")]))
        replies = (Reply(message_id="m1", payload="1"),)
        await write(store, checkpoint_for(lease, seen=2, consumed=(1,), values={"done": "1"}, replies=replies))
        await write(store, checkpoint_for(lease, succeed(), seen=2, entries=(a_step(),)))
        clock.advance(SECOND)
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})

        assert await store.get(an_id(1)) is None
        assert await holder_of(store, "k") is None
        assert await store.list(Query(tags={"it's": "%"})) == []
        assert await store.stats(CountRuns()) == {}
        assert await store.changes(EndsOf(run_ids=[an_id(1)])) == []
        assert await store.changes(RepliesTo(messages=[(an_id(1), "m1")])) == {}
        assert [type(letter) for letter in await store.catalog(ListDeadLetters())] == [DeadLetter]
        again = await held(store, 1)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        assert (again.entries, again.arrivals) == ((), ())
        assert (await store.history(an_id(1)), await facts_of(store)) == ((), ["claimed"])
        assert (await the_run(store)).arrivals == 1
        details = await store.get(an_id(1))
        assert details is not None
        assert details.values == {}

    async def test_a_key_is_free_when_the_run_that_had_it_is_gone(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, starting: a finished run holds its key until it is pruned."""
        await ended(store, 1, key="k", retention=SECOND)
        clock.advance(SECOND)
        (before,) = (await store.create([an_intent(2, key="k")])).runs
        await store.prune(MANY)
        (after,) = (await store.create([an_intent(3, key="k")])).runs

        assert (before.run_id, before.created) == (an_id(1), False)
        assert (after.run_id, after.created) == (an_id(3), True)

    async def test_whoever_asks_for_a_run_that_is_gone_is_told_so(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS: sending to an unknown run is refused, and so is control; a late checkpoint is lost."""
        lease = await ended(store, 1, retention=SECOND)
        clock.advance(SECOND)
        await store.prune(MANY)

        (sent,) = await store.apply(SendMessages(messages=[a_message()]))
        assert sent.refused == "unknown"
        with pytest.raises(RunNotFound, match=an_id(1)):
            await store.apply(Rewind(run_id=an_id(1), id="r", location="charge"))
        assert (await write(store, checkpoint_for(lease, succeed()))).is_lost

    # Families

    @pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
    async def test_an_awaited_child_that_did_not_succeed_is_kept_as_long_as_its_parent(
        self, store: Store, clock: SettableClock, state: RunState
    ) -> None:
        """SEMANTICS, pruning children: it is looked at again when a day has passed, not at each pruning."""
        parent = await held(store)
        await write(store, checkpoint_for(parent, entries=(a_child(2, "child2"), a_child(3, "child3"))))
        for number, retention in ((2, SECOND), (3, None)):
            await start(store, an_intent(number, parent_id=an_id(1), retention=retention))
            if state is RunState.CANCELLED:
                await store.apply(Cancel(run_id=an_id(number), id="c"))
            else:
                await write(store, checkpoint_for(await claim_one(store), fail()))
        clock.advance(SECOND)

        assert await store.prune(MANY, retention=SECOND, is_dry_run=True) == Pruned()
        assert await store.prune(MANY, retention=SECOND) == Pruned()
        assert await ids(store) == [an_id(1), an_id(2), an_id(3)]
        assert [(await the_run(store, number)).purge_at for number in (2, 3)] == [clock.now() + PARENT_PATIENCE] * 2
        await write(store, checkpoint_for(parent, fail(), seen=2))
        clock.advance(PARENT_PATIENCE)
        assert await store.prune(MANY, retention=10 * DAY) == Pruned()
        clock.advance(10 * DAY)
        await store.prune(MANY, retention=10 * DAY)
        clock.advance(PARENT_PATIENCE)
        await store.prune(MANY, retention=10 * DAY)
        assert await ids(store) == []

    async def test_a_child_is_kept_also_where_its_parent_goes_at_once(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, pruning children: not before its parent, nor together with it."""
        parent = await held(store, retention=SECOND)
        await write(store, checkpoint_for(parent, fail(), entries=(a_child(2, "child2"),)))
        await ended(store, 2, RunState.FAILED, parent_id=an_id(1), retention=SECOND)
        clock.advance(SECOND)

        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})
        assert await ids(store) == [an_id(2)]

    async def test_any_other_child_follows_its_own_retention(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, pruning children: one that succeeded, that nobody awaits, or that its parent does not know."""
        parent = await held(store)
        entries = (a_child(2, "child2"), a_child(3, "child3", attempts=0), a_child(9, "child4"), a_child(5, "child5"))
        await write(store, checkpoint_for(parent, entries=entries))
        await ended(store, 2, parent_id=an_id(1), retention=SECOND)
        for number in (3, 4, 6):
            await ended(store, number, RunState.FAILED, parent_id=an_id(1))
        await ended(store, 5, RunState.FAILED, parent_id=an_id(1), retention=SECOND)
        await store.apply(Delete(run_id=an_id(5), id="d"))
        clock.advance(DAY)

        expected = Pruned(runs={TYPE: 5})
        assert await store.prune(MANY, retention=SECOND, is_dry_run=True) == expected
        assert await store.prune(MANY, retention=SECOND) == expected
        assert await ids(store) == [an_id(1)]

    async def test_the_child_of_a_parent_that_is_gone_goes_in_due_time(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, pruning children: a parent may be gone before them."""
        await ended(store, 1, retention=SECOND)
        await ended(store, 2, RunState.FAILED, parent_id=an_id(1), retention=DAY)
        clock.advance(SECOND)
        first = await store.prune(MANY)
        clock.advance(DAY)

        assert first == Pruned(runs={TYPE: 1})
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})
        assert await ids(store) == []

    async def test_a_child_that_waited_for_its_parent_keeps_to_what_is_usual_by_then(
        self, store: Store, clock: SettableClock
    ) -> None:
        """A retention that was changed counts at once."""
        parent = await held(store)
        await write(store, checkpoint_for(parent, entries=(a_child(2, "child2"),)))
        await ended(store, 2, RunState.FAILED, parent_id=an_id(1))
        clock.advance(SECOND)
        await store.prune(MANY, retention=SECOND)
        await write(store, checkpoint_for(parent, ContinueAsNew(payload="{}")))
        clock.advance(PARENT_PATIENCE)
        longer = await store.prune(MANY, retention=3 * DAY)

        assert longer == Pruned()
        assert (await the_run(store, 2)).purge_at is None
        clock.advance(2 * DAY - SECOND)
        assert await store.prune(MANY, retention=3 * DAY) == Pruned(runs={TYPE: 1})

    async def test_a_parent_ends_and_begins_anew_without_the_children_that_are_gone(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, children: close policies are about those that are there."""
        await ended(store, 1, RunState.FAILED)
        await ended(store, 2, parent_id=an_id(1), on_close="cancel", retention=SECOND)
        clock.advance(SECOND)
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})

        await store.apply(Recover(run_id=an_id(1), id="r"))
        assert await store.apply(Cancel(run_id=an_id(1), id="c"))
        assert await ids(store) == [an_id(1)]

    # How much

    async def test_it_takes_as_many_as_it_may_and_tells_that_there_are_more(
        self, store: Store, clock: SettableClock
    ) -> None:
        """Those with a retention of their own first, then those that ended first, whatever their type."""
        await ended(store, 1, type="b")
        clock.advance(1)
        await ended(store, 2, type="a")
        clock.advance(1)
        await ended(store, 3, type="b")
        await ended(store, 4, type="c", retention=1)
        clock.advance(SECOND)

        left = []
        for _ in range(3):
            pruned = await store.prune(2, retention=SECOND)
            left.append((await ids(store), pruned))

        assert left == [
            ([an_id(2), an_id(3)], Pruned(runs={"b": 1, "c": 1}, has_more=True)),
            ([], Pruned(runs={"a": 1, "b": 1}, has_more=True)),
            ([], Pruned()),
        ]

    async def test_a_dry_run_counts_all_that_would_go_and_leaves_it(self, store: Store, clock: SettableClock) -> None:
        """However many a real one would take at once; children that are kept for their parents would not go."""
        parent = await held(store, 9)
        await write(store, checkpoint_for(parent, entries=(a_child(5, "child5"), a_child(6, "child6"))))
        for number in range(1, 4):
            await ended(store, number)
        await ended(store, 4, type="it's", retention=SECOND)
        await ended(store, 5, RunState.FAILED, type="it's", parent_id=an_id(9))
        await ended(store, 6, RunState.FAILED, type="it's", parent_id=an_id(9), retention=SECOND)
        await ended(store, 7, type="it's", parent_id=an_id(1), retention=SECOND)
        await ended(store, 8, type="later", retention=DAY)
        clock.advance(SECOND)
        before = await store.list(Query())

        assert await store.prune(2, retention=SECOND, is_dry_run=True) == Pruned(runs={TYPE: 3, "it's": 2})
        assert await store.list(Query()) == before
        assert await store.prune(MANY, retention=SECOND) == Pruned(runs={TYPE: 3, "it's": 2})
