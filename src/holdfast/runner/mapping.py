"""A map: many children of one type, created in bulk and awaited together.

The run waits for the whole group with a single wait that counts down, so it is woken once for any number of children.
With a limit, children beyond it are created without a slot. They get the slot of a sibling that ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import JoinFailed, WorkflowError
from holdfast.core.location import name_from
from holdfast.core.model import Entry, EntryKind
from holdfast.runner.operation import ChildEnd, ChildGroup

if TYPE_CHECKING:
    from holdfast.runner.child import Child
    from holdfast.runner.code_requests import CodeRequests


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
