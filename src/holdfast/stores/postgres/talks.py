"""Talks: what an operation says to the server and hears from it, whoever carries the words.

An operation that takes several trips is a generator of statements, each answered with the one value it gives back. So
it is written once, and works on connections that block as on those that have to be awaited.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.rows import tuple_row

T = TypeVar("T")

Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]

Trip = tuple[bytes, tuple[object, ...]]
"""A statement and its arguments."""


class Chain(NamedTuple):
    """Statements that make one trip, as none needs to know the answer to another.

    The answer is that of the last one which gives any. After one that fails the others are not carried out.
    """

    trips: tuple[Trip, ...]


Talk = Generator[Trip | Chain, Any, T]
"""An operation in several trips. An error is raised where the statement was said."""


def chained(*said: Trip | Chain) -> Chain:
    """One trip of several."""
    return Chain(tuple(trip for one in said for trip in (one.trips if isinstance(one, Chain) else (one,))))


def hold(connection: Connection, talk: Talk[T]) -> T:
    """Carry a talk out on a connection."""
    # Made here, not by the connection, whose owner may have it make others: of dictionaries, or for other statements.
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    try:
        trip = next(talk)
        while True:
            try:
                row = None
                for one in chained(trip).trips:
                    cursor.execute(*one)
                    row = cursor.fetchone() if cursor.description else row
            except BaseException as error:  # noqa: BLE001 - whatever it is, the talk has to undo its part
                trip = talk.throw(error)
            else:
                trip = talk.send(row[0] if row else None)
    except StopIteration as end:
        answer: T = end.value
        return answer


async def hold_async(connection: AsyncConnection, talk: Talk[T]) -> T:
    """Likewise, on a connection that has to be awaited."""
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    try:
        trip = next(talk)
        while True:
            try:
                row = None
                for one in chained(trip).trips:
                    await cursor.execute(*one)
                    row = await cursor.fetchone() if cursor.description else row
            except BaseException as error:  # noqa: BLE001 - whatever it is, the talk has to undo its part
                trip = talk.throw(error)
            else:
                trip = talk.send(row[0] if row else None)
    except StopIteration as end:
        answer: T = end.value
        return answer
