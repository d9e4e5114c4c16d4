"""Loads of the Redis driver: the answers to all reads are of one instant."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.core.clock import SECOND, Micros
from holdfast.stores.kv.driver import AllFields, Fields, Log, Lowest, Part, Partition, Range, Read, Reserve, Size
from holdfast.stores.redis import RedisDriver
from holdfast.testing.contract import START, SettableClock
from tests.redis.cleaning import connect


async def test_what_does_not_exist_is_empty(driver: RedisDriver) -> None:
    reads: list[Read] = [Fields("p", ("x",)), AllFields("p"), Range("i"), Lowest("i", 3), Size("i"), Log("l")]
    reads.append(Reserve("n", 0))

    loaded = await driver.load(reads)

    assert loaded.now == START
    assert loaded.answers == [Partition(0, {}), Partition(0, {}), [], [], 0, [], range(1, 1)]


async def test_fields_are_those_that_exist(driver: RedisDriver) -> None:
    version = (await driver.commit([Part(puts={"p": {"x": b"1", "y": b""}})])).version

    loaded = await driver.load([Fields("p", ("y", "z")), Fields("p", ()), AllFields("p")])

    assert loaded.answers == [
        Partition(version, {"y": b""}),
        Partition(version, {}),
        Partition(version, {"x": b"1", "y": b""}),
    ]


async def test_fields_may_be_left_out_by_their_beginning(driver: RedisDriver) -> None:
    version = (await driver.commit([Part(puts={"p": {"x": b"1", "@x": b"2", "@@y": b"3", "x@": b"4"}})])).version

    loaded = await driver.load([AllFields("p", "@"), AllFields("p", "@@"), AllFields("q", "@")])

    assert loaded.answers == [
        Partition(version, {"x": b"1", "x@": b"4"}),
        Partition(version, {"x": b"1", "@x": b"2", "x@": b"4"}),
        Partition(0, {}),
    ]


async def test_a_range_is_bounded_by_bytes(driver: RedisDriver) -> None:
    members = ["", "a", "aa", "b", "é", "\U0001f600"]
    await driver.commit([Part(adds={"i": dict.fromkeys(members, 0)})])

    loaded = await driver.load(
        [
            Range("i"),
            Range("i", low="a", high="b"),
            Range("i", low="a", limit=2),
            Range("i", is_reverse=True, limit=2),
            Range("i", low="aa", high="é", is_reverse=True),
        ]
    )

    assert loaded.answers == [members, ["a", "aa"], ["a", "aa"], ["\U0001f600", "é"], ["b", "aa"]]


async def test_due_members_are_those_up_to_the_time_of_the_driver(driver: RedisDriver, clock: SettableClock) -> None:
    await driver.commit([Part(adds={"i": {"now": START, "later": START + 1, "before": START - 1}})])
    reads: list[Read] = [Lowest("i", 9, is_due=True), Size("i", is_due=True), Lowest("i", 2), Size("i")]

    first = await driver.load(reads)
    clock.advance(1)
    second = await driver.load(reads)

    early = [("before", START - 1), ("now", START)]
    assert first.answers == [early, 2, early, 3]
    assert second.answers == [[*early, ("later", START + 1)], 3, early, 3]


async def test_the_time_is_that_of_the_server_without_a_clock(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: START * 1_000)  # the clock of this machine is wrong
    driver = RedisDriver(redis_url)
    before = _server_time(redis_url)
    await driver.open()
    try:
        first = (await driver.load([])).now
        second = (await driver.commit([])).now
    finally:
        await driver.close()

    assert before <= first <= second <= _server_time(redis_url)


def _server_time(url: str) -> Micros:
    with connect(url) as client:
        now: Any = client.time()
    return int(now[0]) * SECOND + int(now[1])


async def test_a_number_is_reserved_only_once(driver: RedisDriver, other: RedisDriver) -> None:
    first = await driver.load([Reserve("n", 3), Reserve("n", 2)])
    second = await other.load([Reserve("n", 0), Reserve("n", 1)])

    assert first.answers == [range(1, 4), range(4, 6)]
    assert second.answers == [range(6, 6), range(6, 7)]
