"""The contract of a namespace driver, as a test suite that any driver can run.

The suite needs pytest and pytest-asyncio. Subclass `NamespaceContract` in a test file and give it a fixture
`namespace`: a driver with an empty namespace.

    class TestMyDriver(NamespaceContract):
        @pytest.fixture
        def namespace(self) -> NamespaceDriver:
            return MyDriver()
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.isolated import NamespaceDriver

_ODD_KEYS = [
    b"",
    b"\0",
    b"\0\0",
    b"\0\xff",
    b"a",
    b"a\0",
    b"a\xff",
    b"a\xff\xff",
    b"aa",
    b"b",
    b"\xfe",
    b"\xff",
    b"\xff\xff",
]


class NamespaceContract:
    """The rules of `NamespaceDriver`: order, prefixes, atomic batches, and alarms that are no data."""

    @pytest.fixture
    def namespace(self) -> NamespaceDriver:
        raise NotImplementedError("give the contract a fixture `namespace`: a driver with an empty namespace")

    async def test_a_value_that_was_set_is_returned(self, namespace: NamespaceDriver) -> None:
        await namespace.set(b"key", b"\0value\xff")
        assert await namespace.get(b"key") == b"\0value\xff"

    async def test_an_unknown_key_has_no_value(self, namespace: NamespaceDriver) -> None:
        assert await namespace.get(b"key") is None

    async def test_an_empty_value_is_not_a_missing_one(self, namespace: NamespaceDriver) -> None:
        await namespace.set(b"key", b"")
        assert await namespace.get(b"key") == b""

    async def test_a_second_value_replaces_the_first(self, namespace: NamespaceDriver) -> None:
        await namespace.set(b"key", b"1")
        await namespace.set(b"key", b"2")
        assert await _pairs(namespace) == [(b"key", b"2")]

    async def test_a_deleted_key_has_no_value(self, namespace: NamespaceDriver) -> None:
        await namespace.set(b"key", b"1")
        await namespace.delete(b"key")
        await namespace.delete(b"key")
        assert await namespace.get(b"key") is None
        assert list(await namespace.list(b"")) == []

    async def test_keys_are_listed_in_byte_order(self, namespace: NamespaceDriver) -> None:
        keys = [*_ODD_KEYS, *(bytes((first, second)) for first in range(0, 256, 17) for second in (0, 127, 128, 255))]
        shuffled = random.Random(1).sample(keys, len(keys))
        for key in shuffled:
            await namespace.set(key, key)
        assert list(await namespace.list(b"")) == sorted(set(keys))

    @pytest.mark.parametrize("prefix", _ODD_KEYS)
    async def test_a_prefix_lists_only_keys_that_begin_with_it(self, namespace: NamespaceDriver, prefix: bytes) -> None:
        await namespace.batch([(key, b"") for key in _ODD_KEYS])
        assert list(await namespace.list(prefix)) == sorted(key for key in _ODD_KEYS if key.startswith(prefix))

    @pytest.mark.parametrize("prefix", _ODD_KEYS)
    async def test_a_prefix_deletes_only_keys_that_begin_with_it(
        self, namespace: NamespaceDriver, prefix: bytes
    ) -> None:
        await namespace.batch([(key, b"") for key in _ODD_KEYS])
        await namespace.delete_prefix(prefix)
        assert list(await namespace.list(b"")) == sorted(key for key in _ODD_KEYS if not key.startswith(prefix))

    async def test_a_batch_sets_and_deletes(self, namespace: NamespaceDriver) -> None:
        await namespace.set(b"old", b"1")
        await namespace.batch([(b"new", b"2"), (b"old", None), (b"none", None)])
        assert await _pairs(namespace) == [(b"new", b"2")]

    async def test_of_two_writes_of_a_key_the_last_one_counts(self, namespace: NamespaceDriver) -> None:
        await namespace.batch([(b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2")])
        assert await _pairs(namespace) == [(b"b", b"2")]

    async def test_an_empty_batch_changes_nothing(self, namespace: NamespaceDriver) -> None:
        await namespace.batch([])
        assert list(await namespace.list(b"")) == []

    async def test_a_batch_that_fails_writes_nothing(self, namespace: NamespaceDriver) -> None:
        await namespace.set(b"old", b"1")
        impossible: Any = object()
        with pytest.raises(Exception):  # noqa: B017, PT011 - the contract allows any exception
            await namespace.batch([(b"new", b"2"), (b"old", None), (b"bad", impossible)])
        assert await _pairs(namespace) == [(b"old", b"1")]

    async def test_a_large_batch_is_written_whole(self, namespace: NamespaceDriver) -> None:
        writes = [(number.to_bytes(4, "big"), bytes(1_000)) for number in range(2_000)]
        await namespace.batch(writes)
        assert await _pairs(namespace) == writes

    async def test_an_alarm_is_no_key(self, namespace: NamespaceDriver) -> None:
        await namespace.set_alarm(datetime(2030, 1, 1, tzinfo=UTC))
        await namespace.set_alarm(datetime(2031, 1, 1, tzinfo=UTC))
        assert list(await namespace.list(b"")) == []
        await namespace.clear_alarm()
        await namespace.clear_alarm()


async def _pairs(namespace: NamespaceDriver) -> list[tuple[bytes, bytes | None]]:
    return [(key, await namespace.get(key)) for key in await namespace.list(b"")]
