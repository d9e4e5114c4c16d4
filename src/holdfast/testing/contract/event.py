"""Contract of events: `emit`, and the delivery of kept events."""

from __future__ import annotations

import asyncio

from holdfast.core.checkpoint import Release, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import EmitEvents
from holdfast.core.model import EVENT_RETENTION, Arrival, Lease, WaitKind
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    HOSTILE,
    LEASE,
    an_event,
    an_id,
    an_intent,
    checkpoint_for,
    claim_one,
    facts_of,
    for_event,
    for_message,
    for_time,
    held,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock


async def _receive(store: Store, lease: Lease, last: Arrival | None = None) -> Arrival | None:
    """Consume the last event, wait for the next one, and return it if there is one, as a turn does."""
    wait = for_event("paid", after=_number(last))
    consumed = (last.number,) if last else ()
    unread = (await write(store, checkpoint_for(lease, consumed=consumed, waits=(wait,)))).arrivals
    return unread[0] if unread else None


def _number(arrival: Arrival | None) -> int:
    return int(arrival.ref or 0) if arrival else 0


class EventContract(Contract):
    """An event reaches every run that waits for it, or begins to wait in time, once and in order."""

    async def test_an_event_wakes_every_run_that_waits_for_it(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, events: fan-out; `emit` returns the number of runs reached."""
        await suspended(store, 1, for_event("paid"))
        await suspended(store, 2, for_message("x"), for_event("paid", location="other"))
        await suspended(store, 3, for_event("shipped"))
        clock.advance(SECOND)

        reached = await store.apply(EmitEvents(events=[an_event("e1", topic="paid", payload='{"a":1}')]))

        assert reached == [2]
        assert [(await the_run(store, number)).ready_at for number in (1, 2, 3)] == [START + SECOND] * 2 + [None]
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.data) == ("woken", {"cause": "event", "name": "paid"})
        (arrival,) = (await claim_one(store)).arrivals
        assert arrival.ref is not None
        assert int(arrival.ref) > 0
        assert arrival == Arrival(
            number=1, kind=WaitKind.EVENT, name="paid", at=START + SECOND, payload='{"a":1}', ref=arrival.ref
        )

    async def test_an_event_before_the_wait_is_not_lost(self, store: Store, clock: SettableClock) -> None:
        """S3: a wait satisfied before it is written never sleeps. The event keeps its own instant."""
        lease = await held(store)
        assert await store.apply(EmitEvents(events=[an_event()])) == [0]
        clock.advance(SECOND)

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),)))

        assert verdict.is_held
        assert [(arrival.payload, arrival.at) for arrival in verdict.arrivals] == [("1", START)]
        assert (await the_run(store)).state is RunState.RUNNING

    async def test_an_event_during_a_registered_wait_of_a_held_run_is_not_lost(self, store: Store) -> None:
        """S3, T1: emit does not touch a held run, and the run's next suspension is refused."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_event("paid"),)))

        assert await store.apply(EmitEvents(events=[an_event()])) == [1]

        assert (await the_run(store)).ready_at == START + LEASE
        assert (await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),)))).is_held

    async def test_an_event_does_not_reach_runs_created_after_it(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, events: an event reaches only runs that existed before it."""
        await store.apply(EmitEvents(events=[an_event()]))
        clock.advance(1)
        lease = await held(store)

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),)))

        assert not verdict.is_held
        assert (await the_run(store)).arrivals == 0

    async def test_an_event_is_kept_for_its_retention(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, events: an event reaches runs that begin to wait within the retention of 7 days."""
        early, late = await held(store, 1), await held(store, 2)
        await store.apply(EmitEvents(events=[an_event()]))

        clock.advance(EVENT_RETENTION - 1)
        in_time = await write(store, checkpoint_for(early, waits=(for_event("paid"),)))
        clock.advance(1)
        too_late = await write(store, checkpoint_for(late, waits=(for_event("paid"),)))

        assert (len(in_time.arrivals), len(too_late.arrivals)) == (1, 0)

    async def test_a_run_gets_each_event_once_and_in_order(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, events: at most once, in order."""
        lease = await held(store)
        await store.apply(EmitEvents(events=[an_event("z", payload="1"), an_event("y", payload="2")]))
        clock.advance(1)
        await store.apply(EmitEvents(events=[an_event("x", payload="3")]))

        got: list[Arrival] = []
        while (arrival := await _receive(store, lease, *got[-1:])) is not None:
            got.append(arrival)

        assert [arrival.payload for arrival in got] == ["1", "2", "3"]
        assert [_number(arrival) for arrival in got] == sorted({_number(arrival) for arrival in got})

    async def test_an_event_does_not_overtake_one_that_was_kept(self, store: Store) -> None:
        """SEMANTICS, events: order holds across a delivered event, a kept event, and one emitted during the wait."""
        lease = await held(store)
        await store.apply(EmitEvents(events=[an_event("e1", payload="1"), an_event("e2", payload="2")]))

        first = await _receive(store, lease)
        await store.apply(EmitEvents(events=[an_event("e3", payload="3")]))
        second = await _receive(store, lease, first)
        third = await _receive(store, lease, second)

        assert [arrival and arrival.payload for arrival in (first, second, third)] == ["1", "2", "3"]
        assert await _receive(store, lease, third) is None

    async def test_events_that_follow_each_other_reach_a_sleeper_in_order(self, store: Store) -> None:
        """SEMANTICS, events: in order, even if the second event comes before the run receives the first."""
        await suspended(store, 1, for_event("paid"))
        await store.apply(EmitEvents(events=[an_event("e1", payload="1")]))
        await store.apply(EmitEvents(events=[an_event("e2", payload="2")]))

        lease = await claim_one(store)
        second = await _receive(store, lease, lease.arrivals[0])

        assert lease.arrivals[0].payload == "1"
        assert second is not None
        assert second.payload == "2"
        assert await _receive(store, lease, second) is None

    async def test_a_wait_skips_events_up_to_the_number_in_after(self, store: Store) -> None:
        """The port: `after` is the number of the last event of the topic that the run has received."""
        lease = await held(store)
        await store.apply(EmitEvents(events=[an_event()]))
        first = await _receive(store, lease)

        wait = for_event("paid", after=_number(first), location="event#2")
        verdict = await write(store, checkpoint_for(lease, Suspend(), seen=1, consumed=(1,), waits=(wait,)))

        assert not verdict.is_held

    async def test_waits_for_different_topics_do_not_interfere(self, store: Store) -> None:
        """SEMANTICS, events: two waits of one run on two topics each get their own event, as one arrival each."""
        lease = await held(store)
        await store.apply(
            EmitEvents(events=[an_event("e1", topic="a", payload="1"), an_event("e2", topic="b", payload="2")])
        )
        waits = (for_event("b", location="one"), for_event("a", location="two"))

        verdict = await write(store, checkpoint_for(lease, waits=waits))

        assert sorted((arrival.name, arrival.payload) for arrival in verdict.arrivals) == [("a", "1"), ("b", "2")]
        assert (await the_run(store)).arrivals == 2

    async def test_two_waits_for_one_topic_get_an_event_once(self, store: Store) -> None:
        """SEMANTICS, events: a run gets each event at most once."""
        lease = await held(store)
        waits = (for_event("paid", location="one"), for_event("paid", location="two"))
        await write(store, checkpoint_for(lease, waits=waits))

        reached = await store.apply(EmitEvents(events=[an_event()]))

        assert reached == [1]
        assert len((await write(store, checkpoint_for(lease))).arrivals) == 1

    async def test_topics_are_taken_literally(self, store: Store) -> None:
        """SEMANTICS, events: no character of a topic is a wildcard or has another special meaning."""
        for number, topic in enumerate(HOSTILE):
            await suspended(store, number, for_event(topic))

        assert await store.apply(
            EmitEvents(events=[an_event(topic="%"), an_event(topic="100"), an_event(topic="*")])
        ) == [0, 0, 0]
        events = [an_event(f"e-{topic}", topic=topic, payload='"☃"') for topic in HOSTILE]
        assert await store.apply(EmitEvents(events=events)) == [1] * len(HOSTILE)

        leases = [await claim_one(store) for _ in HOSTILE]
        assert [lease.arrivals[0].name for lease in leases] == list(HOSTILE)

    async def test_a_withdrawn_wait_swallows_no_event(self, store: Store) -> None:
        """SEMANTICS, waiting: an abandoned wait never swallows a later event; the next wait finds it."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_event("paid"),)))
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_time(START),)))

        assert await store.apply(EmitEvents(events=[an_event()])) == [0]

        lease = await claim_one(store)
        assert lease.arrivals == ()
        assert len((await write(store, checkpoint_for(lease, waits=(for_event("paid"),)))).arrivals) == 1

    async def test_a_wait_that_is_still_registered_after_a_release_is_reached(self, store: Store) -> None:
        """S3: an event between two leases is not lost."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, Release(), waits=(for_event("paid"),)))

        assert await store.apply(EmitEvents(events=[an_event()])) == [1]

        assert len((await claim_one(store)).arrivals) == 1

    async def test_an_event_does_not_reach_an_ended_run(self, store: Store) -> None:
        """S5: an ended run does not change and has no waits."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, succeed(), waits=(for_event("paid"),)))
        before = await the_run(store)

        assert await store.apply(EmitEvents(events=[an_event()])) == [0]
        assert await the_run(store) == before

    # Repeats

    async def test_an_event_emitted_twice_is_one_event(self, store: Store) -> None:
        """S6: the id makes a repeated emit harmless, and its answer is the same."""
        await suspended(store, 1, for_event("paid"))
        lease = await held(store, 2, type="late")

        assert await store.apply(EmitEvents(events=[an_event("e1"), an_event("e1", payload="2")])) == [1, 1]
        assert await store.apply(EmitEvents(events=[an_event("e1")])) == [1]

        assert (await the_run(store, 1)).arrivals == 1
        first = await _receive(store, lease)
        assert first is not None
        assert first.payload == "1"
        assert await _receive(store, lease, first) is None

    async def test_emit_answers_each_event_even_without_waiters(self, store: Store) -> None:
        """The port: one answer per event, in order."""
        await suspended(store, 1, for_event("b"))

        assert list(await store.apply(EmitEvents(events=[]))) == []
        assert await store.apply(EmitEvents(events=[an_event("e1", topic="a"), an_event("e2", topic="b")])) == [0, 1]

    # From a checkpoint

    async def test_a_run_emits_with_its_checkpoint(self, store: Store) -> None:
        """SEMANTICS, waiting: `ctx.emit` is written with the checkpoint, and reaches even a wait of that checkpoint."""
        await suspended(store, 1, for_event("paid"))
        lease = await held(store, 2, type="emitter")

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),), events=(an_event(),)))

        assert (verdict.is_held, len(verdict.arrivals)) == (True, 1)
        assert await facts_of(store, 1) == ["claimed", "suspended", "woken"]

    async def test_a_run_emits_to_a_run_that_suspends_in_the_same_batch(self, store: Store) -> None:
        """S3, T9: the event is not lost, regardless of the order of the two checkpoints."""
        for topic, is_emitter_first in (("a", True), ("b", False)):
            numbers = (1, 2) if is_emitter_first else (3, 4)
            emitter, waiter = [await held(store, number, type=topic) for number in numbers]
            batch = [
                checkpoint_for(emitter, succeed(), events=(an_event(topic=topic),)),
                checkpoint_for(waiter, Suspend(), waits=(for_event(topic),)),
            ]

            await store.checkpoint(batch if is_emitter_first else batch[::-1])

            run = await the_run(store, numbers[1])
            assert run.arrivals == 1
            assert run.is_held or run.ready_at == START

    async def test_emits_and_waits_that_race_lose_nothing(self, store: Store) -> None:
        """S3, PROMISES 5: nothing is missed because of timing."""
        leases = [await held(store, number) for number in range(16)]

        async def wait(lease: Lease) -> None:
            await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),)))

        await asyncio.gather(
            *map(wait, leases[:8]), store.apply(EmitEvents(events=[an_event()])), *map(wait, leases[8:])
        )

        runs = [await the_run(store, number) for number in range(16)]
        assert [run.arrivals for run in runs] == [1] * 16
        assert all(run.is_held or run.ready_at == START for run in runs)

    async def test_an_event_at_the_instant_of_a_start_reaches_the_run(self, store: Store) -> None:
        """SEMANTICS, events: a run created at the same instant counts as existing before, so that no event is lost."""
        await start(store, an_intent(1))
        await store.apply(EmitEvents(events=[an_event()]))

        lease = await claim_one(store)
        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),)))

        assert len(verdict.arrivals) == 1
