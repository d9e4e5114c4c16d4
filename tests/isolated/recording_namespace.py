"""A dictionary namespace that records what is written, and misbehaves if a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from holdfast.isolated import DictionaryNamespace
from holdfast.isolated.driver import Writes


class RecordingNamespace(DictionaryNamespace):
    """Records batches and reads.

    `listed` changes what `list` returns, `drop` loses batches, `fail` names calls that raise.
    Of the batch with the number `tear_at`, only the first `torn` writes are applied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Writes] = []
        self.reads: list[bytes] = []
        self.drop: Callable[[int], bool] = lambda number: False
        self.tear_at: int | None = None
        self.torn = 0
        self.fail: set[str] = set()
        self.listed: Callable[[Sequence[bytes]], Sequence[bytes]] = lambda keys: keys

    def _call(self, name: str) -> None:
        if name in self.fail:
            raise OSError("the disk is full")

    async def get(self, key: bytes) -> bytes | None:
        self._call("get")
        self.reads.append(key)
        return await super().get(key)

    async def list(self, prefix: bytes) -> Sequence[bytes]:
        self._call("list")
        return self.listed(await super().list(prefix))

    async def batch(self, writes: Writes) -> None:
        self._call("batch")
        self.batches.append(writes)
        if len(self.batches) == self.tear_at:
            await super().batch(writes[: self.torn])
            raise OSError("the power is out")
        if not self.drop(len(self.batches)):
            await super().batch(writes)

    async def set_alarm(self, at: datetime) -> None:
        self._call("set_alarm")
        await super().set_alarm(at)

    async def clear_alarm(self) -> None:
        self._call("clear_alarm")
        await super().clear_alarm()
