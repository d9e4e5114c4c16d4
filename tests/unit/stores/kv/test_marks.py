"""An operation that keeps losing the race for a partition gets through: it marks what it has loaded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.core.clock import Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.news import News
from holdfast.stores.kv.decision import CONFLICTS_LIMIT, LONGEST_MARK_MICROS, MARK_AFTER, Decisions
from holdfast.stores.kv.dictionary import DictionaryDriver
from holdfast.stores.kv.driver import MARK_MICROS, Answers, Fields, Part, Read
from holdfast.stores.kv.unit_of_work import KvUnit
from holdfast.testing.contract import SettableClock

SHARED = Fields("r:shared", ("b",))


class BusyDriver(DictionaryDriver):
    """A driver on which another writer changes a partition right after each load of it, as long as it may."""

    def __init__(self, *, has_marks: bool = True, load_micros: Micros = 0) -> None:
        self.clock = SettableClock()
        super().__init__(clock=self.clock)
        self._has_marks = has_marks
        self._load_micros = load_micros
        self.refusals = 0
        self.loads = 0

    async def load(self, reads: Sequence[Read]) -> Answers:
        answers = await super().load(reads)
        if SHARED in reads:
            self.loads += 1
            self.clock.advance(self._load_micros)
            version = self.data.partitions["r:shared"].version
            owner = "" if self._has_marks else next((mark[0] for mark in self.data.marks.values()), "")
            part = Part(checks={"r:shared": version}, puts={"r:shared": {"b": b"%d" % self.loads}}, owner=owner)
            self.refusals += (await super().commit([part])).refused[0] is not None
        return answers


async def prepared(driver: BusyDriver) -> Decisions:
    await DictionaryDriver.commit(driver, [Part(puts={"r:shared": {"b": b"0"}, "meta": {}})])
    return Decisions(driver, _no_hint, lambda: None)


def _no_hint(news: News) -> bytes:
    return b""


def write(unit: KvUnit, now: Micros) -> bytes | None:
    before = unit.space.field("r:shared", "b")
    unit.space.put("r:shared", {"b": b"mine"})
    return before


async def test_a_writer_that_keeps_losing_gets_through() -> None:
    driver = BusyDriver()
    decisions = await prepared(driver)

    decided = await decisions.decide(write, [SHARED])

    assert driver.data.partitions["r:shared"].fields == {"b": b"mine"}
    assert decided.answer == b"%d" % MARK_AFTER  # what the other writer wrote last
    assert (driver.loads, driver.refusals) == (MARK_AFTER + 1, 1)
    assert driver.data.marks == {}


async def test_a_mark_outlasts_a_slow_attempt_of_its_owner() -> None:
    """Otherwise two slow writers would keep each other out for ever."""
    driver = BusyDriver(load_micros=10 * MARK_MICROS)
    decisions = await prepared(driver)

    await decisions.decide(write, [SHARED])

    assert (driver.loads, driver.refusals) == (MARK_AFTER + 1, 1)


async def test_a_mark_ends_soon_even_if_its_owner_was_very_slow() -> None:
    driver = BusyDriver(load_micros=LONGEST_MARK_MICROS)
    decisions = await prepared(driver)

    with pytest.raises(StoreUnavailable, match="lost the race for r:shared"):
        await decisions.decide(write, [SHARED])


async def test_an_operation_that_starts_over_loads_all_it_needed_before_in_one_trip() -> None:
    driver = BusyDriver()
    decisions = await prepared(driver)
    trips: list[Sequence[Read]] = []
    load = driver.load

    async def noted(reads: Sequence[Read]) -> Answers:
        trips.append(reads)
        return await load(reads)

    driver.load = noted  # type: ignore[method-assign]

    def touch_three(unit: KvUnit, now: Micros) -> None:
        for name in ("r:one", "r:two"):
            unit.space.field(name, "b")
        write(unit, now)

    await decisions.decide(touch_three, [SHARED])

    assert [len(reads) for reads in trips] == [2, 1, 1, *[4] * MARK_AFTER]


async def test_a_writer_gives_up_if_marks_do_not_help() -> None:
    driver = BusyDriver(has_marks=False)
    decisions = await prepared(driver)

    with pytest.raises(StoreUnavailable, match="lost the race for r:shared"):
        await decisions.decide(write, [SHARED])

    assert driver.loads == CONFLICTS_LIMIT
