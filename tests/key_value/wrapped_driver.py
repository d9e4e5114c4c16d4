"""A driver that passes every call on to another one. Tests override the calls that they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import Micros
from holdfast.core.model import Holding
from holdfast.core.ports import Finding
from holdfast.stores.kv.driver import Answers, ClaimAnswer, Committed, Driver, Gain, Part, Read, Renewed


class WrappedDriver:
    """A driver around another one."""

    def __init__(self, inner: Driver) -> None:
        self.inner = inner

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def begin_epoch(self) -> None:
        await self.inner.begin_epoch()

    def peek(self, partition: str, fields: Sequence[str]) -> dict[str, bytes]:
        return self.inner.peek(partition, fields)

    async def load(self, reads: Sequence[Read]) -> Answers:
        return await self.inner.load(reads)

    async def commit(self, parts: Sequence[Part | Gain], hint: bytes = b"") -> Committed:
        return await self.inner.commit(parts, hint)

    async def claim(self, request: ClaimRequest) -> ClaimAnswer | None:
        return await self.inner.claim(request)

    def renew(
        self, worker: str, record: bytes, holdings: Sequence[Holding], lease: Micros
    ) -> tuple[Micros, list[Renewed | None]]:
        return self.inner.renew(worker, record, holdings, lease)

    def listen(self, heard: Callable[[bytes], None]) -> Callable[[], None]:
        return self.inner.listen(heard)

    async def check(self) -> Sequence[Finding]:
        return await self.inner.check()
