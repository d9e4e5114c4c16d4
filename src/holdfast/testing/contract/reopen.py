"""Contract of reopening children: the effect of recovering a parent on its children and their children."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.core import rules
from holdfast.core.checkpoint import Finish, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, ChangeTypes, Delete, Recover, Rewind
from holdfast.core.errors import KeyConflict, RunBusy
from holdfast.core.model import Entry, EntryKind, EntryState, RunOptions, TypeChange
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    a_child,
    a_step,
    an_error,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    claim_one,
    ended,
    facts_of,
    fail,
    for_child,
    held,
    holder_of,
    picture_of,
    start,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import SettableClock
from holdfast.testing.contract.recover import a_failure, an_undo, failed_at

CHILD = "child"


def place(number: int) -> str:
    """Return the location of a child in its parent."""
    return f"map/{number}"


def the_failure(number: int, position: int, location: str | None = None, **options: Any) -> Entry:
    """Build the parent's entry of a failed child."""
    failure = {"state": EntryState.FAILED, "error": an_error("no luck"), "result": None, "attempts": 1}
    return a_child(number, location or place(number), position, **failure | options)


async def family(
    store: Store, *numbers: int, parent: int = 1, ends: Finish | None = None, caught: Iterable[int] = (), **options: Any
) -> None:
    """Create a parent whose children have failed at a step, and which failed because of those not in `caught`."""
    of_type = {} if parent == 1 else {"type": CHILD}
    lease = await held(store, parent, **of_type)
    children = tuple(
        an_intent(n, parent_id=an_id(parent), parent_location=place(n), type=CHILD, **options) for n in numbers
    )
    entries = tuple(a_child(n, place(n)) for n in numbers)
    await write(store, checkpoint_for(lease, children=children, entries=entries))
    for n in numbers:
        failed = (a_step("done", 1), a_failure("broken", 2, 1))
        await write(store, checkpoint_for(await claim_child(store, n), failed_at("broken"), entries=failed))
    failures = tuple(the_failure(n, position) for position, n in enumerate(numbers, start=1))
    consumed = tuple(range(1, len(numbers) + 1))
    how = ends or failed_at(*(place(n) for n in numbers if n not in caught))
    await write(store, checkpoint_for(lease, how, entries=failures, consumed=consumed, seen=len(numbers)))


async def claim_child(store: Store, number: int) -> Any:
    lease = await claim_one(store, type=CHILD)
    assert lease.run.id == an_id(number)
    return lease


async def states(store: Store, *numbers: int) -> list[RunState]:
    return [(await the_run(store, number)).state for number in numbers]


async def locations(store: Store, number: int = 1) -> list[str]:
    return [entry.location for entry in await store.history(an_id(number))]


