"""The schema: created and recognised; a file of another program or version is left alone."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores.sqlite import SqliteStore, schema
from holdfast.testing.contract.arrange import an_intent, start

WANTED = schema.migrations().number
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

    after = SqliteStore(path).schema()
    assert before == SchemaStatus(current=0, wanted=WANTED)
    assert (after.current, after.wanted, after.pending) == (WANTED, WANTED, ())
    assert [step.number for step in after.applied] == list(range(schema.BASELINE + 1, WANTED + 1))


@pytest.mark.parametrize("number", [1, schema.BASELINE - 1, WANTED + 1, 99])
async def test_a_store_of_another_schema_version_is_refused_and_left_unchanged(path: Path, number: int) -> None:
    await made(path)
    execute(path, "update meta set value = ? where name in ('schema', 'compatible_from')", str(number))
    before = path.read_bytes()

    with pytest.raises(SchemaOutOfDate) as refused:
        await SqliteStore(path).open()

    told = str(refused.value)
    advice = "use the newer version here" if number > WANTED else "export with the old version, import with the new one"
    assert advice in told
    assert f"has schema number {number}," in told
    assert f"needs number {WANTED}:" in told
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
    script = schema.baseline() + FAILS
    monkeypatch.setattr(schema, "baseline", lambda: script)

    with pytest.raises(StoreUnavailable, match="no such table: nowhere"):
        await SqliteStore(path).open()

    assert SqliteStore(path).schema().current == 0
    connection = apsw.Connection(str(path))
    assert connection.execute("select name from sqlite_master").fetchall() == []
    connection.close()
