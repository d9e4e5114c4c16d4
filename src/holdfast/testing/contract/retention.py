"""Contract of retention: when pruning removes ended runs, and their data with them."""

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
    """Pruning removes an ended run and its data after its retention. It never touches a live run."""

    # Times

    async def test_an_ended_run_is_kept_for_its_retention_and_no_longer(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, starting: retention counts from the end of the run. S7: by the store's clock."""
        await ended(store, 1, retention=SECOND)
        clock.advance(SECOND - 1)
        early = await store.prune(MANY)
        clock.advance(1)

        assert early == Pruned()
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})
        assert await ids(store) == []
        assert await store.prune(MANY) == Pruned()

    async def test_a_run_without_its_own_retention_is_kept_for_thirty_days(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, starting: the default is 30 days, counted from the end, not from the start."""
        lease = await held(store)
        clock.advance(RUN_RETENTION)
        await write(store, checkpoint_for(lease, succeed()))
        clock.advance(RUN_RETENTION - 1)
        early = await store.prune(MANY)
        clock.advance(1)

        assert early == Pruned()
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})

    async def test_the_default_retention_is_an_argument_of_prune(self, store: Store, clock: SettableClock) -> None:
        """It applies at once, also to runs that have ended before, but not to runs with their own retention."""
        await ended(store, 1)
        await ended(store, 2, retention=DAY)
        await ended(store, 3, type="other")
        clock.advance(SECOND)

        assert await store.prune(MANY, retention=SECOND) == Pruned(runs={TYPE: 1, "other": 1})
        assert await ids(store) == [an_id(2)]

    async def test_the_retention_of_a_type_applies_at_once(self, store: Store, clock: SettableClock) -> None:
        """It also applies to runs that have ended before. A run's own retention wins."""
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
    async def test_retention_applies_to_every_end_state(
        self, store: Store, clock: SettableClock, state: RunState
    ) -> None:
        """SEMANTICS, seeing: retention removes finished runs in every end state, with or without one of their own."""
        for number, retention in ((1, SECOND), (2, None)):
            if state is RunState.CANCELLED:
                await start(store, an_intent(number, retention=retention))
                await store.apply(Cancel(run_id=an_id(number), id="c"))
            else:
                await ended(store, number, state, retention=retention)
        clock.advance(SECOND)

        assert await store.prune(MANY, retention=SECOND) == Pruned(runs={TYPE: 2})

    async def test_a_live_run_is_kept_at_any_age(self, store: Store, clock: SettableClock) -> None:
        """PROMISES: no run stops silently."""
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
        """SEMANTICS, control: rewind and recover reopen ended runs. Retention counts from the last end."""
        await ended(store, 1, RunState.FAILED, retention=retention)
        await store.apply(Recover(run_id=an_id(1), id="r"))
        clock.advance(SECOND)
        live = await store.prune(MANY, retention=SECOND)
        await write(store, checkpoint_for(await claim_one(store), succeed()))
        early = await store.prune(MANY, retention=SECOND)
        clock.advance(SECOND)

        assert (live, early) == (Pruned(), Pruned())
        assert await store.prune(MANY, retention=SECOND) == Pruned(runs={TYPE: 1})

    # Data

    async def test_pruning_a_run_leaves_only_its_dead_letters(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, seeing: a later run with the same id begins with nothing."""
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

    async def test_pruning_a_run_frees_its_key(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, starting: a finished run holds its key until it is pruned."""
        await ended(store, 1, key="k", retention=SECOND)
        clock.advance(SECOND)
        (before,) = (await store.create([an_intent(2, key="k")])).runs
        await store.prune(MANY)
        (after,) = (await store.create([an_intent(3, key="k")])).runs

        assert (before.run_id, before.created) == (an_id(1), False)
        assert (after.run_id, after.created) == (an_id(3), True)

    async def test_requests_to_a_pruned_run_are_refused(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS: a send and a control are refused as for an unknown run, and a late checkpoint is lost."""
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
        """SEMANTICS, pruning children: pruning looks at such a child again after a day, not each time."""
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

    async def test_a_failed_child_is_not_pruned_together_with_its_parent(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, pruning children: the child goes neither before its parent nor together with it."""
        parent = await held(store, retention=SECOND)
        await write(store, checkpoint_for(parent, fail(), entries=(a_child(2, "child2"),)))
        await ended(store, 2, RunState.FAILED, parent_id=an_id(1), retention=SECOND)
        clock.advance(SECOND)

        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})
        assert await ids(store) == [an_id(2)]

    async def test_any_other_child_follows_its_own_retention(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, pruning children: it succeeded, is not awaited, or has no entry in its parent."""
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

    async def test_a_child_of_a_pruned_parent_is_pruned_after_its_retention(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, pruning children: a parent may be pruned before its children."""
        await ended(store, 1, retention=SECOND)
        await ended(store, 2, RunState.FAILED, parent_id=an_id(1), retention=DAY)
        clock.advance(SECOND)
        first = await store.prune(MANY)
        clock.advance(DAY)

        assert first == Pruned(runs={TYPE: 1})
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})
        assert await ids(store) == []

    async def test_a_child_kept_for_its_parent_follows_the_current_default_retention(
        self, store: Store, clock: SettableClock
    ) -> None:
        """A changed retention applies at once."""
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

    async def test_a_parent_can_be_recovered_and_cancelled_after_its_child_was_pruned(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, children: close policies apply only to children that exist."""
        await ended(store, 1, RunState.FAILED)
        await ended(store, 2, parent_id=an_id(1), on_close="cancel", retention=SECOND)
        clock.advance(SECOND)
        assert await store.prune(MANY) == Pruned(runs={TYPE: 1})

        await store.apply(Recover(run_id=an_id(1), id="r"))
        assert await store.apply(Cancel(run_id=an_id(1), id="c"))
        assert await ids(store) == [an_id(1)]

    # Batches

    async def test_pruning_removes_runs_up_to_its_limit_and_says_that_there_are_more(
        self, store: Store, clock: SettableClock
    ) -> None:
        """Runs with their own retention go first, then the runs that ended first, regardless of type."""
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

    async def test_a_dry_run_counts_all_runs_due_for_pruning_and_removes_none(
        self, store: Store, clock: SettableClock
    ) -> None:
        """It counts beyond the limit of one pruning. Children that are kept for their parents do not count."""
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
