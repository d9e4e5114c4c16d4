"""Transfers: what leaves a store comes to another one as it was, once, and goes on there.

The memory store is the other side: whatever a store takes from it and gives to it, it takes and gives to any.
"""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.core.checkpoint import Finish, Hold, Next, Release, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import (
    Cancel,
    FireSchedules,
    Pause,
    PutSchedules,
    Recover,
    Resume,
    Rewind,
    RunControl,
    SendMessages,
)
from holdfast.core.errors import InvalidRequest
from holdfast.core.model import Firing, Reply, RunOptions, Schedule
from holdfast.core.ports import Store
from holdfast.core.questions import ListDueSchedules, ListSchedules, RepliesTo
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, Restoration
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract.arrange import (
    HOSTILE,
    TYPE,
    a_child,
    a_message,
    a_reception,
    a_retry,
    a_step,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    claimed_ids,
    ended,
    fail,
    for_child,
    for_event,
    for_message,
    for_time,
    held,
    holder_of,
    name_of,
    picture_of,
    start,
    succeed,
    suspended,
    the_run,
    transfer_of,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock


def a_restoration(*runs: Dump, export_id: str = "x1", last_event: int = 0, **parts: Any) -> Restoration:
    return Restoration(export_id=export_id, last_event=last_event, runs=runs, **parts)


async def the_dump(store: Store, number: int = 1) -> Dump:
    (dump,) = await transfer_of(store).dump([an_id(number)])
    return dump


async def paused(store: Store, number: int = 1) -> Dump:
    """A run that is paused, as a dump."""
    assert await store.apply(Pause(run_id=an_id(number), id=f"export:{number}", reason="exported"))
    return await the_dump(store, number)


async def fates(store: Store, *dumps: Dump, **options: Any) -> list[str]:
    restored = await transfer_of(store).restore(a_restoration(*dumps, **options))
    assert [fate.run_id for fate in restored.fates] == [dump.run.id for dump in dumps]
    return [fate.outcome for fate in restored.fates]


async def a_rich_run(store: Store, number: int = 1) -> None:
    """A run with something of everything, suspended."""
    lease = await held(
        store,
        number,
        key=f"it's {number}",
        tags={"shop": HOSTILE[5]},
        priority=7,
        delay=0,
        options=RunOptions(max_run=10**15, undelivered="dead_letter"),
    )
    await store.apply(
        SendMessages(messages=[a_message(number, id="m1"), a_message(number, id="m2", payload='{"a": "☃"}')])
    )
    first, second = await newest(store, lease)
    entries = (a_step(result=None), a_step("twice", 2, error=None), a_retry("later"), a_reception(first, position=3))
    checkpoint = checkpoint_for(
        lease,
        seen=second.number,
        entries=entries,
        consumed=(first.number,),
        replies=(Reply(message_id="m1", payload='"ok"'),),
        values={"it's": '"x"', "done": "1"},
    )
    await write(store, checkpoint)
    waits = (for_message("stop"), for_event("paid", after=3), for_time(START + 60 * SECOND))
    await write(store, checkpoint_for(lease, Suspend(), seen=second.number, waits=waits))


async def newest(store: Store, lease: Any) -> Any:
    """What waits in the inbox of a held run."""
    return (await write(store, checkpoint_for(lease, Hold(), seen=0))).arrivals


class ExportContract(Contract):
    """Runs, events and dead letters move from one store to another."""

    @pytest_asyncio.fixture
    async def other(self, clock: SettableClock) -> Store:
        """The store on the other side."""
        return MemoryStore(clock=clock)

    async def test_a_run_is_dumped_with_all_that_belongs_to_it(self, store: Store, other: Store) -> None:
        """The port: `dump` gives what the model gives."""
        for each in (store, other):
            await a_rich_run(each)

        dump, model = await paused(store), await paused(other)

        assert dump == model
        parts = (dump.entries, dump.inbox, dump.waits, dump.values, dump.replies)
        assert [len(part) for part in parts] == [4, 1, 3, 2, 1]
        assert dump.receipts == {"m1": START}
        assert [fact.event for fact in dump.audit] == ["claimed", "retried", "suspended", "paused"]

    @pytest.mark.parametrize("is_outward", [True, False])
    async def test_a_run_comes_as_it_left(
        self, store: Store, other: Store, clock: SettableClock, *, is_outward: bool
    ) -> None:
        """The port: `restore` writes a run as it was, so that the next dump of it is equal."""
        source, target = (store, other) if is_outward else (other, store)
        await a_rich_run(source)
        before = await paused(source)
        clock.advance(1000 * SECOND)

        assert await fates(target, before, last_event=9) == ["restored"]

        assert await the_dump(target) == before
        assert await picture_of(target, 1) == await picture_of(source, 1)
        assert await holder_of(target, "it's 1") == an_id(1)

    @pytest.mark.parametrize(
        "next",
        [succeed(), fail(), Finish(state=RunState.CANCELLED), block(), block(START + SECOND), Release()],
        ids=name_of,
    )
    async def test_whatever_is_at_rest_comes_as_it_left(self, store: Store, other: Store, next: Next) -> None:
        """The port: ends, pauses and blocks that only a person ends."""
        lease = await held(other)
        await write(other, checkpoint_for(lease, next, entries=(a_step(has_undo=True),)))
        if not await transfer_of(other).dump([an_id(1)]):
            await paused(other)
        before = await the_dump(other)

        await transfer_of(store).restore(a_restoration(before))

        assert await the_dump(store) == before
        assert await claimed_ids(store) == []

    async def test_only_runs_at_rest_are_dumped(self, store: Store) -> None:
        """The port: a run that could go on where it is must not be taken elsewhere."""
        await held(store, 1)
        await start(store, an_intent(2))
        await suspended(store, 3, for_message("go"))
        lease = await held(store, 4)
        await write(store, checkpoint_for(lease, block(START + SECOND)))
        await held(store, 5)
        await store.apply(Pause(run_id=an_id(5), id="p"))
        await ended(store, 6)
        lease = await held(store, 7)
        await write(store, checkpoint_for(lease, block()))

        dumps = await transfer_of(store).dump([an_id(number) for number in (7, 1, 2, 3, 4, 5, 6, 99)])

        assert [dump.run.id for dump in dumps] == [an_id(7), an_id(6)]

    async def test_a_run_that_is_not_at_rest_is_refused_and_all_with_it(self, store: Store, other: Store) -> None:
        """The port: raises before it writes."""
        await ended(other, 1)
        await start(other, an_intent(2))
        good, live = await the_dump(other, 1), await paused(other, 2)
        live = replace(live, run=replace(live.run, state=RunState.PENDING, ready_at=START))

        with pytest.raises(InvalidRequest, match="only while it is paused or has ended"):
            await transfer_of(store).restore(a_restoration(good, live))

        assert await store.get(an_id(1)) is None

    async def test_a_restored_run_goes_on(self, store: Store, other: Store) -> None:
        """SEMANTICS, pause: resumed, it is ready; whoever claims it gets its history and what is unread."""
        await a_rich_run(other)
        before = await paused(other)
        await transfer_of(store).restore(a_restoration(before))
        assert await claimed_ids(store) == []

        assert await store.apply(Resume(run_id=an_id(1), id="r"))
        lease = await claim_one(store)

        assert (lease.entries, lease.arrivals) == (before.entries, before.inbox)
        assert (lease.run.token, lease.run.attempt) == (before.run.token + 1, before.run.attempt)
        verdict = await write(store, checkpoint_for(lease, succeed(), entries=(a_step("last", 9),)))
        assert (verdict.is_lost, verdict.is_held) == (False, False)

    async def test_a_message_that_was_received_before_the_move_is_known_after_it(
        self, store: Store, other: Store
    ) -> None:
        """SEMANTICS, messages: a consumed id is remembered, so a repeated send is no second message."""
        await a_rich_run(other)
        await transfer_of(store).restore(a_restoration(await paused(other)))

        await store.apply(SendMessages(messages=[a_message(1, id="m1"), a_message(1, id="m2"), a_message(1, id="m3")]))

        assert [arrival.ref for arrival in (await the_dump(store)).inbox] == ["m2", "m3"]
        assert await store.changes(RepliesTo(messages=[(an_id(1), "m1")])) == {(an_id(1), "m1"): '"ok"'}

    async def test_a_family_goes_on_together(self, store: Store, other: Store) -> None:
        """SEMANTICS, children: links survive, so the end of a child reaches its parent."""
        lease = await held(other, 1)
        child = an_intent(2, parent_id=an_id(1), on_close="cancel")
        parts = {"children": (child,), "entries": (a_child(2),), "waits": (for_child(2),)}
        await write(other, checkpoint_for(lease, Suspend(), **parts))
        await transfer_of(store).restore(a_restoration(await paused(other, 2), await paused(other, 1)))
        for number in (1, 2):
            await store.apply(Resume(run_id=an_id(number), id="r"))

        leases = [await claim_one(store), await claim_one(store)]
        parent, child_lease = sorted(leases, key=lambda one: one.run.id)
        await write(store, checkpoint_for(parent, Suspend(), waits=(for_child(2),)))
        await write(store, checkpoint_for(child_lease, succeed('"grown"')))

        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.name, arrival.payload) == (an_id(2), '"grown"')

    async def test_a_restored_child_is_closed_with_its_parent(self, store: Store, other: Store) -> None:
        """SEMANTICS, children: the close policy is fixed at creation."""
        await start(other, an_intent(1), an_intent(2, parent_id=an_id(1), on_close="cancel"))
        await transfer_of(store).restore(a_restoration(await paused(other, 1), await paused(other, 2)))
        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert (await the_run(store, 2)).state is RunState.CANCELLED

    async def test_a_parked_child_gets_its_slot_after_the_move(self, store: Store, other: Store) -> None:
        """SEMANTICS, children: of a map so many run at once, and whoever ends makes the next one ready."""
        await held(other, 1)
        await start(
            other,
            an_intent(2, parent_id=an_id(1), parent_location="fan/a"),
            an_intent(3, parent_id=an_id(1), parent_location="fan/b", is_parked=True),
        )
        await transfer_of(store).restore(a_restoration(await paused(other, 2), await paused(other, 3)))
        for number in (2, 3):
            await store.apply(Resume(run_id=an_id(number), id="r"))

        first = await claim_one(store)
        assert (first.run.id, await claimed_ids(store)) == (an_id(2), [])
        await write(store, checkpoint_for(first, succeed()))

        assert await claimed_ids(store) == [an_id(3)]

    async def test_a_run_that_is_there_already_stays_as_it_is(self, store: Store, other: Store) -> None:
        """S6: a restoration may be repeated, also when the run has gone on since."""
        await suspended(other, 1, for_message("go"))
        dump = await paused(other)
        assert await fates(store, dump) == ["restored"]
        assert await fates(store, dump) == ["known"]
        await store.apply(Resume(run_id=an_id(1), id="r"))
        await write(store, checkpoint_for(await claim_one(store), succeed()))

        assert await fates(store, dump) == ["known"]

        assert (await the_run(store)).state is RunState.SUCCEEDED

    async def test_the_same_run_twice_in_one_restoration_is_one(self, store: Store, other: Store) -> None:
        """S6: a file may hold a run twice, as two that were put together."""
        await ended(other, 1, key="k")
        await start(other, an_intent(2))
        dumps = await the_dump(other, 1), await paused(other, 2)

        assert await fates(store, *dumps, *dumps) == ["restored", "restored", "known", "known"]

    @pytest.mark.parametrize("how", ["resumed", "rewound", "recovered"])
    async def test_a_run_that_has_gone_further_elsewhere_is_told_of(self, store: Store, other: Store, how: str) -> None:
        """The port: an older copy is never taken for the newer one, nor silently kept in its place."""
        lease = await held(other)
        entries = (a_step(),)
        await write(other, checkpoint_for(lease, fail() if how != "resumed" else Suspend(), entries=entries))
        if how == "resumed":
            await other.apply(Pause(run_id=an_id(1), id="p"))
        await transfer_of(store).restore(a_restoration(await the_dump(other)))
        before = await the_dump(store)
        requests: dict[str, RunControl] = {
            "resumed": Resume(run_id=an_id(1), id="r"),
            "rewound": Rewind(run_id=an_id(1), id="r", location="charge"),
            "recovered": Recover(run_id=an_id(1), id="r"),
        }
        await other.apply(requests[how])
        await write(other, checkpoint_for(await claim_one(other), succeed()))

        assert await fates(store, await the_dump(other), export_id="x2") == ["newer"]

        assert await the_dump(store) == before

    async def test_another_run_with_the_same_id_is_told_of(
        self, store: Store, other: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, run id: what exists is never touched."""
        await ended(other, 1)
        clock.advance(1)
        await ended(store, 1)
        before = await the_dump(store)

        assert await fates(store, await the_dump(other)) == ["stranger"]

        assert await the_dump(store) == before

    async def test_a_key_that_belongs_to_another_run_is_refused(self, store: Store, other: Store) -> None:
        """S1: one key makes at most one run. The others of the restoration are written."""
        await ended(store, 1, key="k")
        for number, key in ((2, "k"), (3, "free"), (4, None)):
            await ended(other, number, key=key)

        restored = await transfer_of(store).restore(
            a_restoration(*await transfer_of(other).dump([an_id(number) for number in (2, 3, 4)]))
        )

        assert [(fate.outcome, fate.other) for fate in restored.fates] == [
            ("key", an_id(1)),
            ("restored", None),
            ("restored", None),
        ]
        assert await store.get(an_id(2)) is None
        assert await holder_of(store, "k") == an_id(1)

    # Schedules

    async def test_a_schedule_goes_on_as_it_stood(self, store: Store, other: Store, clock: SettableClock) -> None:
        """The port: with the slot that comes next, the runs that are open and what was left out."""
        await other.apply(
            PutSchedules(schedules=[Schedule(name="tick", type=TYPE, payload="{}", every=SECOND, overlap="skip")])
        )
        for _ in range(3):
            clock.advance(SECOND)
            for schedule in (await other.catalog(ListDueSchedules(limit=10))).schedules:
                at = schedule.next_at or 0
                await other.apply(FireSchedules(firings=[Firing(schedule=schedule, slots=(at,), next_at=at + SECOND)]))
        (before,) = await other.catalog(ListSchedules())
        assert before.skipped > 0
        clock.advance(60 * SECOND)

        assert await transfer_of(store).restore_schedules([before]) == 1

        assert list(await store.catalog(ListSchedules())) == [before]
        assert (await store.catalog(ListDueSchedules(limit=10))).schedules == (before,)

    async def test_a_schedule_that_is_there_stays_as_it_is(self, store: Store) -> None:
        """S6: it may be repeated; and what was said here counts."""
        await store.apply(PutSchedules(schedules=[Schedule(name="a", type=TYPE, payload="{}", every=SECOND)]))
        before = list(await store.catalog(ListSchedules()))
        others = [Schedule(name=name, type="other", payload="1", every=SECOND, is_paused=True) for name in ("a", "b")]

        assert await transfer_of(store).restore_schedules(others) == 1
        assert await transfer_of(store).restore_schedules(others) == 0

        assert list(await store.catalog(ListSchedules())) == [*before, others[1]]
