"""Scripts: multi-statement operations as generators, so that one implementation runs on every kind of connection.

A script yields statements, and receives the one value that each returns. Blocking connections, async connections and
the session of the event loop all run the same script.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.rows import tuple_row

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
