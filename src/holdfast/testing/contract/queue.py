"""Contract of queues: events of a topic in mode `queue`."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.core.checkpoint import Block, ContinueAsNew, Next, Release, StartRollback, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, EmitEvents, Pause, SetTopics
from holdfast.core.model import Event, Topic, Wait
from holdfast.core.ports import Store
from holdfast.core.questions import ListTopics
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    an_error,
    an_event,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    facts_of,
    fail,
    for_event,
    for_time,
    held,
    name_of,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

JOBS = Topic(name="jobs", mode="queue")


def a_job(id: str = "e1", payload: str = "1") -> Event:
    return an_event(id, topic="jobs", payload=payload)


def for_job(since: int = 0, **options: object) -> Wait:
    """Build a wait for a job that began `since` seconds after the start."""
    return replace(for_event("jobs", **options), since=START + since * SECOND)  # type: ignore[arg-type]  # passed on


LEAVINGS: tuple[Next, ...] = (
    succeed(),
    fail(),
    block(),
    StartRollback(end=RunState.FAILED, error=an_error("broken")),
    ContinueAsNew(payload="{}"),
)


class QueueContract(Contract):
    """Exactly one run receives an event of a queue."""

    async def test_topics_are_stored_and_listed_by_name(self, store: Store) -> None:
        """The port: setting a topic again replaces its rule."""
        await store.apply(SetTopics(topics=[Topic(name="b*", retention=5), JOBS]))
        await store.apply(SetTopics(topics=[Topic(name="b*", mode="queue", max_pending=3)]))

        assert list(await store.catalog(ListTopics())) == [Topic(name="b*", mode="queue", max_pending=3), JOBS]

    async def test_an_event_goes_to_the_run_that_has_waited_longest(self, store: Store) -> None:
        """SEMANTICS, events: exactly one waiter gets it. The start of the wait decides, then the id of the run."""
        await store.apply(SetTopics(topics=[JOBS]))
        for number, since in ((1, 3), (2, 1), (3, 1), (4, 2)):
            await suspended(store, number, for_job(since))

        reached = [(await store.apply(EmitEvents(events=[a_job(f"e{n}", f"{n}")])))[0] for n in range(5)]

        leases = [await claim_one(store) for _ in range(4)]
        got = {lease.run.id: [arrival.payload for arrival in lease.arrivals] for lease in leases}
        assert reached == [1, 1, 1, 1, 0]
        assert got == {an_id(2): ["0"], an_id(3): ["1"], an_id(4): ["2"], an_id(1): ["3"]}
        assert all(arrival.is_exclusive for lease in leases for arrival in lease.arrivals)

    async def test_paused_runs_do_not_keep_an_event_from_a_run_behind_them(self, store: Store) -> None:
        """SEMANTICS, events: delivery skips paused runs, however many, because they would only hold the event."""
        await store.apply(SetTopics(topics=[JOBS]))
        for number in range(1, 61):
            await suspended(store, number, for_job(number))
            if number < 60:
                await store.apply(Pause(run_id=an_id(number), id=f"p{number}"))

        assert await store.apply(EmitEvents(events=[a_job()])) == [1]

        assert (await claim_one(store)).run.id == an_id(60)

    async def test_an_event_without_a_waiter_is_kept_until_a_run_takes_it(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, events: a queue keeps an event, also for runs created after it."""
        await store.apply(SetTopics(topics=[JOBS]))
        await store.apply(EmitEvents(events=[a_job()]))
        clock.advance(SECOND)
        first, second = await held(store, 1), await held(store, 2)

        got = await write(store, checkpoint_for(first, Suspend(), waits=(for_job(),)))
        nothing = await write(store, checkpoint_for(second, Suspend(), waits=(for_job(),)))

        assert [(arrival.payload, arrival.at, arrival.is_exclusive) for arrival in got.arrivals] == [("1", START, True)]
        assert (nothing.is_held, nothing.arrivals) == (False, ())

    async def test_events_are_handed_out_in_order(self, store: Store) -> None:
        """SEMANTICS, events: in order. A run gets the next event once it has consumed the previous one."""
        await store.apply(SetTopics(topics=[JOBS]))
        lease = await held(store)
        await store.apply(EmitEvents(events=[a_job(f"e{number}", f"{number}") for number in range(3)]))

        got: list[str | None] = []
        consumed: tuple[int, ...] = ()
        while arrivals := (
            await write(store, checkpoint_for(lease, seen=len(got), consumed=consumed, waits=(for_job(),)))
        ).arrivals:
            got += [arrival.payload for arrival in arrivals]
            consumed = tuple(arrival.number for arrival in arrivals)

        assert got == ["0", "1", "2"]

    async def test_a_consumed_event_reaches_no_other_run(self, store: Store) -> None:
        """SEMANTICS, events: exactly one run receives it, even if that run fails later."""
        await store.apply(SetTopics(topics=[JOBS]))
        lease = await held(store, 1)
        await store.apply(EmitEvents(events=[a_job()]))
        await write(store, checkpoint_for(lease, waits=(for_job(),)))
        await write(store, checkpoint_for(lease, fail(), seen=1, consumed=(1,)))

        await suspended(store, 2, for_job())

        assert (await the_run(store, 2)).arrivals == 0

    async def test_a_withdrawn_wait_passes_its_event_to_the_next_waiter(self, store: Store) -> None:
        """SEMANTICS, events: in the same transaction. The run that withdrew its wait no longer sees the event."""
        await store.apply(SetTopics(topics=[JOBS]))
        await suspended(store, 1, for_job(1), for_time(START + SECOND))
        await suspended(store, 2, for_job(2))
        await store.apply(EmitEvents(events=[a_job()]))
        lease = await claim_one(store)

        verdict = await write(store, checkpoint_for(lease, seen=0, waits=(for_time(START + SECOND),)))

        assert verdict.arrivals == ()
        other = await claim_one(store)
        assert (other.run.id, [arrival.payload for arrival in other.arrivals]) == (an_id(2), ["1"])
        assert await facts_of(store, 2) == ["claimed", "suspended", "woken", "claimed"]

    async def test_an_event_that_was_given_back_is_not_reported_to_its_former_holder(self, store: Store) -> None:
        """SEMANTICS, events: only one run gets an event of a queue. The holder has learned of it before."""
        await store.apply(SetTopics(topics=[JOBS]))
        await store.apply(EmitEvents(events=[a_job()]))
        lease = await held(store, 1)
        got = await write(store, checkpoint_for(lease, waits=(for_job(),)))
        assert [arrival.payload for arrival in got.arrivals] == ["1"]

        await write(store, checkpoint_for(lease, seen=got.seen, waits=()))

        assert (await write(store, checkpoint_for(lease, seen=0))).arrivals == ()

    async def test_an_event_that_was_given_back_returns_to_its_place(self, store: Store) -> None:
        """SEMANTICS, events: it returns to its place, before later events."""
        await store.apply(SetTopics(topics=[JOBS]))
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, waits=(for_job(),)))
        await store.apply(EmitEvents(events=[a_job("e1", "1"), a_job("e2", "2")]))
        await write(store, checkpoint_for(lease, waits=()))

        other = await held(store, 2)
        verdict = await write(store, checkpoint_for(other, waits=(for_job(),)))

        assert [arrival.payload for arrival in verdict.arrivals] == ["1"]

    async def test_a_run_that_gave_an_event_back_may_get_it_again(self, store: Store) -> None:
        """SEMANTICS, events: `after` does not exclude events of a queue."""
        await store.apply(SetTopics(topics=[JOBS]))
        lease = await held(store)
        await store.apply(EmitEvents(events=[a_job()]))
        first = await write(store, checkpoint_for(lease, waits=(for_job(),)))
        await write(store, checkpoint_for(lease, seen=1, waits=()))

        again = await write(store, checkpoint_for(lease, seen=1, waits=(for_job(after=9),)))

        assert [(arrival.number, arrival.payload) for arrival in again.arrivals] == [(2, "1")]
        assert [arrival.ref for arrival in again.arrivals] == [arrival.ref for arrival in first.arrivals]

    @pytest.mark.parametrize("next", LEAVINGS, ids=name_of)
    async def test_a_run_that_stops_waiting_passes_its_unread_event_on(self, store: Store, next: Next) -> None:
        """SEMANTICS, events: if a run ends, rolls back, continues as new or blocks, the next waiter gets the event."""
        await store.apply(SetTopics(topics=[JOBS]))
        lease = await held(store, 1, type="leaver")
        await write(store, checkpoint_for(lease, waits=(for_job(1),)))
        await suspended(store, 2, for_job(2))
        await store.apply(EmitEvents(events=[a_job()]))

        waits = () if isinstance(next, Block) else None
        await write(store, checkpoint_for(lease, next, waits=waits))

        assert [arrival.payload for arrival in (await claim_one(store)).arrivals] == ["1"]

    async def test_a_cancelled_run_gives_its_unread_event_back(self, store: Store) -> None:
        """SEMANTICS, events: also if the run is suspended. Without another waiter, the queue keeps the event."""
        await store.apply(SetTopics(topics=[JOBS]))
        await suspended(store, 1, for_job())
        await store.apply(EmitEvents(events=[a_job()]))

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        lease = await held(store, 2)
        assert len((await write(store, checkpoint_for(lease, waits=(for_job(),)))).arrivals) == 1

    async def test_a_released_run_keeps_its_unread_event(self, store: Store) -> None:
        """SEMANTICS, workers: a shutdown changes nothing for the run."""
        await store.apply(SetTopics(topics=[JOBS]))
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, waits=(for_job(1),)))
        await suspended(store, 2, for_job(2))
        await store.apply(EmitEvents(events=[a_job()]))

        await write(store, checkpoint_for(lease, Release()))

        assert [arrival.payload for arrival in (await claim_one(store)).arrivals] == ["1"]
        assert (await the_run(store, 2)).arrivals == 0

    async def test_a_run_gets_one_event_of_a_queue_at_a_time(self, store: Store) -> None:
        """SEMANTICS, events: delivery skips a run with an unread event, even if it waits in two places."""
        await store.apply(SetTopics(topics=[JOBS]))
        await suspended(store, 1, for_job(1), for_job(1, location="event#2"))
        await suspended(store, 2, for_job(2))

        assert await store.apply(EmitEvents(events=[a_job("e1"), a_job("e2"), a_job("e3")])) == [1, 1, 0]
        assert [(await the_run(store, number)).arrivals for number in (1, 2)] == [1, 1]

    # Modes

    async def test_the_most_specific_rule_of_a_topic_counts(self, store: Store) -> None:
        """SEMANTICS, events: the exact name first, then the longest prefix."""
        await store.apply(
            SetTopics(
                topics=[
                    Topic(name="a*", mode="queue"),
                    Topic(name="a.b*", mode="fanout"),
                    Topic(name="a.b.c", mode="queue"),
                    Topic(name="a", mode="fanout"),
                ]
            )
        )
        names = ("a", "ab", "a.b", "a.b.d", "a.b.c", "a.b.cc", "b")
        for name in names:
            for number in range(2):
                await suspended(store, names.index(name) * 2 + number, for_event(name))

        reached = await store.apply(EmitEvents(events=[an_event(topic=name) for name in names]))

        assert dict(zip(names, reached, strict=True)) == {
            "a": 2, "ab": 1, "a.b": 2, "a.b.d": 2, "a.b.c": 1, "a.b.cc": 2, "b": 2,
        }  # fmt: skip

    async def test_the_mode_at_the_time_of_the_event_counts(self, store: Store) -> None:
        """SEMANTICS, events: a new mode of a topic does not apply to events that were emitted before."""
        one, two = await held(store, 1), await held(store, 2)
        await store.apply(EmitEvents(events=[a_job("e1", "1")]))
        await store.apply(SetTopics(topics=[JOBS]))
        await store.apply(EmitEvents(events=[a_job("e2", "2")]))
        await store.apply(SetTopics(topics=[replace(JOBS, mode="fanout")]))
        await store.apply(EmitEvents(events=[a_job("e3", "3")]))

        got: dict[int, list[str | None]] = {}
        for number, lease in ((1, one), (2, two)):
            consumed: tuple[int, ...] = ()
            after = 0
            payloads: list[str | None] = []
            while arrivals := (
                await write(
                    store, checkpoint_for(lease, seen=len(payloads), consumed=consumed, waits=(for_job(after=after),))
                )
            ).arrivals:
                payloads += [arrival.payload for arrival in arrivals]
                consumed = tuple(arrival.number for arrival in arrivals)
                after = int(arrivals[0].ref or 0)
            got[number] = payloads

        assert got == {1: ["1", "2", "3"], 2: ["1", "3"]}

    # Repeats and races

    async def test_a_job_emitted_twice_is_one_job(self, store: Store, clock: SettableClock) -> None:
        """S6: the answer is the same, even if a run has received the event since."""
        await store.apply(SetTopics(topics=[JOBS]))
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, waits=(for_job(),)))
        await suspended(store, 2, for_job(9))

        assert await store.apply(EmitEvents(events=[a_job(), a_job()])) == [1, 1]
        await write(store, checkpoint_for(lease, seen=1, consumed=(1,), waits=()))
        clock.advance(SECOND)

        assert await store.apply(EmitEvents(events=[a_job()])) == [1]
        assert (await the_run(store, 2)).arrivals == 0

    async def test_a_repeated_checkpoint_gives_no_event_back_twice(self, store: Store) -> None:
        """S6: nor does it take a second event from the queue."""
        await store.apply(SetTopics(topics=[JOBS]))
        lease = await held(store, 1)
        await store.apply(EmitEvents(events=[a_job("e1", "1"), a_job("e2", "2")]))
        await write(store, checkpoint_for(lease, waits=(for_job(),)))
        checkpoint = checkpoint_for(lease, seen=1, consumed=(1,), waits=(for_job(),))

        first, again = await write(store, checkpoint), await write(store, checkpoint)
        leaving = checkpoint_for(lease, succeed(), seen=2)
        await write(store, leaving)
        await write(store, leaving)

        assert [arrival.payload for arrival in first.arrivals] == ["2"]
        assert again == first
        other = await held(store, 2)
        assert len((await write(store, checkpoint_for(other, waits=(for_job(),)))).arrivals) == 1

    async def test_emits_and_waits_that_race_give_each_event_to_one_run(self, store: Store) -> None:
        """S3, PROMISES 5: each event reaches one run, and no run gets two."""
        await store.apply(SetTopics(topics=[JOBS]))
        leases = [await held(store, number) for number in range(12)]

        async def wait(number: int) -> None:
            await write(store, checkpoint_for(leases[number], Suspend(), waits=(for_job(),)))

        async def emit(number: int) -> None:
            await store.apply(EmitEvents(events=[a_job(f"e{number}", f"{number}")]))

        await asyncio.gather(*(step(number) for number in range(8) for step in (wait, emit)), *map(wait, range(8, 12)))

        arrivals = [(await the_run(store, number)).arrivals for number in range(12)]
        assert (sum(arrivals), max(arrivals)) == (8, 1)

    async def test_a_run_can_receive_an_event_that_it_emits_in_the_same_checkpoint(self, store: Store) -> None:
        """SEMANTICS, waiting: `ctx.emit` is written with the checkpoint, and so is the wait that receives it."""
        await store.apply(SetTopics(topics=[JOBS]))
        await start(store, an_intent(2))
        lease = await held(store, 1, type="emitter")

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_job(),), events=(a_job(),)))

        assert [arrival.payload for arrival in verdict.arrivals] == ["1"]
