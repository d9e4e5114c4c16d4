"""An interrupted migration: each step has happened or has not, and the next migration continues."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
import psycopg
import pytest

from holdfast import SchemaOutOfDate, StoreUnavailable
from holdfast.core.questions import Query
from holdfast.stores.kv import KeyValueStore, names
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Committed, Gain, Part
from holdfast.stores.kv.migrations import BASELINE, MIGRATIONS
from holdfast.stores.kv.names import MOVING_FIELDS
from holdfast.stores.migrations import Migrations
from holdfast.stores.postgres import schema as postgres_schema
from holdfast.stores.postgres import sql_files
from holdfast.stores.sqlite import SqliteStore, schema
from holdfast.stores.sqlite.connections import open_for_writing
from holdfast.testing.contract.arrange import an_intent, start
from tests.golden import files
from tests.key_value.faulty_driver import DriverFaults, FaultyDriver, of_worker
from tests.key_value.wrapped_driver import WrappedDriver
from tests.migrations.steps import ignore, of_key_values, of_postgres, of_sqlite

# The steps of the tests add a colour and a price. They follow those of the store.
SQLITE_NUMBER = schema.migrations().number
POSTGRES_NUMBER = sql_files.migrations().number

# SQLite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with schema number 7."""
    path = tmp_path / "shop.db"
    files.load_sqlite(schema.BASELINE, path)
    connection = apsw.Connection(str(path))
    connection.execute("pragma journal_mode = wal")  # as every store has it
    connection.close()
    return path


