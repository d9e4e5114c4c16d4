"""The pending checkpoint: everything that the next checkpoint of a run will write, and the waits that the store has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, assert_never

from msgspec.structs import replace

from holdfast.core.checkpoint import Block, Checkpoint, Hold, Next, Release, Suspend
from holdfast.core.model import Entry, EntryKind, Event, Intent, MessageToRun, Reply, Run, Wait, WaitKind
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Operation, Reception

CHILDREN_AT_ONCE = 1_000
"""Maximum number of children that one checkpoint creates, so that no transaction takes too long."""

_COMMANDS = frozenset({EntryKind.SEND, EntryKind.EMIT, EntryKind.CANCEL})
_NO_VALUES: dict[str, str] = {}

RunCommand = Intent | MessageToRun | Event | Reply
"""A command of the code to another run: start it, send it a message, wake it by an event, or reply to it."""


class Effects:
    """The parts of a checkpoint besides entries: consumed arrivals, pruned iterations, and commands to other runs.

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
        """Return the lists that requests of the code fill. Facts fill the others: `consumed` and `pruned`."""
        return self.children, self.messages, self.events, self.cancels, self.replies


class PendingCheckpoint:
    """Entries and effects that go to the store together.

    A lazy entry, for example of an ephemeral step, is written with the next checkpoint and causes none by itself.
    A fact was fed to the code. A request is what the code asks for because of a fact. It is dropped if the run is
    blocked before the next fact.
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
        """The run as it is in the store."""
        self.token = run.token
        self.fed_count = 0
        """Number of facts and requests so far that an operation may have to wait for."""
        self.committed_count = 0
        """Number of those that are committed."""
        self.crashes = run.crashes
        """Number of crashes that were not charged to a step yet."""
        self.registration = Registration(open_operations, is_first_lease=run.token == 1)
        self._open = open_operations
        self._published: dict[str, str] = {}
        self._taken = 0
        self.drop()

    def drop(self) -> None:
        """Drop everything that was added since the last checkpoint."""
        self.entries: dict[str, Entry] = {}
        self.values = _NO_VALUES
        self.beat = 0
        self.fits_one = True
        """True if one checkpoint can create all the new children."""
        self._effects: Effects | None = None
        self._is_urgent = False
        # The number of entries and of requests of each kind, and the values, before the first request since the last
        # fact. None if there is no such request.
        self._before_requests: tuple[int, tuple[int, ...], dict[str, str]] | None = None
        # Entries as they were before a request since the last fact changed them. The first such request sets it.
        self._amended: dict[str, Entry]

    def is_due(self) -> bool:
        """True if a checkpoint must be written now, even if the run continues."""
        if self._is_urgent or self.values or self.beat:
            return True
        return self._open.named_version > 0 and self.registration.has_new()

    # Gathering

    def add(self, entry: Entry, *, is_lazy: bool = False) -> None:
        """Add the entry of a fact. A later one at the same location replaces it."""
        self.entries[entry.location] = entry
        self._before_requests = None
        if not is_lazy:
            self._is_urgent = True
            self.fed_count += 1

    def request(self, entry: Entry, *, is_lazy: bool = False) -> None:
        """Add the entry of a request. There is no entry at its location yet."""
        self._note_request()
        self.entries[entry.location] = entry
        if not is_lazy:
            self._is_urgent = True
            self.fed_count += 1

    def amend(self, entry: Entry) -> None:
        """Add a request that changes an entry, which may be pending already."""
        self._note_request()
        if entry.location in self.entries:
            self._amended.setdefault(entry.location, self.entries[entry.location])
        self.entries[entry.location] = entry

    def drop_requests(self) -> None:
        """Drop the requests of the code since the last fact."""
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
        """Add a named value, unless the store has it already."""
        self._note_request()
        self.values = {known: text for known, text in self.values.items() if known != name}
        if self._published.get(name) != value:
            self.values[name] = value

    def consume(self, numbers: Iterable[int]) -> None:
        """Add the numbers of consumed arrivals."""
        self._made_effects().consumed += numbers

    def prune(self, scopes: Iterable[str]) -> None:
        """Add loop iterations whose entries are to be removed."""
        self._made_effects().pruned += scopes

    def command(self, command: RunCommand | None = None, *, cancels: Sequence[str] = ()) -> None:
        """Add a command to other runs. Its entry was requested before."""
        effects = self._made_effects()
        match command:
            case Intent():
                effects.children.append(command)
                self.fits_one = len(effects.children) <= CHILDREN_AT_ONCE
            case MessageToRun():
                effects.messages.append(command)
            case Event():
                effects.events.append(command)
            case Reply():
                effects.replies.append(command)
            case None:
                effects.cancels += cancels
            case unknown:
                assert_never(unknown)
        self._is_urgent = True

    def _made_effects(self) -> Effects:
        if self._effects is None:
            self._effects = Effects()
        return self._effects

    # Writing

    def take(self, next: Next, seen: int, limits: tuple[Wait, ...] = ()) -> Checkpoint:
        """Return the checkpoint that writes everything pending and changes the run as `next` says.

        A checkpoint that holds the run creates at most `CHILDREN_AT_ONCE` children and leaves the others for the next.
        `limits` are waits that end a suspension even if nothing arrives.
        """
        later = self._split_off() if isinstance(next, Hold) and not self.fits_one else None
        if self.values:
            self._published |= self.values
        checkpoint = self._checkpoint(next, seen, self.registration.write(next, limits))
        if checkpoint.charged:
            self.run = replace(self.run, crashes=0)
        # While children are left for the next checkpoint, no further fact counts as committed.
        self._taken = self.fed_count if later is None else self.committed_count
        self.drop()
        if later is not None:
            self.entries, self._effects = later
            self.fits_one = len(self._effects.children) <= CHILDREN_AT_ONCE
            self._is_urgent = True
        return checkpoint

    def mark_committed(self) -> None:
        """Note that the checkpoint taken last, with its waits, is in the store."""
        self.committed_count = self._taken
        self.registration.mark_committed()

    def inherit(self, old: PendingCheckpoint) -> None:
        """Take over what an earlier turn of the same lease knows about the store, besides the history."""
        self.token = old.token
        self.registration.inherit(old.registration)
        self._published = old._published

    def _split_off(self) -> tuple[dict[str, Entry], Effects]:
        """Remove and return the children beyond the limit, and their entries.

        Messages, events and cancels are removed too, because they may be meant for one of these children.
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
        # A release without entries must not reset the crashes: the next worker still has to charge them.
        has_news = bool(self.entries) or not isinstance(next, Release)
        plain = Checkpoint(
            run_id=self.run.id,
            token=self.token,
            seen=seen,
            next=next,
            entries=tuple(self.entries.values()),
            waits=waits,
            values=self.values,
            beat=self.beat,
            charged=self.crashes == 0 and self.run.crashes > 0 and has_news,
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


class Registration:
    """The waits of a held run as they are in the store."""

    def __init__(self, open_operations: OpenOperations, *, is_first_lease: bool) -> None:
        self._open = open_operations
        # A first claim finds no waits in the store. A later claim may, so its first checkpoint writes the full set.
        self._written: tuple[Wait, ...] | None = () if is_first_lease else None
        self._written_events: frozenset[Wait] = frozenset()
        self._known_events: frozenset[Wait] = frozenset()
        self._has_new = False
        self._version = 0

    def has_new(self) -> bool:
        """True if the named waits of the run differ from those in the store."""
        if self._open.named_version != self._version:
            self._version = self._open.named_version
            self._has_new = self._open.named_waits() != (self._written or ())
        return self._has_new

    def write(self, next: Next, limits: tuple[Wait, ...] = ()) -> tuple[Wait, ...] | None:
        """Return the full set of waits for a checkpoint. None if the store does not need to change its set.

        `limits` are waits that end a suspension even if nothing arrives.
        """
        waits: tuple[Wait, ...] | None = None
        if isinstance(next, Suspend):
            waits = self._open.waits() + limits
        elif isinstance(next, Hold) and (self._written is None or self.has_new()):
            waits = self._open.named_waits()
        elif isinstance(next, Block):
            waits = ()
        if waits is not None:
            self._written = waits
            # Skip the scan for events: most runs wait for none, and a parent may wait for thousands of children.
            if self._open.has_only_children:
                self._written_events = frozenset()
            elif waits or self._written_events:
                self._written_events = frozenset(wait for wait in waits if wait.kind is WaitKind.EVENT)
        self._has_new = False
        return waits

    def mark_committed(self) -> None:
        """Note that the waits written last are in the store."""
        self._known_events = self._written_events

    def knows(self, operation: Operation) -> bool:
        """True if the store has the event wait of an operation."""
        return self._open.wait_of(operation) in self._known_events

    def must_come_first(self, operation: Operation) -> bool:
        """True if the store must know the wait of an operation before its deadline is fed.

        Only the store can decide whether an event came before the deadline.
        """
        is_event = isinstance(operation, Reception) and operation.wait_kind is WaitKind.EVENT
        return is_event and not self.knows(operation)

    def inherit(self, old: Registration) -> None:
        """Take over the registration of an earlier turn of the same lease."""
        self._written = old._written
        self._written_events = old._written_events
        self._known_events = old._known_events
