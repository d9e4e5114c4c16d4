"""A place for a test of the Postgres store: a schema in its own database, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from holdfast.stores.postgres import schema, sql_files
from holdfast.stores.postgres.scripts import qualified


@dataclass(frozen=True)
class Place:
    """A schema, which may not exist, and a connection to its database. `{schema}` in a statement is its name."""

    connection: psycopg.Connection[Any]
    schema: str
    url: str

    def execute(self, text: str, *values: object) -> psycopg.Cursor[Any]:
        return self.connection.execute(qualified(text, self.schema), values or None)

    def all(self, text: str, *values: object) -> list[Any]:
        """Return the rows of a statement, without tuples around single values."""
        return [row[0] if len(row) == 1 else row for row in self.execute(text, *values).fetchall()]

    def many(self, text: str, rows: Sequence[Sequence[object]]) -> None:
        self.connection.cursor().executemany(qualified(text, self.schema), rows)

    def prepared(self) -> Place:
        schema.prepare(self.connection, self.schema, sql_files.migrations())
        return self

    @contextmanager
    def again(self) -> Iterator[Place]:
        """Return the same place with its own connection."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield Place(connection, self.schema, self.url)


@contextmanager
def empty_place(url: str) -> Iterator[Place]:
    """An empty database."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield Place(connection, "holdfast", url)