def in_a_process(work: Callable[[], object]) -> int:
    """Do something in a forked process. Return its exit code, or the number of the signal that killed it, below 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except StoreUnavailable:
            code = 5
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def migrate(path: Path, killed_at: int = 0) -> None:
    """Migrate a database. Kill this process before a statement."""
    count = 0

    def trace(_cursor: Any, _statement: str, _bindings: Any) -> bool:
        nonlocal count
        count += 1
        if count == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    connection = open_for_writing(path)
    connection.exec_trace = trace
    try:
        schema.prepare(connection, path, of_sqlite(), ignore)
    except apsw.Error as error:
        raise StoreUnavailable(str(error)) from error
    finally:
        connection.close()


def check_consistent(path: Path) -> int:
    """Check that the tables are those of the number of a database. Return the number."""
    number = SqliteStore(path, steps=of_sqlite()).schema().current
    with apsw.Connection(str(path)) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
        columns = {row[1] for row in connection.execute("pragma table_info(run)")}
        assert ("schema_step" in tables) == (number > 7)
        assert ("colour" in columns) == ("colours" in tables) == (number > SQLITE_NUMBER)
        assert ("price" in tables) == (number > SQLITE_NUMBER + 1)
        if number > SQLITE_NUMBER:
            assert connection.execute("select count(*) from run where colour is null").get == 0
        if number > 7:
            steps = [row[0] for row in connection.execute("select number from schema_step order by number")]
            assert steps == list(range(8, number + 1))
    return number


@pytest.mark.long
def test_a_database_is_consistent_after_a_kill_at_any_statement(path: Path, tmp_path: Path) -> None:
    golden, seen = path.read_bytes(), set()
    for statement in range(1, 200):
        for left in tmp_path.glob("shop.db*"):
            left.unlink()
        path.write_bytes(golden)
        code = in_a_process(partial(migrate, path, statement))
        seen.add(check_consistent(path))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        migrate(path)
        assert check_consistent(path) == SQLITE_NUMBER + 2
    assert seen == set(range(7, SQLITE_NUMBER + 3))


def test_a_database_is_unchanged_if_the_disk_is_full(path: Path) -> None:
    before = path.read_bytes()

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, resource.RLIM_INFINITY))
        migrate(path)

    assert in_a_process(work) == 5
    assert (check_consistent(path), path.read_bytes() == before) == (7, True)
    assert [found.name for found in path.parent.glob("shop.db.before*")] == []
    migrate(path)
    assert check_consistent(path) == SQLITE_NUMBER + 2


async def test_a_database_without_space_for_a_copy_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1_000))
    before = path.read_bytes()

    with pytest.raises(StoreUnavailable, match=r"shop\.db\.before-8 needs 0\.\d MiB, and only 0\.0 MiB are free"):
        await SqliteStore(path).open()

    assert path.read_bytes() == before
    assert list(path.parent.glob("shop.db.before*")) == []


async def test_opening_a_database_makes_a_copy_first_and_logs_its_name(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = apsw.Connection(str(path))
    writer.execute("pragma journal_mode = wal")
    writer.execute("update run set priority = 3")  # in the write-ahead log

    store = SqliteStore(path)
    await store.open()
    await store.close()

    copy = path.with_name("shop.db.before-8")
    assert f"a copy of it is {copy}" in caplog.text
    assert copy.stat().st_mode & 0o777 == 0o600
    assert SqliteStore(copy).schema().current == 7
    with apsw.Connection(str(copy)) as connection:
        assert connection.execute("select distinct priority from run").fetchall() == [(3,)]
    writer.close()


async def test_a_copy_can_be_put_back_and_migrated_again(path: Path) -> None:
    for _ in range(2):
        store = SqliteStore(path)
        await store.open()
        await store.close()
        path.with_name("shop.db.before-8").replace(path)

    assert SqliteStore(path).schema().current == 7


async def test_a_step_that_fails_leaves_the_steps_before_it(path: Path) -> None:
    steps = of_sqlite()
    bad = Migrations(steps.baseline, [*steps.all[:-1], type(steps.all[-1])(steps.all[-1].step, "insert into nowhere")])

    with pytest.raises(StoreUnavailable):
        await SqliteStore(path, steps=bad).open()

    assert check_consistent(path) == SQLITE_NUMBER + 1


# Postgres


class CutConnection(psycopg.Connection[Any]):
    """A connection that breaks before or after a statement, as it does if its process is killed."""

    cut_at = 0
    count = 0

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        if self.count == self.cut_at:
            self.close()
        return super().execute(*args, **kwargs)


@pytest.mark.long
def test_a_schema_is_wholly_old_or_new_after_a_cut_at_any_statement(postgres_url: str) -> None:
    files.load_postgres(sql_files.BASELINE, postgres_url)
    steps, cuts = of_postgres(), 0
    for statement in range(1, 500):
        with psycopg.connect(postgres_url, autocommit=True) as plain:
            current = postgres_schema.status(plain, "holdfast", steps).current
            tables = plain.execute("select to_regclass('holdfast.schema_steps'), to_regclass('holdfast.prices')")
            assert (current, None in tables.fetchall()[0]) in [(13, True), (POSTGRES_NUMBER + 2, False)]
        if current == POSTGRES_NUMBER + 2:
            break
        connection = CutConnection.connect(postgres_url, autocommit=True)
        connection.cut_at = statement
        try:
            postgres_schema.prepare(connection, "holdfast", steps, ignore)
        except psycopg.OperationalError:
            cuts += 1
        finally:
            connection.close()
    with psycopg.connect(postgres_url, autocommit=True) as plain:
        found = postgres_schema.status(plain, "holdfast", steps)
        colours = plain.execute("select distinct colour from holdfast.runs").fetchall()
    assert cuts > 50
    assert (found.current, found.compatible_from, colours) == (steps.number, steps.number, [("red",)])
    assert [step.number for step in found.applied] == list(range(14, steps.number + 1))


def test_a_view_with_other_columns_is_made_again_and_keeps_its_grants(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = sql_files.views()
    views["slot"] = views["slot"].replace("select name", "select 1 as place, name")
    monkeypatch.setattr(sql_files, "views", lambda: views)
    with psycopg.connect(postgres_store_url, autocommit=True) as connection:
        connection.execute("grant select on holdfast.slot to public")

        postgres_schema.prepare(connection, "holdfast", of_postgres(), ignore)

        assert connection.execute("select has_table_privilege('public', 'holdfast.slot', 'select')").fetchone() == (
            True,
        )
        assert connection.execute("select place from holdfast.slot").fetchall() == []


def test_functions_of_refused_workers_are_dropped_and_others_stay(postgres_store_url: str) -> None:
    old = "create function holdfast.claim_v0() returns void language sql as ''"
    found = "select to_regproc('holdfast.claim_v0') is null"
    with psycopg.connect(postgres_store_url, autocommit=True) as connection:
        connection.execute(old)

        postgres_schema.prepare(connection, "holdfast", of_postgres(1), ignore)
        assert connection.execute(found.encode()).fetchone() == (False,)

        postgres_schema.prepare(connection, "holdfast", of_postgres(2), ignore)
        assert connection.execute(found.encode()).fetchone() == (True,)


# Key-value stores


def heads_in(data: Dictionary) -> list[dict[str, bytes]]:
    """Return the fields of all runs."""
    return [partition.fields for name, partition in data.partitions.items() if name.startswith(names.head(""))]


async def a_dictionary() -> Dictionary:
    """The data of a store with the number of the baseline, and runs."""
    data = Dictionary()
    store = KeyValueStore(lambda: DictionaryDriver(data), steps=Migrations(BASELINE, []))
    await store.open()
    await start(store, *(an_intent(number) for number in range(1, 8)))
    await store.close()
    return data


@pytest.mark.parametrize("fault", ["crash before", "crash after", "repeat"])
async def test_a_key_value_store_is_migrated_after_an_interruption_at_any_call(
    fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.kv.migrations.RUNS_AT_ONCE", 3)
    steps = of_key_values()
    for call in range(1, 200):
        data = await a_dictionary()
        faults = DriverFaults({call: fault})
        store = KeyValueStore(partial(FaultyDriver, DictionaryDriver(data), faults), steps=steps)
        try:
            with of_worker():
                await store.open(ignore)
        except StoreUnavailable:
            faults.revive()
            await store.open(ignore)
        found = store.schema()
        assert (found.current, found.compatible_from) == (MIGRATIONS.number + 2, MIGRATIONS.number + 2)
        assert [step.number for step in found.applied] == list(range(3, steps.number + 1))
        assert len(await store.list(Query())) == 7
        assert [(head["colour"], head["price"]) for head in heads_in(data)] == [(b"red", b"1")] * 7
        await store.close()
        if faults.left:
            break
    assert call > 15


async def test_older_code_is_refused_while_a_step_that_is_not_compatible_is_interrupted() -> None:
    data, steps = await a_dictionary(), of_key_values()
    made = KeyValueStore(lambda: DictionaryDriver(data), steps=of_key_values(1))
    await made.open(ignore)
    await made.close()
    faults = DriverFaults({4: "crash before"})  # after the oldest number was written, before the runs are changed
    store = KeyValueStore(lambda: FaultyDriver(DictionaryDriver(data), faults), steps=steps)

    with of_worker(), pytest.raises(StoreUnavailable):
        await store.open(ignore)

    assert store.schema().current == MIGRATIONS.number + 1
    with pytest.raises(SchemaOutOfDate, match=f"schema number {MIGRATIONS.number + 2}, made by a newer version"):
        await KeyValueStore(lambda: DictionaryDriver(data), steps=of_key_values(1)).open()


class Rival(WrappedDriver):
    """A driver beside which another process changes a run between the load and the commit of a step."""

    async def commit(self, parts: Sequence[Part | Gain], hint: bytes = b"") -> Committed:
        heads = [
            name for part in parts if isinstance(part, Part) for name in part.puts if name.startswith(names.head(""))
        ]
        if heads and not self.has_interfered:
            self.has_interfered = True
            await self.inner.commit([Part(checks={}, puts={heads[0]: {"colour": b"blue"}})])
        return await super().commit(parts, hint)

    has_interfered = False


async def test_a_step_does_not_overwrite_what_another_process_wrote_meanwhile() -> None:
    data = await a_dictionary()
    store = KeyValueStore(lambda: Rival(DictionaryDriver(data)), steps=of_key_values(1))

    await store.open(ignore)

    assert sorted(head["colour"] for head in heads_in(data)) == [b"blue", *[b"red"] * 6]


async def test_a_run_that_cannot_be_read_does_not_stop_a_migration() -> None:
    data = await a_dictionary()
    place = MOVING_FIELDS.index("stop")
    heads = heads_in(data)
    before = msgspec.json.decode(heads[1][names.MOVING])
    heads[0][names.MOVING] = b'{"no": "array'
    heads[1][names.MOVING] = msgspec.json.encode([*before[:place], True, *before[place + 1 :]])
    heads[2][names.MOVING] = msgspec.json.encode([*before[:place], False, *before[place + 1 :]])

    await KeyValueStore(lambda: DictionaryDriver(data)).open(ignore)

    heads = heads_in(data)
    assert heads[0][names.MOVING] == b'{"no": "array'
    assert [msgspec.json.decode(head[names.MOVING])[place] for head in heads[1:3]] == ["pause", None]
