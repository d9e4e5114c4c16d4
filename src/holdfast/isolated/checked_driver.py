"""The driver as `advance` uses it: each answer is checked, and each failure names its call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.core.errors import InvalidRequest
from holdfast.isolated.driver import NamespaceDriver, Writes
from holdfast.isolated.failure import DriverFailed

_CALLED = ("get", "list", "batch", "set_alarm", "clear_alarm")  # the host itself calls the other methods
_BATCH = "a batch is a list of pairs (key, value), all or none, and the value None deletes the key"


class CheckedDriver:
    """Calls a driver of the host. Raises `DriverFailed` if it raises or breaks its contract."""

    def __init__(self, driver: NamespaceDriver) -> None:
        if missing := [name for name in _CALLED if not callable(getattr(driver, name, None))]:
            raise InvalidRequest(
                f"{type(driver).__name__} is not a driver of a namespace: it has no method {', '.join(missing)}; "
                "see holdfast.isolated.NamespaceDriver"
            )
        self._driver = driver

    async def get(self, key: bytes) -> bytes | None:
        value = await self._call("get", key)
        if value is not None and type(value) is not bytes:
            raise DriverFailed("get", f"returned {type(value).__name__} instead of bytes or None")
        return value

    async def read(self, key: bytes) -> bytes:
        """Return the value of a key that `list` has returned."""
        value = await self.get(key)
        if value is None:
            raise DriverFailed("get", f"returned None for {key!r}, which list has returned ({_BATCH})")
        return value

    async def list(self, prefix: bytes) -> Sequence[bytes]:
        found = await self._call("list", prefix)
        try:
            keys = list(found)
        except TypeError as error:
            raise DriverFailed("list", f"returned {type(found).__name__} instead of a list of keys") from error
        _check_keys(keys, prefix)
        return keys

    async def batch(self, writes: Writes, seal: bytes) -> None:
        """Write a batch, and read the value that it set for the key `seal`, because a lost batch looks like success."""
        await self._write(writes)
        if await self.get(seal) != next(value for key, value in reversed(writes) if key == seal):
            raise DriverFailed("batch", f"returned, but its writes are not there ({_BATCH})")

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Delete keys in one batch, and look for one of them, because a lost batch looks like success."""
        await self._write([(key, None) for key in keys])
        if await self.get(keys[-1]) is not None:
            raise DriverFailed("batch", f"returned, but a key that it deletes is still there ({_BATCH})")

    async def set_alarm(self, at: datetime) -> None:
        await self._call("set_alarm", at)

    async def clear_alarm(self) -> None:
        await self._call("clear_alarm")

    async def _write(self, writes: Writes) -> None:
        try:
            await self._driver.batch(writes)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            # The usual errors of a driver that expects writes of another form.
            raise DriverFailed("batch", f"raised {type(error).__name__}: {error} ({_BATCH})") from error
        except Exception as error:
            raise DriverFailed("batch", f"raised {type(error).__name__}: {error}") from error

    async def _call(self, name: str, *args: Any) -> Any:
        try:
            return await getattr(self._driver, name)(*args)
        except Exception as error:
            raise DriverFailed(name, f"raised {type(error).__name__}: {error}") from error


def _check_keys(keys: Sequence[Any], prefix: bytes) -> None:
    last: bytes | None = None
    for key in keys:
        if type(key) is not bytes:
            raise DriverFailed("list", f"returned {type(key).__name__} where a key was expected; keys are bytes")
        if not key.startswith(prefix):
            raise DriverFailed("list", f"returned {key!r}, which does not begin with {prefix!r}")
        if last is not None and key <= last:
            raise DriverFailed("list", f"returned {key!r} after {last!r}, which is not in byte order")
        last = key
