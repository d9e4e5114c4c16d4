"""The schema of a database file: check its number, create it, migrate it, or refuse the file.

A new database is made from `schema.sql`, which stays as it is, and all steps in `migrations` after it. An older one
goes through the steps that it lacks, each in a transaction of its own, after a copy of the file was made.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

import apsw
from msgspec import convert

from holdfast.core.claim_order import BEGUN, CHILD, NEW
from holdfast.core.clock import SystemClock
from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.ports import AppliedStep, Report, SchemaStatus
from holdfast.stores.migrations import Migration, Migrations, check, sql_migrations
from holdfast.stores.sql_text import filled_in
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.connections import open_for_reading, unavailable
from holdfast.stores.sqlite.files import PRIVATE_MODE, utf8_name

BASELINE = 7
"""The schema number of `schema.sql`."""

APPLICATION_ID = 0x484F4C44
"""The mark `HOLD` in the header of every holdfast database."""

_MEGABYTE = 1 << 20
_PAGES_AT_ONCE = 4_096

_CONSTANTS = {"begun": str(BEGUN), "child": str(CHILD), "new": str(NEW)}

_NUMBERS = """
    select max(value) filter (where name = 'schema'), max(value) filter (where name = 'compatible_from')
    from meta
    where name in ('schema', 'compatible_from')
"""

_SET_NUMBER = rows.upsert("meta", "name, value", "name")
_STEPS = "select number, name, at, version from schema_step order by number"
_ADD_STEP = rows.insertion("schema_step", "number, name, at, version")

_log = logging.getLogger("holdfast.store")


@cache
def migrations() -> Migrations[str]:
    """Return the steps after `schema.sql`."""
    return sql_migrations(BASELINE, files(__package__) / "migrations", _CONSTANTS)


def baseline() -> str:
    """Return the statements that create the schema before all steps."""
    return filled_in((files(__package__) / "schema.sql").read_text("utf-8"), _CONSTANTS)


def status(connection: apsw.Connection, path: Path, steps: Migrations[str]) -> SchemaStatus:
    """Return the schema number of an open database. Refuses a database of another program."""
    if connection.execute("pragma application_id").get != APPLICATION_ID:
        tables = connection.execute("select name from sqlite_master where type = 'table' limit 1").fetchall()
        if tables:
            raise StoreUnavailable(
                f"{path} is a database of another program (it has a table {tables[0][0]!r}, but no holdfast mark in "
                "its header); choose another file"
            )
        return steps.status(0)
    current, oldest = connection.execute(_NUMBERS).get
    found = connection.execute(_STEPS) if int(current) > BASELINE else ()
    applied = [convert(dict(zip(AppliedStep.__struct_fields__, row, strict=True)), AppliedStep) for row in found]
    return steps.status(int(current), int(oldest or 0), applied)


def status_of_file(path: Path, steps: Migrations[str]) -> SchemaStatus:
    """Return the schema number of a database file, which may not exist yet."""
    if not path.exists():
        return steps.status(0)
    connection = open_for_reading(path)
    try:
        return status(connection, path, steps)
    finally:
        connection.close()


def check_number(connection: apsw.Connection, path: Path, steps: Migrations[str]) -> None:
    """Refuse a database that another process has migrated to a number with which this code cannot write.

    Raises:
        SchemaOutOfDate: The number is too high.

    """
    current, oldest = connection.execute(_NUMBERS).get
    check(steps.status(int(current), int(oldest or 0)), str(path), may_migrate=True)


def translate(path: Path, error: Exception, steps: Migrations[str]) -> Exception:
    """Return the error for a caller, with the driver's as its cause.

    A statement that does not fit the tables is the first sign that another process has migrated the database.
    """
    translation = unavailable(path, error)
    if isinstance(error, apsw.SQLError):
        try:
            check(status_of_file(path, steps), str(path), may_migrate=True)
        except SchemaOutOfDate as refusal:
            translation = refusal
        except (apsw.Error, StoreUnavailable):
            pass
    if translation is not error:
        translation.__cause__ = error
    return translation


def prepare(connection: apsw.Connection, path: Path, steps: Migrations[str], report: Report) -> None:
    """Create the schema of an empty database, or migrate an older one. The caller must hold the write lock.

    Raises:
        SchemaOutOfDate: The number is too high, or too old to migrate. The database stays unchanged.

    """
    found = status(connection, path, steps)
    check(found, str(path), may_migrate=True)
    if found.current == 0:
        with _transaction(connection):
            _run(connection, baseline())
            connection.execute(f"pragma application_id = {APPLICATION_ID}")
            _set_numbers(connection, BASELINE, BASELINE)
            for migration in steps.all:
                _apply(connection, migration)
    elif found.pending:
        report(f"copying {path}")
        copy = copy_beside(connection, path, found.pending[0].number)
        _log.warning(
            "migrating %s from schema number %d to %d; a copy of it is %s", path, found.current, found.wanted, copy
        )
        for migration in steps.after(found.current):
            report(f"step {migration.step.number}: {migration.step.about}")
            with _transaction(connection):
                _apply(connection, migration)


def _apply(connection: apsw.Connection, migration: Migration[str]) -> None:
    """Go through one step, and record it."""
    before, oldest = connection.execute(_NUMBERS).get
    _run(connection, migration.body)
    done = migration.applied(SystemClock().now())
    connection.execute(_ADD_STEP, (done.number, done.name, done.at, done.version))
    _set_numbers(connection, done.number, migration.compatible_from(int(oldest or before)))


def _set_numbers(connection: apsw.Connection, current: int, oldest: int) -> None:
    connection.executemany(_SET_NUMBER, [("schema", str(current)), ("compatible_from", str(oldest))])


def _run(connection: apsw.Connection, script: str) -> None:
    connection.execute(script).fetchall()  # fetching all rows runs the script to its end


@contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[None]:
    """Commit at the end, so that no process sees a part of a change. Undo everything after an error."""
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def copy_beside(connection: apsw.Connection, path: Path, number: int) -> Path:
    """Copy a database to `shop.db.before-8`, with what is still in its write-ahead log. Only the owner can read it.

    The copy of an earlier attempt is replaced when the new one is complete.

    Raises:
        StoreUnavailable: The disk has no space for the copy. Nothing was changed.

    """
    copy = path.with_name(f"{path.name}.before-{number}")
    part = copy.with_name(copy.name + ".part")
    needed = connection.execute("pragma page_count").get * connection.execute("pragma page_size").get
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise StoreUnavailable(
            f"the database {path} cannot be migrated: its copy {copy} needs {needed / _MEGABYTE:,.1f} MiB, and only "
            f"{free / _MEGABYTE:,.1f} MiB are free on the disk; nothing was changed; free some space and try again"
        )
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE))
        _write(connection, part)
        part.replace(copy)
        _sync_directory(copy.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return copy


def _write(connection: apsw.Connection, part: Path) -> None:
    target = apsw.Connection(utf8_name(part), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with target.backup("main", connection, "main") as backup:
            while not backup.done:
                backup.step(_PAGES_AT_ONCE)
    finally:
        target.close()


def _sync_directory(directory: Path) -> None:
    """Make the new name durable."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
