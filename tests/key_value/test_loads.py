"""Loads: a checkpoint asks the driver as often for many other runs as for a few."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.model import Event, Lease, MessageToRun
from holdfast.core.ports import Store
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Answers, Read
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    an_id,
    an_intent,
    checkpoint_for,
    for_event,
    held,
    succeed,
    suspended,
    write,
)
from tests.key_value.wrapped_driver import WrappedDriver

FEW, MANY = 3, 30


class CountingDriver(WrappedDriver):
    """Counts the loads."""

    count = 0

    async def load(self, reads: Sequence[Read]) -> Answers:
        self.count += 1
        return await super().load(reads)


def _children(count: int) -> tuple[int, ...]:
    return tuple(range(2, count + 2))


async def _with_children(store: Store, count: int) -> Lease:
    lease = await held(store)
    family = [
        an_intent(number, type="child", parent_id=an_id(1), parent_location=f"call#{number}", on_close="cancel")
        for number in _children(count)
    ]
    await write(store, checkpoint_for(lease, children=tuple(family)))
    return lease


async def cancelling(store: Store, count: int) -> Checkpoint:
    return checkpoint_for(await _with_children(store, count), cancels=tuple(map(an_id, _children(count))))


async def ending(store: Store, count: int) -> Checkpoint:
    return checkpoint_for(await _with_children(store, count), succeed())


async def sending(store: Store, count: int) -> Checkpoint:
    for number in _children(count):
        await held(store, number)
    messages = [MessageToRun(run_id=an_id(one), id=f"m{one}", name="n", payload="1") for one in _children(count)]
    return checkpoint_for(await held(store), messages=tuple(messages))


async def emitting(store: Store, count: int) -> Checkpoint:
    for number in _children(count):
        await suspended(store, number, for_event("t"))
    return checkpoint_for(await held(store), events=(Event(topic="t", id="e", payload="1"),))


@pytest.mark.parametrize("act", [cancelling, ending, sending, emitting])
async def test_a_checkpoint_loads_as_often_for_many_runs_as_for_a_few(
    act: Callable[[Store, int], Awaitable[Checkpoint]],
) -> None:
    clock = SettableClock()
    loads = []
    for count in (FEW, MANY):
        driver = CountingDriver(DictionaryDriver(Dictionary(), clock=clock))
        store = KeyValueStore(lambda driver=driver: driver, clock=clock)  # type: ignore[misc]
        await store.open()
        checkpoint = await act(store, count)
        driver.count = 0

        assert not (await write(store, checkpoint)).is_lost

        loads.append(driver.count)
        await store.close()
    assert loads[1] == loads[0] <= 4
