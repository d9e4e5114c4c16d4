"""The census: its results from a store, and how often it counts."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest

from holdfast import StoreUnavailable
from holdfast.core.questions import CountRuns, Stat
from holdfast.stores.memory import MemoryStore
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics import STORE_UP, StoreGauges

A = TypeVar("A")


class SlowStore(MemoryStore):
    """A store that takes three seconds to count."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.counted = 0
        self.is_down = self.is_only_slow = False
        self.gate: asyncio.Event | None = None

    async def stats(self, question: Stat[A]) -> A:
        is_counting = isinstance(question, CountRuns)
        if not is_counting:
            if self.is_down and not self.is_only_slow:
                raise StoreUnavailable("it is down")
            return await super().stats(question)
        if self.is_down:
            raise StoreUnavailable("it took too long")
        self.counted += 1
        self.seconds += 3
        if self.gate is not None:
            await self.gate.wait()
        return await super().stats(question)


async def opened(store: SlowStore) -> SlowStore:
    return store


async def test_a_slow_count_is_not_repeated_at_once() -> None:
    store = SlowStore()
    census = StoreGauges(lambda: opened(store), now=lambda: store.seconds)

    await census.samples()
    store.seconds += 299
    await census.samples()
    assert store.counted == 1

    store.seconds += 1
    await census.samples()
    assert store.counted == 2


async def test_a_store_that_does_not_answer_is_reported_down() -> None:
    store = SlowStore()
    store.is_down = True

    assert await StoreGauges(lambda: opened(store)).samples() == [(STORE_UP, (), 0)]


async def test_a_store_that_cannot_count_its_runs_is_up_all_the_same() -> None:
    store = SlowStore()
    store.is_down = store.is_only_slow = True

    assert await StoreGauges(lambda: opened(store)).samples() == [(STORE_UP, (), 1)]


async def test_a_caller_that_stops_waiting_does_not_make_the_store_count_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 0.0)
    store = SlowStore()
    store.gate = asyncio.Event()
    census = StoreGauges(lambda: opened(store), now=lambda: store.seconds)

    for _ in range(5):  # each caller may stop waiting
        await census.samples()
        await asyncio.sleep(0)
    assert store.counted == 1

    store.gate.set()
    await asyncio.sleep(0)
    store.seconds += 299
    await census.samples()
    assert store.counted == 1
