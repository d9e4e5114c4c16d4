"""A child run, as the code of its parent sees it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from msgspec.structs import replace

from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import is_count, refuse_options, run_options
from holdfast.core.location import name_from
from holdfast.core.model import EntryKind, Intent, OnClose, RunOptions, Undelivered
from holdfast.runner.operation import ChildEnd

if TYPE_CHECKING:
    from holdfast.runner.code_requests import CodeRequests
    from holdfast.runner.context import Context

R = TypeVar("R")


class ChildOptions(TypedDict, total=False):
    """The options of a child run: keywords of `ctx.start`, `ctx.call` and `ctx.map`."""

    name: str
    """The name of the child in the parent's history. Default: its type."""
    priority: int
    """0 to 255, lower first. Default: 100."""
    delay: float | timedelta
    """Seconds or a timedelta to wait before the child begins."""
    tags: Mapping[str, str] | None
    """Names and values to search for, and to limit by. The tags of the parent are not inherited."""
    on_close: OnClose
    """What happens to the child when its parent ends: `cancel`, or `abandon`, which lets it continue.

    The default of `ctx.call` and `ctx.map` is `cancel`, that of `ctx.start` is `abandon`.
    """
    max_run: float | timedelta | None
    """Seconds or a timedelta after which the child is cancelled, counted from when it may begin. Default: no limit."""
    max_suspend: float | timedelta | None
    """Seconds or a timedelta after which one suspension of the child cancels it. Default: no limit."""
    undelivered: Undelivered
    """What happens to messages that the child never received: `discard` (default), or `dead_letter`."""
    retention: float | timedelta | None
    """Seconds or a timedelta for which the child is kept after its end.

    Default: as its type, then as the worker says.
    """


def check_options(options: ChildOptions, workflow: object) -> None:
    """Refuse an option that children do not have."""
    if options.keys() - ChildOptions.__annotations__.keys():
        refuse_options(options, ChildOptions.__annotations__, workflow, of="a child")


def check_on_close(policy: OnClose) -> OnClose:
    """Return what becomes of a child when its parent ends, if it is one of the two."""
    if policy not in ("cancel", "abandon"):
        raise InvalidRequest(f"on_close={policy!r}: it is 'cancel' or 'abandon'")
    return policy


def check_limit(limit: object) -> None:
    """Refuse a number of children that could never make progress."""
    if limit is not None and not is_count(limit):
        raise InvalidRequest(f"limit={limit!r}: so many children run at once, at least 1, or None for all")


def child_options(options: ChildOptions, map_limit: int | None) -> RunOptions:
    """What was said about a child that stays as it is for its whole life."""
    chosen = run_options(
        max_run=options.get("max_run"),
        max_suspend=options.get("max_suspend"),
        undelivered=options.get("undelivered", "discard"),
    )
    return chosen if map_limit is None else replace(chosen, map_limit=map_limit)


class Done:
    """The answer of an operation that has nothing to wait for; awaiting it is allowed, not needed.

    While the run leaves memory it never returns, like every operation: code that asks again and again must come to an
    end of its closing.
    """

    __slots__ = ("_requests",)

    def __init__(self, requests: CodeRequests) -> None:
        self._requests = requests

    def __await__(self) -> Generator[Any, None, None]:
        if self._requests.loop.is_evicting:
            yield from self._requests.never().__await__()


class Child(Generic[R]):
    """A child run as its parent sees it. Await it to get its result.

    `ctx.start` returns it.
    """

    def __init__(
        self, context: Context, requests: CodeRequests, intent: Intent, location: str, codec: Codec[Any]
    ) -> None:
        self._context = context
        self._requests = requests
        self.location = location
        """The location of the child in the parent's history."""
        self.codec = codec
        self._awaiting = 0
        self._end: ChildEnd | None = None
        self.intent = intent
        self.id = intent.id
        """The id of the child run."""

    def create(self, *, is_awaited: bool = False, is_parked: bool = False, limit: int | None = None) -> None:
        """Have the child created by the next checkpoint, unless it was in an earlier turn."""
        intent = replace(self.intent, is_parked=is_parked, limit=limit) if is_parked or limit else self.intent
        recorded = self._requests.command(
            EntryKind.CHILD, self.location, ref=self.id, child=intent, is_awaited=is_awaited
        )
        if recorded is not None and recorded.ref is not None:
            self.id = recorded.ref

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()

    async def result(self, *, cancels: bool = False) -> R:
        """Wait for the result of the child. Raises `ChildFailed` if it fails or is cancelled.

        With `cancels=True`, cancelling this wait, for example by a timeout, cancels the child too.
        """
        if self._end is None:
            self._end = ChildEnd(self.location, self.id, self.codec)
        self._awaiting += 1
        is_settled = False
        try:
            result: R = await self._requests.perform_shared(self._end)
            is_settled = True
            return result
        finally:
            self._awaiting -= 1
            if not is_settled and not self._requests.loop.is_evicting and not self._end_is_known():
                if not self._awaiting:
                    self._requests.withdraw(self._end)
                    self._end = None
                if cancels:
                    self.cancel()

    def _end_is_known(self) -> bool:
        future = self._end.future if self._end else None
        return future is not None and future.done() and not future.cancelled()

    def cancel(self) -> Done:
        """Cancel the child, with the next checkpoint."""
        location = self._context._locate(name_from("cancel", self.location.rsplit("/", 1)[-1]))  # noqa: SLF001
        self._requests.command(EntryKind.CANCEL, location, ref=self.id, cancels=(self.id,))
        return Done(self._requests)

    def send(self, name: str, payload: Any = None) -> Done:
        """Send the child a message, with the next checkpoint."""
        return self._context.send(self.id, name, payload)

    def __repr__(self) -> str:
        return f"<child {self.id} of {self.intent.type}>"


class Started(Generic[R]):
    """What `ctx.start` returns: await it for the handle. Not awaiting it is fire and forget."""

    def __init__(self, child: Child[R], requests: CodeRequests) -> None:
        self._child = child
        self._requests = requests

    def __await__(self) -> Generator[Any, None, Child[R]]:
        yield from Done(self._requests).__await__()
        return self._child
