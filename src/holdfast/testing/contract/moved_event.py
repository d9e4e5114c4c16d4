"""Moved events: what becomes of the events and dead letters of another store, and of what runs have had of them."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.core.checkpoint import Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, EmitEvents, PurgeDeadLetters, Resume, Rewind, SetTopics
from holdfast.core.model import DeadLetter, Topic
from holdfast.core.ports import Store
from holdfast.core.questions import ListDeadLetters
from holdfast.core.transfer import KeptEvent, Restored
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract.arrange import (
    a_reception,
    an_event,
    an_id,
    checkpoint_for,
    claim_one,
    ended,
    for_event,
    held,
    suspended,
    transfer_of,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock
from holdfast.testing.contract.transfer import a_restoration, fates, newest, paused, the_dump

JOBS = Topic(name="jobs", mode="queue")


def a_kept_event(number: int, topic: str = "paid", **options: Any) -> KeptEvent:
    fields = {"number": number, "topic": topic, "id": f"x{number}", "payload": f"{number}", "at": START, **options}
    return KeptEvent(**fields)


def a_letter(number: int, **options: Any) -> DeadLetter:
    return DeadLetter(
        **{"number": number, "id": f"l{number}", "payload": "1", "at": START, "reason": "expired", **options}
    )


class MovedEventContract(Contract):
    """Events and dead letters move from one store to another."""

    @pytest_asyncio.fixture
    async def other(self, clock: SettableClock) -> Store:
        """The store on the other side."""
        return MemoryStore(clock=clock)

    async def test_events_to_come_have_higher_numbers_than_any_that_was(self, store: Store) -> None:
        """No lost wake-up: a run that has had event 50 elsewhere gets the next one here."""
        await transfer_of(store).restore(a_restoration(last_event=50))
        assert await transfer_of(store).last_event() == 50
        await suspended(store, 1, for_event("paid", after=50))

        assert await store.apply(EmitEvents(events=[an_event()])) == [1]

        (arrival,) = (await claim_one(store)).arrivals
        assert int(arrival.ref or 0) > 50
        assert await transfer_of(store).last_event() > 50

    @pytest.mark.parametrize("last", [7, 3_000_000])
    async def test_numbers_only_grow(self, store: Store, last: int) -> None:
        """The same, where events were emitted before, a few or very many."""
        for number in range(5):
            await store.apply(EmitEvents(events=[an_event(f"e{number}")]))
        await transfer_of(store).restore(a_restoration(last_event=last))
        await transfer_of(store).restore(a_restoration(last_event=2, export_id="x2"))

        await store.apply(EmitEvents(events=[an_event("e5")]))

        numbers = [event.number for event in await transfer_of(store).kept_events(0, 100)]
        assert numbers == [1, 2, 3, 4, 5, last + 1]

    async def test_events_are_kept_under_their_numbers(self, store: Store, other: Store) -> None:
        """The port: what `kept_events` gives is restored, for everybody and of queues."""
        await other.apply(SetTopics(topics=[JOBS]))
        await other.apply(EmitEvents(events=[an_event(), an_event(topic="jobs"), an_event("e2", payload='{"a": 1}')]))
        events = tuple(await transfer_of(other).kept_events(0, 10))

        restored = await transfer_of(store).restore(a_restoration(last_event=3, events=events))

        assert (restored.events, restored.skipped) == (3, 0)
        assert list(await transfer_of(store).kept_events(0, 10)) == list(events)
        assert [event.number for event in await transfer_of(store).kept_events(1, 1)] == [2]
        assert await transfer_of(store).last_event() == 3

    async def test_an_event_is_missed_by_no_run_and_had_twice_by_none(self, store: Store, other: Store) -> None:
        """SEMANTICS, events: each at most once, in order; also across a move."""
        lease = await held(other, 1)
        await write(other, checkpoint_for(lease, waits=(for_event("paid"),)))
        await other.apply(EmitEvents(events=[an_event("e1"), an_event("e2", payload="2")]))
        (first,) = await newest(other, lease)
        parts = {"consumed": (first.number,), "entries": (a_reception(first),), "waits": ()}
        await write(other, checkpoint_for(lease, Suspend(), seen=1, **parts))
        dump, events = await paused(other), tuple(await transfer_of(other).kept_events(0, 10))
        await transfer_of(store).restore(a_restoration(dump, last_event=2))
        await transfer_of(store).restore(a_restoration(last_event=2, events=events, is_last=True))
        await store.apply(Resume(run_id=an_id(1), id="r"))
        lease = await claim_one(store)

        got = await write(store, checkpoint_for(lease, waits=(for_event("paid", after=1),)))
        (second,) = got.arrivals
        parts = {"consumed": (second.number,), "waits": (for_event("paid", after=2),)}
        nothing = await write(store, checkpoint_for(lease, Suspend(), seen=second.number, **parts))

        assert (first.payload, second.payload) == ("1", "2")
        assert (nothing.is_held, nothing.arrivals) == (False, ())

    async def test_a_number_that_is_another_events_is_not_taken(self, store: Store) -> None:
        """The port: such an event is passed over, for runs would take it for one they had, or have it twice."""
        await store.apply(EmitEvents(events=[an_event("e1"), an_event("e2")]))
        events = tuple(a_kept_event(number) for number in (1, 2, 3))

        restored = await transfer_of(store).restore(a_restoration(last_event=3, events=events))

        assert (restored.events, restored.skipped) == (1, 2)
        assert [(event.number, event.id) for event in await transfer_of(store).kept_events(0, 10)] == [
            (1, "e1"),
            (2, "e2"),
            (3, "x3"),
        ]

    async def test_an_event_from_before_those_of_the_store_is_not_taken(
        self, store: Store, clock: SettableClock
    ) -> None:
        """The port: later in number is never earlier in time; of two of an export the later one gives way."""
        clock.advance(10 * SECOND)
        await store.apply(EmitEvents(events=[an_event("e1")]))
        times = (START, START + 20 * SECOND, START + 15 * SECOND)
        events = tuple(a_kept_event(number, at=at) for number, at in enumerate(times, start=2))

        restored = await transfer_of(store).restore(a_restoration(last_event=4, events=events))

        assert (restored.events, restored.skipped) == (2, 1)
        assert [(event.number, event.at - START) for event in await transfer_of(store).kept_events(0, 10)] == [
            (1, 10 * SECOND),
            (3, 20 * SECOND),
            (4, 20 * SECOND),
        ]

    async def test_an_event_of_a_queue_gets_another_number_if_its_own_is_taken(self, store: Store) -> None:
        """The port: nobody has had it, so its number means nothing."""
        await store.apply(EmitEvents(events=[an_event("e1"), an_event("e2")]))

        restored = await transfer_of(store).restore(
            a_restoration(last_event=7, events=(a_kept_event(2, "jobs", is_queued=True), a_kept_event(7, "jobs")))
        )

        kept = [(event.number, event.id, event.is_queued) for event in await transfer_of(store).kept_events(2, 10)]
        assert (restored.events, restored.skipped) == (2, 0)
        assert kept == [(7, "x7", False), (8, "x2", True)]

    async def test_an_event_of_a_queue_goes_to_a_run_that_waits(self, store: Store) -> None:
        """SEMANTICS, events: kept until taken; whoever waits already has not to wait any longer."""
        await store.apply(SetTopics(topics=[JOBS]))
        await suspended(store, 1, for_event("jobs"))

        await transfer_of(store).restore(a_restoration(last_event=7, events=(a_kept_event(7, "jobs", is_queued=True),)))

        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.ref, arrival.payload, arrival.is_exclusive) == ("7", "7", True)
        assert list(await transfer_of(store).kept_events(0, 10)) == []

    async def test_an_event_that_a_run_has_of_a_queue_moves_with_it(self, store: Store, other: Store) -> None:
        """SEMANTICS, events: exactly one run takes it; if that does not, it goes to the next one."""
        await other.apply(SetTopics(topics=[JOBS]))
        await store.apply(SetTopics(topics=[JOBS]))
        await suspended(other, 1, for_event("jobs"))
        await other.apply(EmitEvents(events=[an_event(topic="jobs")]))
        await transfer_of(store).restore(a_restoration(await paused(other), last_event=1))
        await suspended(store, 2, for_event("jobs"))

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.name, arrival.payload, arrival.ref) == ("jobs", "1", "1")

    @pytest.mark.parametrize("is_taken", [False, True])
    async def test_an_event_that_goes_back_to_its_queue_disturbs_no_other(
        self, store: Store, other: Store, *, is_taken: bool
    ) -> None:
        """The port: where its number is another event's, it gets a new one as it comes."""
        for each in (store, other):
            await each.apply(SetTopics(topics=[JOBS]))
        await suspended(other, 1, for_event("jobs"))
        await other.apply(EmitEvents(events=[an_event(topic="jobs")]))
        if is_taken:
            lease = await claim_one(other)
            (arrival,) = lease.arrivals
            parts = {"consumed": (arrival.number,), "entries": (a_reception(arrival),), "waits": ()}
            await write(other, checkpoint_for(lease, Suspend(), **parts))
        dump = await paused(other)
        await store.apply(EmitEvents(events=[an_event("native", payload='"native"')]))
        await transfer_of(store).restore(a_restoration(dump, last_event=1))
        await suspended(store, 2, for_event("jobs"))

        if is_taken:
            await store.apply(Rewind(run_id=an_id(1), id="r", location="receive"))
        await store.apply(Cancel(run_id=an_id(1), id="c"))

        (arrival,) = (await claim_one(store)).arrivals
        (native,) = await transfer_of(store).kept_events(0, 10)
        assert (arrival.name, arrival.payload) == ("jobs", "1")
        assert (native.number, native.topic, native.payload, native.is_queued) == (1, "paid", '"native"', False)

    async def test_an_event_that_the_store_knows_is_not_there_twice(self, store: Store) -> None:
        """SEMANTICS, events: the id makes a repeated emit harmless."""
        await store.apply(EmitEvents(events=[an_event("x9")]))

        restored = await transfer_of(store).restore(a_restoration(last_event=9, events=(a_kept_event(9),)))

        assert (restored.events, restored.skipped) == (0, 0)
        assert [event.number for event in await transfer_of(store).kept_events(0, 10)] == [1]

    # Repeating

    async def test_a_restoration_that_is_repeated_brings_nothing_twice(self, store: Store) -> None:
        """S6: also not what has been taken, replayed or forgotten since."""
        await store.apply(SetTopics(topics=[JOBS]))
        restoration = a_restoration(
            last_event=7,
            events=(a_kept_event(6, "jobs", is_queued=True), a_kept_event(7)),
            letters=(a_letter(3, topic="jobs"), a_letter(5, run_id=an_id(1), name="go", reason="undelivered")),
        )
        first = await transfer_of(store).restore(restoration)
        await write(store, checkpoint_for(await held(store), waits=(for_event("jobs"),)))
        numbers = [letter.number for letter in await store.catalog(ListDeadLetters())]
        await store.apply(PurgeDeadLetters(numbers=numbers))

        again = await transfer_of(store).restore(restoration)

        assert (first.events, first.letters, len(numbers)) == (2, 2, 2)
        assert (again.events, again.letters) == (0, 0)
        assert [event.number for event in await transfer_of(store).kept_events(0, 10)] == [7]
        assert list(await store.catalog(ListDeadLetters())) == []

    async def test_what_comes_next_is_taken_in(self, store: Store) -> None:
        """The port: an export may come in as many parts as one likes."""
        await transfer_of(store).restore(a_restoration(last_event=9, events=(a_kept_event(4),), letters=(a_letter(1),)))

        again = await transfer_of(store).restore(
            a_restoration(last_event=9, events=(a_kept_event(4), a_kept_event(5)), letters=(a_letter(2),))
        )

        assert (again.events, again.skipped, again.letters) == (1, 0, 1)
        assert [event.number for event in await transfer_of(store).kept_events(0, 10)] == [4, 5]

    async def test_after_its_last_part_nothing_of_an_export_is_taken_in(self, store: Store, other: Store) -> None:
        """The port: a run that has ended and was forgotten since must not begin anew."""
        await ended(other, 1)
        restoration = a_restoration(await the_dump(other), last_event=1, is_last=True)
        await transfer_of(store).restore(a_restoration(last_event=1, is_last=True))

        assert await transfer_of(store).restore(restoration) == Restored(is_finished=True)

        assert await store.get(an_id(1)) is None
        assert await fates(store, await the_dump(other), export_id="x2") == ["restored"]

    async def test_dead_letters_keep_all_but_their_numbers(self, store: Store, other: Store) -> None:
        """The port: numbers are the store's own, in the same order."""
        letters = (a_letter(30, topic="jobs"), a_letter(40, run_id=an_id(1), name="go", reason="undelivered"))

        await transfer_of(store).restore(a_restoration(letters=letters))

        found = list(await store.catalog(ListDeadLetters()))
        assert [replace(letter, number=0) for letter in found] == [replace(letter, number=0) for letter in letters]
        assert [letter.number for letter in found] == sorted({letter.number for letter in found})
