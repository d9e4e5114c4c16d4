"""Changes of limits that another writer interrupts between two loads. What they then see never was at one instant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from holdfast.core.commands import ChangeTypes
from holdfast.core.model import Intent, TypeChange
from holdfast.core.questions import CountSlots
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Answers, Driver, Read
from holdfast.stores.kv.workspace import Workspace
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import an_id, claim
from tests.key_value.wrapped_driver import WrappedDriver

READS_LIMIT = 10_000
"""More reads of queues than any operation of these tests needs. More than these mean that it never ends."""


class InterruptedDriver(WrappedDriver):
    """A driver on which something happens before the n-th load."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.loads = 0
        self.interrupt_at = 0
        self.interruption: Callable[[], Awaitable[object]]

    async def load(self, reads: Sequence[Read]) -> Answers:
        self.loads += 1
        if self.loads == self.interrupt_at:
            await self.interruption()
        return await super().load(reads)


@pytest.fixture(autouse=True)
def _limited_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail an operation that reads the same queue for ever, instead of waiting for the guard of the test."""
    original, count = Workspace.range, 0

    def counted(*args: object) -> list[str]:
        nonlocal count
        count += 1
        assert count < READS_LIMIT, "the operation never ends"
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Workspace, "range", counted)


def limits(**change: object) -> ChangeTypes:
    return ChangeTypes(changes=[TypeChange(name="t", **change)])  # type: ignore[arg-type]


async def interrupted(interrupt_at: int) -> tuple[int, dict[str, tuple[int, int]]]:
    """Set the same limits with two stores, the second before a load of the first. Return the loads and the slots.

    A run waits for a slot of its type, and then, by the new limits, for one of its key.
    """
    clock, data = SettableClock(), Dictionary()
    driver = InterruptedDriver(DictionaryDriver(data, clock=clock))
    first = KeyValueStore(lambda: driver, clock=clock)
    second = KeyValueStore(lambda: DictionaryDriver(data, clock=clock), clock=clock)
    await first.open()
    await second.open()
    await first.apply(limits(concurrency=1))
    tenant = {"tenant": "y"}
    await first.create([Intent(id=an_id(n), type="t", payload="{}", tags=tenant) for n in range(3)])
    await claim(first, worker="one", types=["t"], limit=3)
    driver.loads, driver.interrupt_at = 0, interrupt_at
    driver.interruption = lambda: second.apply(limits(concurrency=2, per_key={"tenant": 1}))

    await first.apply(limits(concurrency=2, per_key={"tenant": 1}))

    slots = {use.name: (use.used, use.waiting) for use in await first.stats(CountSlots())}
    return driver.loads, slots


async def test_a_run_that_moves_to_another_queue_between_two_loads_is_seen_in_one_of_them() -> None:
    loads, expected = await interrupted(0)
    assert expected == {"type:t": (1, 0), "type:t tenant=y": (1, 2)}

    for number in range(1, loads + 1):
        _, slots = await interrupted(number)
        assert slots == expected, f"interrupted before load {number}"
