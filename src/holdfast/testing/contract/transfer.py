"""Contract of transfers: a run leaves one store, arrives in another unchanged and once, and goes on there.

The memory store is the other side. A store that can exchange runs with it can exchange them with any store.
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
    """Pause a run and return its dump."""
    assert await store.apply(Pause(run_id=an_id(number), id=f"export:{number}", reason="exported"))
    return await the_dump(store, number)


async def fates(store: Store, *dumps: Dump, **options: Any) -> list[str]:
    restored = await transfer_of(store).restore(a_restoration(*dumps, **options))
    assert [fate.run_id for fate in restored.fates] == [dump.run.id for dump in dumps]
    return [fate.outcome for fate in restored.fates]


async def a_rich_run(store: Store, number: int = 1) -> None:
    """Create a suspended run that has a value in every part of a dump."""
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
    """Return the unread arrivals of a held run."""
    return (await write(store, checkpoint_for(lease, Hold(), seen=0))).arrivals


class ExportContract(Contract):
    """Runs and schedules move from one store to another."""

    @pytest_asyncio.fixture
    async def other(self, clock: SettableClock) -> Store:
        """The other store of the transfer."""
        return MemoryStore(clock=clock)

    async def test_a_dump_has_all_data_of_a_run(self, store: Store, other: Store) -> None:
        """The port: `dump` returns the same as the memory store, which is the model."""
        for each in (store, other):
            await a_rich_run(each)

        dump, model = await paused(store), await paused(other)

        assert dump == model
        parts = (dump.entries, dump.inbox, dump.waits, dump.values, dump.replies)
        assert [len(part) for part in parts] == [4, 1, 3, 2, 1]
        assert dump.receipts == {"m1": START}
        assert [fact.event for fact in dump.audit] == ["claimed", "retried", "suspended", "paused"]

    @pytest.mark.parametrize("is_outward", [True, False])
    async def test_a_restored_run_equals_its_dump(
        self, store: Store, other: Store, clock: SettableClock, *, is_outward: bool
    ) -> None:
        """The port: `restore` writes a run unchanged, so its next dump is equal."""
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
    async def test_a_run_at_rest_in_any_state_is_restored_unchanged(
        self, store: Store, other: Store, next: Next
    ) -> None:
        """The port: runs at rest have ended, are paused, or are blocked until a person acts."""
        lease = await held(other)
        await write(other, checkpoint_for(lease, next, entries=(a_step(has_undo=True),)))
        if not await transfer_of(other).dump([an_id(1)]):
            await paused(other)
        before = await the_dump(other)

        await transfer_of(store).restore(a_restoration(before))

        assert await the_dump(store) == before
        assert await claimed_ids(store) == []

    async def test_only_runs_at_rest_are_dumped(self, store: Store) -> None:
        """The port: a run that could go on in its own store must not be copied to another."""
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

    async def test_a_restore_with_a_run_that_is_not_at_rest_is_refused_as_a_whole(
        self, store: Store, other: Store
    ) -> None:
        """The port: `restore` raises before it writes anything."""
        await ended(other, 1)
        await start(other, an_intent(2))
        good, live = await the_dump(other, 1), await paused(other, 2)
        live = replace(live, run=replace(live.run, state=RunState.PENDING, ready_at=START))

        with pytest.raises(InvalidRequest, match="only while it is paused or has ended"):
            await transfer_of(store).restore(a_restoration(good, live))

        assert await store.get(an_id(1)) is None

    async def test_a_restored_run_can_be_resumed(self, store: Store, other: Store) -> None:
        """SEMANTICS, pause: resume makes it ready. A claim returns its history and its unread arrivals."""
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

    async def test_a_message_received_before_a_move_is_not_accepted_again_after_it(
        self, store: Store, other: Store
    ) -> None:
        """SEMANTICS, messages: a consumed id is remembered, so a repeated send does not create a second message."""
        await a_rich_run(other)
        await transfer_of(store).restore(a_restoration(await paused(other)))

        await store.apply(SendMessages(messages=[a_message(1, id="m1"), a_message(1, id="m2"), a_message(1, id="m3")]))

        assert [arrival.ref for arrival in (await the_dump(store)).inbox] == ["m2", "m3"]
        assert await store.changes(RepliesTo(messages=[(an_id(1), "m1")])) == {an_id(1): {"m1": '"ok"'}}

    async def test_a_restored_child_reports_its_end_to_its_restored_parent(self, store: Store, other: Store) -> None:
        """SEMANTICS, children: lineage is kept, so the end of a child reaches its parent."""
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
        """SEMANTICS, children: a map limits how many children run at once. The end of one readies the next."""
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

    async def test_restoring_an_existing_run_changes_nothing(self, store: Store, other: Store) -> None:
        """S6: a restore may be repeated, even if the run has gone on since."""
        await suspended(other, 1, for_message("go"))
        dump = await paused(other)
        assert await fates(store, dump) == ["restored"]
        assert await fates(store, dump) == ["known"]
        await store.apply(Resume(run_id=an_id(1), id="r"))
        await write(store, checkpoint_for(await claim_one(store), succeed()))

        assert await fates(store, dump) == ["known"]

        assert (await the_run(store)).state is RunState.SUCCEEDED

    async def test_the_same_run_twice_in_one_restore_is_one_run(self, store: Store, other: Store) -> None:
        """S6: a file may contain a run twice, for example two files joined into one."""
        await ended(other, 1, key="k")
        await start(other, an_intent(2))
        dumps = await the_dump(other, 1), await paused(other, 2)

        assert await fates(store, *dumps, *dumps) == ["restored", "restored", "known", "known"]

    @pytest.mark.parametrize("how", ["resumed", "rewound", "recovered"])
    async def test_a_newer_copy_of_an_existing_run_is_reported(self, store: Store, other: Store, how: str) -> None:
        """The port: `restore` reports a newer copy. It neither overwrites the older run nor keeps it silently."""
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

    async def test_another_run_with_the_same_id_is_reported(
        self, store: Store, other: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, run id: an existing run is never touched."""
        await ended(other, 1)
        clock.advance(1)
        await ended(store, 1)
        before = await the_dump(store)

        assert await fates(store, await the_dump(other)) == ["stranger"]

        assert await the_dump(store) == before

    async def test_a_run_whose_key_belongs_to_another_run_is_not_restored(self, store: Store, other: Store) -> None:
        """S1: one key makes at most one run. The other runs of the call are restored."""
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

    async def test_a_restored_schedule_continues_unchanged(
        self, store: Store, other: Store, clock: SettableClock
    ) -> None:
        """The port: a schedule keeps its next slot, its open runs and its count of skipped slots."""
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

    async def test_restoring_an_existing_schedule_changes_nothing(self, store: Store) -> None:
        """S6: a restore may be repeated. The existing schedule wins."""
        await store.apply(PutSchedules(schedules=[Schedule(name="a", type=TYPE, payload="{}", every=SECOND)]))
        before = list(await store.catalog(ListSchedules()))
        others = [Schedule(name=name, type="other", payload="1", every=SECOND, is_paused=True) for name in ("a", "b")]

        assert await transfer_of(store).restore_schedules(others) == 1
        assert await transfer_of(store).restore_schedules(others) == 0

        assert list(await store.catalog(ListSchedules())) == [*before, others[1]]
