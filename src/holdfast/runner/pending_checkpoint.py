"""What a turn gained since its last checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from holdfast.core.checkpoint import Checkpoint, Next
from holdfast.core.model import Entry, EntryKind, Event, Intent, MessageToRun, Reply, Wait

_COMMANDS = frozenset({EntryKind.SEND, EntryKind.EMIT, EntryKind.CANCEL})
_NO_VALUES: dict[str, str] = {}


class Effects:
    """What goes beyond the run's own entries: what it used up, let go of, and does to the world. Few turns do any."""

    __slots__ = ("cancels", "children", "consumed", "events", "messages", "pruned", "replies")

    def __init__(self) -> None:
        self.consumed: list[int] = []
        self.children: list[Intent] = []
        self.messages: list[MessageToRun] = []
        self.events: list[Event] = []
        self.cancels: list[str] = []
        self.replies: list[Reply] = []
        self.pruned: list[str] = []

    def requests(self) -> tuple[list[Any], ...]:
        """What code asks for. The rest follows from facts: arrivals that were fed, iterations that are over."""
        return self.children, self.messages, self.events, self.cancels, self.replies


class PendingCheckpoint:
    """Entries and everything that goes to the store with them.

    A lazy gain (of an ephemeral step, say) is worth writing, but not worth a checkpoint of its own.
    A fact is something that was fed to the code. What the code asks for because of it is a request, and is dropped
    if the run is blocked before the next fact.
    """

    __slots__ = ("_amended", "_before_requests", "_effects", "_is_urgent", "beat", "child_count", "entries", "values")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.values = _NO_VALUES
        self.beat = 0
        self.child_count = 0
        """How many children are to be created."""
        self._effects: Effects | None = None
        self._is_urgent = False
        # How many entries and requests of each kind there were, and which values, before the first request since the
        # last fact; None if there is no such request.
        self._before_requests: tuple[int, tuple[int, ...], dict[str, str]] | None = None
        # Entries as they were before a request since the last fact changed them; set with the first such request.
        self._amended: dict[str, Entry]

    @property
    def are_due(self) -> bool:
        """Whether there is something that must be written now."""
        return self._is_urgent or bool(self.values) or self.beat > 0

    def add(self, entry: Entry, *, is_lazy: bool = False) -> None:
        """Take in a fact; a later one for its location replaces it."""
        self.entries[entry.location] = entry
        self._is_urgent = self._is_urgent or not is_lazy
        self._before_requests = None

    def request(self, entry: Entry, *, is_lazy: bool = False) -> None:
        """Take in the entry of a request. Nothing stands at its location yet."""
        self._note_request()
        self.entries[entry.location] = entry
        self._is_urgent = self._is_urgent or not is_lazy

    def amend(self, entry: Entry) -> None:
        """Take in a request that changes an entry, which may be here already."""
        self._note_request()
        if entry.location in self.entries:
            self._amended.setdefault(entry.location, self.entries[entry.location])
        self.entries[entry.location] = entry

    def drop_requests(self) -> None:
        """Forget what the code has asked for since the last fact."""
        if self._before_requests is None:
            return
        entry_count, counts, self.values = self._before_requests
        while len(self.entries) > entry_count:
            self.entries.popitem()
        for location in self._amended.keys() & self.entries.keys():
            self.entries[location] = self._amended[location]
        if self._effects is not None:
            for requests, count in zip(self._effects.requests(), counts or repeat(0), strict=False):
                del requests[count:]
            self.child_count = len(self._effects.children)
        self._before_requests = None

    def _note_request(self) -> None:
        if self._before_requests is None:
            self._amended = {}
            counts = tuple(map(len, self._effects.requests())) if self._effects is not None else ()
            self._before_requests = (len(self.entries), counts, self.values)

    def publish(self, name: str, value: str | None) -> None:
        """Take in a named value; none if the store has the one it is to have."""
        self._note_request()
        self.values = {known: text for known, text in self.values.items() if known != name}
        if value is not None:
            self.values[name] = value

    def consume(self, numbers: Iterable[int]) -> None:
        """Take in which arrivals were used up."""
        self._made_effects().consumed += numbers

    def prune(self, scopes: Iterable[str]) -> None:
        """Take in whose entries are to go."""
        self._made_effects().pruned += scopes

    def command(
        self,
        *,
        child: Intent | None,
        message: MessageToRun | None,
        event: Event | None,
        cancels: Sequence[str],
        reply: Reply | None,
    ) -> None:
        """Take in something to be done to the world. Its entry was requested before."""
        effects = self._made_effects()
        if child is not None:
            effects.children.append(child)
            self.child_count += 1
        if message is not None:
            effects.messages.append(message)
        if event is not None:
            effects.events.append(event)
        if reply is not None:
            effects.replies.append(reply)
        effects.cancels += cancels
        self._is_urgent = True

    def _made_effects(self) -> Effects:
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    def split(self, limit: int) -> PendingCheckpoint:
        """Leave no more than so many children here, and give what is left over, for the next checkpoint.

        Whatever else is to be done to the world is left over too: it may be meant for one of these children.
        """
        rest = PendingCheckpoint()
        if self._effects is not None and self.child_count > limit:
            effects, later = self._effects, rest._made_effects()
            rest.child_count, self.child_count = self.child_count - limit, limit
            effects.children, later.children = effects.children[:limit], effects.children[limit:]
            effects.messages, later.messages = [], effects.messages
            effects.events, later.events = [], effects.events
            effects.cancels, later.cancels = [], effects.cancels
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
        effects = self._effects
        if effects is None:  # nearly always, and half as much to do
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
            consumed=tuple(effects.consumed),
            children=tuple(effects.children),
            messages=tuple(effects.messages),
            events=tuple(effects.events),
            cancels=tuple(effects.cancels),
            replies=tuple(effects.replies),
            pruned=tuple(effects.pruned),
            values=self.values,
            beat=self.beat,
            charged=charged,
        )
