"""The shipped drivers keep the contract, and the SQLite file outlives its connection."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.kv import DictionaryNamespace, SqliteNamespace
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


async def test_a_file_keeps_keys_and_alarm_for_the_next_process(tmp_path: Path) -> None:
    first = SqliteNamespace(tmp_path / "run.db")
    await first.set(b"key", b"value")
    await first.set_alarm(datetime(2030, 1, 1, tzinfo=UTC))
    first.close()
    second = SqliteNamespace(tmp_path / "run.db")
    assert list(await second.list(b"")) == [(b"key", b"value")]
    assert second.alarm_at == datetime(2030, 1, 1, tzinfo=UTC)
    second.close()


async def test_a_closed_file_has_no_side_files(tmp_path: Path) -> None:
    namespace = SqliteNamespace(tmp_path / "run.db")
    await namespace.set(b"key", b"value")
    namespace.close()
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == ["run.db"]
