"""The schema: created and recognised; a schema of another program or version is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores.postgres import schema, sql_files, topics
from holdfast.testing.patience import GUARD_SECONDS, wait_for
from tests.unit.stores.postgres.database import Place

WANTED = sql_files.migrations().number
OLDER = "export with the old version, import with the new one (`holdfast export"
NEWER = "use the newer version here, or restore a backup of the store"
CATALOG = """
    select oid::text, xmin::text
    from pg_class
    where relnamespace = '{schema}'::regnamespace
    union all
    select oid::text, xmin::text
    from pg_proc
    where pronamespace = '{schema}'::regnamespace
    order by 1
"""


@pytest.fixture
def stranger(place: Place) -> Iterator[str]:
    """The name of a user without any grants."""
    role = f"stranger_{uuid4().hex[:8]}"
    place.execute(f"create role {role}")
    yield role
    place.execute(f"drop owned by {role}")
    place.execute(f"drop role {role}")


def status(place: Place) -> SchemaStatus:
    return schema.status(place.connection, place.schema, sql_files.migrations())


def prepare(place: Place) -> None:
    schema.prepare(place.connection, place.schema, sql_files.migrations())


def with_script(monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    """Extend the schema by a statement."""
    tables = f"{sql_files.tables()}\n{more};"
    monkeypatch.setattr(sql_files, "tables", lambda: tables)


def test_the_status_can_be_read_before_the_schema_exists(empty: Place) -> None:
    before = status(empty)
    prepare(empty)

    after = status(empty)
    assert before == SchemaStatus(current=0, wanted=WANTED)
    assert (after.current, after.wanted, after.pending) == (WANTED, WANTED, ())
    assert [step.number for step in after.applied] == list(range(sql_files.BASELINE + 1, WANTED + 1))


def test_an_existing_empty_schema_is_filled(empty: Place) -> None:
    empty.execute("create schema {schema}")

    prepare(empty)

    assert status(empty).current == WANTED


@pytest.mark.parametrize("number", [1, sql_files.BASELINE - 1, WANTED + 1, 99])
def test_a_schema_of_another_version_is_refused_and_left_unchanged(place: Place, number: int) -> None:
    place.execute("update {schema}.meta set value = %s where name in ('schema', 'compatible_from')", str(number))
    place.execute("insert into {schema}.runs (type) values ('shop')")
    before = place.all(CATALOG)

    with pytest.raises(SchemaOutOfDate) as refused:
        prepare(place)

    told = str(refused.value)
    assert (NEWER if number > WANTED else OLDER) in told
    assert f"has schema number {number}," in told
    assert f"needs number {WANTED}:" in told
    assert ("newer" if number > WANTED else "older") in told
    assert place.all(CATALOG) == before
    assert set(place.all("select value from {schema}.meta")) == {str(number)}
    assert place.all("select type from {schema}.runs") == ["shop"]


def test_a_schema_that_cannot_be_created_leaves_nothing_behind(empty: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with_script(monkeypatch, "insert into nowhere values (1)")

    with pytest.raises(psycopg.errors.UndefinedTable, match="nowhere"):
        prepare(empty)

    assert status(empty).current == 0
    assert empty.all("select to_regnamespace('{schema}')") == [None]


def test_a_schema_of_another_program_is_refused_and_left_alone(empty: Place) -> None:
    empty.execute("create schema {schema}")
    empty.execute("create table {schema}.customers (id int)")

    with pytest.raises(StoreUnavailable, match=r"another program \(it has 'customers'.*\?schema="):
        prepare(empty)

    assert empty.all("select to_regclass('{schema}.runs')") == [None]


def test_a_table_of_another_program_with_the_name_of_ours_is_not_accepted(empty: Place) -> None:
    empty.execute("create schema {schema}")
    empty.execute("create table {schema}.meta (id int)")

    with pytest.raises(StoreUnavailable, match="belongs to another program"):
        prepare(empty)


def test_one_of_many_concurrent_processes_creates_the_schema(empty: Place) -> None:
    barrier = threading.Barrier(6)

    def make() -> SchemaStatus:
        with empty.again() as place:
            barrier.wait(GUARD_SECONDS)
            prepare(place)
            return status(place)

    with ThreadPoolExecutor(6) as threads:
        found = [future.result(GUARD_SECONDS) for future in [threads.submit(make) for _ in range(6)]]

    assert {(one.current, one.wanted) for one in found} == {(WANTED, WANTED)}


def test_a_process_that_cannot_create_the_schema_at_once_waits_and_tries_again(
    empty: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.05)
    given_up = threading.Semaphore(0)
    monkeypatch.setattr(time, "sleep", lambda _seconds: given_up.release())

    with empty.again() as other, ThreadPoolExecutor(1) as threads:
        with other.connection.transaction():
            topics.take_turn(other.connection, other.schema, topics.MAKING)
            making = threads.submit(prepare, empty)
            wait_for("the second one gives up for a moment", given_up)
            wait_for("the second one gives up for a moment", given_up)
        making.result(GUARD_SECONDS)

    assert status(empty).current == WANTED


def test_a_process_that_never_gets_to_create_the_schema_names_the_blocker(
    empty: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(schema, "PATIENCE_SECONDS", 0.0)

    with empty.again() as other, other.connection.transaction():
        topics.take_turn(other.connection, other.schema, topics.MAKING)
        pid = other.connection.info.backend_pid

        with pytest.raises(StoreUnavailable, match=rf"held a lock on its tables all the time.*\b{pid}\b"):
            prepare(empty)


def test_a_user_who_may_not_create_a_schema_gets_the_grant_to_ask_for(place: Place, stranger: str) -> None:
    with place.again() as other:
        other.execute(f"set session authorization {stranger}")

        with pytest.raises(StoreUnavailable, match=rf'grant create on database .* to "{stranger}"'):
            schema.prepare(other.connection, f"{place.schema}_more", sql_files.migrations())


def test_a_user_who_may_not_use_the_schema_gets_the_grants_to_ask_for(place: Place, stranger: str) -> None:
    with place.again() as other:
        other.execute(f"set session authorization {stranger}")

        with pytest.raises(StoreUnavailable, match=rf'grant usage on schema "{place.schema}" to "{stranger}"'):
            status(other)


def test_a_user_who_may_not_read_the_tables_gets_the_grants_to_ask_for(place: Place, stranger: str) -> None:
    place.execute(f"grant usage on schema {{schema}} to {stranger}")
    with place.again() as other:
        other.execute(f"set session authorization {stranger}")

        with pytest.raises(StoreUnavailable, match=r"not allowed to read.*grant select, insert, update, delete"):
            prepare(other)


def test_a_user_who_may_not_fill_the_schema_gets_the_name_of_the_owner(place: Place, stranger: str) -> None:
    place.execute("create schema more")
    place.execute(f"grant usage on schema more to {stranger}")
    with place.again() as other:
        other.execute(f"set session authorization {stranger}")

        with pytest.raises(StoreUnavailable, match=r"not allowed to create tables.*run `holdfast migrate` as"):
            schema.prepare(other.connection, "more", sql_files.migrations())


def test_every_function_has_a_body_that_the_server_accepts(place: Place) -> None:
    """Functions are created without a check of their bodies, because they refer to each other."""
    place.execute("set search_path = {schema}, pg_catalog, pg_temp")

    validated = place.all(
        """
        select case lanname when 'sql' then fmgr_sql_validator(p.oid) else plpgsql_validator(p.oid) end::text
        from pg_proc as p
        join pg_language as l on l.oid = p.prolang
        where p.pronamespace = '{schema}'::regnamespace
        """
    )

    assert len(validated) == len(sql_files.function_texts())


def test_functions_never_use_a_temporary_table_of_the_user(place: Place) -> None:
    settings = place.all(
        "select distinct unnest(proconfig) from pg_proc where pronamespace = %s::regnamespace", place.schema
    )
    paths = {setting for setting in settings if setting.startswith("search_path")}

    assert paths <= {f"search_path={place.schema}, pg_catalog, pg_temp"}
