"""A stage for scenarios: one store of some kind, one clock that only the test moves, and harnesses on both.

Each harness stands for a process: another one on the same stage finds the data of the first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Registry, RunHandle
from holdfast.core.ports import Store
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock
from holdfast.testing.harness import Harness
from holdfast.testing.patience import GUARD_SECONDS
from holdfast.typing import EntryInfo
from tests.postgres import Databases
from tests.redis import Namespaces

MEMORY_KINDS = ("memory", "replay")
"""A memory store; the same, with every run replayed after each of its checkpoints."""

STORE_KINDS = ("sqlite", "postgres", "redis")
"""The real stores: an SQLite file; a database; a namespace on a Redis or Valkey server."""

DATABASE_KINDS = ("sqlite", "sqlite replay", "postgres")
"""The stores in which users can keep their own tables."""

SLOWNESS = "blocked the worker's loop"
"""The log text of a worker about code that takes longer than it should."""

IMPATIENCE_SECONDS = 0.03
"""Time to wait for a body that is known not to end by itself."""


class Stage:
    """A store and a clock that outlive the harnesses on them. `url` is that of a database or namespace, if needed."""

    def __init__(self, kind: str, folder: Path, url: str = "") -> None:
        self.kind = kind
        self.clock = VirtualClock()
        self._folder = folder
        self._url = url
        self._memory = MemoryStore(clock=self.clock)
        self._dictionary = Dictionary()

    @property
    def url(self) -> str:
        """The URL of the Postgres database or of the Redis namespace, if this stage has one."""
        return self._url

    @property
    def database(self) -> Path:
        """The SQLite file, if this stage has one."""
        return self._folder / "runs.db"

    @property
    def is_replaying(self) -> bool:
        """True if every run is replayed after each of its checkpoints."""
        return self.kind.endswith("replay")

    def store(self) -> Store:
        """The store as a new process has it: not open yet."""
        match self.kind.partition(" ")[0]:
            case "sqlite":
                from holdfast.stores.sqlite import SqliteStore

                return SqliteStore(self.database, clock=self.clock)
            case "postgres":
                from holdfast.stores.postgres import PostgresStore

                return PostgresStore(self._url, clock=self.clock)
            case "redis":
                from holdfast.stores.redis import redis_store

                return redis_store(self._url, clock=self.clock)
            case "dictionary":
                return KeyValueStore(lambda: DictionaryDriver(self._dictionary, clock=self.clock), clock=self.clock)
            case _:
                return self._memory

    def harness(
        self,
        source: Holdfast | Registry | None = None,
        *,
        wrap: Callable[[Store], Store] | None = None,
        has_endless_bodies: bool = False,
    ) -> Harness:
        """A harness for everything registered in `source`; `wrap` puts a wrapper around the store."""
        store = self.store()
        return Harness(
            source,
            always_replay=self.is_replaying,
            clock=self.clock,
            store=store if wrap is None else wrap(store),
            patience_seconds=IMPATIENCE_SECONDS if has_endless_bodies else GUARD_SECONDS,
        )


def url_for(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of the database or namespace of a stage of this kind, during the test; empty if it has none."""
    fixture = _FIXTURES.get(kind.partition(" ")[0])
    return "" if fixture is None else str(request.getfixturevalue(fixture))


_FIXTURES = {"postgres": "postgres_store_url", "redis": "redis_url"}


@contextmanager
def lent(kind: str, databases: Databases | None = None, namespaces: Namespaces | None = None) -> Iterator[str]:
    """The same, for a part of a test."""
    match kind.partition(" ")[0]:
        case "postgres":
            assert databases is not None
            with databases.lend(is_migrated=True) as url:
                yield url
        case "redis":
            assert namespaces is not None
            with namespaces.lend() as url:
                yield url
        case _:
            yield ""


def in_words(entries: Sequence[EntryInfo]) -> list[str]:
    """A history as a few words per entry: `charge step done`."""
    return [f"{entry.location} {entry.kind.value} {entry.state.value}" for entry in entries]


async def facts(run: RunHandle[Any]) -> list[str]:
    """Return the history of a run in few words."""
    return in_words(await run.history())


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log records of warnings and worse."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in records if not is_of_slowness(record)]


def is_of_slowness(record: logging.LogRecord) -> bool:
    """True if the record is about slow code, which is normal on a busy machine."""
    return SLOWNESS in record.getMessage()
