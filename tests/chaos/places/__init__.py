"""Places: the stores for a storm, one module each that defines `PLACE`; nothing else names them."""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from random import Random
from types import TracebackType
from typing import NamedTuple, Self

from holdfast import Holdfast
from tests.process.app import make_tables
from tests.process.crew import Hand


class Blow(NamedTuple):
    """A disturbance: its relative frequency, and its action. Processes that die are replaced."""

    weight: float
    strike: Callable[[Random, Sequence[Hand]], Awaitable[None]]


class Deposits(NamedTuple):
    """The effects outside the runs: deposits as runs and numbers, and their total as the store's side counted it."""

    made: list[tuple[str, int]]
    total: int


class Place:
    """A private store, in a folder or on its own server. A context manager."""

    is_deaf: bool
    """True if the death of a worker is known only when its lease is over."""
    url: str
    """The URL for observers, which is not disturbed."""
    way: str
    """The URL for workers and producers, which may lead through a faulty proxy."""

    kinds_left_out: frozenset[str] = frozenset({"clerks"})
    """The kinds of jobs that this store cannot do, or that others stand for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outages: list[tuple[float, float]] = []
        """The periods in which no lease could be renewed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""

    def prepare(self, hf: Holdfast) -> None:
        """Create what the test itself needs in the store: the tables of deposits."""
        with hf.connection() as connection:
            make_tables(connection)

    def deposits(self, hf: Holdfast) -> Deposits:
        """Return all effects that jobs had outside the runs."""
        with hf.connection(readonly=True) as connection:
            made = [(str(run_id), int(n)) for run_id, n in connection.execute("select * from deposit").fetchall()]
            ((total,),) = connection.execute("select count from total").fetchall()
        return Deposits(made, int(total))

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Record a period in which leases cannot be renewed."""
        begun = time.time()
        try:
            yield
        finally:
            self.outages.append((begun, time.time()))

    def blows(self) -> Mapping[str, Blow]:
        """The disturbances of this store or its connections, besides those of processes."""
        raise NotImplementedError

    def waits_for(self, hand: Hand) -> bool:
        """True if no other process can write until this frozen process continues."""
        return False

    def heal(self) -> None:
        """End all disturbances."""

    def dump(self) -> None:
        """Copy the contents of the store into the folder, unless they are there."""


def names() -> list[str]:
    """Return the names of the available stores."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def place_on(store: str, folder: Path) -> Place:
    """Return the place of this name; it stores its files in the folder."""
    place: Place = import_module(f"{__name__}.{store}").PLACE(folder)
    return place
