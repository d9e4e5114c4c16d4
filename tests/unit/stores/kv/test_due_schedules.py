"""Due schedules: a schedule that another worker fires while they are read is no longer due."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.commands import FireSchedules
from holdfast.core.questions import Due, ListDueSchedules
from holdfast.stores.kv import KeyValueStore, names
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Answers, Driver, Read
from holdfast.testing.contract.clock import START, SettableClock
from holdfast.testing.contract.schedule import HOUR, a_schedule, due, put
from tests.key_value.wrapped_driver import WrappedDriver


class OvertakenDriver(WrappedDriver):
    """A driver on which another worker acts right after the names of due schedules were read, once."""

    def __init__(self, inner: Driver, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inner)
        self._act: Callable[[], Awaitable[object]] | None = act

    async def load(self, reads: Sequence[Read]) -> Answers:
        answers = await super().load(reads)
        if self._act is not None and any(getattr(read, "index", "") == names.DUE_SCHEDULES for read in reads):
            act, self._act = self._act, None
            await act()
        return answers


async def due_while_another_fires(name: str, *schedules: str) -> Due:
    """Return the first due schedule, read while another worker fires one of them."""
    data, clock = Dictionary(), SettableClock()
    other = KeyValueStore(lambda: DictionaryDriver(data, clock=clock), clock=clock)

    async def fire() -> None:
        await other.apply(FireSchedules(firings=[one for one in await due(other) if one.schedule.name == name]))

    store = KeyValueStore(lambda: OvertakenDriver(DictionaryDriver(data, clock=clock), fire), clock=clock)
    await other.open()
    await put(other, *map(a_schedule, schedules))
    clock.advance(HOUR)
    await store.open()
    found = await store.catalog(ListDueSchedules(limit=1))
    await store.close()
    await other.close()
    return found


async def test_a_schedule_that_another_worker_fires_meanwhile_is_not_due() -> None:
    found = await due_while_another_fires("a", "a")

    assert found.schedules == ()
    assert found.next_at == START + 2 * HOUR


async def test_a_page_is_filled_up_with_schedules_that_are_still_due() -> None:
    found = await due_while_another_fires("a", "a", "b")

    assert [schedule.name for schedule in found.schedules] == ["b"]
