"""A namespace in a dictionary of this process: for tests, and for hosts that keep the dictionary themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.isolated.driver import Writes, check_writes


class DictionaryNamespace:
    """A driver that keeps keys and values in `data`, and the alarm in `alarm_at`."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        """Values by key."""
        self.alarm_at: datetime | None = None
        """The alarm."""

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self.data.get(key)

    async def set(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        await self.batch([(key, value)])

    async def delete(self, key: bytes) -> None:
        """Delete a key, if it exists."""
        await self.batch([(key, None)])

    async def delete_prefix(self, prefix: bytes) -> None:
        """Delete every key that begins with a prefix."""
        await self.batch([(key, None) for key in await self.list(prefix)])

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
