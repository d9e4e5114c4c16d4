"""The pruner: it runs occasionally, in batches, and never blocks other work."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import Pruned
from holdfast.core.retention import RUN_RETENTION
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock
from holdfast.worker.pruner import BITE_SECONDS, GREATEST_BITE, LEAST_BITE, Pruner, next_bite

EVERY = 60 * SECOND


class CountingStore(MemoryStore):
    """A store with a given number of batches to prune, which may fail."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.bites = 0
        self.left = 0
        self.trouble: Exception | None = None
        self.retention = 0

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        self.bites += 1
        self.retention = retention
        if self.trouble is not None:
            raise self.trouble
        if not self.left:
            return Pruned()
        self.left -= 1
        return Pruned(dead_letters=500, has_more=self.left > 0)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(clock: VirtualClock) -> CountingStore:
    return CountingStore(clock)


@pytest_asyncio.fixture
async def pruner(store: CountingStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pruner]:
    monkeypatch.setattr("holdfast.worker.pruner._BREATH_SECONDS", 0.0)
    pruner = Pruner(store, clock, every=EVERY, chance=random.Random(1))
    pruner.start()
    yield pruner
    await pruner.stop()


async def pass_time(clock: VirtualClock, pruner: Pruner) -> None:
    """Let the next pruning become due, and finish."""
    due = clock.next_due()
    assert due is not None
    for callback in clock.pass_to(due):
        callback()
    while pruner.is_running:
        await asyncio.sleep(0)


async def test_the_pruner_runs_at_its_interval(store: CountingStore, clock: VirtualClock, pruner: Pruner) -> None:
    began = clock.now()

    times = []
    for _ in range(5):
        await pass_time(clock, pruner)
        times.append(clock.now())

    assert store.bites == 5
    assert 0 <= times[0] - began <= EVERY
    assert all(0.9 * EVERY <= after - before <= 1.1 * EVERY for before, after in itertools.pairwise(times))


async def test_the_pruner_continues_until_nothing_is_left_and_reports_dead_letters(
    store: CountingStore, clock: VirtualClock, pruner: Pruner, caplog: pytest.LogCaptureFixture
) -> None:
    store.left = 4

    await pass_time(clock, pruner)

    assert (store.left, store.bites) == (0, 4)
    assert "2000 queue events became dead letters" in caplog.text


@pytest.mark.parametrize("trouble", [StoreUnavailable("gone"), RuntimeError("broken")])
async def test_a_pruning_that_fails_is_retried_later(
    store: CountingStore, clock: VirtualClock, pruner: Pruner, trouble: Exception
) -> None:
    store.trouble = trouble
    await pass_time(clock, pruner)
    store.trouble = None

    await pass_time(clock, pruner)

    assert store.bites == 2


@pytest.mark.parametrize("trouble", [StoreUnavailable("gone"), RuntimeError("broken")])
async def test_a_pruning_that_keeps_failing_is_logged_once(
    store: CountingStore,
    clock: VirtualClock,
    pruner: Pruner,
    trouble: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.trouble = trouble
    for _ in range(5):
        await pass_time(clock, pruner)
    store.trouble = None
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        await pass_time(clock, pruner)

    assert [record.getMessage().partition(" after ")[0] for record in caplog.records] == [
        f"cannot prune; trying again: {trouble}",
        "pruning works again",
    ]


async def test_the_pruner_stops_in_the_middle_of_a_pruning(
    store: CountingStore, clock: VirtualClock, pruner: Pruner
) -> None:
    store.left = 1_000_000
    due = clock.next_due()
    assert due is not None
    for callback in clock.pass_to(due):
        callback()
    await asyncio.sleep(0)

    await pruner.stop()

    assert not pruner.is_running
    assert clock.next_due() is None


async def test_the_pruner_passes_the_retention_to_the_store(store: CountingStore, clock: VirtualClock) -> None:
    pruner = Pruner(store, clock, every=EVERY, retention=17, chance=random.Random(1))
    pruner.start()
    await pass_time(clock, pruner)
    await pruner.stop()

    assert store.retention == 17


@pytest.mark.parametrize(
    ("size", "seconds", "expected"),
    [
        (100, BITE_SECONDS, 100),
        (100, BITE_SECONDS / 10, 200),
        (100, 0.0, 200),
        (200, 2 * BITE_SECONDS, 100),
        (200, 10.0, LEAST_BITE),
        (GREATEST_BITE, 0.0, GREATEST_BITE),
    ],
)
def test_a_batch_is_as_large_as_can_be_removed_in_a_moment(size: int, seconds: float, expected: int) -> None:
    assert next_bite(size, seconds) == expected
