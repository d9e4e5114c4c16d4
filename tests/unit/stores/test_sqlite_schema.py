"""The schema: created and recognised; a file of another program or version is left alone."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores.sqlite import SqliteStore, schema
from holdfast.testing.contract.arrange import an_intent, start

WANTED = schema.NUMBER
FAILS = "insert into nowhere values (1)"


async def made(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await start(store, an_intent(1))
    await store.close()


def execute(path: Path, statement: str, *values: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement, values)
    connection.close()


async def test_the_status_can_be_read_before_the_file_exists_and_when_it_is_closed(path: Path) -> None:
    before = SqliteStore(path).schema()
    await made(path)

    assert before == SchemaStatus(current=0, wanted=WANTED)
    assert SqliteStore(path).schema() == SchemaStatus(current=WANTED, wanted=WANTED)


@pytest.mark.parametrize("number", [1, WANTED - 1, WANTED + 1, 99])
async def test_a_store_of_another_schema_version_is_refused_and_left_unchanged(path: Path, number: int) -> None:
    await made(path)
    execute(path, "update meta set value = ? where name = 'schema'", str(number))
    before = path.read_bytes()

    with pytest.raises(SchemaOutOfDate) as refused:
        await SqliteStore(path).open()

    told = str(refused.value)
    assert "export with the old version, import with the new one" in told
    assert f"has schema number {number}," in told
    assert f"needs number {WANTED}:" in told
    assert "`holdfast export" in told
    assert "`holdfast import" in told
    assert ("newer" if number > WANTED else "older") in told
    assert path.read_bytes() == before


async def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    execute(path, "create table customers (id integer primary key)")

    with pytest.raises(StoreUnavailable, match=r"another program \(it has a table 'customers'"):
        await SqliteStore(path).open()

    connection = apsw.Connection(str(path))
    assert connection.execute("select name from sqlite_master").fetchall() == [("customers",)]
    connection.close()


async def test_a_failed_creation_of_the_schema_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = schema.script() + FAILS
    monkeypatch.setattr(schema, "script", lambda: script)

    with pytest.raises(StoreUnavailable, match="no such table: nowhere"):
        await SqliteStore(path).open()

    assert SqliteStore(path).schema().current == 0
    connection = apsw.Connection(str(path))
    assert connection.execute("select name from sqlite_master").fetchall() == []
    connection.close()
