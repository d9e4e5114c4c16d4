"""A driver with faults: it counts the calls of all namespaces together, and the process may die at one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeVar

from holdfast.isolated.driver import NamespaceDriver, Writes

When = Literal["before", "after"]

A = TypeVar("A")


class ProcessDied(BaseException):
    """The process has died. No code of a library may handle this."""


@dataclass
class CallCounter:
    """The calls of all drivers so far, and the numbers at which the process dies."""

    crashes: dict[int, When] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    async def call(self, name: str, action: Awaitable[A]) -> A:
        self.names.append(name)
        when = self.crashes.get(len(self.names))
        if when == "before":
            action.close()  # type: ignore[attr-defined]  # it is a coroutine
            raise ProcessDied
        answer = await action
        if when == "after":
            raise ProcessDied
        return answer


class FaultyNamespace:
    """A driver whose calls a counter counts and interrupts."""

    def __init__(self, inner: NamespaceDriver, counter: CallCounter) -> None:
        self.inner = inner
        self._counter = counter

    async def get(self, key: bytes) -> bytes | None:
        return await self._counter.call("get", self.inner.get(key))

    async def set(self, key: bytes, value: bytes) -> None:
        await self._counter.call("set", self.inner.set(key, value))

    async def delete(self, key: bytes) -> None:
        await self._counter.call("delete", self.inner.delete(key))

    async def delete_prefix(self, prefix: bytes) -> None:
        await self._counter.call("delete_prefix", self.inner.delete_prefix(prefix))

    async def list(self, prefix: bytes) -> Sequence[bytes]:
        return await self._counter.call("list", self.inner.list(prefix))

    async def batch(self, writes: Writes) -> None:
        await self._counter.call("batch", self.inner.batch(writes))

    async def set_alarm(self, at: datetime) -> None:
        await self._counter.call("set_alarm", self.inner.set_alarm(at))

    async def clear_alarm(self) -> None:
        await self._counter.call("clear_alarm", self.inner.clear_alarm())