class ReopenContract(Contract):
    """Recovering a parent reopens its children. It never creates twins."""

    # Children that are reopened

    async def test_a_failed_child_is_reopened_with_its_parent(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, recovering a parent: the child follows the same rules, and its next end reaches the parent."""
        await family(store, 2)
        clock.advance(SECOND)

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True

        child = await the_run(store, 2)
        assert (child.state, child.parent_location, child.ready_at) == (RunState.PENDING, place(2), clock.now())
        assert (await locations(store, 2), await locations(store)) == (["done"], [place(2)])
        (entry,) = await store.history(an_id(1))
        assert (entry.state, entry.position, entry.ref) == (EntryState.STARTED, 0, an_id(2))
        assert (await facts_of(store, 2))[-1] == "recovered"
        await write(store, checkpoint_for(await claim_child(store, 2), succeed("7")))
        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.name, arrival.state, arrival.payload) == (an_id(2), RunState.SUCCEEDED, "7")

    async def test_a_child_that_was_cancelled_with_the_run_is_reopened(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: the child was cancelled because its parent ended."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type=CHILD, on_close="cancel")
        waits = (for_child(2),)
        await write(store, checkpoint_for(lease, Suspend(), children=(child,), entries=(a_child(2),), waits=waits))
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        assert (await the_run(store, 2)).state is RunState.CANCELLED

        await store.apply(Recover(run_id=an_id(1), id="r"))

        assert (await states(store, 1, 2), await locations(store)) == ([RunState.PENDING] * 2, ["call"])
        assert (await claim_one(store)).arrivals == ()

    async def test_a_child_that_was_cancelled_because_of_the_failure_is_reopened(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: the child was cancelled because a branch lost."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="+1/call", type=CHILD, on_close="cancel")
        await write(store, checkpoint_for(lease, children=(child,), entries=(a_child(2, "+1/call"),)))
        cancel = a_step("+1/cancel:call", 2, None, kind=EntryKind.CANCEL, since=1, ref=an_id(2))
        entries = (a_failure("+2/b", 1), cancel)
        await write(store, checkpoint_for(lease, failed_at("+2/b"), entries=entries, cancels=(an_id(2),)))
        assert (await the_run(store, 2)).state is RunState.CANCELLED

        await store.apply(Recover(run_id=an_id(1), id="r"))

        assert await locations(store) == ["+1/call"]
        assert (await claim_one(store)).arrivals == ()
        child_run = await the_run(store, 2)
        assert (child_run.state, child_run.parent_location) == (RunState.PENDING, "+1/call")

    async def test_the_children_of_a_child_are_reopened_with_it(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: a child is recovered by the same rules, so its own children too."""
        await family(store, 4)
        await write(store, checkpoint_for(await held(store, 2, type=CHILD), succeed()))
        before = await picture_of(store, 2)
        lease = await held(store, 5)
        middle = an_intent(6, parent_id=an_id(5), parent_location="call", type="middle")
        await write(store, checkpoint_for(lease, children=(middle,), entries=(a_child(6),)))
        middle_lease = await claim_one(store, type="middle")
        leaf = an_intent(7, parent_id=an_id(6), parent_location="call", type=CHILD)
        await write(store, checkpoint_for(middle_lease, children=(leaf,), entries=(a_child(7),)))
        await write(store, checkpoint_for(await claim_child(store, 7), fail()))
        ends = the_failure(7, 1, "call")
        await write(store, checkpoint_for(middle_lease, failed_at("call"), entries=(ends,), consumed=(1,), seen=1))
        ends = the_failure(6, 1, "call")
        await write(store, checkpoint_for(lease, failed_at("call"), entries=(ends,), consumed=(1,), seen=1))

        assert await store.apply(Recover(run_id=an_id(5), id="r")) is True

        assert await states(store, 5, 6, 7) == [RunState.PENDING] * 3
        assert await states(store, 1, 4) == [RunState.FAILED] * 2
        assert await picture_of(store, 2) == before

    async def test_the_last_child_of_a_long_chain_is_reopened(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: this works at any depth."""
        length = 300
        for number in range(1, length + 1):
            related = {"parent_id": an_id(number - 1), "parent_location": "call"} if number > 1 else {}
            lease = await held(store, number, **related)
            below = () if number == length else (the_failure(number + 1, 1, "call"),)
            await write(store, checkpoint_for(lease, failed_at("call"), entries=below))

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True

        assert await states(store, 1, length // 2, length) == [RunState.PENDING] * 3

    # Children that stay as they are

    @pytest.mark.parametrize("reason", ["enough", rules.CLOSING.reason, rules.BY_PARENT.reason])
    async def test_a_child_that_a_person_cancelled_stays_cancelled(self, store: Store, reason: str) -> None:
        """SEMANTICS, recovering a parent: the child raises `ChildFailed` again, regardless of the person's reason."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location=place(2), type=CHILD)
        await write(store, checkpoint_for(lease, children=(child,), entries=(a_child(2, place(2)),)))
        await store.apply(Cancel(run_id=an_id(2), id="c", reason=reason))
        ends = the_failure(2, 1, error=rules.cancellation(reason))
        await write(store, checkpoint_for(lease, failed_at(place(2)), entries=(ends,), consumed=(1,), seen=1))

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True

        assert await states(store, 1, 2) == [RunState.PENDING, RunState.CANCELLED]
        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.name, arrival.state) == (an_id(2), RunState.CANCELLED)
        assert arrival.error == rules.cancellation(reason)

    async def test_a_failure_that_the_parent_caught_stays_caught(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: neither the child nor its entry in the parent changes."""
        await family(store, 2, 3, caught=[2])
        before = await picture_of(store, 2)

        await store.apply(Recover(run_id=an_id(1), id="r"))

        assert await picture_of(store, 2) == before
        assert await states(store, 1, 3) == [RunState.PENDING] * 2
        entries = {entry.location: entry.state for entry in await store.history(an_id(1))}
        assert entries == {place(2): EntryState.FAILED, place(3): EntryState.STARTED}

    async def test_a_child_that_has_succeeded_stays_as_it_is(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: here the child was recovered earlier and has succeeded since."""
        await family(store, 2)
        await store.apply(Recover(run_id=an_id(2), id="r2"))
        await write(store, checkpoint_for(await claim_child(store, 2), succeed("7")))
        before = await picture_of(store, 2)

        await store.apply(Recover(run_id=an_id(1), id="r1"))

        assert await picture_of(store, 2) == before
        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.name, arrival.state, arrival.payload) == (an_id(2), RunState.SUCCEEDED, "7")

    async def test_a_successful_child_stays_as_it_is_when_an_earlier_step_was_undone(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: the child is not undone. The parent's code gets its result again."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type=CHILD)
        await write(store, checkpoint_for(lease, children=(child,), entries=(a_child(2, since=1),)))
        await write(store, checkpoint_for(await claim_child(store, 2), succeed("7")))
        entries = (a_step("a", 1, has_undo=True), a_child(2, "call", 2, since=1, result="7"))
        await write(store, checkpoint_for(lease, entries=entries, consumed=(1,), seen=1))
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        undone = Finish(state=RunState.CANCELLED, error=an_error("enough"))
        await write(store, checkpoint_for(await claim_one(store), undone, entries=(an_undo("a", 4),)))
        before = await picture_of(store, 2)

        await store.apply(Recover(run_id=an_id(1), id="r"))

        again = await claim_one(store)
        assert [(entry.location, entry.state) for entry in again.entries] == [
            ("call", EntryState.RETRYING),
            ("~rounds", EntryState.DONE),
        ]
        assert [(arrival.name, arrival.payload) for arrival in again.arrivals] == [(an_id(2), "7")]
        assert await picture_of(store, 2) == before

    async def test_a_recovered_parent_waits_for_a_child_that_is_alive(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: a bulk recover may reach the child before its parent."""
        await family(store, 2)
        await store.apply(Recover(run_id=an_id(2), id="r2"))
        lease = await claim_child(store, 2)
        before = await picture_of(store, 2)

        await store.apply(Recover(run_id=an_id(1), id="r1"))

        assert await picture_of(store, 2) == before
        await write(store, checkpoint_for(lease, succeed("7")))
        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.name, arrival.payload) == (an_id(2), "7")

    @pytest.mark.parametrize("how", ["deleted", "pruned"])
    async def test_a_child_that_no_longer_exists_is_started_again(
        self, store: Store, clock: SettableClock, how: str
    ) -> None:
        """SEMANTICS, recovering a parent: the child starts again under the same location, so its entry is dropped."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, failed_at(place(2)), entries=(the_failure(2, 1),)))
        if how == "deleted":
            related = {"parent_id": an_id(1), "parent_location": place(2)}
            await ended(store, 2, RunState.FAILED, **related)
            await store.apply(Delete(run_id=an_id(2), id="d"))

        await store.apply(Recover(run_id=an_id(1), id="r"))

        assert await locations(store) == []

    async def test_a_child_that_is_not_awaited_stays_as_it_is(self, store: Store) -> None:
        """SEMANTICS, children: a child that is not awaited is fire and forget."""
        lease = await held(store)
        children = [an_intent(n, parent_id=an_id(1), parent_location=place(n), type=CHILD) for n in (2, 3)]
        entries = (a_child(2, place(2), attempts=0), a_child(3, place(3)))
        await write(store, checkpoint_for(lease, children=tuple(children), entries=entries))
        for number in (2, 3):
            await write(store, checkpoint_for(await claim_child(store, number), fail()))
        await write(store, checkpoint_for(lease, fail(), seen=2))
        before = await picture_of(store, 2)

        await store.apply(Recover(run_id=an_id(1), id="r"))

        assert await picture_of(store, 2) == before
        assert (await the_run(store, 3)).state is RunState.PENDING

    async def test_recover_is_refused_while_a_child_still_rolls_back(self, store: Store) -> None:
        """The child will end cancelled, and only then can it be reopened."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type=CHILD, on_close="cancel")
        waits = (for_child(2),)
        await write(store, checkpoint_for(lease, Suspend(), children=(child,), entries=(a_child(2),), waits=waits))
        entries = (a_step("a", 1, has_undo=True),)
        await write(store, checkpoint_for(await claim_child(store, 2), entries=entries))
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        before = await picture_of(store, 1, 2)

        with pytest.raises(RunBusy, match=f"run {an_id(2)}, a child of run {an_id(1)}, still undoes"):
            await store.apply(Recover(run_id=an_id(1), id="r"))

        assert await picture_of(store, 1, 2) == before
        undone = Finish(state=RunState.CANCELLED, error=rules.cancellation(rules.CLOSING.reason))
        await write(store, checkpoint_for(await claim_child(store, 2), undone, entries=(an_undo("a", 3),)))
        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True
        assert await states(store, 1, 2) == [RunState.PENDING] * 2

    # Several transactions

    async def test_a_repeated_recover_continues_after_each_full_transaction(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: the parent's own transaction is the last. A repeat continues the recovery."""
        await family(store, 2, 3, 4, 5, 6)
        request = Recover(run_id=an_id(1), id="r", limit=2)
        told = []
        for _ in range(4):
            answer = await store.apply(request)
            told.append((answer, (await states(store, *range(1, 7))).count(RunState.PENDING)))

        assert told == [(None, 2), (None, 4), (True, 6), (True, 6)]

    async def test_children_of_children_count_toward_the_limit_of_a_transaction(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: each child's own transaction comes after those of its children."""
        lease = await held(store)
        middle = [an_intent(n, parent_id=an_id(1), parent_location=place(n), type="middle") for n in (2, 3)]
        await write(
            store,
            checkpoint_for(lease, children=tuple(middle), entries=tuple(a_child(n, place(n)) for n in (2, 3))),
        )
        for number, below in ((2, (4, 5)), (3, (6, 7))):
            of_middle = await claim_one(store, type="middle")
            leaves = [an_intent(n, parent_id=an_id(number), parent_location=place(n), type=CHILD) for n in below]
            await write(
                store,
                checkpoint_for(of_middle, children=tuple(leaves), entries=tuple(a_child(n, place(n)) for n in below)),
            )
            for leaf in below:
                await write(store, checkpoint_for(await claim_child(store, leaf), fail()))
            ends = tuple(the_failure(n, at) for at, n in enumerate(below, start=1))
            how = failed_at(*map(place, below))
            await write(store, checkpoint_for(of_middle, how, entries=ends, consumed=(1, 2), seen=2))
        ends = tuple(the_failure(n, at) for at, n in enumerate((2, 3), start=1))
        how = failed_at(place(2), place(3))
        await write(store, checkpoint_for(lease, how, entries=ends, consumed=(1, 2), seen=2))

        reopened = []
        while True:
            answer = await store.apply(Recover(run_id=an_id(1), id="r", limit=2))
            found = await states(store, *range(1, 8))
            reopened.append({number for number, state in enumerate(found, start=1) if state is RunState.PENDING})
            if answer is True:
                break

        assert reopened == [{4, 5}, {4, 5, 2, 6}, {4, 5, 2, 6, 7, 3, 1}]

    async def test_another_recover_continues_where_the_first_stopped(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: the caller of the first request may be gone."""
        await family(store, 2, 3, 4)
        assert await store.apply(Recover(run_id=an_id(1), id="r1", limit=2)) is None

        assert await store.apply(Recover(run_id=an_id(1), id="r2", limit=2)) is True

        assert await states(store, 1, 2, 3, 4) == [RunState.PENDING] * 4
        assert [(await facts_of(store, number)).count("recovered") for number in (1, 2, 3, 4)] == [1] * 4

    async def test_a_child_that_fails_again_during_a_recovery_is_not_reopened_twice(self, store: Store) -> None:
        """Otherwise a recovery might never end. The parent gets the failure, and another request reopens the child."""
        await family(store, 2, 3)
        request = Recover(run_id=an_id(1), id="r", limit=1)
        assert await store.apply(request) is None
        await write(store, checkpoint_for(await claim_child(store, 2), fail("again")))

        assert await store.apply(request) is True

        assert await states(store, 1, 2, 3) == [RunState.PENDING, RunState.FAILED, RunState.PENDING]
        lease = await claim_one(store)
        (arrival,) = lease.arrivals
        assert (arrival.name, arrival.error) == (an_id(2), an_error("again"))

    async def test_the_end_of_a_child_before_its_parent_is_reopened_is_not_lost(self, store: Store) -> None:
        """S3: the parent was still ended, so its own transaction delivers the end of the child."""
        await family(store, 2, 3)
        assert await store.apply(Recover(run_id=an_id(1), id="r", limit=1)) is None
        await write(store, checkpoint_for(await claim_child(store, 2), succeed("7")))

        assert await store.apply(Recover(run_id=an_id(1), id="r", limit=1)) is True

        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.name, arrival.payload) == (an_id(2), "7")

    # Slots and keys

    async def test_reopened_children_of_a_map_obey_its_limit(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: a reopened run takes its slots again."""
        await family(store, 2, 3, 4, options=RunOptions(map_limit=1))

        await store.apply(Recover(run_id=an_id(1), id="r"))

        order = []
        for _ in range(3):
            claimed = (await claim(store, types=[CHILD])).leases
            order.append([lease.run.id for lease in claimed])
            await write(store, checkpoint_for(claimed[0], succeed()))
        assert order == [[an_id(2)], [an_id(3)], [an_id(4)]]

    async def test_children_of_a_map_recovered_one_by_one_obey_its_limit(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: children and parent may be recovered in any order."""
        await family(store, 2, 3, options=RunOptions(map_limit=1))
        for number in (3, 2):
            await store.apply(Recover(run_id=an_id(number), id="r"))
        await store.apply(Recover(run_id=an_id(1), id="r"))

        (first,) = (await claim(store, types=[CHILD])).leases
        await write(store, checkpoint_for(first, succeed()))
        (second,) = (await claim(store, types=[CHILD])).leases

        assert [first.run.id, second.run.id] == [an_id(3), an_id(2)]

    async def test_a_reopened_child_takes_a_slot_of_its_type(self, store: Store) -> None:
        """SEMANTICS, recovering a parent: a reopened child obeys the limit of its type."""
        await family(store, 2, 3)
        await store.apply(ChangeTypes(changes=[TypeChange(name=CHILD, concurrency=1)]))

        await store.apply(Recover(run_id=an_id(1), id="r"))

        assert len((await claim(store, types=[CHILD])).leases) == 1

    @pytest.mark.parametrize("how", ["recover", "rewind"])
    async def test_a_reopened_run_takes_its_key_again(self, store: Store, how: str) -> None:
        """SEMANTICS, recovering a parent: recover is refused while the key belongs to another run."""
        await ended(store, 1, RunState.FAILED, key="k")
        await start(store, an_intent(2, key="k", reuse="after_failure"))
        assert (await the_run(store)).key is None
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.data) == ("key_reused", {"key": "k", "to": an_id(2)})
        await write(store, checkpoint_for(await claim_one(store), fail(), entries=(a_step("a", 1),)))
        before = await picture_of(store, 1, 2)

        with pytest.raises(KeyConflict, match=f"run {an_id(1)} cannot be reopened: its key 'k' now") as refused:
            await store.apply(Recover(run_id=an_id(1), id="r"))
        assert refused.value.run_id == an_id(2)
        assert await picture_of(store, 1, 2) == before

        await store.apply(Delete(run_id=an_id(2), id="d"))
        if how == "recover":
            assert await store.apply(Recover(run_id=an_id(1), id="r")) is True
        else:
            await store.apply(Recover(run_id=an_id(1), id="r0"))
            await write(store, checkpoint_for(await claim_one(store), succeed(), entries=(a_step("a", 1),)))
            assert await store.apply(Rewind(run_id=an_id(1), id="r", location="a")) is True
        assert await holder_of(store, "k") == an_id(1)
        (again,) = (await store.create([an_intent(3, key="k")])).runs
        assert (again.run_id, again.created) == (an_id(1), False)

    # Children recovered alone

    async def test_a_child_recovered_alone_sends_no_second_end_to_its_parent(self, store: Store) -> None:
        """The first end that reached the parent stands, recorded or unread."""
        lease = await held(store)
        children = [an_intent(n, parent_id=an_id(1), parent_location=place(n), type=CHILD) for n in (2, 3, 4)]
        entries = tuple(a_child(n, place(n)) for n in (2, 3, 4))
        await write(store, checkpoint_for(lease, children=tuple(children), entries=entries))
        for number in (2, 3):
            await write(store, checkpoint_for(await claim_child(store, number), fail()))
        await write(store, checkpoint_for(lease, entries=(the_failure(2, 1),), consumed=(1,), seen=1))

        for number in (2, 3):
            await store.apply(Recover(run_id=an_id(number), id="r"))
        for lost in [lease for lease in (await claim(store, types=[CHILD])).leases if lease.run.id != an_id(4)]:
            await write(store, checkpoint_for(lost, succeed()))

        assert await states(store, 2, 3) == [RunState.SUCCEEDED] * 2
        verdict = await write(store, checkpoint_for(lease, seen=0))
        assert [(arrival.name, arrival.state) for arrival in verdict.arrivals] == [(an_id(3), RunState.FAILED)]

    async def test_a_recovered_child_without_an_entry_in_its_parent_leaves_the_parent(self, store: Store) -> None:
        """For example, a parent in its next generation has another child at that location."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location=place(2), type=CHILD)
        await write(store, checkpoint_for(lease, children=(child,)))
        await write(store, checkpoint_for(await claim_child(store, 2), fail()))
        await write(store, checkpoint_for(lease, entries=(a_child(3, place(2)),), seen=1))

        await store.apply(Recover(run_id=an_id(2), id="r"))

        assert (await the_run(store, 2)).parent_location is None
