"""The measured stores: a new, empty place for each measurement, and the bare commit of the same machine.

with the_store("postgres") as store:
with store.place() as url: ...
store.bare_commit_seconds()
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import apsw
import psycopg

from tests.postgres import Databases, PostgresServer
from tests.redis import Namespaces, RedisServer, connect

NAMES = ("sqlite", "postgres", "redis", "redis-everysec")

_ROW = "value " * 20
_LOG_BYTES = 8 * 1024 * 1024


class MeasuredStore(Protocol):
    """A place for runs, and the cost of one bare durable commit there."""

    name: str

    @contextmanager
    def place(self) -> Iterator[str]:
        """Return the URL of an empty store, removed at the end of the block."""
        ...

    def bare_commit_seconds(self, count: int = 300) -> float:
        """Return the median time of one single-row transaction, as durable as the store's own."""
        ...

    def megabytes(self, url: str) -> float:
        """Return the size of a store."""
        ...


class SQLite:
    """Files in a temporary folder."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connection = apsw.Connection(str(folder / "bare.db"))
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute("create table entry (id integer primary key, value text)")
        # Commits into a growing log take twice as long; the limit is the time after that.
        self._connection.execute("insert into entry (value) values (zeroblob(?))", (_LOG_BYTES,))
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    @contextmanager
    def place(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:  # removed at once: a full store is large
            yield f"sqlite:///{folder}/bench.db"

    def bare_commit_seconds(self, count: int = 300) -> float:
        return _median_seconds(self._commit, count)

    def megabytes(self, url: str) -> float:
        return Path(url.removeprefix("sqlite:///")).stat().st_size / 2**20

    def _commit(self) -> None:
        self._connection.execute("begin immediate")
        self._connection.execute("insert into entry (value) values (?)", (_ROW,))
        self._connection.execute("commit")


class Postgres:
    """Databases on a server: a private one with default durability, or one whose URL may create databases."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._databases = Databases(url)
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._connection.execute(
            "create table if not exists holdfast_bare (id bigint generated always as identity primary key, value text)"
        )

    @contextmanager
    def place(self) -> Iterator[str]:
        with self._databases.lend() as url:
            yield url

    def bare_commit_seconds(self, count: int = 300) -> float:
        return _median_seconds(self._commit, count)

    def megabytes(self, url: str) -> float:
        with psycopg.connect(url) as connection:
            row = connection.execute("select pg_database_size(current_database())").fetchone()
        assert row is not None
        return float(row[0]) / 2**20

    def close(self) -> None:
        self._connection.execute("drop table if exists holdfast_bare")
        self._connection.close()
        self._databases.close()

    def _commit(self) -> None:
        self._connection.execute("insert into holdfast_bare (value) values (%s)", (_ROW,))


class Redis:
    """Namespaces on a private server that flushes each write before it confirms it, or once a second."""

    def __init__(self, server: RedisServer, name: str) -> None:
        self.name = name
        self._namespaces = Namespaces(server.url)
        self._client = connect(server.url)

    @contextmanager
    def place(self) -> Iterator[str]:
        with self._namespaces.lend() as url:
            yield url

    def bare_commit_seconds(self, count: int = 300) -> float:
        took = _median_seconds(self._commit, count)
        self._client.delete("bare")  # a namespace must be the only one when it ends
        return took

    def megabytes(self, url: str) -> float:
        """Return the memory of the whole server."""
        return float(self._client.info("memory")["used_memory"]) / 2**20

    def close(self) -> None:
        self._client.close()
        self._namespaces.close()

    def _commit(self) -> None:
        self._client.rpush("bare", _ROW)


@contextmanager
def the_sqlite() -> Iterator[SQLite]:
    with tempfile.TemporaryDirectory() as folder:
        yield SQLite(Path(folder))


@contextmanager
def the_postgres(url: str | None = None) -> Iterator[Postgres]:
    """Return a server to measure: that of `url`, or a private one."""
    with ExitStack() as stack:
        store = Postgres(url or stack.enter_context(PostgresServer()).url)
        stack.callback(store.close)
        yield store


@contextmanager
def the_redis(name: str = "redis") -> Iterator[Redis]:
    """Return a private server to measure. `redis` is as durable as the other stores, `redis-everysec` is not."""
    with RedisServer({"appendfsync": "everysec" if name.endswith("everysec") else "always"}) as server:
        store = Redis(server, name)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def the_store(name: str, url: str | None = None) -> Iterator[MeasuredStore]:
    """Return a store to measure, by its name."""
    with ExitStack() as stack:
        match name:
            case "sqlite":
                yield stack.enter_context(the_sqlite())
            case "postgres":
                yield stack.enter_context(the_postgres(url))
            case _:
                yield stack.enter_context(the_redis(name))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", choices=NAMES, action="append", help="default: one after the other")
    parser.add_argument("--url", help="a Postgres server that may be used (databases are created), not a private one")


def chosen(given: argparse.Namespace) -> Iterator[MeasuredStore]:
    """Yield the requested stores, one after the other."""
    for name in given.store or NAMES:
        with the_store(name, given.url) as store:
            print(f"\n{name}: a bare commit takes {store.bare_commit_seconds() * 1e3:.2f} ms", flush=True)
            yield store


def _median_seconds(work: Callable[[], None], count: int) -> float:
    took = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return statistics.median(took)
