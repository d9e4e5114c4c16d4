"""Commits of the Redis driver: each part is written wholly or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.kv.driver import (
    MARK_MICROS,
    TOUCH_MICROS,
    AllFields,
    Fields,
    Gain,
    Log,
    Lowest,
    Part,
    Partition,
    Range,
    Read,
    Size,
)
from holdfast.stores.redis import RedisDriver, requests
from holdfast.stores.redis.requests import CALL_BYTES, PARTS_AT_ONCE
from holdfast.stores.redis.scripts import CHUNK
from holdfast.testing.patience import until
from tests.redis.cleaning import connect, keys_of, namespace_of
from tests.redis.driver_runs import read_version
from tests.redis.proxy import RedisProxy
from tests.redis.server import RedisServer


async def _one(driver: RedisDriver, read: Read) -> Any:
    return (await driver.load([read])).answers[0]


async def _fields(driver: RedisDriver, partition: str) -> dict[str, bytes]:
    return cast("Partition", await _one(driver, AllFields(partition))).fields


async def test_a_part_is_refused_by_the_name_of_its_first_failed_check(driver: RedisDriver) -> None:
    version = (await driver.commit([Part(puts={"a": {}, "b": {}})])).version

    committed = await driver.commit(
        [
            Part(checks={"a": version, "b": version + 1, "c": 7}, puts={"a": {"x": b"1"}}),
            Part(checks={"a": 0}, puts={"a": {"x": b"2"}}),
            Part(checks={"b": version, "c": 0}, puts={"b": {"x": b"3"}}),
        ]
    )

    assert committed.refused == ["b", "a", None]
    assert (await _fields(driver, "a"), await _fields(driver, "b")) == ({}, {"x": b"3"})


async def test_everything_that_a_call_writes_gets_the_same_new_version(driver: RedisDriver) -> None:
    first = await driver.commit([Part(puts={"put": {"x": b"1"}, "dropped": {"x": b"1", "y": b"2"}})])
    second = await driver.commit([Part(puts={"put": {}}, drops={"dropped": ["x"]}), Part(touches=["touched"])])

    assert second.version > first.version
    assert [await read_version(driver, name) for name in ("put", "dropped", "touched")] == [second.version] * 3
    assert await _fields(driver, "dropped") == {"y": b"2"}
    assert await _fields(driver, "put") == {"x": b"1"}


async def test_a_refused_part_writes_nothing(driver: RedisDriver, redis_url: str) -> None:
    before = keys_of(redis_url)

    committed = await driver.commit(
        [
            Part(
                checks={"a": 1},
                clears=["meta"],
                puts={"p": {"x": b"1"}},
                drops={"d": ["x"]},
                touches=["t"],
                adds={"i": {"m": 1}},
                removes={"i": ["n"]},
                appends={"l": [b"1"]},
                cuts={"l": [b"2"]},
                marks=["p"],
                owner="me",
            )
        ]
    )

    assert committed.refused == ["a"]
    assert keys_of(redis_url) == before


async def test_the_writes_of_a_part_are_carried_out_in_the_order_of_its_fields(driver: RedisDriver) -> None:
    await driver.commit([Part(puts={"p": {"old": b"1"}}, adds={"i": {"old": 0}}, appends={"l": [b"old", b"x"]})])

    await driver.commit(
        [
            Part(
                clears=["p", "i"],
                puts={"p": {"new": b"2", "gone": b"3"}},
                drops={"p": ["gone"]},
                removes={"i": ["moved"]},
                adds={"i": {"moved": 0, "kept": 0}},
                cuts={"l": [b"old"]},
                appends={"l": [b"old"]},
            )
        ]
    )

    assert await _fields(driver, "p") == {"new": b"2"}
    assert await _one(driver, Range("i")) == ["kept", "moved"]
    assert await _one(driver, Log("l")) == [b"x", b"old"]


async def test_the_index_entries_of_a_refused_part_are_not_written_with_those_of_others(driver: RedisDriver) -> None:
    """One command writes an index for all parts of a call."""
    await driver.commit([Part(adds={"i": {"a": 1, "b": 2, "c": 3}})])

    committed = await driver.commit(
        [
            Part(removes={"i": ["a"]}, adds={"j": {"a": 1}}),
            Part(checks={"p": 7}, removes={"i": ["b", "x"]}, adds={"j": {"b": 2, "x": 9}}),
            Part(removes={"i": ["c"]}, adds={"j": {"c": 3}}),
        ]
    )

    assert committed.refused == [None, "p", None]
    assert await _one(driver, Lowest("i", 9)) == [("b", 2)]
    assert await _one(driver, Lowest("j", 9)) == [("a", 1), ("c", 3)]


@pytest.mark.parametrize("value", [b"", b"\xff\x00\xc3", b"\xe2\x82\xac", b"x" * 70_000, b"\xff" * 70_000])
async def test_all_bytes_can_be_written(driver: RedisDriver, value: bytes) -> None:
    """Values need not be text, and MessagePack has several lengths of strings."""
    await driver.commit([Part(puts={"p": {"x": value}}, appends={"l": [value]}), Gain("g", 0, "h", 0, {"y": value})])

    assert await _fields(driver, "p") == {"x": value}
    assert await _fields(driver, "h") == {"y": value}
    assert await _one(driver, Log("l")) == [value]


class Name(str):
    """A name that a user's code has made."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


