"""The driver of a namespace: what a host gives a run to keep its data. A host implements it; this package calls it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import NoneType
from typing import Protocol

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
        ...

    async def delete(self, key: bytes) -> None:
        """Delete a key. A key that does not exist is no error."""
        ...

    async def delete_prefix(self, prefix: bytes) -> None:
        """Delete every key that begins with a prefix. The empty prefix means all keys."""
        ...

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
