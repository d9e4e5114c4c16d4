"""The schema: made, migrated and recognised; what belongs to another program or version is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import msgspec
import psycopg
import pytest

from holdfast.core import limits, rules
from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.model import Run
from holdfast.core.ports import SchemaStatus
from holdfast.stores.migration import Migration
from holdfast.stores.postgres import schema
from holdfast.testing.patience import GUARD_SECONDS, wait_for
from tests.unit.stores.postgres.database import Place

WANTED = schema.migrations()[-1].version
MORE = "create table more (id integer primary key)"
CHANGE = "alter table runs add column more integer"


@pytest.fixture
def stranger(place: Place) -> Iterator[str]:
    """The name of a user to whom nothing was granted."""
    role = f"stranger_{uuid4().hex[:8]}"
    place.execute(f"create role {role}")
    yield role
    place.execute(f"drop owned by {role}")
    place.execute(f"drop role {role}")


def status(place: Place) -> SchemaStatus:
    return schema.status(place.connection, place.schema)


def prepare(place: Place, *, may_migrate: bool = True) -> None:
    schema.prepare(place.connection, place.schema, may_migrate=may_migrate)


def with_one_more(monkeypatch: pytest.MonkeyPatch, script: str = MORE) -> None:
    """Let this code know one migration more than it does."""
    known = [*schema.migrations(), Migration(WANTED + 1, "9999_more", script)]
    monkeypatch.setattr(schema, "migrations", lambda: known)


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.version for migration in schema.migrations()] == list(range(1, WANTED + 1))


def test_the_status_can_be_read_before_there_is_anything(empty: Place) -> None:
    before = status(empty)
    prepare(empty)

    assert before == SchemaStatus(current=0, wanted=WANTED, pending=tuple(m.name for m in schema.migrations()))
    assert status(empty) == SchemaStatus(current=WANTED, wanted=WANTED)


def test_an_empty_database_gets_its_schema_even_when_migrating_is_not_allowed(empty: Place) -> None:
    prepare(empty, may_migrate=False)

    assert status(empty).pending == ()


def test_a_schema_that_an_administrator_has_made_is_filled(empty: Place) -> None:
    empty.execute("create schema {schema}")

    prepare(empty, may_migrate=False)

    assert status(empty).pending == ()


def test_an_older_schema_is_migrated_and_keeps_its_runs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.execute("insert into {schema}.runs (type) values ('shop')")
    with_one_more(monkeypatch)
    before = status(place)

    prepare(place)

    after = status(place)
    assert (before.current, before.pending) == (WANTED, ("9999_more",))
    assert (after.current, after.pending) == (WANTED + 1, ())
    assert place.all("select type from {schema}.runs") == ["shop"]


PARKED = """
    insert into {schema}.waits (run_id, place, location, kind, since, names, after, count, topic)
    values (%s, 0, %s, 'slot', 1, '["type:shop"]', %s, 0, 'type:shop')
"""


def test_runs_that_waited_for_a_slot_before_ranks_have_their_places_behind_each_other(
    empty: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were sorted by priority alone. A group of children knows no priorities."""
    known = schema.migrations()
    with monkeypatch.context() as older:
        older.setattr(schema, "migrations", lambda: [one for one in known if one.name < "0011_claim_order"])
        prepare(empty)
    empty.execute("create index runs_queue on {schema}.runs (type, priority, ready_at, id)")
    for run_id, token, parent_id, priority in (("a", 0, None, 50), ("b", 0, "p", 100), ("c", 2, "p", 100)):
        insert = "insert into {schema}.runs (id, type, token, parent_id, priority) values (%s, 'shop', %s, %s, %s)"
        empty.execute(insert, run_id, token, parent_id, priority)
        empty.execute(PARKED, run_id, rules.LIMIT_LOCATION, priority)
    empty.execute(PARKED, "d", rules.SLOT_LOCATION, 0)

    prepare(empty)

    runs = [msgspec.json.decode(text, type=Run) for text in empty.all(RUNS)]
    levels = {run.id: limits.level_of(run) for run in runs}
    assert dict(empty.all("select run_id, after from {schema}.waits")) == {**levels, "d": 0}
    assert levels == {"a": 152, "b": 301, "c": 300}
    (index,) = empty.all("select pg_get_indexdef('{schema}.runs_queue'::regclass)")
    assert "CASE" in index


RUNS = "select row_to_json(r)::text from {schema}.runs_read as r order by id"


def test_an_older_schema_is_refused_when_migrating_is_not_allowed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_one_more(monkeypatch)

    with pytest.raises(SchemaOutOfDate, match=rf"version {WANTED}.* needs {WANTED + 1}; run `holdfast migrate`"):
        prepare(place, may_migrate=False)


def test_a_newer_schema_is_refused_with_both_versions(place: Place) -> None:
    place.execute("update {schema}.meta set value = '99' where name = 'schema'")

    with pytest.raises(SchemaOutOfDate, match=rf"version 99.* knows {WANTED}; upgrade holdfast"):
        prepare(place)


