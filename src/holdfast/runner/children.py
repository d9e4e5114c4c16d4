"""The children of a run, for its code: the handle of one, and a map of many that are created and awaited together."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec.structs import replace

from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidRequest, JoinFailed, WorkflowError
from holdfast.core.intent import intent_fields, is_count
from holdfast.core.location import name_from
from holdfast.core.model import DEFAULT_OPTIONS, Entry, EntryKind, Intent
from holdfast.runner.operation import ChildEnd, ChildGroup

if TYPE_CHECKING:
    from holdfast.runner.code_requests import CodeRequests
    from holdfast.runner.context import Context


R = TypeVar("R")


def check_limit(limit: object) -> None:
    """Refuse a limit of concurrent children that is not a number of at least 1, or None."""
    if limit is not None and not is_count(limit):
        raise InvalidRequest(
            f"limit={limit!r}: expected the number of children that run at once, at least 1, or None for all"
        )


def child_fields(options: Mapping[str, Any], workflow: object, map_limit: int | None) -> dict[str, Any]:
    """Return the fields of the intent of a child that its options set."""
    fields = intent_fields(options, workflow)
    if map_limit is not None:
        fields["options"] = replace(fields.get("options", DEFAULT_OPTIONS), map_limit=map_limit)
    return fields


class Done:
    """The answer of an operation that has nothing to wait for. Code may await it, but need not.

    While the run leaves memory, awaiting it never returns, like every operation. Otherwise code that asks again and
    again could not be closed.
    """

    __slots__ = ("_requests",)

    def __init__(self, requests: CodeRequests) -> None:
        self._requests = requests

    def __await__(self) -> Generator[Any, None, None]:
        if self._requests.loop.is_evicting:
            yield from self._requests.never().__await__()


class Child(Generic[R]):
    """The handle of a child run, which `ctx.start` returns. Await it to get the result of the child."""

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
        """Let the next checkpoint create the child, unless an earlier turn has created it."""
        intent = replace(self.intent, is_parked=is_parked, limit=limit) if is_parked or limit else self.intent
        recorded = self._requests.command(
            EntryKind.CHILD, self.location, ref=self.id, command=intent, is_awaited=is_awaited
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
    """The return value of `ctx.start`. Await it to get the handle; without an await it is fire and forget."""

    def __init__(self, child: Child[R], requests: CodeRequests) -> None:
        self._child = child
        self._requests = requests

    def __await__(self) -> Generator[Any, None, Child[R]]:
        yield from Done(self._requests).__await__()
        return self._child


class ChildMap:
    """The children of one `ctx.map`."""

    def __init__(
        self, requests: CodeRequests, location: str, children: Sequence[Child[Any]], limit: int | None
    ) -> None:
        self._requests = requests
        self._location = location
        self._children = children
        self._limit = limit

    async def run(self) -> list[Any]:
        """Create the children that do not exist yet, wait for all, and return their results in order."""
        if not self._children:
            return []
        group = ChildGroup(self._location, f"{self._requests.run.id}/{self._location}", self._create())
        cancels = self._children[0].intent.on_close == "cancel"
        try:
            ends = await self._requests.perform(group)
        finally:
            if cancels and not group.is_complete and not self._requests.loop.is_evicting:
                location = self._requests.loop.scope.locate(name_from("cancel", self._location.rsplit("/", 1)[-1]))
                self._requests.command(EntryKind.CANCEL, location, cancels=tuple(group.open_ids))
        return self._collect(ends)

    def _create(self) -> list[tuple[str, str]]:
        """Request all children that are not recorded. Return the id and location of each child."""
        has_begun = any(self._requests.recorded(child.location) is not None for child in self._children)
        if self._limit is not None and not has_begun:
            # Create the children without a slot first. It may take several checkpoints to create them all, and a child
            # that ends in between can pass its slot only to a child that exists.
            for child in self._children[self._limit :]:
                child.create(is_awaited=True, is_parked=True)
            for child in self._children[: self._limit]:
                child.create(is_awaited=True)
        else:
            # After a rewind or a crash, only the store knows which children have a slot.
            for child in self._children:
                child.create(is_awaited=True, limit=self._limit)
        return [(child.id, child.location) for child in self._children]

    def _collect(self, ends: dict[str, Entry]) -> list[Any]:
        results: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        for index, child in enumerate(self._children):
            try:
                results[index] = ChildEnd(child.location, child.id, child.codec).outcome(ends[child.location])
            except WorkflowError as error:
                errors[index] = error
        if errors:
            raise JoinFailed(self._location, results, errors)
        return list(results.values())
