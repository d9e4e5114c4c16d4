"""Scripts: multi-statement operations as generators, so that one implementation runs on every kind of connection.

A script yields statements, and receives the one value that each returns. Blocking connections, async connections and
the session of the event loop all run the same script. Statements name the schema of every object, as `{schema}`: the
search path of a session belongs to the user, or to another client of a pooler.
"""

# ruff: noqa: S608 - the name of the schema is checked by `PostgresAddress`; values of users are always bound

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from holdfast.core.claim_order import BEGUN, CHILD, NEW

T = TypeVar("T")

Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]

Statement = tuple[bytes, tuple[object, ...]]
"""A statement and its arguments."""


class Statements(NamedTuple):
    """Statements that go to the server together, because none needs the answer to another.

    The answer is that of the last statement that returns one. After a statement that fails, no other is executed.
    """

    statements: tuple[Statement, ...]


Script = Generator[Statement | Statements, Any, T]
"""An operation of several statements. An error is raised at the statement that failed."""


def pipelined(*said: Statement | Statements) -> Statements:
    """Statements that go to the server together, from single ones and such groups."""
    return Statements(
        tuple(statement for one in said for statement in (one.statements if isinstance(one, Statements) else (one,)))
    )


def run_script(connection: Connection, script: Script[T]) -> T:
    """Run a script on a blocking connection."""
    # Not `connection.cursor()`: a user's connection may have factories for rows of dicts or for other cursors.
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    try:
        statement = next(script)
        while True:
            try:
                row = None
                for one in pipelined(statement).statements:
                    cursor.execute(*one)
                    row = cursor.fetchone() if cursor.description else row
            except BaseException as error:  # noqa: BLE001 - whatever it is, the script has to undo its part
                statement = script.throw(error)
            else:
                statement = script.send(row[0] if row else None)
    except StopIteration as end:
        answer: T = end.value
        return answer


async def run_script_async(connection: AsyncConnection, script: Script[T]) -> T:
    """Run a script on an async connection."""
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    try:
        statement = next(script)
        while True:
            try:
                row = None
                for one in pipelined(statement).statements:
                    await cursor.execute(*one)
                    row = await cursor.fetchone() if cursor.description else row
            except BaseException as error:  # noqa: BLE001 - whatever it is, the script has to undo its part
                statement = script.throw(error)
            else:
                statement = script.send(row[0] if row else None)
    except StopIteration as end:
        answer: T = end.value
        return answer


# Statements

RANK = f"case when token > 0 then {BEGUN} when parent_id is not null then {CHILD} else {NEW} end"
"""`claim_order.rank_of` in SQL. A statement can use the index `runs_queue` only with exactly this expression."""

_KNOWN_LIMIT = 1_000


@lru_cache(_KNOWN_LIMIT)
def qualified(text: str, schema: str) -> bytes:
    """Return the statement for one schema. Texts are constants, so each is built once and prepared once."""
    return text.replace("{schema}", identifier(schema)).encode()


def identifier(schema: str) -> str:
    """Return the name of a schema, quoted for SQL if needed."""
    return sql.Identifier(schema).as_string(None)


class Calls:
    """The statements that call the server functions of a schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.create = f"select {schema}.create_v1(%s, %s, %s)".encode()
        self.claim = (f"select {schema}.claim_v1(%s, %s, %s::text[], %s, %s, %s, %s, %s, %s, %s, %s)").encode()
        self.leased = (
            f"select {schema}.leases_within_limits_v1(array(select json_array_elements_text(%s)), %s::text[], %s)"
        ).encode()
        self.block_unreadable = f"select {schema}.block_unreadable_v1(%s, %s, %s, %s)".encode()
        self.checkpoint = f"select {schema}.checkpoint_v1(%s, %s, %s, %s, %s, %s, %s)".encode()
        self.checkpoint_one = (
            f"select {schema}.checkpoint_v1(array[%s], array[%s::bigint], array[%s::bigint], array[%s], %s, %s, %s)"
        ).encode()
        self.renew = f"select {schema}.renew_v1(%s, %s, %s, %s)".encode()
        self.trim = f"select {schema}.trim_v1(array(select json_array_elements_text(%s)))".encode()
        self.load = f"select {schema}.load_v1(%s, %s)".encode()
        self.apply = f"select {schema}.apply_v1(%s, %s)".encode()
        self.lost = f"select {schema}.lost_v1(%s, %s)".encode()
        self.now = f"select {schema}.time_v1(null)".encode()
        self.notify = f"select pg_notify('{schema}', '')".encode()
        self.retire = f"delete from {schema}.workers where id = %s".encode()


def answer(connection: Connection, call: bytes, *arguments: object) -> str:
    """Return the one value of a call."""
    row = connection.execute(call, arguments).fetchone()
    assert row is not None
    text: str = row[0]
    return text
