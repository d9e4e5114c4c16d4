"""Contract of messages: `send`, and the inbox of a run."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import Release, Suspend
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import Cancel, DropMessage, EmitEvents, SendMessages, Sent
from holdfast.core.errors import RunBusy
from holdfast.core.model import Arrival, MessageToRun, WaitKind
from holdfast.core.ports import Store
from holdfast.core.questions import ListMessages
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    HOSTILE,
    LEASE,
    a_message,
    a_step,
    an_event,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    claim_one,
    claimed_ids,
    ended,
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


class MessageContract(Contract):
    """A store keeps messages in order, and a run consumes each once."""

    async def test_a_message_to_a_run_that_has_not_started_waits_for_it(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, waiting: a message is kept before the run asks for it or starts. It does not start a run early."""
        await start(store, an_intent(1, delay=SECOND))

        assert await store.apply(SendMessages(messages=[a_message(id="m1", name="go", payload='{"a":1}')])) == [
            Sent(run_id=an_id(1))
        ]

        assert await claimed_ids(store) == []
        clock.advance(SECOND)
        assert (await claim_one(store)).arrivals == (
            Arrival(number=1, kind=WaitKind.MESSAGE, name="go", at=START, payload='{"a":1}', ref="m1"),
        )

    async def test_a_message_to_a_held_run_changes_nothing_but_its_inbox(self, store: Store) -> None:
        """T1: a sender never touches `ready_at`, token or state of a held run."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_message("go"),)))
        before = await the_run(store)

        await store.apply(SendMessages(messages=[a_message()]))

        after = await the_run(store)
        assert (after.state, after.ready_at, after.token, after.worker) == (
            before.state,
            before.ready_at,
            before.token,
            before.worker,
        )
        assert after.arrivals == 1
        assert await facts_of(store) == ["claimed"]
        assert [arrival.ref for arrival in (await write(store, checkpoint_for(lease))).arrivals] == ["m1"]

    async def test_an_awaited_message_wakes_a_suspended_run(self, store: Store, clock: SettableClock) -> None:
        """T1: a message makes a run ready if the run is suspended on a matching wait."""
        await suspended(store, 1, for_message("go"))
        clock.advance(SECOND)

        await store.apply(SendMessages(messages=[a_message(name="go")]))

        run = await the_run(store)
        assert (run.state, run.ready_at) == (RunState.SUSPENDED, START + SECOND)
        fact = (await store.audit(an_id(1)))[-1]
        assert (fact.event, fact.at, fact.data) == ("woken", START + SECOND, {"cause": "message", "name": "go"})
        assert [arrival.ref for arrival in (await claim_one(store)).arrivals] == ["m1"]

    async def test_a_message_without_a_matching_wait_wakes_no_run(self, store: Store) -> None:
        """T1: only a message with a matching wait wakes a run. Other messages leave the deadline unchanged."""
        await suspended(store, 1, for_message("go", deadline=START + 9 * SECOND), for_event("other"))
        await suspended(store, 2, for_message("go"))

        await store.apply(
            SendMessages(
                messages=[a_message(1, name="other"), a_message(2, name="gone"), a_message(2, id="m2", name="Go")]
            )
        )

        assert [(await the_run(store, number)).ready_at for number in (1, 2)] == [START + 9 * SECOND, None]
        assert await facts_of(store, 1) == ["claimed", "suspended"]

    async def test_a_wait_may_name_several_messages_or_any(self, store: Store) -> None:
        """SEMANTICS, waiting: `receive([a, b])`, `receive()`."""
        await suspended(store, 1, for_message("a", "b"))
        await suspended(store, 2, for_message())

        await store.apply(SendMessages(messages=[a_message(1, name="b"), a_message(2, name="whatever")]))

        assert await claimed_ids(store) == [an_id(1), an_id(2)]

    async def test_messages_and_events_do_not_satisfy_each_others_waits(self, store: Store) -> None:
        """T1: a message never satisfies a wait for an event, nor an event a wait for a message."""
        await suspended(store, 1, for_message())
        await suspended(store, 2, for_event("go"))

        reached = await store.apply(EmitEvents(events=[an_event(topic="other")]))
        await store.apply(SendMessages(messages=[a_message(2, name="go")]))

        assert reached == [0]
        assert await claimed_ids(store) == []

    async def test_a_message_does_not_wake_a_blocked_or_released_run(self, store: Store, clock: SettableClock) -> None:
        """T1, T5: a message wakes only a suspended run. A blocked run keeps the time of its next try."""
        await write(store, checkpoint_for(await held(store, 1), block(), waits=(for_message("go"),)))
        await write(store, checkpoint_for(await held(store, 2), Release(), waits=(for_message("go"),)))
        clock.advance(SECOND)

        await store.apply(SendMessages(messages=[a_message(1), a_message(2)]))

        assert [(await the_run(store, number)).ready_at for number in (1, 2)] == [None, START]

    async def test_a_ready_run_keeps_its_place_when_another_message_arrives(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S4: wake-ups coalesce. A second one does not move a ready run to the end of the queue."""
        await suspended(store, 1, for_message("go"))
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        clock.advance(SECOND)

        await store.apply(SendMessages(messages=[a_message(id="m2")]))

        assert (await the_run(store)).ready_at == START
        assert await facts_of(store) == ["claimed", "suspended", "woken"]

    async def test_a_deadline_that_passed_is_not_moved_by_a_message(self, store: Store, clock: SettableClock) -> None:
        """S4, T5: a run that is due keeps its place in the queue."""
        await suspended(store, 1, for_time(START + SECOND), for_message("go"))
        clock.advance(2 * SECOND)

        await store.apply(SendMessages(messages=[a_message()]))

        assert (await the_run(store)).ready_at == START + SECOND

    async def test_messages_arrive_in_order_under_growing_numbers(self, store: Store, clock: SettableClock) -> None:
        """T1: each message gets the run's next arrival number. SEMANTICS, waiting: FIFO order."""
        await start(store, an_intent(1))
        await store.apply(SendMessages(messages=[a_message(id="z"), a_message(id="a", name="other")]))
        clock.advance(SECOND)
        await store.apply(SendMessages(messages=[a_message(id="m")]))

        arrivals = (await claim_one(store)).arrivals

        assert [(arrival.number, arrival.ref, arrival.at) for arrival in arrivals] == [
            (1, "z", START),
            (2, "a", START),
            (3, "m", START + SECOND),
        ]

    async def test_names_ids_and_payloads_are_taken_literally(self, store: Store) -> None:
        """PROMISES: every store returns values unchanged."""
        await suspended(store, 1, for_message("%"), for_message("100", "it", "a*", location="other"))
        messages = [a_message(id=text, name=text, payload=f'"{index}☃"') for index, text in enumerate(HOSTILE)]
        await store.apply(SendMessages(messages=messages))
        assert await claimed_ids(store) == []

        await store.apply(SendMessages(messages=[a_message(id="%", name="%")]))

        arrivals = (await claim_one(store)).arrivals
        assert [(arrival.ref, arrival.name, arrival.payload) for arrival in arrivals[:-1]] == [
            (message.id, message.name, message.payload) for message in messages
        ]

    # Consuming

    async def test_a_consumed_message_does_not_come_back(self, store: Store) -> None:
        """PROMISES 5: a message is consumed by at most one receive."""
        await start(store, an_intent(1))
        await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m2"), a_message(id="m3")]))
        lease = await claim_one(store)

        verdict = await write(store, checkpoint_for(lease, Release(), consumed=(2,), entries=(a_step(),)))

        assert verdict.arrivals == ()
        again = await claim_one(store)
        assert [(arrival.number, arrival.ref) for arrival in again.arrivals] == [(1, "m1"), (3, "m3")]
        assert again.run.arrivals == 3

    async def test_arrival_numbers_are_never_reused(self, store: Store) -> None:
        """T1, T4: an arrival number is never used again, so `seen` is unambiguous."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        await write(store, checkpoint_for(lease, seen=1, consumed=(1,)))
        await store.apply(SendMessages(messages=[a_message(id="m2")]))

        verdict = await write(store, checkpoint_for(lease, Suspend(), seen=1, waits=(for_message("go"),)))

        assert verdict.is_held
        assert [(arrival.number, arrival.ref) for arrival in verdict.arrivals] == [(2, "m2")]

    async def test_a_withdrawn_wait_swallows_no_message(self, store: Store) -> None:
        """SEMANTICS, waiting: an abandoned wait never swallows a later message."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_message("go"),)))
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_time(START + LEASE),)))

        await store.apply(SendMessages(messages=[a_message(name="go")]))

        assert (await the_run(store)).ready_at == START + LEASE
        assert await facts_of(store) == ["claimed", "suspended"]

    # Repeats

    async def test_a_message_sent_twice_is_one_message(self, store: Store) -> None:
        """S6, SEMANTICS: the same id is the same message, even with another name or payload."""
        lease = await held(store)

        sent = [
            *(await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m1", payload="2")]))),
            *(await store.apply(SendMessages(messages=[a_message(id="m1", name="other")]))),
        ]

        assert sent == [Sent(run_id=an_id(1))] * 3
        verdict = await write(store, checkpoint_for(lease))
        assert [(arrival.number, arrival.payload) for arrival in verdict.arrivals] == [(1, "1")]

    async def test_a_consumed_id_is_remembered_for_a_day(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, waiting: a consumed id is remembered for a day."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        await write(store, checkpoint_for(lease, seen=1, consumed=(1,)))

        clock.advance(DAY - 1)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        assert (await the_run(store)).arrivals == 1
        clock.advance(1)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        assert (await the_run(store)).arrivals == 2

    async def test_an_unread_message_is_remembered_for_as_long_as_it_is_unread(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, waiting: the day counts from the consumption of the message."""
        await start(store, an_intent(1))
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        clock.advance(2 * DAY)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))

        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, consumed=(1,)))
        clock.advance(DAY - 1)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))

        assert (await the_run(store)).arrivals == 1

    async def test_message_ids_are_separate_per_run_and_from_event_numbers(self, store: Store) -> None:
        """SEMANTICS, waiting: a message id may equal one of another run, or an event number, and is still no repeat."""
        leases = [await held(store, number) for number in (1, 2)]
        await store.apply(EmitEvents(events=[an_event("e1")]))
        verdict = await write(store, checkpoint_for(leases[0], waits=(for_event("paid"),)))
        number = verdict.arrivals[0].ref
        assert number is not None

        await store.apply(SendMessages(messages=[a_message(1, id=number), a_message(2, id=number)]))

        assert [(await the_run(store, run)).arrivals for run in (1, 2)] == [2, 1]

    # Addresses

    async def test_a_message_may_be_sent_by_key(self, store: Store) -> None:
        """SEMANTICS, starting: callers can send to a run by its key."""
        await suspended(store, 1, for_message("go"), key="order's %17")

        sent = await store.apply(
            SendMessages(messages=[MessageToRun(id="m1", name="go", payload="1", key="order's %17")])
        )

        assert sent == [Sent(run_id=an_id(1))]
        assert await claimed_ids(store) == [an_id(1)]

    async def test_sending_to_an_unknown_run_is_refused(self, store: Store) -> None:
        """SEMANTICS, waiting: sending to an unknown run raises `RunNotFound`."""
        sent = await store.apply(
            SendMessages(messages=[a_message(9), MessageToRun(id="m1", name="go", payload="1", key="nobody's")])
        )

        assert sent == [Sent(run_id=an_id(9), refused="unknown"), Sent(run_id=None, refused="unknown")]

    async def test_sending_to_an_ended_run_is_refused(self, store: Store) -> None:
        """SEMANTICS, waiting: sending to a finished run raises `RunFinished`. S5: the run does not change."""
        await ended(store, 1, key="k")
        await start(store, an_intent(2))
        await store.apply(Cancel(run_id=an_id(2), id="c"))
        before = [await the_run(store, number) for number in (1, 2)]

        sent = await store.apply(
            SendMessages(messages=[a_message(1), a_message(2), MessageToRun(id="m2", name="go", payload="1", key="k")])
        )

        assert sent == [Sent(run_id=an_id(number), refused="finished") for number in (1, 2, 1)]
        assert [await the_run(store, number) for number in (1, 2)] == before

    async def test_a_repeated_message_that_a_run_received_before_it_ended_is_not_refused(self, store: Store) -> None:
        """S6: the message was accepted, but the answer was lost. S5: the run does not change."""
        lease = await held(store, 1)
        await store.apply(SendMessages(messages=[a_message(1, id="received"), a_message(1, id="unread")]))
        await write(store, checkpoint_for(lease, succeed(), seen=2, consumed=(1,)))
        before = await the_run(store, 1)

        sent = await store.apply(
            SendMessages(messages=[a_message(1, id="received"), a_message(1, id="unread"), a_message(1, id="new")])
        )

        assert [one.refused for one in sent] == [None, "finished", "finished"]
        assert await the_run(store, 1) == before

    async def test_a_refused_message_does_not_affect_the_others_of_its_batch(self, store: Store) -> None:
        """The port: one answer per message, in order."""
        await start(store, an_intent(1), an_intent(2))

        sent = await store.apply(SendMessages(messages=[a_message(2), a_message(9), a_message(1)]))

        assert [one.refused for one in sent] == [None, "unknown", None]
        assert [(await the_run(store, number)).arrivals for number in (1, 2)] == [1, 1]

    async def test_sending_no_messages_returns_an_empty_answer(self, store: Store) -> None:
        """The port: each operation is plural."""
        assert list(await store.apply(SendMessages(messages=[]))) == []

    # By hand

    async def test_unread_messages_are_listed_in_order(self, store: Store) -> None:
        """SEMANTICS, messages: unread messages can be listed. Events and received messages are left out."""
        lease = await held(store, 1)
        await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m2", name="x", payload='"☃"')]))
        await write(store, checkpoint_for(lease, Suspend(), seen=2, waits=(for_event("e"),), consumed=(1,)))
        await store.apply(EmitEvents(events=[an_event(topic="e")]))
        await store.apply(SendMessages(messages=[a_message(id="m3")]))

        unread = await store.catalog(ListMessages(run_id=an_id(1)))

        assert [(one.ref, one.name, one.payload, one.at) for one in unread] == [
            ("m2", "x", '"☃"', START),
            ("m3", "go", unread[1].payload, START),
        ]
        assert await store.catalog(ListMessages(run_id=an_id(9))) == []

    async def test_a_message_is_dropped_and_not_brought_back_by_a_repeated_send(self, store: Store) -> None:
        """SEMANTICS, messages: unread messages can be dropped by hand; a consumed id is remembered for a day."""
        await suspended(store, 1, for_event("e"))
        await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m2")]))
        drop = DropMessage(run_id=an_id(1), id="d", message_id="m1", by="ada")

        assert await store.apply(drop)
        assert await store.apply(drop)  # a repeat of the same request
        assert not await store.apply(DropMessage(run_id=an_id(1), id="d2", message_id="m1"))
        await store.apply(SendMessages(messages=[a_message(id="m1")]))

        assert [one.ref for one in await store.catalog(ListMessages(run_id=an_id(1)))] == ["m2"]
        (fact,) = [fact for fact in await store.audit(an_id(1)) if fact.event == "message_dropped"]
        assert (fact.data["message"], fact.data["name"], fact.data["by"]) == ("m1", "go", "ada")

    async def test_dropping_a_message_of_a_held_run_is_refused(self, store: Store) -> None:
        """T1: the holder may have read the message already."""
        await held(store, 1)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))

        with pytest.raises(RunBusy, match="holds run"):
            await store.apply(DropMessage(run_id=an_id(1), id="d", message_id="m1"))

        assert [one.ref for one in await store.catalog(ListMessages(run_id=an_id(1)))] == ["m1"]

    async def test_a_run_does_not_receive_a_dropped_message(self, store: Store) -> None:
        """S3: a drop leaves the run ready, which is harmless. The next claim returns the other messages."""
        await suspended(store, 1, for_message("go"))
        await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m2")]))

        assert await store.apply(DropMessage(run_id=an_id(1), id="d", message_id="m1"))

        lease = await claim_one(store)
        assert [arrival.ref for arrival in lease.arrivals] == ["m2"]

    async def test_an_ended_run_has_no_messages_to_drop(self, store: Store) -> None:
        """S5: an ended run changes only by `recover` or `rewind`."""
        await suspended(store, 1, for_event("e"))
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert not await store.apply(DropMessage(run_id=an_id(1), id="d", message_id="m1"))
        assert await store.catalog(ListMessages(run_id=an_id(1))) == []

    # From a checkpoint

    async def test_a_run_sends_with_its_checkpoint(self, store: Store) -> None:
        """SEMANTICS, waiting: `ctx.send` is written with the checkpoint, by id or by key, also to the run itself."""
        await suspended(store, 2, for_message("go"))
        await start(store, an_intent(3, key="k"))
        lease = await held(store, 1, type="sender")
        messages = (a_message(2), MessageToRun(id="m2", name="x", payload="2", key="k"), a_message(1, id="m3"))

        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),), messages=messages))

        assert (verdict.is_held, [arrival.ref for arrival in verdict.arrivals]) == (True, ["m3"])
        assert await facts_of(store, 2) == ["claimed", "suspended", "woken"]
        assert [(await the_run(store, number)).arrivals for number in (1, 2, 3)] == [1, 1, 1]

    async def test_messages_of_a_run_to_ended_or_unknown_runs_are_dropped_and_audited(self, store: Store) -> None:
        """SEMANTICS, waiting: messages to an ended or unknown run are dropped and audited."""
        await ended(store, 2)
        lease = await held(store, 1)

        verdict = await write(store, checkpoint_for(lease, messages=(a_message(2, id="m1"), a_message(9, id="m2"))))

        assert not verdict.is_lost
        facts = [fact.data for fact in await store.audit(an_id(1)) if fact.event == "dropped"]
        assert [(fact["to"], fact["name"], fact["why"]) for fact in facts] == [
            (an_id(2), "go", "finished"),
            (an_id(9), "go", "unknown"),
        ]
