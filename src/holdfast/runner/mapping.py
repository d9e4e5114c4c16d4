"""A map: many children of one kind, created in bulk and awaited as one.

The run waits for the whole group by a single wait, which is counted down: however many children there are, it is
woken once. With a limit, those beyond it are created without a slot and get that of a sibling that ends.
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
        """Create the children that do not exist yet, and wait for all; their results in order."""
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
        """Have all children created that are not recorded; give each one's id and location."""
        has_begun = any(self._requests.recorded(child.location) is not None for child in self._children)
        if self._limit is not None and not has_begun:
            # Those without a slot first. It may take several checkpoints to create them all, and a child that ends in
            # between can hand its slot on only to one that is there.
            for child in self._children[self._limit :]:
                child.create(is_awaited=True, is_parked=True)
            for child in self._children[: self._limit]:
                child.create(is_awaited=True)
        else:
            # Of children that a rewind has dropped, or a crash left out, only the store knows who has a slot by now.
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
