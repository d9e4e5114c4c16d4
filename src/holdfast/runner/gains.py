"""What a turn gained since its last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.model import Entry, EntryKind, Event, Intent, Message, Reply

_COMMANDS = frozenset({EntryKind.SEND, EntryKind.EMIT, EntryKind.CANCEL})


class Gains:
    """Entries and everything that goes to the store with them.

    A lazy gain (of an ephemeral step, say) is worth writing, but not worth a checkpoint of its own.
    """

    __slots__ = (
        "_is_urgent",
        "beat",
        "cancels",
        "children",
        "consumed",
        "entries",
        "events",
        "messages",
        "pruned",
        "replies",
        "values",
    )

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.consumed: list[int] = []
        self.children: list[Intent] = []
        self.messages: list[Message] = []
        self.events: list[Event] = []
        self.cancels: list[str] = []
        self.replies: list[Reply] = []
        self.pruned: list[str] = []
        self.values: dict[str, str] = {}
        self.beat = 0
        self._is_urgent = False

    @property
    def are_due(self) -> bool:
        """Whether there is something that must be written now."""
        return self._is_urgent or bool(self.values) or self.beat > 0

    def add(self, entry: Entry, *, is_lazy: bool = False) -> None:
        """Take in an entry; a later one for its location replaces it."""
        self.entries[entry.location] = entry
        self._is_urgent = self._is_urgent or not is_lazy

    def command(
        self,
        *,
        child: Intent | None,
        message: Message | None,
        event: Event | None,
        cancels: Sequence[str],
        reply: Reply | None,
    ) -> None:
        """Take in something to be done to the world."""
        if child is not None:
            self.children.append(child)
        if message is not None:
            self.messages.append(message)
        if event is not None:
            self.events.append(event)
        if reply is not None:
            self.replies.append(reply)
        self.cancels += cancels
        self._is_urgent = True

    def split(self, limit: int) -> Gains:
        """Leave no more than so many children here, and give what is left over, for the next checkpoint.

        Whatever else is to be done to the world is left over too: it may be meant for one of these children.
        """
        rest = Gains()
        if len(self.children) > limit:
            self.children, rest.children = self.children[:limit], self.children[limit:]
            self.messages, rest.messages = [], self.messages
            self.events, rest.events = [], self.events
            self.cancels, rest.cancels = [], self.cancels
            later = {child.parent_location for child in rest.children}
            for entry in list(self.entries.values()):
                if entry.kind in _COMMANDS or entry.location in later:
                    rest.add(self.entries.pop(entry.location))
        return rest

    def checkpoint(self, **about: Any) -> Checkpoint:
        """The checkpoint that writes all of it; `about` says of which run, and what becomes of that."""
        return Checkpoint(
            entries=tuple(self.entries.values()),
            consumed=tuple(self.consumed),
            children=tuple(self.children),
            messages=tuple(self.messages),
            events=tuple(self.events),
            cancels=tuple(self.cancels),
            replies=tuple(self.replies),
            pruned=tuple(self.pruned),
            values=self.values,
            beat=self.beat,
            **about,
        )
