"""What a turn gained since its last checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.checkpoint import Checkpoint, Next
from holdfast.core.model import Entry, EntryKind, Event, Intent, Message, Reply, Wait

_COMMANDS = frozenset({EntryKind.SEND, EntryKind.EMIT, EntryKind.CANCEL})
_NO_VALUES: dict[str, str] = {}


class Deeds:
    """What goes beyond the run's own entries: what it used up, let go of, and does to the world. Few turns do any."""

    __slots__ = ("cancels", "children", "consumed", "events", "messages", "pruned", "replies")

    def __init__(self) -> None:
        self.consumed: list[int] = []
        self.children: list[Intent] = []
        self.messages: list[Message] = []
        self.events: list[Event] = []
        self.cancels: list[str] = []
        self.replies: list[Reply] = []
        self.pruned: list[str] = []


class Gains:
    """Entries and everything that goes to the store with them.

    A lazy gain (of an ephemeral step, say) is worth writing, but not worth a checkpoint of its own.
    """

    __slots__ = ("_deeds", "_is_urgent", "beat", "child_count", "entries", "values")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.values = _NO_VALUES
        self.beat = 0
        self.child_count = 0
        """How many children are to be created."""
        self._deeds: Deeds | None = None
        self._is_urgent = False

    @property
    def are_due(self) -> bool:
        """Whether there is something that must be written now."""
        return self._is_urgent or bool(self.values) or self.beat > 0

    def add(self, entry: Entry, *, is_lazy: bool = False) -> None:
        """Take in an entry; a later one for its location replaces it."""
        self.entries[entry.location] = entry
        self._is_urgent = self._is_urgent or not is_lazy

    def publish(self, name: str, value: str | None) -> None:
        """Take in a named value; none if the store has the one it is to have."""
        self.values = {known: text for known, text in self.values.items() if known != name}
        if value is not None:
            self.values[name] = value

    def consume(self, numbers: Iterable[int]) -> None:
        """Take in which arrivals were used up."""
        self._made_deeds().consumed += numbers

    def prune(self, scopes: Iterable[str]) -> None:
        """Take in whose entries are to go."""
        self._made_deeds().pruned += scopes

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
        deeds = self._made_deeds()
        if child is not None:
            deeds.children.append(child)
            self.child_count += 1
        if message is not None:
            deeds.messages.append(message)
        if event is not None:
            deeds.events.append(event)
        if reply is not None:
            deeds.replies.append(reply)
        deeds.cancels += cancels
        self._is_urgent = True

    def _made_deeds(self) -> Deeds:
        if self._deeds is None:
            self._deeds = Deeds()
        return self._deeds

    def split(self, limit: int) -> Gains:
        """Leave no more than so many children here, and give what is left over, for the next checkpoint.

        Whatever else is to be done to the world is left over too: it may be meant for one of these children.
        """
        rest = Gains()
        if self._deeds is not None and self.child_count > limit:
            deeds, later = self._deeds, rest._made_deeds()
            rest.child_count, self.child_count = self.child_count - limit, limit
            deeds.children, later.children = deeds.children[:limit], deeds.children[limit:]
            deeds.messages, later.messages = [], deeds.messages
            deeds.events, later.events = [], deeds.events
            deeds.cancels, later.cancels = [], deeds.cancels
            places = {child.parent_location for child in later.children}
            for entry in list(self.entries.values()):
                if entry.kind in _COMMANDS or entry.location in places:
                    rest.add(self.entries.pop(entry.location))
        return rest

    def checkpoint(
        self, run_id: str, token: int, seen: int, next: Next, waits: tuple[Wait, ...] | None, *, charged: bool
    ) -> Checkpoint:
        """The checkpoint that writes all of it, of which run, and what becomes of that."""
        entries = tuple(self.entries.values())
        deeds = self._deeds
        if deeds is None:  # nearly always, and half as much to do
            return Checkpoint(
                run_id=run_id,
                token=token,
                seen=seen,
                next=next,
                entries=entries,
                waits=waits,
                values=self.values,
                beat=self.beat,
                charged=charged,
            )
        return Checkpoint(
            run_id=run_id,
            token=token,
            seen=seen,
            next=next,
            entries=entries,
            waits=waits,
            consumed=tuple(deeds.consumed),
            children=tuple(deeds.children),
            messages=tuple(deeds.messages),
            events=tuple(deeds.events),
            cancels=tuple(deeds.cancels),
            replies=tuple(deeds.replies),
            pruned=tuple(deeds.pruned),
            values=self.values,
            beat=self.beat,
            charged=charged,
        )
