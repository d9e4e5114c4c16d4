"""The harness: what it leaves behind."""

from __future__ import annotations

import pytest

from holdfast import StoreUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness


async def test_a_harness_whose_worker_cannot_start_closes_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    store = FaultyStore(MemoryStore(clock=clock))
    store.fail(1, when="before")
    closed = []
    close = store.close

    async def note() -> None:
        closed.append(True)
        await close()

    monkeypatch.setattr(store, "close", note)
    with pytest.raises(StoreUnavailable):
        async with Harness(clock=clock, store=store):
            pass

    assert closed == [True]