async def test_names_may_be_of_a_subclass_of_str(driver: RedisDriver) -> None:
    await driver.commit([Part(puts={"p": {Name("x"): b"1"}}, adds={"i": {Name("m"): 1}})])

    assert await _fields(driver, "p") == {"x": b"1"}
    assert await _one(driver, Lowest("i", 9)) == [("m", 1)]


@pytest.mark.parametrize("piece", [1, 7, 100])
async def test_a_very_large_commit_is_sent_in_pieces(
    driver: RedisDriver, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(requests, "PIECE_BYTES", piece)
    old = (await driver.commit([Part(puts={"r": {}, "h": {}})])).version

    committed = await driver.commit(
        [
            Part(puts={"p": {"x": b"1" * 100, "y": b"2"}}, adds={"i": {"a": 1, "b": 2}}, appends={"l": [b"one"]}),
            Part(checks={"p": old}, adds={"i": {"c": 3}}),
            Gain("r", old, "h", old, {"z": b"3"}),
        ]
    )

    assert committed.refused == [None, "p", None]
    assert await _fields(driver, "p") == {"x": b"1" * 100, "y": b"2"}
    assert await _fields(driver, "h") == {"z": b"3"}
    assert await _one(driver, Lowest("i", 9)) == [("a", 1), ("b", 2)]
    assert await _one(driver, Log("l")) == [b"one"]


async def test_a_gain_is_written_if_both_checks_hold(driver: RedisDriver) -> None:
    old = (await driver.commit([Part(puts={"r": {}, "h": {"x": b"1"}, "q": {}})])).version

    committed = await driver.commit(
        [
            Gain("r", old, "h", old, {"x": b"2", "\xe4": b"3"}),
            Gain("r", old, "h", old, {"x": b"4"}),
            Gain("r", old + 1, "q", old, {"x": b"5"}),
            Part(checks={"q": old, "absent": 0}, puts={"q": {"y": b"6"}}, drops={"q": ["x"]}),
        ]
    )

    assert committed.refused == [None, "h", "r", None]
    assert await _fields(driver, "h") == {"x": b"2", "\xe4": b"3"}
    assert await _fields(driver, "q") == {"y": b"6"}
    assert [await read_version(driver, name) for name in ("r", "h", "q")] == [old, committed.version, committed.version]


async def test_a_marked_partition_refuses_a_gain(driver: RedisDriver, redis_url: str) -> None:
    version = (await driver.commit([Part(puts={"r": {}, "h": {}})])).version
    with connect(redis_url) as client:
        client.set(f"{{{namespace_of(redis_url)}}}:x", "")
        client.set(f"{{{namespace_of(redis_url)}}}:x:h", "me")

    gain = Gain("r", version, "h", version, {"x": b"1"})

    assert (await driver.commit([gain])).refused == ["h"]


async def test_a_cleared_partition_does_not_exist(driver: RedisDriver) -> None:
    await driver.commit([Part(puts={"p": {"x": b"1"}})])

    await driver.commit([Part(clears=["p"])])

    assert await _one(driver, AllFields("p")) == Partition(0, {})
    assert (await driver.commit([Part(checks={"p": 0})])).refused == [None]


async def test_a_part_may_have_more_items_than_a_script_can_pass_at_once(driver: RedisDriver) -> None:
    count = 2 * CHUNK + 1
    members = [f"{number:05}" for number in range(count)]
    await driver.commit(
        [
            Part(
                puts={"p": dict.fromkeys(members, b"1")},
                adds={"i": dict.fromkeys(members, 0)},
                appends={"l": [name.encode() for name in members]},
            )
        ]
    )
    assert len(await _fields(driver, "p")) == count
    assert (await _one(driver, Fields("p", tuple(members)))).fields.keys() == set(members)
    assert await _one(driver, Size("i")) == count
    assert await _one(driver, Log("l")) == [name.encode() for name in members]

    await driver.commit([Part(drops={"p": members[1:]}, removes={"i": members[1:]})])

    assert await _fields(driver, "p") == {members[0]: b"1"}
    assert await _one(driver, Range("i")) == members[:1]


# Many and large parts


async def test_many_parts_are_written_in_several_calls_with_one_version(
    far: RedisDriver, driver_proxy: RedisProxy
) -> None:
    parts = [Part(checks={f"p{number}": 0}, puts={f"p{number}": {}}) for number in range(2 * PARTS_AT_ONCE + 1)]
    parts[7] = Part(checks={"p7": 5}, puts={"p7": {}})
    await far.commit([])
    calls = driver_proxy.commands["EVALSHA"]

    committed = await far.commit(parts)

    assert driver_proxy.commands["EVALSHA"] == calls + 3
    assert [place for place, refused in enumerate(committed.refused) if refused] == [7]
    for number in (0, PARTS_AT_ONCE, 2 * PARTS_AT_ONCE):
        assert await read_version(far, f"p{number}") == committed.version


async def test_a_partition_that_two_calls_of_a_commit_write_gets_two_versions(driver: RedisDriver) -> None:
    parts = [Part(touches=["shared", f"p{number}"]) for number in range(PARTS_AT_ONCE)]
    last = Part(touches=["shared"])

    committed = await driver.commit([*parts, last])

    assert await read_version(driver, "p0") == committed.version
    assert await read_version(driver, "shared") > committed.version


async def test_large_parts_are_written_in_several_calls_but_none_is_cut(
    far: RedisDriver, driver_proxy: RedisProxy
) -> None:
    half = b"x" * (CALL_BYTES // 2)
    parts = [Part(puts={f"p{number}": {"x": half}}) for number in range(3)]
    parts.append(Part(puts={"large": {"x": 4 * half, "y": half}}))
    await far.commit([])
    calls = driver_proxy.commands["EVALSHA"]

    committed = await far.commit(parts)

    assert driver_proxy.commands["EVALSHA"] == calls + 4
    assert committed.refused == [None] * 4
    assert await _fields(far, "large") == {"x": 4 * half, "y": half}


# Hints


async def test_a_hint_is_sent_only_if_a_part_was_written(driver: RedisDriver) -> None:
    hints: list[bytes] = []
    driver.listen(hints.append)

    await driver.commit([Part(checks={"p": 9})], b"refused")
    await driver.commit([Part(puts={"p": {}})])
    await driver.commit([Part(checks={"p": 9}), Part(puts={"q": {}})], b"written")

    await until("the hint arrives", lambda: b"written" in hints)
    assert hints == [b"written"]


# Marks


async def test_a_mark_keeps_others_from_a_partition_until_its_owner_has_written(
    driver: RedisDriver, redis_url: str
) -> None:
    version = (await driver.commit([Part(puts={"p": {}, "q": {}})])).version
    with connect(redis_url) as client:  # not by the driver, whose marks would end while a slow test runs
        client.set(f"{{{namespace_of(redis_url)}}}:x", "")
        client.set(f"{{{namespace_of(redis_url)}}}:x:p", "me")

    assert (await driver.commit([Part(checks={"q": version})])).refused == [None]
    assert (await driver.commit([Part(checks={"p": version})])).refused == ["p"]
    assert (await driver.commit([Part(checks={"p": version}, owner="you")])).refused == ["p"]
    await driver.commit([Part(marks=["p"], owner="you")])
    mine = await driver.commit([Part(checks={"p": version}, puts={"p": {}}, owner="me")])

    assert mine.refused == [None]
    assert (await driver.commit([Part(checks={"p": mine.version}, owner="you")])).refused == [None]


async def test_a_mark_ends_by_itself(driver: RedisDriver, redis_url: str) -> None:
    with connect(redis_url) as client:

        async def is_marked() -> bool:
            await driver.commit([Part(marks=["p"], owner="me")])
            left = [cast("int", client.pttl(f"{{{namespace_of(redis_url)}}}:{key}")) for key in ("x", "x:p")]
            return all(0 < millis <= MARK_MICROS // 1_000 for millis in left)

        await until("the mark is seen before it ends", is_marked)

    async def is_free() -> bool:
        return (await driver.commit([Part(checks={"p": 0})])).refused == [None]

    await until("the mark ends", is_free)
    assert not [key for key in keys_of(redis_url) if key.startswith("x:")]


# What is kept


async def test_only_a_touched_partition_without_fields_vanishes_by_itself(driver: RedisDriver, redis_url: str) -> None:
    await driver.commit([Part(puts={"full": {"x": b"1"}}, touches=["full", "empty"])])

    with connect(redis_url) as client:
        prefix = f"{{{namespace_of(redis_url)}}}:"
        assert client.pttl(f"{prefix}full") == -1
        assert 0 < cast("int", client.pttl(f"{prefix}empty")) <= TOUCH_MICROS // 1_000


async def test_numbers_and_names_of_any_kind_are_kept(driver: RedisDriver) -> None:
    name = 'ünï "\\\0\n\U0001f600'
    await driver.commit([Part(puts={name: {name: name.encode()}}, adds={name + "i": {name: 8 * 10**18, "b": -5}})])

    assert await _fields(driver, name) == {name: name.encode()}
    assert await _one(driver, Lowest(name + "i", 5)) == [("b", -5), (name, 8 * 10**18)]


# Memory


@pytest_asyncio.fixture
async def full(redis_server: RedisServer) -> AsyncIterator[RedisDriver]:
    """A driver on a server without memory. The partition `old` exists."""
    driver = RedisDriver(redis_server.url)
    await driver.open()
    await driver.commit([Part(puts={"old": {"x": b"1"}}, adds={"i": {"m": 0}})])
    redis_server.ask("CONFIG", "SET", "maxmemory", 1)
    yield driver
    await driver.close()


async def test_a_server_without_memory_writes_nothing_and_says_so(full: RedisDriver) -> None:
    part = Part(puts={"p": {"x": b"1"}}, adds={"i": {"n": 0}})

    with pytest.raises(StoreUnavailable, match="out of memory; nothing was written"):
        await full.commit([part])

    assert await _fields(full, "p") == {}
    assert await _one(full, Range("i")) == ["m"]


async def test_a_server_without_memory_can_be_cleaned_up(full: RedisDriver) -> None:
    committed = await full.commit([Part(clears=["old"], touches=["t"], removes={"i": ["m"]})])

    assert committed.refused == [None]
    assert await _one(full, AllFields("old")) == Partition(0, {})


async def test_all_marks_are_set_or_none(driver: RedisDriver, redis_url: str) -> None:
    """Two writers that each had one of two marks would keep each other out."""
    with connect(redis_url) as client:  # not by the driver, whose marks would end while a slow test runs
        client.set(f"{{{namespace_of(redis_url)}}}:x", "")
        client.set(f"{{{namespace_of(redis_url)}}}:x:b", "one")

    assert (await driver.commit([Part(marks=["c", "b"], owner="other")])).refused == ["c"]
    assert (await driver.commit([Part(checks={"c": 0}, puts={"c": {}})])).refused == [None]
    assert (await driver.commit([Part(marks=["d", "b"], owner="one")])).refused == [None]
