"""The census: what it finds in a store, and how often it counts."""

from __future__ import annotations

from holdfast import StoreUnavailable
from holdfast.core.states import RunState
from holdfast.stores.memory import MemoryStore
from holdfast.telemetry.catalogue import STORE_UP
from holdfast.telemetry.census import Census


class SlowStore(MemoryStore):
    """Takes three seconds to count."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.counted = 0
        self.is_down = False

    async def counts(self) -> dict[str, dict[RunState, int]]:
        if self.is_down:
            raise StoreUnavailable("it is down")
        self.counted += 1
        self.seconds += 3
        return await super().counts()


async def opened(store: SlowStore) -> SlowStore:
    return store


async def test_what_takes_long_to_count_is_not_counted_again_at_once() -> None:
    store = SlowStore()
    census = Census(lambda: opened(store), now=lambda: store.seconds)

    await census.samples()
    store.seconds += 299
    await census.samples()
    assert store.counted == 1

    store.seconds += 1
    await census.samples()
    assert store.counted == 2


async def test_a_store_that_does_not_answer_is_told_to_be_down() -> None:
    store = SlowStore()
    store.is_down = True

    assert await Census(lambda: opened(store)).samples() == [(STORE_UP, (), 0)]