def test_a_migration_that_fails_changes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with_one_more(monkeypatch, "create table more (id integer primary key); insert into nowhere values (1)")

    with pytest.raises(psycopg.errors.UndefinedTable, match="nowhere"):
        prepare(place)
    monkeypatch.undo()

    assert status(place).current == WANTED
    assert place.all("select to_regclass('{schema}.more')") == [None]


def test_a_schema_of_another_program_is_refused_and_left_alone(empty: Place) -> None:
    empty.execute("create schema {schema}")
    empty.execute("create table {schema}.customers (id int)")

    with pytest.raises(StoreUnavailable, match=r"another program's \(it has 'customers'.*\?schema="):
        prepare(empty)

    assert empty.all("select to_regclass('{schema}.runs')") == [None]


def test_a_table_of_another_program_that_is_named_like_ours_does_not_pass_for_it(empty: Place) -> None:
    empty.execute("create schema {schema}")
    empty.execute("create table {schema}.meta (id int)")

    with pytest.raises(StoreUnavailable, match="another program's"):
        prepare(empty)


def test_of_many_who_migrate_at_once_one_does_and_the_others_find_it_done(empty: Place) -> None:
    barrier = threading.Barrier(6)

    def migrate() -> SchemaStatus:
        with empty.again() as place:
            barrier.wait(GUARD_SECONDS)
            prepare(place)
            return status(place)

    with ThreadPoolExecutor(6) as threads:
        found = [future.result(GUARD_SECONDS) for future in [threads.submit(migrate) for _ in range(6)]]

    assert found == [SchemaStatus(current=WANTED, wanted=WANTED)] * 6


def test_a_change_that_cannot_have_a_table_gives_up_for_a_moment_and_is_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_one_more(monkeypatch, CHANGE)
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.05)
    given_up = threading.Semaphore(0)
    monkeypatch.setattr(time, "sleep", lambda _seconds: given_up.release())

    with place.again() as reader, ThreadPoolExecutor(1) as threads:
        with reader.connection.transaction():
            reader.all("select count(*) from {schema}.runs")
            migration = threads.submit(prepare, place)
            wait_for("the migration gives up for a moment", given_up)
            wait_for("the migration gives up for a moment", given_up)
        migration.result(GUARD_SECONDS)

    assert status(place).current == WANTED + 1


def test_a_migration_that_never_gets_a_table_names_who_is_in_the_way(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_one_more(monkeypatch, CHANGE)
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(schema, "PATIENCE_SECONDS", 0.0)

    with place.again() as reader, reader.connection.transaction():
        reader.all("select count(*) from {schema}.runs")
        pid = reader.connection.info.backend_pid

        with pytest.raises(StoreUnavailable, match=rf"in use all the time.*\b{pid}\b"):
            prepare(place)


def test_a_user_who_may_not_create_a_schema_is_told_the_grant(place: Place, stranger: str) -> None:
    with place.again() as other:
        other.execute(f"set session authorization {stranger}")

        with pytest.raises(StoreUnavailable, match=rf'grant create on database .* to "{stranger}"'):
            schema.prepare(other.connection, f"{place.schema}_more", may_migrate=True)


def test_a_user_who_may_not_use_the_schema_is_told_the_grants(place: Place, stranger: str) -> None:
    with place.again() as other:
        other.execute(f"set session authorization {stranger}")

        with pytest.raises(StoreUnavailable, match=rf'grant usage on schema "{place.schema}" to "{stranger}"'):
            status(other)


def test_a_user_who_may_not_read_the_tables_is_told_the_grants(place: Place, stranger: str) -> None:
    place.execute(f"grant usage on schema {{schema}} to {stranger}")
    with place.again() as other:
        other.execute(f"set session authorization {stranger}")

        with pytest.raises(StoreUnavailable, match=r"must not read the tables.*grant select, insert, update, delete"):
            prepare(other)


def test_a_user_who_may_work_but_not_migrate_is_told_who_may(
    place: Place, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.execute(f"grant usage, create on schema {{schema}} to {stranger}")
    place.execute(f"grant select, insert, update, delete on all tables in schema {{schema}} to {stranger}")
    with_one_more(monkeypatch, CHANGE)
    with place.again() as other:
        other.execute(f"set session authorization {stranger}")

        with pytest.raises(StoreUnavailable, match=r"must be owner of table runs.*run `holdfast migrate` as"):
            prepare(other)


def test_functions_never_mistake_a_temporary_table_of_the_user_for_ours(place: Place) -> None:
    settings = place.all(
        "select distinct unnest(proconfig) from pg_proc where pronamespace = %s::regnamespace", place.schema
    )
    paths = {setting for setting in settings if setting.startswith("search_path")}

    assert paths <= {f"search_path={place.schema}, pg_catalog, pg_temp"}
