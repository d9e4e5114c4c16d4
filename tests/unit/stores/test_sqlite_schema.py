"""The schema: made, migrated and recognised; a file of another program or version is left alone."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores.migration import Migration
from holdfast.stores.sqlite import SqliteStore, schema
from holdfast.testing.contract.arrange import an_id, an_intent, start

WANTED = schema.migrations()[-1].version


async def made(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await start(store, an_intent(1))
    await store.close()


def execute(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()


def with_one_more(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let this code know one migration more than it does."""
    known = [*schema.migrations(), Migration(WANTED + 1, "9999_more", script)]
    monkeypatch.setattr(schema, "migrations", lambda: known)


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.version for migration in schema.migrations()] == list(range(1, WANTED + 1))


async def test_the_status_can_be_read_before_the_file_exists_and_when_it_is_closed(path: Path) -> None:
    before = SqliteStore(path).schema()
    await made(path)

    assert before == SchemaStatus(current=0, wanted=WANTED, pending=tuple(m.name for m in schema.migrations()))
    assert SqliteStore(path).schema() == SchemaStatus(current=WANTED, wanted=WANTED)


async def test_an_empty_store_gets_its_schema_even_when_migrating_is_not_allowed(path: Path) -> None:
    store = SqliteStore(path)

    await store.open(migrate=False)
    await start(store, an_intent(1))
    await store.close()


async def test_an_older_schema_is_migrated_and_keeps_its_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(path)
    with_one_more(monkeypatch, "create table more (id integer primary key)")
    store = SqliteStore(path)
    before = store.schema()

    await store.open()
    found, after = await store.get(an_id(1)), store.schema()
    await store.close()

    assert (before.current, before.pending) == (WANTED, ("9999_more",))
    assert (after.current, after.pending) == (WANTED + 1, ())
    assert found is not None


async def test_an_older_schema_is_refused_when_migrating_is_not_allowed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(path)
    with_one_more(monkeypatch, "create table more (id integer primary key)")

    with pytest.raises(SchemaOutOfDate, match=rf"version {WANTED}.* needs {WANTED + 1}; run `holdfast migrate`"):
        await SqliteStore(path).open(migrate=False)


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(path)
    with_one_more(monkeypatch, "create table more (id integer primary key); insert into nowhere values (1)")

    with pytest.raises(StoreUnavailable, match="no such table: nowhere"):
        await SqliteStore(path).open()
    monkeypatch.undo()

    assert SqliteStore(path).schema().current == WANTED
    connection = apsw.Connection(str(path))
    assert connection.execute("select name from sqlite_master where name = 'more'").fetchall() == []
    connection.close()


async def test_a_newer_schema_is_refused_with_both_versions(path: Path) -> None:
    await made(path)
    execute(path, "update meta set value = '99' where name = 'schema'")

    with pytest.raises(SchemaOutOfDate, match=rf"version 99.* knows {WANTED}; upgrade holdfast"):
        await SqliteStore(path).open()


async def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    execute(path, "create table customers (id integer primary key)")

    with pytest.raises(StoreUnavailable, match=r"another program \(it has a table 'customers'"):
        await SqliteStore(path).open()

    connection = apsw.Connection(str(path))
    assert connection.execute("select name from sqlite_master").fetchall() == [("customers",)]
    connection.close()


async def test_a_store_that_is_being_made_never_looks_like_an_older_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps are one transaction: if the last one fails, none of them was taken."""
    with_one_more(monkeypatch, "insert into nowhere values (1)")

    with pytest.raises(StoreUnavailable, match="no such table: nowhere"):
        await SqliteStore(path).open()

    assert SqliteStore(path).schema().current == 0
