"""The driver of a namespace: what a host gives a run to keep its data. A host implements it; this package calls it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Protocol

from holdfast.core.errors import InvalidRequest, StoreUnavailable

Writes = Sequence[tuple[bytes, bytes | None]]
"""Keys with their new values. None deletes a key."""


def check_writes(writes: Writes) -> None:
    """Raise `TypeError` if a key or value is not bytes. A driver calls this before it writes anything."""
    for key, value in writes:
        if {type(key), type(value)} - {bytes, NoneType} or key is None:
            raise TypeError(f"keys and values are bytes, not {key!r:.40} and {value!r:.40}")


class NamespaceDriver(Protocol):
    """The key-value namespace of one run, and its alarm. Keys and values are bytes.

    The rules; `holdfast.testing.NamespaceContract` tests them:

    - What a call has written is durable when the call returns, and later calls see it.
    - `batch` gets a list of pairs `(key, value)`, in order; the value None deletes the key. It is atomic: after a crash
      or an error, all of its writes are there, or none.
    - `list` returns keys in byte order, and only keys that begin with the prefix. `get` reads their values.
    - `delete_prefix` removes exactly the keys that `list` returns for the prefix.
    - The alarm stays until `set_alarm` or `clear_alarm` changes it. The host does not remove it when it fires.

    A call that fails raises any exception. `advance` then raises `DriverFailed`.
    """

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        ...

    async def set(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        await self.batch([(key, value)])

    async def delete(self, key: bytes) -> None:
        """Delete a key. A key that does not exist is no error."""
        await self.batch([(key, None)])

    async def delete_prefix(self, prefix: bytes) -> None:
        """Delete every key that begins with a prefix. The empty prefix means all keys."""
        await self.batch([(key, None) for key in await self.list(prefix)])

    async def list(self, prefix: bytes) -> Sequence[bytes]:
        """Return the keys that begin with a prefix, in byte order. The empty prefix means all keys."""
        ...

    async def batch(self, writes: Writes) -> None:
        """Write pairs `(key, value)`, all or none: a value of None deletes the key. The last write of a key counts."""
        ...

    async def set_alarm(self, at: datetime) -> None:
        """Have the host advance the run at an instant. It replaces the earlier alarm."""
        ...

    async def clear_alarm(self) -> None:
        """Remove the alarm. Without an alarm it is no error."""
        ...


class DriverFailed(StoreUnavailable):
    """Raised when a driver raises, returns what the contract forbids, or loses a batch. Advance the run again."""

    def __init__(self, call: str, problem: str) -> None:
        super().__init__(f"driver.{call}: {problem}; nothing is lost: advance the run again when the driver works")
        self.call = call
        """The method of the driver: `list`, `batch` and so on."""


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


class DictionaryNamespace(NamespaceDriver):
    """A driver that keeps keys and values in `data`, and the alarm in `alarm_at`."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        """Values by key."""
        self.alarm_at: datetime | None = None
        """The alarm."""

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self.data.get(key)

    async def list(self, prefix: bytes) -> Sequence[bytes]:
        """Return the keys that begin with a prefix, in byte order."""
        return sorted(key for key in self.data if key.startswith(prefix))

    async def batch(self, writes: Writes) -> None:
        """Set and delete keys, all or none."""
        check_writes(writes)
        data = self.data
        for key, value in writes:
            if value is None:
                data.pop(key, None)
            else:
                data[key] = value

    async def set_alarm(self, at: datetime) -> None:
        """Set the alarm, in place of the earlier one."""
        self.alarm_at = at

    async def clear_alarm(self) -> None:
        """Remove the alarm, if there is one."""
        self.alarm_at = None
