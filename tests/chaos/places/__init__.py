"""Places: the stores that a storm can be held on, a module each that defines `PLACE`; nothing else names them."""

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

from tests.process.crew import Hand


class Blow(NamedTuple):
    """A disturbance: how often it comes in proportion to others, and what strikes; hands that die are replaced."""

    weight: float
    strike: Callable[[Random, Sequence[Hand]], Awaitable[None]]


class Place:
    """A store that nobody else uses, in a folder or on a server of its own. A context manager."""

    is_deaf: bool
    """Whether the death of a worker is known only when its lease is over."""
    url: str
    """For whoever looks on, and is not to be disturbed."""
    way: str
    """For workers and producers; it may lead through something that breaks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outages: list[tuple[float, float]] = []
        """From when until when nobody could prolong a lease."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing running."""

    @contextmanager
    def outage(self) -> Iterator[None]:
        """While something makes it impossible to prolong a lease."""
        begun = time.time()
        try:
            yield
        finally:
            self.outages.append((begun, time.time()))

    def blows(self) -> Mapping[str, Blow]:
        """What can happen to this store, or to the way there, beside what can happen to processes."""
        raise NotImplementedError

    def waits_for(self, hand: Hand) -> bool:
        """Whether nobody can write until this process, which stands still, goes on."""
        return False

    def heal(self) -> None:
        """End whatever disturbs, so that all can go on."""

    def dump(self) -> None:
        """Put all that the store knows into the folder, unless it is there."""


def names() -> list[str]:
    """The stores there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def place_on(store: str, folder: Path) -> Place:
    """The place of this name; it keeps what it has to keep in the folder."""
    place: Place = import_module(f"{__name__}.{store}").PLACE(folder)
    return place
