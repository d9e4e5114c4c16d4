"""A child run, as the code of its parent sees it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from holdfast.core.codec import Codec
from holdfast.core.location import name_from
from holdfast.core.model import EntryKind, Intent, OnClose
from holdfast.runner.operation import ChildEnd

if TYPE_CHECKING:
    from holdfast.runner.context import Context

R = TypeVar("R")


class ChildOptions(TypedDict, total=False):
    """What can be said about a child run. `name` is its name in the parent's history, by default its type."""

    name: str
    priority: int
    delay: float | timedelta
    tags: Mapping[str, str] | None
    on_close: OnClose


class Done:
    """The answer of an operation that has nothing to wait for; awaiting it is allowed, not needed."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class Child(Generic[R]):
    """A child run, seen from its parent: await it for its result, `cancel` it, `send` it messages."""

    def __init__(self, context: Context, intent: Intent, location: str, codec: Codec[Any]) -> None:
        self._context = context
        self._turn = context._turn  # noqa: SLF001 - a handle is part of its context
        self._location = location
        self._codec = codec
        self._awaiting = 0
        self._end: ChildEnd | None = None
        self.intent = intent
        self.id = intent.id

    def create(self) -> None:
        """Have the child created by the next checkpoint, unless it was in an earlier turn."""
        recorded = self._turn.command(EntryKind.CHILD, self._location, ref=self.id, child=self.intent)
        if recorded is not None and recorded.ref is not None:
            self.id = recorded.ref

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()

    async def result(self, *, cancels: bool = False) -> R:
        """The child's result, or `ChildFailed`. `cancels`: being cancelled while waiting cancels the child."""
        if self._end is None:
            self._end = ChildEnd(self._location, self.id, self._codec)
        self._awaiting += 1
        is_settled = False
        try:
            result: R = await self._turn.perform_shared(self._end)
            is_settled = True
            return result
        finally:
            self._awaiting -= 1
            if not is_settled and not self._turn.loop.is_evicting and not self._end_is_known():
                if not self._awaiting:
                    self._turn.withdraw(self._end)
                    self._end = None
                if cancels:
                    self.cancel()

    def _end_is_known(self) -> bool:
        future = self._end.future if self._end else None
        return future is not None and future.done() and not future.cancelled()

    def cancel(self) -> Done:
        """Cancel the child, with the next checkpoint."""
        location = self._context._locate(name_from("cancel", self._location.rsplit("/", 1)[-1]))  # noqa: SLF001
        self._turn.command(EntryKind.CANCEL, location, ref=self.id, cancel=self.id)
        return Done()

    def send(self, name: str, payload: Any = None) -> Done:
        """Send the child a message, with the next checkpoint."""
        return self._context.send(self.id, name, payload)

    def __repr__(self) -> str:
        return f"<child {self.id} of {self.intent.type}>"


class Started(Generic[R]):
    """What `ctx.start` returns: await it for the handle. Not awaiting it is fire and forget."""

    def __init__(self, child: Child[R]) -> None:
        self._child = child

    def __await__(self) -> Generator[Any, None, Child[R]]:
        yield from ()
        return self._child
