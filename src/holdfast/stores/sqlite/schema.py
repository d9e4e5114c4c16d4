"""The schema of a database file: check its number, create it from `schema.sql`, or refuse the file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import apsw

from holdfast.core.claim_order import BEGUN, CHILD, NEW
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores import schema_number
from holdfast.stores.sql_text import filled_in
from holdfast.stores.sqlite.connections import open_for_reading

NUMBER = 7
"""The number of the schema. Every change of `schema.sql`, except to comments, needs a new number."""

APPLICATION_ID = 0x484F4C44
"""The mark `HOLD` in the header of every holdfast database."""

_CONSTANTS = {"begun": str(BEGUN), "child": str(CHILD), "new": str(NEW)}

_SET_NUMBER = """
    insert into meta (name, value)
    values ('schema', ?)
"""


def script() -> str:
    """Return all statements that create the schema."""
    return filled_in((files(__package__) / "schema.sql").read_text("utf-8"), _CONSTANTS)


def status(connection: apsw.Connection, path: Path) -> SchemaStatus:
    """Return the schema number of an open database. Refuses a database of another program."""
    return SchemaStatus(current=_number(connection, path), wanted=NUMBER)


def status_of_file(path: Path) -> SchemaStatus:
    """Return the schema number of a database file, which may not exist yet."""
    if not path.exists():
        return SchemaStatus(current=0, wanted=NUMBER)
    connection = open_for_reading(path)
    try:
        return status(connection, path)
    finally:
        connection.close()


def prepare(connection: apsw.Connection, path: Path) -> None:
    """Create the schema if the database is empty. The caller must hold the write lock.

    Raises:
        SchemaOutOfDate: The database has another number. It stays unchanged.

    """
    found = status(connection, path)
    schema_number.check(found, str(path))
    if found.current == 0:
        _make(connection)


def _make(connection: apsw.Connection) -> None:
    """Create the schema in one transaction, so that no process sees a part of it."""
    connection.execute("begin immediate")
    try:
        connection.execute(script()).fetchall()  # fetching all rows runs the script to its end
        connection.execute(_SET_NUMBER, (str(NUMBER),))
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _number(connection: apsw.Connection, path: Path) -> int:
    if connection.execute("pragma application_id").get != APPLICATION_ID:
        tables = connection.execute("select name from sqlite_master where type = 'table' limit 1").fetchall()
        if tables:
            raise StoreUnavailable(
                f"{path} is a database of another program (it has a table {tables[0][0]!r}, but no holdfast mark in "
                "its header); choose another file"
            )
        return 0
    found = connection.execute("select value from meta where name = 'schema'").get
    return int(found)
