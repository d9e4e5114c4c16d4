"""Databases on a server, one for each test: each begins empty, and costs a few milliseconds.

To make and to drop a database takes Postgres a tenth of a second. So one that a test is done with is emptied and lent
to the next one, and dropped at the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit

from holdfast.core.errors import InvalidRequest

if TYPE_CHECKING:
    from types import TracebackType

    from psycopg import Connection

_PREFIX = "holdfast_test_"
_CONNECT_SECONDS = 20

_END_SESSIONS = """
select pg_terminate_backend(pid)
from pg_stat_activity
where datname = current_database()
  and pid <> pg_backend_pid()
"""

_SCHEMAS = """
select quote_ident(nspname)
from pg_namespace
where nspname not like 'pg\\_%'
  and nspname <> 'information_schema'
"""

_PUBLIC = """
create schema public;
grant usage, create on schema public to public
"""


class Databases:
    """Lends databases on a server whose URL may create them. Used by one thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._idle: list[str] = []
        self._lent: list[str] = []

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The URL of an empty database, which is nobody else's until the end of the block."""
        name = self._idle.pop() if self._idle else self._create()
        self._lent.append(name)
        try:
            yield self._url_of(name)
        finally:
            self._empty(name)
            self._lent.remove(name)
            self._idle.append(name)

    def close(self) -> None:
        """Drop every database, also those that are lent."""
        with _connected(self.url) as connection:
            for name in (*self._idle, *self._lent):
                connection.execute(f"drop database if exists {name} with (force)")
        self._idle.clear()
        self._lent.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self) -> str:
        name = _PREFIX + secrets.token_hex(6)
        with _connected(self.url) as connection:
            connection.execute(f"create database {name} template template0")
        return name

    def _empty(self, name: str) -> None:
        with _connected(self._url_of(name)) as connection:
            connection.execute(_END_SESSIONS)
            connection.execute(f"alter database {name} reset all")
            for (schema,) in connection.execute(_SCHEMAS).fetchall():
                connection.execute(f"drop schema {schema} cascade")
            connection.execute(_PUBLIC)

    def _url_of(self, name: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))


def _connected(url: str) -> Connection[Any]:
    try:
        import psycopg
    except ImportError:
        raise InvalidRequest("tests on Postgres need its driver: `pip install 'holdfast[postgres]'`") from None
    return psycopg.connect(url, autocommit=True, connect_timeout=_CONNECT_SECONDS)
