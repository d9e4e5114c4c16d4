"""The measured engines, each on a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["sqlite", "postgres", "redis", "folder"]
"""The storage of an engine: an SQLite file, a Postgres database, a Redis namespace, or its own files."""

OURSELVES = "holdfast"


@dataclass(frozen=True)
class Engine:
    """One column of the tables."""

    name: str
    title: str
    peer: str
    """The driver, a module of `benchmarks.peers`, and the environment of this name."""
    place: Place
    counterpart: str
    """The engine of ours it is compared with: that on the same store."""
    without: frozenset[str] = frozenset()
    """Requests that its driver can serve, but not on this store."""

    @property
    def is_ours(self) -> bool:
        return self.peer == OURSELVES


ENGINES = (
    Engine("holdfast-sqlite", "holdfast, SQLite", OURSELVES, "sqlite", "holdfast-sqlite"),
    Engine("dbos-sqlite", "DBOS, SQLite", "dbos", "sqlite", "holdfast-sqlite"),
    Engine("holdfast-postgres", "holdfast, Postgres", OURSELVES, "postgres", "holdfast-postgres"),
    Engine(
        "holdfast-redis",
        "holdfast, Redis",
        OURSELVES,
        "redis",
        "holdfast-redis",
        without=frozenset({"growth"}),  # stored runs are copied inside a database, by SQL
    ),
    Engine("dbos-postgres", "DBOS, Postgres", "dbos", "postgres", "holdfast-postgres"),
    Engine("absurd-postgres", "absurd, Postgres", "absurd", "postgres", "holdfast-postgres"),
    Engine("restate", "Restate, own server", "restate", "folder", "holdfast-postgres"),
    Engine("procrastinate-postgres", "Procrastinate, Postgres", "procrastinate", "postgres", "holdfast-postgres"),
    Engine("pgqueuer-postgres", "PgQueuer, Postgres", "pgqueuer", "postgres", "holdfast-postgres"),
)


def engines_named(names: str | None) -> tuple[Engine, ...]:
    """Return the engines of a comma-separated list; all of them if it is empty."""
    if names is None:
        return ENGINES
    known = {engine.name: engine for engine in ENGINES}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise ValueError(f"there is no engine {unknown[0]!r}; there are {', '.join(known)}")
    return tuple(known[name] for name in names.split(","))
