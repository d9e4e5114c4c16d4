"""The driver as `advance` uses it: each answer is checked, and each failure names its call."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import TypeVar

from holdfast.kv.driver import NamespaceDriver, Writes
from holdfast.kv.failure import DriverFailed

A = TypeVar("A")


class CheckedDriver:
    """Calls a driver of the host. Raises `DriverFailed` if it raises or breaks its contract."""

    def __init__(self, driver: NamespaceDriver) -> None:
        self._driver = driver

    async def get(self, key: bytes) -> bytes | None:
        value = await _called("get", self._driver.get(key))
        if value is not None and not isinstance(value, bytes):
            raise DriverFailed("get", f"returned {type(value).__name__} instead of bytes or None")
        return value

    async def list(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        pairs = await _called("list", self._driver.list(prefix))
        try:
            _check_order(pairs, prefix)
        except (TypeError, ValueError) as error:
            raise DriverFailed("list", f"did not return pairs of bytes: {error}") from error
        return pairs

    async def batch(self, writes: Writes, seal: bytes) -> None:
        """Write a batch, and read the value that it set for the key `seal`, because a lost batch looks like success."""
        try:
            await self._driver.batch(writes)
        except Exception as error:
            raise _failure("batch", error) from error
        if await self.get(seal) != next(value for key, value in reversed(writes) if key == seal):
            raise DriverFailed("batch", "returned, but its writes are not there")

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Delete keys in one batch."""
        await _called("batch", self._driver.batch([(key, None) for key in keys]))

    async def set_alarm(self, at: datetime) -> None:
        await _called("set_alarm", self._driver.set_alarm(at))

    async def clear_alarm(self) -> None:
        await _called("clear_alarm", self._driver.clear_alarm())


async def _called(call: str, awaitable: Awaitable[A]) -> A:
    try:
        return await awaitable
    except Exception as error:
        raise _failure(call, error) from error


def _failure(call: str, error: Exception) -> DriverFailed:
    return DriverFailed(call, f"raised {type(error).__name__}: {error}")


def _check_order(pairs: Sequence[tuple[bytes, bytes]], prefix: bytes) -> None:
    last: bytes | None = None
    for key, value in pairs:
        if {type(key), type(value)} != {bytes}:
            raise TypeError(f"{type(key).__name__}, {type(value).__name__}")
        if not key.startswith(prefix):
            raise DriverFailed("list", f"returned {key!r}, which does not begin with {prefix!r}")
        if last is not None and key <= last:
            raise DriverFailed("list", f"returned {key!r} after {last!r}, which is not in byte order")
        last = key
