"""Loads: a checkpoint asks the driver as often for many other runs as for a few."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count as counting

import pytest

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.commands import Rewind, SendMessages
from holdfast.core.model import Event, MessageToRun
from holdfast.core.ports import Store
from holdfast.stores.kv import KeyValueStore, decision
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Answers, Read
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    a_step,
    an_id,
    checkpoint_for,
    for_event,
    held,
    succeed,
    suspended,
    the_run,
    write,
)
from tests.contract.families import children_of, held_with_children
from tests.key_value.wrapped_driver import WrappedDriver

FEW, MANY = 3, 30
LEAST_LOADS = 5


class CountingDriver(WrappedDriver):
    """Counts the loads."""

    count = 0

    async def load(self, reads: Sequence[Read]) -> Answers:
        self.count += 1
        return await super().load(reads)


class InterruptedDriver(WrappedDriver):
    """Lets something happen after one of its loads."""

    def __init__(self, inner: DictionaryDriver, after: int, happen: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inner)
        self.left = after
        self._happen = happen

    async def load(self, reads: Sequence[Read]) -> Answers:
        answers = await super().load(reads)
        self.left -= 1
        if self.left == 0:
            await self._happen()
        return answers


async def cancelling(store: Store, count: int) -> Checkpoint:
    return checkpoint_for(await held_with_children(store, count), cancels=tuple(map(an_id, children_of(count))))


async def ending(store: Store, count: int) -> Checkpoint:
    return checkpoint_for(await held_with_children(store, count), succeed())


async def sending(store: Store, count: int) -> Checkpoint:
    for number in children_of(count):
        await held(store, number)
    messages = [MessageToRun(run_id=an_id(one), id=f"m{one}", name="n", payload="1") for one in children_of(count)]
    return checkpoint_for(await held(store), messages=tuple(messages))


async def emitting(store: Store, count: int) -> Checkpoint:
    for number in children_of(count):
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


async def test_a_change_between_two_loads_of_an_operation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "READS_AT_ONCE", 1)
    for number in counting(1):
        clock, data = SettableClock(), Dictionary()
        other = KeyValueStore(lambda data=data, clock=clock: DictionaryDriver(data, clock=clock), clock=clock)  # type: ignore[misc]
        message = MessageToRun(run_id=an_id(1), id="m", name="n", payload="1")
        driver = InterruptedDriver(
            DictionaryDriver(data, clock=clock), number, partial(other.apply, SendMessages(messages=(message,)))
        )
        store = KeyValueStore(lambda driver=driver: driver, clock=clock)  # type: ignore[misc]
        await other.open()
        await write(other, checkpoint_for(await held(other), entries=(a_step("a"),)))
        await store.open()

        await store.apply(Rewind(run_id=an_id(1), id="r", location="a", force=True))
        has_happened = driver.left <= 0

        run = await the_run(store)
        await store.close()
        await other.close()
        assert run.token > 1
        if not has_happened:  # the operation has fewer loads
            assert number > LEAST_LOADS
            break
        assert run.arrivals > 0
