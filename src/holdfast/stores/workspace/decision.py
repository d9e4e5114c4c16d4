"""A decision: an operation reads what a workspace has loaded, and names what is missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Missing(Exception):
    """Raised when an operation reads something that was not loaded. Load the reads too, and start over."""

    def __init__(self, reads: Sequence[Any]) -> None:
        super().__init__(reads)
        self.reads = reads


class BaseWorkspace(ABC, Generic[R]):
    """The data that one operation has loaded. `R` is the type of a read."""

    @abstractmethod
    def is_known(self, read: R) -> bool:
        """Return True if what was loaded answers a read."""

    def expect(self, reads: Iterable[R]) -> None:
        """Load all that is missing of these at once, instead of one in each round.

        Raises:
            Missing: Something is missing.

        """
        missing = [read for read in reads if not self.is_known(read)]
        if missing:
            raise Missing([*dict.fromkeys(one for read in missing for one in self.to_load(read))])

    def to_load(self, read: R) -> Iterable[R]:
        """Return what to load if a read is missing: the read, and what will be needed with it."""
        return (read,)


def rounds(limit: int) -> Iterator[int]:
    """Yield the numbers of the rounds of one operation. Each round loads more than the one before."""
    yield from range(limit)
    raise AssertionError(f"an operation asked for more data in each of {limit} rounds")
