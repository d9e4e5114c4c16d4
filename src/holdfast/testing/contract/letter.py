"""Contract of dead letters, and of the pruning that creates some of them."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import ContinueAsNew
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import Cancel, EmitEvents, PurgeDeadLetters, ReplayDeadLetters, SendMessages, SetTopics
from holdfast.core.model import DeadLetter, Reply, RunOptions, Topic
from holdfast.core.ports import Pruned, Store
from holdfast.core.questions import ListDeadLetters, RepliesTo
from holdfast.testing.contract.arrange import (
    a_message,
    an_event,
    an_id,
    checkpoint_for,
    claim_one,
    fail,
    for_event,
    held,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

MANY = 1_000
KEEPS = RunOptions(undelivered="dead_letter")


async def letters(store: Store, topic: str | None = None) -> list[DeadLetter]:
    return list(await store.catalog(ListDeadLetters(topic=topic)))


async def payloads(store: Store, topic: str | None = None) -> list[str]:
    return [letter.payload for letter in await letters(store, topic)]


async def dead(store: Store, clock: SettableClock, *payloads: str, topic: str = "jobs") -> list[int]:
    """Turn queue events into dead letters. Return their numbers."""
    await store.apply(SetTopics(topics=[Topic(name=topic, mode="queue", retention=SECOND)]))
    await store.apply(
        EmitEvents(events=[an_event(f"dead-{payload}", topic=topic, payload=payload) for payload in payloads])
    )
    clock.advance(SECOND)
    await store.prune(MANY)
    return [letter.number for letter in await letters(store, topic)]


class LetterContract(Contract):
    """Undelivered messages and events become dead letters. Pruning removes data that is no longer needed."""

    # Undelivered messages

    async def test_unread_messages_of_an_ended_run_are_discarded_by_default(self, store: Store) -> None:
        """SEMANTICS, dead letters: the default is to discard them."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message()]))

        await write(store, checkpoint_for(lease, succeed()))

        assert await letters(store) == []

    @pytest.mark.parametrize("by", ["its code", "a person"])
    async def test_unread_messages_become_dead_letters_if_the_run_was_started_so(
        self, store: Store, clock: SettableClock, by: str
    ) -> None:
        """SEMANTICS, dead letters: in order, without the messages that the run received."""
        lease = await held(store, options=KEEPS)
        await store.apply(
            SendMessages(messages=[a_message(id=f"m{number}", name="it's", payload=f"{number}") for number in range(3)])
        )
        await write(store, checkpoint_for(lease, seen=3, consumed=(1,)))
        clock.advance(SECOND)

        if by == "its code":
            await write(store, checkpoint_for(lease, fail()))
        else:
            await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert await letters(store) == [
            DeadLetter(
                number=number,
                id=f"m{number}",
                payload=f"{number}",
                at=START + SECOND,
                reason="undelivered",
                run_id=an_id(1),
                name="it's",
            )
            for number in (1, 2)
        ]

    async def test_continue_as_new_keeps_unread_messages(self, store: Store) -> None:
        """SEMANTICS, composition: unread messages are kept, so they do not become dead letters."""
        lease = await held(store, options=KEEPS)
        await store.apply(SendMessages(messages=[a_message()]))

        await write(store, checkpoint_for(lease, ContinueAsNew(payload="{}")))

        assert await letters(store) == []
        assert [arrival.ref for arrival in (await claim_one(store)).arrivals] == ["m1"]

    async def test_a_message_is_replayed_only_to_a_run_that_is_alive(self, store: Store) -> None:
        """SEMANTICS, dead letters: otherwise the message stays a dead letter, and the answer does not count it."""
        lease = await held(store, options=KEEPS)
        await store.apply(SendMessages(messages=[a_message()]))
        await write(store, checkpoint_for(lease, succeed()))

        assert await store.apply(ReplayDeadLetters(numbers=[1])) == 0
        assert len(await letters(store)) == 1

    # Expiry and overflow

    async def test_an_event_of_a_queue_that_expires_becomes_a_dead_letter(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, events: at the end of the topic's retention, not before."""
        await store.apply(SetTopics(topics=[Topic(name="it's*", mode="queue", retention=SECOND)]))
        await store.apply(EmitEvents(events=[an_event("e1", topic="it's %", payload='"a"')]))
        clock.advance(SECOND - 1)
        early = await store.prune(MANY)
        clock.advance(1)

        assert await store.prune(MANY) == Pruned(dead_letters=1)
        assert early == Pruned()
        assert await letters(store) == [
            DeadLetter(number=1, id="e1", topic="it's %", payload='"a"', at=START + SECOND, reason="expired")
        ]

    async def test_the_oldest_events_of_a_queue_that_overflows_become_dead_letters(self, store: Store) -> None:
        """SEMANTICS, events: `max_pending` applies to each topic of a family, and the oldest events go first."""
        await store.apply(SetTopics(topics=[Topic(name="j*", mode="queue", max_pending=2)]))
        await store.apply(
            EmitEvents(events=[an_event(f"e{number}", topic="jobs", payload=f"{number}") for number in range(5)])
        )
        await store.apply(EmitEvents(events=[an_event(f"e{number}", topic="joys") for number in range(2)]))

        assert await store.prune(MANY) == Pruned(dead_letters=3)
        assert [(letter.payload, letter.reason) for letter in await letters(store)] == [
            (f"{number}", "overflow") for number in range(3)
        ]
        assert await store.prune(MANY) == Pruned()

    async def test_an_event_handed_to_a_run_neither_expires_nor_counts_as_pending(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, events: retention and `max_pending` apply only to pending events."""
        await store.apply(SetTopics(topics=[Topic(name="jobs", mode="queue", retention=SECOND, max_pending=1)]))
        await suspended(store, 1, for_event("jobs"))
        await store.apply(EmitEvents(events=[an_event("e1", topic="jobs"), an_event("e2", topic="jobs")]))
        clock.advance(SECOND)

        assert await store.prune(MANY) == Pruned(dead_letters=1)
        assert len((await claim_one(store)).arrivals) == 1

    async def test_an_event_given_back_after_its_retention_becomes_a_dead_letter(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, events: a run gave the event back after its retention."""
        await store.apply(SetTopics(topics=[Topic(name="jobs", mode="queue", retention=SECOND)]))
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_event("jobs"),)))
        await store.apply(EmitEvents(events=[an_event(topic="jobs")]))
        clock.advance(SECOND)
        await store.prune(MANY)
        await write(store, checkpoint_for(lease, waits=()))

        assert await store.prune(MANY) == Pruned(dead_letters=1)

    async def test_a_changed_retention_applies_to_existing_events(self, store: Store, clock: SettableClock) -> None:
        """The port: the limits of a topic apply to all its events, whether they become shorter or longer."""
        await store.apply(
            SetTopics(topics=[Topic(name="jobs", mode="queue"), Topic(name="kept", mode="queue", retention=SECOND)])
        )
        await store.apply(
            EmitEvents(events=[an_event(topic="jobs"), an_event(topic="kept"), an_event(topic="jobless")])
        )
        await store.prune(MANY)
        await store.apply(
            SetTopics(topics=[Topic(name="jobs", mode="queue", retention=SECOND), Topic(name="kept", mode="queue")])
        )
        clock.advance(SECOND)

        assert await store.prune(MANY) == Pruned(dead_letters=1)
        assert [letter.topic for letter in await letters(store)] == ["jobs"]

    async def test_fan_out_events_expire_without_dead_letters(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, events: fan-out events that expire or overflow do not become dead letters."""
        await store.apply(SetTopics(topics=[Topic(name="few", max_pending=2), Topic(name="short", retention=SECOND)]))
        events = [("few", 3), ("short", 2), ("usual", 4)]
        await store.apply(
            EmitEvents(
                events=[an_event(f"e{n}", topic=topic, payload=f"{n}") for topic, many in events for n in range(many)]
            )
        )
        clock.advance(SECOND)
        lease = await held(store, 1)

        assert await store.prune(MANY) == Pruned(events=3)
        clock.advance(7 * DAY)
        assert await store.prune(MANY) == Pruned(events=6)
        assert await letters(store) == []
        assert (await write(store, checkpoint_for(lease, waits=(for_event("usual"),)))).arrivals == ()

    async def test_a_run_gets_no_event_beyond_the_retention_of_its_topic(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, events: exact to the microsecond, pruned or not. A retention above the default holds too."""
        await store.apply(
            SetTopics(topics=[Topic(name="short", retention=SECOND), Topic(name="long", retention=30 * DAY)])
        )
        one, two = await held(store, 1), await held(store, 2)
        await store.apply(EmitEvents(events=[an_event(topic="short"), an_event(topic="long")]))
        clock.advance(SECOND - 1)
        in_time = await write(store, checkpoint_for(one, waits=(for_event("short"),)))
        clock.advance(1)
        too_late = await write(store, checkpoint_for(two, waits=(for_event("short"),)))
        clock.advance(29 * DAY)
        long_after = await write(store, checkpoint_for(two, waits=(for_event("long"),)))

        assert [len(verdict.arrivals) for verdict in (in_time, too_late, long_after)] == [1, 0, 1]

    # Pruning

    async def test_taken_events_receipts_and_replies_are_pruned_after_a_day(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, messages: a consumed id is remembered for a day."""
        await store.apply(SetTopics(topics=[Topic(name="jobs", mode="queue")]))
        lease = await held(store)
        await write(store, checkpoint_for(lease, waits=(for_event("jobs"),)))
        await store.apply(EmitEvents(events=[an_event(topic="jobs")]))
        await store.apply(SendMessages(messages=[a_message()]))
        replies = (Reply(message_id="m1", payload="1"),)
        await write(store, checkpoint_for(lease, seen=2, consumed=(1, 2), waits=(), replies=replies))
        clock.advance(DAY - 1)
        early = await store.prune(MANY)
        clock.advance(1)

        assert await store.prune(MANY) == Pruned(taken=1, receipts=1, replies=1)
        assert early == Pruned()
        assert await store.prune(MANY) == Pruned()
        assert await store.changes(RepliesTo(messages=[(an_id(1), "m1")])) == {}

    async def test_pruning_in_small_batches_removes_everything_in_the_end(
        self, store: Store, clock: SettableClock
    ) -> None:
        """The port: at most `limit` of each kind; `has_more` says when to go on."""
        await store.apply(
            SetTopics(topics=[Topic(name="jobs", mode="queue", retention=SECOND), Topic(name="few", max_pending=1)])
        )
        await store.apply(
            EmitEvents(
                events=[an_event(f"e{n}", topic=topic, payload=f"{n}") for n in range(5) for topic in ("jobs", "few")]
            )
        )
        clock.advance(SECOND)

        total, rounds = await store.prune(2), 1
        assert total.events + total.dead_letters <= 2
        while total.has_more:
            total = total.plus(await store.prune(2))
            rounds += 1
            assert rounds < 30

        assert total == Pruned(events=4, dead_letters=5)
        assert await payloads(store) == [f"{number}" for number in range(5)]

    async def test_a_dry_run_of_prune_counts_and_changes_nothing(self, store: Store, clock: SettableClock) -> None:
        """CLI, prune: `--dry-run` reports the same numbers as the prune itself."""
        await store.apply(SetTopics(topics=[Topic(name="jobs", mode="queue", retention=SECOND)]))
        await store.apply(EmitEvents(events=[an_event(topic="jobs"), an_event(topic="other")]))
        clock.advance(7 * DAY)

        told = await store.prune(MANY, is_dry_run=True)

        assert told == Pruned(events=1, dead_letters=1)
        assert await letters(store) == []
        assert await store.prune(MANY) == told

    # Listing, replaying, purging

    async def test_letters_are_listed_by_topic_or_family_in_pages(self, store: Store, clock: SettableClock) -> None:
        """The port: oldest first. No character of a topic has a special meaning, except a trailing star."""
        for topic in ("a", "a.b", "a%", "b"):
            await dead(store, clock, f'"{topic}"', topic=topic)

        assert await payloads(store) == ['"a"', '"a.b"', '"a%"', '"b"']
        assert await payloads(store, "a") == ['"a"']
        assert await payloads(store, "a*") == ['"a"', '"a.b"', '"a%"']
        assert await payloads(store, "a%") == ['"a%"']
        assert await payloads(store, "a%*") == ['"a%"']
        assert await payloads(store, "*") == ['"a"', '"a.b"', '"a%"', '"b"']
        page = await store.catalog(ListDeadLetters(topic="a*", after=1, limit=1))
        assert [letter.number for letter in page] == [2]

    async def test_a_replayed_letter_goes_to_a_waiting_run(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, dead letters: a replay wakes waiters. The event counts as new, so it does not expire at once."""
        numbers = await dead(store, clock, "1", "2")
        await suspended(store, 1, for_event("jobs"))

        assert await store.apply(ReplayDeadLetters(numbers=[*numbers, 99, numbers[0]])) == 2

        assert [(arrival.payload, arrival.is_exclusive) for arrival in (await claim_one(store)).arrivals] == [
            ("1", True)
        ]
        assert await letters(store) == []
        lease = await held(store, 2)
        assert len((await write(store, checkpoint_for(lease, waits=(for_event("jobs"),)))).arrivals) == 1

    async def test_a_letter_is_replayed_to_one_run_even_if_its_topic_is_no_longer_a_queue(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, events: the mode at the time of the emit decides."""
        numbers = await dead(store, clock, "1")
        await store.apply(SetTopics(topics=[Topic(name="jobs")]))
        for number in (1, 2):
            await suspended(store, number, for_event("jobs"))

        await store.apply(ReplayDeadLetters(numbers=numbers))

        assert [(await the_run(store, number)).arrivals for number in (1, 2)] == [1, 0]

    async def test_replaying_a_letter_whose_event_was_emitted_again_delivers_nothing(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, events: the id makes a repeated emit harmless, and also a replay."""
        numbers = await dead(store, clock, "1")
        await suspended(store, 1, for_event("jobs"))
        await store.apply(EmitEvents(events=[an_event("dead-1", topic="jobs", payload="1")]))
        lease = await claim_one(store)
        await write(store, checkpoint_for(lease, seen=1, consumed=(1,), waits=()))

        assert await store.apply(ReplayDeadLetters(numbers=numbers)) == 1

        assert await letters(store) == []
        assert (await the_run(store, 1)).arrivals == 1

    async def test_a_purge_removes_dead_letters(self, store: Store, clock: SettableClock) -> None:
        """The port: the answer is the number of letters purged. A repeat answers 0."""
        numbers = await dead(store, clock, "1", "2", "3")

        assert await store.apply(PurgeDeadLetters(numbers=[numbers[0], numbers[2], 99])) == 2
        assert await store.apply(PurgeDeadLetters(numbers=numbers[:1])) == 0
        assert await payloads(store) == ["2"]

    async def test_numbers_of_dead_letters_are_never_reused(self, store: Store, clock: SettableClock) -> None:
        """The port: a number that a person has seen always means the same letter."""
        (first,) = await dead(store, clock, "1")
        await store.apply(PurgeDeadLetters(numbers=[first]))

        (second,) = await dead(store, clock, "2")

        assert second > first

    # Replies

    async def test_a_reply_is_stored_once_and_read_by_run_and_message(self, store: Store) -> None:
        """SEMANTICS, messages: a reply is recorded once. The first one counts."""
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, replies=(Reply(message_id="it's", payload="1"),)))
        await write(store, checkpoint_for(lease, replies=(Reply(message_id="it's", payload="2"),)))
        await write(store, checkpoint_for(lease, succeed(), replies=(Reply(message_id="m2", payload="null"),)))

        asked = [(an_id(1), "it's"), (an_id(1), "m2"), (an_id(1), "m3"), (an_id(2), "it's")]

        assert await store.changes(RepliesTo(messages=asked)) == {an_id(1): {"it's": "1", "m2": "null"}}
        assert await store.changes(RepliesTo(messages=[])) == {}
