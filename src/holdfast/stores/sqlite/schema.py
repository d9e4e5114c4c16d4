"""The schema: numbered SQL files, applied forward only, all that are missing in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores.migration import Migration, migrations_of, status_at
from holdfast.stores.sqlite.connections import open_for_reading

APPLICATION_ID = 0x484F4C44
"""Stands in the header of every file of ours: `HOLD`."""

_SET_VERSION = """
    insert into meta (name, value)
    values ('schema', ?)
    on conflict (name) do update
    set value = excluded.value
"""


def migrations() -> list[Migration]:
    """All there are, in order."""
    return migrations_of(__package__)


def status(connection: apsw.Connection, path: Path) -> SchemaStatus:
    """The version of an open database. Refuses a file that belongs to something else."""
    return status_at(_version(connection, path), migrations())


def status_of_file(path: Path) -> SchemaStatus:
    """The version of a database that may not be open, nor exist."""
    if not path.exists():
        return status_at(0, migrations())
    connection = open_for_reading(path)
    try:
        return status(connection, path)
    finally:
        connection.close()


def prepare(connection: apsw.Connection, path: Path, *, may_migrate: bool) -> None:
    """Bring a database to the version this code knows. The caller has the turn to write.

    An empty file gets the schema in any case: there is nothing in it that could be older.
    """
    found = status(connection, path)
    if found.current > found.wanted:
        raise SchemaOutOfDate(
            f"{path} has schema version {found.current}, made by a newer holdfast; this one knows {found.wanted}; "
            "upgrade holdfast"
        )
    if found.pending and found.current > 0 and not may_migrate:
        raise SchemaOutOfDate(
            f"{path} has schema version {found.current}, this holdfast needs {found.wanted}; run `holdfast migrate`"
        )
    pending = [migration for migration in migrations() if migration.version > found.current]
    if pending:
        _apply(connection, pending)


def _apply(connection: apsw.Connection, pending: Sequence[Migration]) -> None:
    """Take all steps at once: whoever looks meanwhile must not find a store that seems to be of an older version."""
    connection.execute("begin immediate")
    try:
        for migration in pending:
            connection.execute(migration.script).fetchall()  # to the end: a script has many statements
        connection.execute(_SET_VERSION, (str(pending[-1].version),))
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _version(connection: apsw.Connection, path: Path) -> int:
    if connection.execute("pragma application_id").get != APPLICATION_ID:
        tables = connection.execute("select name from sqlite_master where type = 'table' limit 1").fetchall()
        if tables:
            raise StoreUnavailable(
                f"{path} is a database of another program (it has a table {tables[0][0]!r}, but is not marked as "
                "holdfast's); choose another file"
            )
        return 0
    found = connection.execute("select value from meta where name = 'schema'").get
    return int(found)
