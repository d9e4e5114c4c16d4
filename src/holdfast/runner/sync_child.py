"""A child run, as the code of a `def` workflow sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from holdfast.runner.child import Child

R = TypeVar("R")


class SyncChild(Generic[R]):
    """A child run as a `def` workflow sees it. `ctx.start` returns it."""

    def __init__(self, child: Child[R], wait: Callable[[Awaitable[Any]], Any]) -> None:
        self._child = child
        self._wait = wait

    @property
    def id(self) -> str:
        """The id of the child run."""
        return self._child.id

    def result(self) -> R:
        """Block until the child has ended and return its result. Raises `ChildFailed` if it did not succeed."""
        result: R = self._wait(self._child.result())
        return result

    def cancel(self) -> None:
        """Cancel the child, with the next checkpoint."""
        self._wait(self._child.cancel())

    def send(self, name: str, payload: Any = None) -> None:
        """Send the child a message, with the next checkpoint."""
        self._wait(self._child.send(name, payload))

    def __repr__(self) -> str:
        return repr(self._child)
