"""Housekeeping: obsolete rows are removed in small batches, and nothing else is."""

from __future__ import annotations

from holdfast.core.checkpoint import Hold, Release, Suspend
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import EmitEvents, SendMessages
from holdfast.core.model import EVENT_RETENTION
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    a_message,
    an_event,
    an_id,
    an_intent,
    checkpoint_for,
    claim_one,
    for_event,
    for_message,
    held,
    start,
    suspended,
    write,
)


async def count(store: SqliteStore, table: str) -> int:
    statement = f"select count(*) from {table}"  # noqa: S608 - a name from this file
    return await store._readers.run(lambda connection: int(connection.execute(statement).get))


async def test_few_more_than_the_last_hundred_heartbeats_are_stored(store: SqliteStore) -> None:
    lease = await held(store)
    for number in range(1, 321):
        await write(store, checkpoint_for(lease, beat=number))

    assert await count(store, "audit") < 100 + 50 + 1


async def test_the_last_hundred_claims_are_shown_and_few_more_are_kept(
    store: SqliteStore, clock: SettableClock
) -> None:
    model = MemoryStore(clock=clock)
    for each in (store, model):
        await start(each, an_intent(1))

    for _ in range(220):
        clock.advance(SECOND)
        for each in (store, model):
            await write(each, checkpoint_for(await claim_one(each), Release()))

    assert list(await store.audit(an_id(1))) == list(await model.audit(an_id(1)))
    assert await count(store, "audit") <= 220 + 100 + 50


async def test_the_last_hundred_wakes_are_kept_even_without_claims(store: SqliteStore, clock: SettableClock) -> None:
    await suspended(store, 1, for_message())

    for number in range(300):
        clock.advance(SECOND)
        await store.apply(SendMessages(messages=[a_message(1, id=f"m{number}")]))

    assert await count(store, "audit") <= 100 + 50


async def test_expired_events_are_removed_in_small_batches(store: SqliteStore, clock: SettableClock) -> None:
    await store.apply(EmitEvents(events=[an_event(f"e{number}", topic=f"topic-{number % 7}") for number in range(250)]))
    clock.advance(EVENT_RETENTION)

    left = []
    for number in range(4):
        await store.apply(EmitEvents(events=[an_event(f"new-{number}")]))
        await store.prune(100)
        left.append(await count(store, "event"))

    assert left == [151, 52, 3, 4]


async def test_an_event_that_expired_may_be_emitted_again(store: SqliteStore, clock: SettableClock) -> None:
    await store.apply(EmitEvents(events=[an_event("e")]))
    await suspended(store, 1, for_event("paid", after=1))
    clock.advance(EVENT_RETENTION)

    assert await store.apply(EmitEvents(events=[an_event("e")])) == [1]


async def test_a_receipt_counts_for_a_day_and_is_then_pruned(store: SqliteStore, clock: SettableClock) -> None:
    lease = await held(store)
    await store.apply(SendMessages(messages=[a_message(1, id=f"m{number}") for number in range(5)]))
    await write(store, checkpoint_for(lease, Hold(), consumed=(1, 2, 3, 4, 5), seen=5))
    before = await count(store, "receipt")
    clock.advance(DAY)

    await store.apply(SendMessages(messages=[a_message(1, id="m0")]))
    await store.prune(100)

    assert (before, await count(store, "receipt"), await count(store, "inbox")) == (5, 0, 1)


async def test_an_event_is_not_missed_because_a_clock_ran_back(store: SqliteStore, clock: SettableClock) -> None:
    lease = await held(store)
    clock.advance(60 * SECOND)
    await store.apply(EmitEvents(events=[an_event("first")]))
    clock._now -= 30 * SECOND  # a row of another process whose clock was corrected meanwhile
    await store.apply(EmitEvents(events=[an_event("second")]))

    verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid", after=1),)))

    assert [arrival.ref for arrival in verdict.arrivals] == ["2"]
