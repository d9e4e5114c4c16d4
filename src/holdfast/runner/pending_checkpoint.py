"""The pending checkpoint: what the next checkpoint of a run will write, and what the store has already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, Hold, Next, Release
from holdfast.core.model import Entry, EntryKind, Event, Intent, MessageToRun, Reply, Run, Wait
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.registration import Registration

CHILDREN_AT_ONCE = 1_000
"""One checkpoint creates at most this many children, so that no transaction takes too long."""

_COMMANDS = frozenset({EntryKind.SEND, EntryKind.EMIT, EntryKind.CANCEL})
_NO_VALUES: dict[str, str] = {}


class Effects:
    """What goes beyond the run's own entries: arrivals it used up, scopes it pruned, and requests to the world.

    Few checkpoints have any.
    """

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

    A lazy entry (of an ephemeral step, for example) is worth writing, but not worth a checkpoint of its own.
    A fact is something that was fed to the code. What the code asks for because of it is a request, and is dropped
    if the run is blocked before the next fact.
    """

    __slots__ = (
        "_amended",
        "_before_requests",
        "_effects",
        "_is_urgent",
        "_open",
        "_published",
        "_taken",
        "beat",
        "committed_count",
        "crashes",
        "entries",
        "fed_count",
        "fits_one",
        "registration",
        "run",
        "token",
        "values",
    )

    def __init__(self, run: Run, open_operations: OpenOperations) -> None:
        self.run = run
        """The run as the store has it."""
        self.token = run.token
        self.fed_count = 0
        """The number of facts and requests so far that something may have to wait for."""
        self.committed_count = 0
        """The number of them that the store has."""
        self.crashes = run.crashes
        """The number of crashes that no step was charged with yet."""
        self.registration = Registration(open_operations, is_first_lease=run.token == 1)
        self._open = open_operations
        self._published: dict[str, str] = {}
        self._taken = 0
        self.drop()

    def drop(self) -> None:
        """Forget what was gathered since the last checkpoint."""
        self.entries: dict[str, Entry] = {}
        self.values = _NO_VALUES
        self.beat = 0
        self.fits_one = True
        """Whether one checkpoint can create all the new children."""
        self._effects: Effects | None = None
        self._is_urgent = False
        # How many entries and requests of each kind there were, and which values, before the first request since the
        # last fact; None if there is no such request.
        self._before_requests: tuple[int, tuple[int, ...], dict[str, str]] | None = None
        # Entries as they were before a request since the last fact changed them; set with the first such request.
        self._amended: dict[str, Entry]

    def is_due(self) -> bool:
        """Whether something must be written now, even if the run goes on."""
        if self._is_urgent or self.values or self.beat:
            return True
        return self._open.named_version > 0 and self.registration.has_new()

    # Gathering

    def add(self, entry: Entry, *, is_lazy: bool = False) -> None:
        """Take in a fact; a later one for its location replaces it."""
        self.entries[entry.location] = entry
        self._before_requests = None
        if not is_lazy:
            self._is_urgent = True
            self.fed_count += 1

    def request(self, entry: Entry, *, is_lazy: bool = False) -> None:
        """Take in the entry of a request. Nothing stands at its location yet."""
        self._note_request()
        self.entries[entry.location] = entry
        if not is_lazy:
            self._is_urgent = True
            self.fed_count += 1

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
            self.fits_one = len(self._effects.children) <= CHILDREN_AT_ONCE
        self._before_requests = None

    def _note_request(self) -> None:
        if self._before_requests is None:
            self._amended = {}
            counts = tuple(map(len, self._effects.requests())) if self._effects is not None else ()
            self._before_requests = (len(self.entries), counts, self.values)

    def publish(self, name: str, value: str) -> None:
        """Take in a named value, unless the store has it."""
        self._note_request()
        self.values = {known: text for known, text in self.values.items() if known != name}
        if self._published.get(name) != value:
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
            self.fits_one = len(effects.children) <= CHILDREN_AT_ONCE
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

    # Writing

    def take(self, next: Next, seen: int, limits: tuple[Wait, ...] = ()) -> Checkpoint:
        """The checkpoint that writes all of it, and says with `next` what becomes of the run.

        A checkpoint that holds the run creates only so many children, and leaves the others for the next one.
        `limits` are waits that end a suspension though nothing comes.
        """
        later = self._split_off() if isinstance(next, Hold) and not self.fits_one else None
        if self.values:
            self._published |= self.values
        checkpoint = self._checkpoint(next, seen, self.registration.write(next, limits))
        if checkpoint.charged:
            self.run = replace(self.run, crashes=0)
        # Nothing more counts as committed as long as children are left.
        self._taken = self.fed_count if later is None else self.committed_count
        self.drop()
        if later is not None:
            self.entries, self._effects = later
            self.fits_one = len(self._effects.children) <= CHILDREN_AT_ONCE
            self._is_urgent = True
        return checkpoint

    def committed(self) -> None:
        """The checkpoint taken last is in the store, and so are the waits that it carried."""
        self.committed_count = self._taken
        self.registration.committed()

    def inherit(self, old: PendingCheckpoint) -> None:
        """Take over from an earlier turn of the same lease what it knows to be in the store beside the history."""
        self.token = old.token
        self.registration.inherit(old.registration)
        self._published = old._published

    def _split_off(self) -> tuple[dict[str, Entry], Effects]:
        """Take out the children beyond the limit, and their entries.

        Other requests to the world are taken out too: they may be meant for one of these children.
        """
        effects, later = self._made_effects(), Effects()
        effects.children, later.children = effects.children[:CHILDREN_AT_ONCE], effects.children[CHILDREN_AT_ONCE:]
        effects.messages, later.messages = later.messages, effects.messages
        effects.events, later.events = later.events, effects.events
        effects.cancels, later.cancels = later.cancels, effects.cancels
        places = {child.parent_location for child in later.children}
        moved = [entry for entry in self.entries.values() if entry.kind in _COMMANDS or entry.location in places]
        return {entry.location: self.entries.pop(entry.location) for entry in moved}, later

    def _checkpoint(self, next: Next, seen: int, waits: tuple[Wait, ...] | None) -> Checkpoint:
        # A release that writes nothing says nothing of the crashes: the next worker has to count them, too.
        is_telling = bool(self.entries) or not isinstance(next, Release)
        plain = Checkpoint(
            run_id=self.run.id,
            token=self.token,
            seen=seen,
            next=next,
            entries=tuple(self.entries.values()),
            waits=waits,
            values=self.values,
            beat=self.beat,
            charged=self.crashes == 0 and self.run.crashes > 0 and is_telling,
        )
        effects = self._effects
        if effects is None:
            return plain
        return replace(
            plain,
            consumed=tuple(effects.consumed),
            children=tuple(effects.children),
            messages=tuple(effects.messages),
            events=tuple(effects.events),
            cancels=tuple(effects.cancels),
            replies=tuple(effects.replies),
            pruned=tuple(effects.pruned),
        )
