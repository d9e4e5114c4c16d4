"""Contract of imported events and dead letters, and of runs that received events before the move."""

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
        """The other store of the transfer."""
        return MemoryStore(clock=clock)

    async def test_new_events_have_higher_numbers_than_imported_ones(self, store: Store) -> None:
        """No wake-up is lost: a run that received event 50 in another store gets the next one here."""
        await transfer_of(store).restore(a_restoration(last_event=50))
        assert await transfer_of(store).last_event() == 50
        await suspended(store, 1, for_event("paid", after=50))

        assert await store.apply(EmitEvents(events=[an_event()])) == [1]

        (arrival,) = (await claim_one(store)).arrivals
        assert int(arrival.ref or 0) > 50
        assert await transfer_of(store).last_event() > 50

    @pytest.mark.parametrize("last", [7, 3_000_000])
    async def test_event_numbers_only_grow(self, store: Store, last: int) -> None:
        """Event numbers also grow if this store has emitted events before the import."""
        for number in range(5):
            await store.apply(EmitEvents(events=[an_event(f"e{number}")]))
        await transfer_of(store).restore(a_restoration(last_event=last))
        await transfer_of(store).restore(a_restoration(last_event=2, export_id="x2"))

        await store.apply(EmitEvents(events=[an_event("e5")]))

        numbers = [event.number for event in await transfer_of(store).kept_events(0, 100)]
        assert numbers == [1, 2, 3, 4, 5, last + 1]

    async def test_imported_events_keep_their_numbers(self, store: Store, other: Store) -> None:
        """The port: `restore` accepts the events of `kept_events`, both fan-out and queue."""
        await other.apply(SetTopics(topics=[JOBS]))
        await other.apply(EmitEvents(events=[an_event(), an_event(topic="jobs"), an_event("e2", payload='{"a": 1}')]))
        events = tuple(await transfer_of(other).kept_events(0, 10))

        restored = await transfer_of(store).restore(a_restoration(last_event=3, events=events))

        assert (restored.events, restored.skipped) == (3, 0)
        assert list(await transfer_of(store).kept_events(0, 10)) == list(events)
        assert [event.number for event in await transfer_of(store).kept_events(1, 1)] == [2]
        assert await transfer_of(store).last_event() == 3

    async def test_a_moved_run_gets_each_event_exactly_once(self, store: Store, other: Store) -> None:
        """SEMANTICS, events: a run gets each event at most once and in order, also across a move."""
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

    async def test_an_event_whose_number_is_in_use_is_skipped(self, store: Store) -> None:
        """The port: `restore` skips such an event. Otherwise runs could miss it or receive it twice."""
        await store.apply(EmitEvents(events=[an_event("e1"), an_event("e2")]))
        events = tuple(a_kept_event(number) for number in (1, 2, 3))

        restored = await transfer_of(store).restore(a_restoration(last_event=3, events=events))

        assert (restored.events, restored.skipped) == (1, 2)
        assert [(event.number, event.id) for event in await transfer_of(store).kept_events(0, 10)] == [
            (1, "e1"),
            (2, "e2"),
            (3, "x3"),
        ]

    async def test_an_event_older_than_those_of_the_store_is_skipped(self, store: Store, clock: SettableClock) -> None:
        """The port: a higher number never has an earlier time. Within one import, a too early time is raised."""
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

    async def test_a_queue_event_gets_another_number_if_its_own_is_in_use(self, store: Store) -> None:
        """The port: no run has received the event, so its number is not significant."""
        await store.apply(EmitEvents(events=[an_event("e1"), an_event("e2")]))

        restored = await transfer_of(store).restore(
            a_restoration(last_event=7, events=(a_kept_event(2, "jobs", is_queued=True), a_kept_event(7, "jobs")))
        )

        kept = [(event.number, event.id, event.is_queued) for event in await transfer_of(store).kept_events(2, 10)]
        assert (restored.events, restored.skipped) == (2, 0)
        assert kept == [(7, "x7", False), (8, "x2", True)]

    async def test_an_imported_queue_event_goes_to_a_waiting_run(self, store: Store) -> None:
        """SEMANTICS, events: a queue event goes at once to a run that already waits."""
        await store.apply(SetTopics(topics=[JOBS]))
        await suspended(store, 1, for_event("jobs"))

        await transfer_of(store).restore(a_restoration(last_event=7, events=(a_kept_event(7, "jobs", is_queued=True),)))

        (arrival,) = (await claim_one(store)).arrivals
        assert (arrival.ref, arrival.payload, arrival.is_exclusive) == ("7", "7", True)
        assert list(await transfer_of(store).kept_events(0, 10)) == []

    async def test_an_unread_queue_event_moves_with_its_run(self, store: Store, other: Store) -> None:
        """SEMANTICS, events: exactly one run receives it. If that run does not, the next one does."""
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
    async def test_a_moved_event_that_returns_to_its_queue_replaces_no_other_event(
        self, store: Store, other: Store, *, is_taken: bool
    ) -> None:
        """The port: if another event has its number, the event gets a new number when it returns."""
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

    async def test_an_imported_event_with_a_known_id_is_not_added_twice(self, store: Store) -> None:
        """SEMANTICS, events: the id makes a repeated emit harmless."""
        await store.apply(EmitEvents(events=[an_event("x9")]))

        restored = await transfer_of(store).restore(a_restoration(last_event=9, events=(a_kept_event(9),)))

        assert (restored.events, restored.skipped) == (0, 0)
        assert [event.number for event in await transfer_of(store).kept_events(0, 10)] == [1]

    # Repeating

    async def test_a_repeated_restore_adds_nothing_twice(self, store: Store) -> None:
        """S6: nor does it bring back events and letters that were received or purged since."""
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

    async def test_a_later_part_of_an_export_is_restored(self, store: Store) -> None:
        """The port: an export may be restored in any number of parts."""
        await transfer_of(store).restore(a_restoration(last_event=9, events=(a_kept_event(4),), letters=(a_letter(1),)))

        again = await transfer_of(store).restore(
            a_restoration(last_event=9, events=(a_kept_event(4), a_kept_event(5)), letters=(a_letter(2),))
        )

        assert (again.events, again.skipped, again.letters) == (1, 0, 1)
        assert [event.number for event in await transfer_of(store).kept_events(0, 10)] == [4, 5]

    async def test_nothing_of_an_export_is_restored_after_its_last_part(self, store: Store, other: Store) -> None:
        """The port: a run that has ended and was pruned since must not start again."""
        await ended(other, 1)
        restoration = a_restoration(await the_dump(other), last_event=1, is_last=True)
        await transfer_of(store).restore(a_restoration(last_event=1, is_last=True))

        assert await transfer_of(store).restore(restoration) == Restored(is_finished=True)

        assert await store.get(an_id(1)) is None
        assert await fates(store, await the_dump(other), export_id="x2") == ["restored"]

    async def test_imported_dead_letters_keep_everything_except_their_numbers(self, store: Store, other: Store) -> None:
        """The port: the store gives them its own numbers, in the same order."""
        letters = (a_letter(30, topic="jobs"), a_letter(40, run_id=an_id(1), name="go", reason="undelivered"))

        await transfer_of(store).restore(a_restoration(letters=letters))

        found = list(await store.catalog(ListDeadLetters()))
        assert [replace(letter, number=0) for letter in found] == [replace(letter, number=0) for letter in letters]
        assert [letter.number for letter in found] == sorted({letter.number for letter in found})
