"""The scheduler: fires due slots, sleeps until the next one, and leaves to others what it cannot fire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest
import pytest_asyncio

from holdfast.core import schedules
from holdfast.core.clock import SECOND, Micros
from holdfast.core.commands import PutSchedules
from holdfast.core.errors import InvalidRequest
from holdfast.core.model import Schedule
from holdfast.core.news import Hint
from holdfast.core.questions import Listing, Query
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock
from holdfast.worker import scheduler as module
from holdfast.worker.scheduler import PAGE, Scheduler

POLL = 5 * SECOND


A = TypeVar("A")


class CountingStore(MemoryStore):
    """A store that counts queries, and may fail."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.looks = 0
        self.trouble: Exception | None = None

    async def catalog(self, question: Listing[A]) -> A:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        return await super().catalog(question)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(clock: VirtualClock) -> CountingStore:
    return CountingStore(clock)


@pytest_asyncio.fixture
async def scheduler(store: CountingStore, clock: VirtualClock) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(store, clock, poll=POLL, sync=clock.sync, on_end=lambda _: None)
    scheduler.wake()
    await settled(scheduler)
    yield scheduler
    await scheduler.stop()


async def settled(scheduler: Scheduler) -> None:
    while scheduler.is_running:
        await asyncio.sleep(0)


async def advance(scheduler: Scheduler, clock: VirtualClock, length: Micros) -> None:
    until = clock.now() + length
    while (due := clock.next_due()) is not None and due <= until:
        for callback in clock.pass_to(due):
            callback()
        await settled(scheduler)
    clock.pass_to(until)


def a_schedule(name: str, every: Micros = SECOND) -> Schedule:
    return Schedule(name=name, type="shop", payload="{}", every=every)


async def made(store: CountingStore, name: str) -> int:
    return len(await store.list(Query(tags={"schedule": name}, limit=1000)))


async def test_without_schedules_the_scheduler_queries_only_at_its_poll_interval(
    scheduler: Scheduler, store: CountingStore, clock: VirtualClock
) -> None:
    await advance(scheduler, clock, 60 * SECOND)

    assert store.looks == 1 + 12
    assert scheduler.is_idle


async def test_the_scheduler_sleeps_until_the_next_slot(
    scheduler: Scheduler, store: CountingStore, clock: VirtualClock
) -> None:
    await store.apply(PutSchedules(schedules=[a_schedule("a", 2 * SECOND)]))
    scheduler.on_hint(Hint(is_rescheduled=True))
    await settled(scheduler)
    await advance(scheduler, clock, 2 * SECOND)

    assert await made(store, "a") == 1
    assert store.looks == 1 + 1 + 1


async def test_frequent_hints_from_other_processes_are_combined(scheduler: Scheduler, store: CountingStore) -> None:
    for _ in range(10):
        scheduler.on_hint(Hint(is_elsewhere=True))
        await settled(scheduler)
    scheduler.on_hint(Hint(ready=frozenset({"shop"})))
    await settled(scheduler)

    assert store.looks == 1 + 1


async def test_many_schedules_are_fired_page_by_page(
    scheduler: Scheduler, store: CountingStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RUNS_LIMIT", 70)
    count = 2 * PAGE + 1
    await store.apply(PutSchedules(schedules=[a_schedule(f"{number}") for number in range(count)]))
    clock.pass_to(clock.now() + SECOND)
    scheduler.wake()
    await settled(scheduler)

    assert len(await store.list(Query(limit=1000))) == count


async def test_a_schedule_whose_zone_is_unknown_here_is_left_to_others_and_does_not_keep_the_scheduler_awake(
    scheduler: Scheduler,
    store: CountingStore,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = schedules.zone_of

    def zone_of(name: str) -> object:
        if name == "Europe/Rome":
            raise InvalidRequest("there is no time zone 'Europe/Rome'")
        return right(name)

    strange = Schedule(name="strange", type="shop", payload="{}", zone="Europe/Rome", cron="* * * * *")
    await store.apply(PutSchedules(schedules=[strange, a_schedule("usual", 60 * SECOND)]))
    monkeypatch.setattr(schedules, "zone_of", zone_of)
    looks = store.looks
    with caplog.at_level(logging.WARNING, "holdfast.scheduler"):
        await advance(scheduler, clock, 125 * SECOND)

    assert (await made(store, "strange"), await made(store, "usual")) == (0, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "this worker cannot fire schedule strange; other workers can: there is no time zone 'Europe/Rome'"
    ]
    assert store.looks - looks < 40


async def test_any_failure_is_retried_and_logged_once(
    scheduler: Scheduler, store: CountingStore, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await store.apply(PutSchedules(schedules=[a_schedule("a", 60 * SECOND)]))
    store.trouble = RuntimeError("no luck")
    with caplog.at_level(logging.INFO, "holdfast.scheduler"):
        await advance(scheduler, clock, 70 * SECOND)
        assert not scheduler.is_idle
        store.trouble = None
        await advance(scheduler, clock, 2 * SECOND)

    assert await made(store, "a") == 1
    assert [record.getMessage().partition(" after ")[0] for record in caplog.records] == [
        "cannot fire schedules; trying again: no luck",
        "firing schedules works again",
    ]


async def test_a_stopped_scheduler_fires_nothing(
    scheduler: Scheduler, store: CountingStore, clock: VirtualClock
) -> None:
    await store.apply(PutSchedules(schedules=[a_schedule("a")]))
    await scheduler.stop()
    scheduler.on_hint(Hint(is_rescheduled=True))
    await advance(scheduler, clock, 10 * SECOND)

    assert (await made(store, "a"), store.looks) == (0, 1)
