"""Rewinding: what `rewind` promises."""

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
    """A run that has done a, b and c, and has ended."""
    lease = await held(store)
    await write(store, checkpoint_for(lease, succeed(), entries=STEPS))
    return lease


async def locations(store: Store, number: int = 1) -> list[str]:
    return [entry.location for entry in await store.history(an_id(number))]


async def unread(store: Store, number: int = 1) -> list[Arrival]:
    """What the next holder finds in the inbox."""
    lease = await claim_one(store)
    assert lease.run.id == an_id(number)
    return list(lease.arrivals)


class RewindContract(Contract):
    """A run that is rewound goes on as if it had never come further."""

    async def test_the_entry_and_all_of_later_position_are_dropped(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, control: and the run is requeued by itself; rewind reopens ended runs."""
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

    async def test_time_goes_on_from_the_rewind(self, store: Store, clock: SettableClock) -> None:
        """What is awaited again has its full time. From the very beginning on, so does the run itself."""
        await with_steps(store)
        clock.advance(SECOND)

        await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))
        (kept,) = await store.history(an_id(1))
        await store.apply(Rewind(run_id=an_id(1), id="s", location="a"))

        assert (kept.finished_at, kept.retry_at) == (START, START + SECOND)
        run = await the_run(store)
        assert (run.first_claimed_at, run.start_at) == (None, START + SECOND)

    async def test_what_was_not_settled_goes_if_it_was_asked_for_later(self, store: Store) -> None:
        """A step of another branch, begun before, keeps its attempts."""
        lease = await held(store)
        entries = (*STEPS, a_retry("early"), replace(a_retry("late"), since=2))
        await write(store, checkpoint_for(lease, succeed(), entries=entries))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))

        assert await locations(store) == ["a", "early"]

    async def test_a_live_run_loses_its_waits(self, store: Store) -> None:
        """It waits for nothing until its code has asked again, and is no orphan."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, Suspend(), entries=STEPS, waits=(for_message("go"),)))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="c"))

        details = await store.get(an_id(1))
        assert details is not None
        assert (details.run.state, details.waits) == (RunState.PENDING, ())
        assert await store.stats(FindOrphans(limit=10)) == []

    @pytest.mark.parametrize("state", [RunState.PAUSED, RunState.BLOCKED])
    async def test_a_run_that_stands_still_is_requeued(self, store: Store, state: RunState) -> None:
        await write(store, checkpoint_for(await held(store), block(), entries=STEPS))
        if state is RunState.PAUSED:
            await store.apply(Pause(run_id=an_id(1), id="p"))

        assert await store.apply(Rewind(run_id=an_id(1), id="r", location="c")) is True

        run = await the_run(store)
        assert (run.state, run.error, run.crashes) == (RunState.PENDING, None, 0)

    # Messages and events

    async def test_messages_of_dropped_entries_become_unread_before_what_came_later(self, store: Store) -> None:
        """SEMANTICS, control: makes messages of dropped entries unread; in order, under new numbers."""
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

    async def test_an_unread_message_is_still_known_by_its_id(self, store: Store) -> None:
        """SEMANTICS, waiting: a repeated send is no second message."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message()]))
        (arrival,) = (await store.changes(VerdictsOn(holdings=[holding_of(lease)]))).verdicts[0].arrivals
        await write(store, checkpoint_for(lease, Suspend(), entries=(a_reception(arrival),), consumed=(1,), seen=1))
        await store.apply(Rewind(run_id=an_id(1), id="r", location="receive"))

        await store.apply(SendMessages(messages=[a_message()]))

        assert [one.ref for one in await unread(store)] == ["m1"]

    async def test_an_event_that_was_had_can_be_had_again_and_once(self, store: Store) -> None:
        """SEMANTICS, waiting: a run gets each event at most once; here, once after the rewind."""
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

    async def test_a_child_that_the_dropped_entries_started_is_cancelled_and_not_heard_of(self, store: Store) -> None:
        """SEMANTICS, control: cancels children they started."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type="child")
        entries = (a_step("a", 1), a_child(2, since=1))
        await write(store, checkpoint_for(lease, Suspend(), entries=entries, children=(child,), waits=(for_child(2),)))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="a"))

        run = await the_run(store, 2)
        assert (run.state, run.parent_id, run.parent_location) == (RunState.CANCELLED, an_id(1), None)
        assert await unread(store) == []

    async def test_a_child_that_was_started_before_tells_of_its_end_again(self, store: Store) -> None:
        """Only that its end was known is forgotten."""
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

    async def test_a_child_that_was_cancelled_after_that_is_started_anew(self, store: Store) -> None:
        """Its end came of what is forgotten."""
        lease = await held(store)
        child = an_intent(2, parent_id=an_id(1), parent_location="call", type="child")
        await write(store, checkpoint_for(lease, children=(child,), entries=(a_child(2),)))
        cancel = a_step("cancel:call", 2, None, kind=EntryKind.CANCEL, since=1, ref=an_id(2))
        await write(store, checkpoint_for(lease, succeed(), entries=(a_step("a", 1), cancel), cancels=(an_id(2),)))

        await store.apply(Rewind(run_id=an_id(1), id="r", location="a"))

        assert await locations(store) == []
        assert await unread(store) == []

    async def test_a_rewound_child_that_had_ended_does_not_tell_its_parent_twice(self, store: Store) -> None:
        """S5: its first end was the one its parent heard of."""
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

    async def test_a_held_run_is_not_rewound(self, store: Store) -> None:
        """SEMANTICS, control: `RunBusy` while a worker holds the run unless `force`."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=STEPS))
        before = await picture_of(store, 1)

        with pytest.raises(RunBusy, match="holds run"):
            await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))
        assert await picture_of(store, 1) == before

    async def test_force_takes_the_run_away_from_its_holder(self, store: Store) -> None:
        """T8: what the holder writes afterwards is refused, and it is told."""
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
        """S6: the run may have come to the location again by then."""
        await with_steps(store)
        await store.apply(Rewind(run_id=an_id(1), id="r", location="b"))
        await write(store, checkpoint_for(await claim_one(store), entries=STEPS[1:]))
        before = await picture_of(store, 1)

        assert await store.apply(Rewind(run_id=an_id(1), id="r", location="b")) is True
        assert await picture_of(store, 1) == before

    async def test_a_rewind_to_an_unknown_location_is_refused_with_what_there_is(self, store: Store) -> None:
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
