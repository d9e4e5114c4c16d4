"""Contract of `rewind`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.checkpoint import Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import EmitEvents, Pause, Rewind, SendMessages
from holdfast.core.errors import InvalidRequest, RunBusy, RunNotFound
from holdfast.core.model import Arrival, EntryKind, EntryState, Lease, WaitKind
from holdfast.core.ports import Store
from holdfast.core.questions import FindOrphans, VerdictsOn
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    HintRecorder,
    a_child,
    a_message,
    a_reception,
    a_retry,
    a_step,
    an_event,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    ended,
    for_child,
    for_event,
    for_message,
    held,
    holding_of,
    picture_of,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

STEPS = (a_step("a", 1), a_step("b", 2, since=1), a_step("c", 3, since=2))


async def with_steps(store: Store) -> Lease:
    """Create a run that has done the steps a, b and c, and has ended."""
    lease = await held(store)
    await write(store, checkpoint_for(lease, succeed(), entries=STEPS))
    return lease


async def locations(store: Store, number: int = 1) -> list[str]:
    return [entry.location for entry in await store.history(an_id(number))]


async def unread(store: Store, number: int = 1) -> list[Arrival]:
    """Claim the run and return its unread arrivals."""
    lease = await claim_one(store)
    assert lease.run.id == an_id(number)
    return list(lease.arrivals)


class RewindContract(Contract):
    """A rewound run goes on as if it had never passed the location."""

    async def test_rewind_drops_the_entry_and_all_later_ones(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, control: rewind also requeues the run, and reopens an ended one."""
        lease = await with_steps(store)
        clock.advance(SECOND)

        assert await store.apply(Rewind(run_id=an_id(1), id="r", location="b")) is True

        assert await locations(store) == ["a"]
        run = await the_run(store)
        assert (run.state, run.ready_at, run.result, run.finished_at) == (RunState.PENDING, START + SECOND, None, None)
        assert (run.token, run.attempt) == (lease.run.token + 1, 2)
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.data) == ("rewound", {"location": "b", "dropped": 2, "request": "r"})
        again = await claim_one(store)
        assert [entry.location for entry in again.entries] == ["a"]

    async def test_time_counts_from_the_rewind(self, store: Store, clock: SettableClock) -> None:
        """A wait that starts again has its full time. After a rewind to the very start, so has the run itself."""
        await with_steps(store)
        clock.advance(SECOND)

        await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))
        (kept,) = await store.history(an_id(1))
        await store.apply(Rewind(run_id=an_id(1), id="s", location="a"))

        assert (kept.finished_at, kept.retry_at) == (START, START + SECOND)
        run = await the_run(store)
        assert (run.first_claimed_at, run.start_at) == (None, START + SECOND)

    async def test_rewind_drops_unsettled_entries_that_began_later(self, store: Store) -> None:
        """A step of another branch that began earlier keeps its attempts."""
        lease = await held(store)
        entries = (*STEPS, a_retry("early"), replace(a_retry("late"), since=2))
        await write(store, checkpoint_for(lease, succeed(), entries=entries))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))

        assert await locations(store) == ["a", "early"]

    async def test_rewind_drops_the_waits_of_a_live_run(self, store: Store) -> None:
        """The run has no waits until its code asks again, and it is not an orphan."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, Suspend(), entries=STEPS, waits=(for_message("go"),)))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="c"))

        details = await store.get(an_id(1))
        assert details is not None
        assert (details.run.state, details.waits) == (RunState.PENDING, ())
        assert await store.stats(FindOrphans(limit=10)) == []

    @pytest.mark.parametrize("state", [RunState.PAUSED, RunState.BLOCKED])
    async def test_rewind_requeues_a_paused_or_blocked_run(self, store: Store, state: RunState) -> None:
        await write(store, checkpoint_for(await held(store), block(), entries=STEPS))
        if state is RunState.PAUSED:
            await store.apply(Pause(run_id=an_id(1), id="p"))

        assert await store.apply(Rewind(run_id=an_id(1), id="r", location="c")) is True

        run = await the_run(store)
        assert (run.state, run.error, run.crashes) == (RunState.PENDING, None, 0)

    # Messages and events

    async def test_messages_of_dropped_entries_become_unread_before_later_ones(self, store: Store) -> None:
        """SEMANTICS, control: messages of dropped entries become unread, in order, with new numbers."""
        lease = await held(store)
        await store.apply(
            SendMessages(messages=[a_message(id=f"m{number}", payload=f"{number}") for number in (1, 2, 3)])
        )
        (verdict,) = (await store.changes(VerdictsOn(holdings=[holding_of(lease)]))).verdicts
        first, second, _ = verdict.arrivals
        entries = (a_reception(first), a_reception(second, "receive#2", 2))
        await write(store, checkpoint_for(lease, Suspend(), entries=entries, consumed=(1, 2), seen=3))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="receive"))

        arrivals = await unread(store)
        assert [(one.ref, one.payload) for one in arrivals] == [("m1", "1"), ("m2", "2"), ("m3", "3")]
        assert [one.number for one in arrivals] == [4, 5, 6]
        assert (await the_run(store)).arrivals == 6

    async def test_a_message_made_unread_is_still_known_by_its_id(self, store: Store) -> None:
        """SEMANTICS, waiting: a repeated send does not create a second message."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message()]))
        (arrival,) = (await store.changes(VerdictsOn(holdings=[holding_of(lease)]))).verdicts[0].arrivals
        await write(store, checkpoint_for(lease, Suspend(), entries=(a_reception(arrival),), consumed=(1,), seen=1))
        await store.apply(Rewind(run_id=an_id(1), id="r", location="receive"))

        await store.apply(SendMessages(messages=[a_message()]))

        assert [one.ref for one in await unread(store)] == ["m1"]

    async def test_an_event_of_a_dropped_entry_is_received_once_again(self, store: Store) -> None:
        """SEMANTICS, waiting: a run gets each event at most once, and after a rewind once more."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_event("paid"),)))
        await store.apply(EmitEvents(events=[an_event()]))
        (arrival,) = (await store.changes(VerdictsOn(holdings=[holding_of(lease)]))).verdicts[0].arrivals
        entries = (a_reception(arrival, "event"), a_step("after", 2, since=1))
        await write(store, checkpoint_for(lease, succeed(), entries=entries, consumed=(1,), seen=1))
        await store.apply(Rewind(run_id=an_id(1), id="r", location="event"))
        lease = await claim_one(store)

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),)))

        assert [(one.name, one.ref) for one in lease.arrivals] == [("paid", arrival.ref)]
        assert verdict.arrivals == ()

    # Children

    async def test_a_child_started_by_a_dropped_entry_is_cancelled_without_an_arrival(self, store: Store) -> None:
        """SEMANTICS, control: rewind cancels the children that dropped entries started."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type="child")
        entries = (a_step("a", 1), a_child(2, since=1))
        await write(store, checkpoint_for(lease, Suspend(), entries=entries, children=(child,), waits=(for_child(2),)))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="a"))

        run = await the_run(store, 2)
        assert (run.state, run.parent_id, run.parent_location) == (RunState.CANCELLED, an_id(1), None)
        assert await unread(store) == []

    async def test_the_end_of_a_child_started_earlier_arrives_again(self, store: Store) -> None:
        """The rewind drops only the recorded end of the child."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type="child")
        await write(store, checkpoint_for(lease, children=(child,), entries=(a_child(2),)))
        await write(store, checkpoint_for(await claim_one(store, type="child"), succeed()))
        entries = (a_step("a", 1), a_child(2, position=2), a_step("b", 3, since=2))
        await write(store, checkpoint_for(lease, succeed(), entries=entries, consumed=(1,), seen=1))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))
        assert await locations(store) == ["a", "call"]
        await store.apply(Rewind(run_id=an_id(1), id="s", location="a"))

        (started,) = await store.history(an_id(1))
        assert (started.location, started.state, started.position) == ("call", EntryState.STARTED, 0)
        (end,) = await unread(store)
        assert (end.kind, end.name, end.payload, end.state) == (
            WaitKind.CHILD,
            an_id(2),
            '"done"',
            RunState.SUCCEEDED,
        )
        assert (await the_run(store, 2)).state is RunState.SUCCEEDED

    async def test_a_child_cancelled_by_a_dropped_entry_is_started_again(self, store: Store) -> None:
        """A dropped entry had cancelled the child."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type="child")
        await write(store, checkpoint_for(lease, children=(child,), entries=(a_child(2),)))
        cancel = a_step("cancel:call", 2, None, kind=EntryKind.CANCEL, since=1, ref=an_id(2))
        await write(store, checkpoint_for(lease, succeed(), entries=(a_step("a", 1), cancel), cancels=(an_id(2),)))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="a"))

        assert await locations(store) == []
        assert await unread(store) == []

    async def test_a_rewound_child_sends_its_end_to_its_parent_once(self, store: Store) -> None:
        """S5: the first end of the child, which its parent has received, stands."""
        parent = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type="child")
        await write(store, checkpoint_for(parent, children=(child,), entries=(a_child(2),)))
        lease = await claim_one(store, type="child")
        await write(store, checkpoint_for(lease, succeed(), entries=STEPS))

        await store.apply(Rewind(run_id=an_id(2), id="r", location="a"))
        await write(store, checkpoint_for(await claim_one(store, type="child"), succeed()))

        (verdict,) = (await store.changes(VerdictsOn(holdings=[holding_of(parent)]))).verdicts
        assert [arrival.number for arrival in verdict.arrivals] == [1]

    # Holders

    async def test_rewind_of_a_held_run_is_refused(self, store: Store) -> None:
        """SEMANTICS, control: rewind raises `RunBusy` while a worker holds the run, unless `force` is given."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=STEPS))
        before = await picture_of(store, 1)

        with pytest.raises(RunBusy, match="holds run"):
            await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))
        assert await picture_of(store, 1) == before

    async def test_a_forced_rewind_takes_the_run_from_its_holder(self, store: Store) -> None:
        """T8: later writes of the holder are refused, and a hint tells it."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=STEPS))
        hints = HintRecorder(store)

        assert await store.apply(Rewind(run_id=an_id(1), id="r", location="b", force=True)) is True

        await hints.until("taken", an_id(1))
        hints.stop()
        verdict = await write(store, checkpoint_for(lease, entries=(a_step("d", 4),)))
        assert verdict.is_lost
        assert await locations(store) == ["a"]

    # Repeating and refusing

    async def test_a_repeated_rewind_changes_nothing_and_gives_the_same_answer(self, store: Store) -> None:
        """S6: even if the run has reached the location again since."""
        await with_steps(store)
        await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))
        await write(store, checkpoint_for(await claim_one(store), entries=STEPS[1:]))
        before = await picture_of(store, 1)

        assert await store.apply(Rewind(run_id=an_id(1), id="r", location="b")) is True
        assert await picture_of(store, 1) == before

    async def test_a_rewind_to_an_unknown_location_is_refused_and_names_the_known_ones(self, store: Store) -> None:
        await with_steps(store)
        before = await picture_of(store, 1)

        with pytest.raises(InvalidRequest, match=r"no entry at 'd'; it has 'a', 'b', 'c'"):
            await store.apply(Rewind(run_id=an_id(1), id="r", location="d"))
        assert await picture_of(store, 1) == before

    async def test_a_run_without_a_history_cannot_be_rewound(self, store: Store) -> None:
        await ended(store)

        with pytest.raises(InvalidRequest, match="none at all"):
            await store.apply(Rewind(run_id=an_id(1), id="r", location="a"))
        with pytest.raises(RunNotFound):
            await store.apply(Rewind(run_id=an_id(9), id="r", location="a"))
