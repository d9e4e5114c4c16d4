"""The shipped drivers keep the contract, a driver of a few lines works, and the SQLite file outlives its connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, RunState, isolated
from holdfast.isolated import DictionaryNamespace, SqliteNamespace
from holdfast.isolated.driver import Writes
from holdfast.testing import NamespaceContract


class TestDictionary(NamespaceContract):
    @pytest.fixture
    def namespace(self) -> DictionaryNamespace:
        return DictionaryNamespace()


class TestSqlite(NamespaceContract):
    @pytest.fixture
    def namespace(self, tmp_path: Path) -> Iterator[SqliteNamespace]:
        namespace = SqliteNamespace(tmp_path / "run.db")
        yield namespace
        namespace.close()


class SmallDriver:
    """A driver that is written from the list of its methods, and shares no code with the shipped ones."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.alarm: datetime | None = None

    async def get(self, key: bytes) -> bytes | None:
        return self.kept.get(key)

    async def set(self, key: bytes, value: bytes) -> None:
        self.kept[key] = value

    async def delete(self, key: bytes) -> None:
        self.kept.pop(key, None)

    async def delete_prefix(self, prefix: bytes) -> None:
        self.kept = {key: value for key, value in self.kept.items() if not key.startswith(prefix)}

    async def list(self, prefix: bytes) -> Sequence[bytes]:
        return sorted(key for key in self.kept if key.startswith(prefix))

    async def batch(self, writes: Writes) -> None:
        after = self.kept | {key: value for key, value in writes if value is not None}
        for key, value in writes:
            if value is None:
                after.pop(key, None)
        self.kept = after

    async def set_alarm(self, at: datetime) -> None:
        self.alarm = at

    async def clear_alarm(self) -> None:
        self.alarm = None


async def test_a_driver_of_a_few_lines_advances_a_run() -> None:
    hf, driver = Holdfast("memory://"), SmallDriver()

    @hf.workflow("order")
    async def order(ctx: Context, number: int) -> list[int]:
        first = await ctx.step("first", lambda: number)
        return [first, await ctx.receive("second", timeout=60)]

    waiting = await isolated.advance(driver, hf, "run", type="order", payload={"number": 1})
    assert (waiting.state, waiting.alarm_at) == (RunState.SUSPENDED, driver.alarm)
    await driver.set(*isolated.message("m", "second", 2))
    end = await isolated.advance(driver, hf, "run")
    assert (end.result, driver.alarm) == ([1, 2], None)


async def test_a_file_keeps_keys_and_alarm_for_the_next_process(tmp_path: Path) -> None:
    first = SqliteNamespace(tmp_path / "run.db")
    await first.set(b"key", b"value")
    await first.set_alarm(datetime(2030, 1, 1, tzinfo=UTC))
    first.close()
    second = SqliteNamespace(tmp_path / "run.db")
    assert (await second.list(b""), await second.get(b"key")) == ([b"key"], b"value")
    assert second.alarm_at == datetime(2030, 1, 1, tzinfo=UTC)
    second.close()


async def test_a_closed_file_has_no_side_files(tmp_path: Path) -> None:
    namespace = SqliteNamespace(tmp_path / "run.db")
    await namespace.set(b"key", b"value")
    namespace.close()
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == ["run.db"]
