"""The history of a run during replay: the recorded entries, and how far the code has got in them."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from holdfast.core.clock import Micros
from holdfast.core.entries import BOOKKEEPING
from holdfast.core.errors import HistoryDiverged
from holdfast.core.location import iterations_around
from holdfast.core.model import Entry, EntryKind, EntryState, Run
from holdfast.runner import divergence
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Operation

_ABOUT_CODE = frozenset({EntryKind.VERSION, EntryKind.REMOVED})
"""Kinds of entries about the code, not about what happened to the run."""

_ANSWERED_AT_ONCE = _ABOUT_CODE | {
    EntryKind.SEND,
    EntryKind.EMIT,
    EntryKind.CANCEL,
    EntryKind.REPLY,
    EntryKind.ROLLBACK,
}
"""Kinds whose outcome the code gets when it asks. The outcome of any other kind is fed at its position."""

_SHOWN = 3


class History:
    """Returns recorded entries in the order of their positions, and detects when the code diverges from them.

    `diverged` is the first divergence. Nothing that the code does later clears it.
    """

    def __init__(
        self,
        run: Run,
        entries: Sequence[Entry],
        open_operations: OpenOperations,
        *,
        is_strict: bool = False,
        hints: divergence.Hints = divergence.hints,
    ) -> None:
        self.diverged: HistoryDiverged | None = None
        self.stamp: Micros = run.first_claimed_at or run.created_at
        """The instant of the last fact fed. The code sees it as the current time."""
        self.has_news = run.token == 1
        """True if the code runs for the first time, or has been fed a fact that was not recorded."""
        self._run = run
        self._open = open_operations
        self._hints = hints
        self._entries: dict[str, Entry] = {}
        self.iterations = Iterations()
        self._children: set[str | None] = set()
        self.unreached: set[str] = set()
        """Recorded locations that the code has not reached."""
        self._tried: set[str] = set()
        self._fed: set[str] = set()
        self._unfed: list[Entry] = []
        """Settled entries not fed yet, lowest position last. Entries that were fed out of order are dropped lazily."""
        self.has_undo = False
        self.remember(entries)
        for entry in entries:
            is_settled = entry.is_settled
            if is_settled:
                self._unfed.append(entry)
            if (is_settled or entry.state is EntryState.STARTED) and entry.location not in BOOKKEEPING:
                self.unreached.add(entry.location)
            # A child that is `retrying` was kept by a recovery. The code may reach it again, but does not have to.
            elif entry.state is EntryState.RETRYING and entry.kind is not EntryKind.CHILD:
                self._tried.add(entry.location)
            self.has_undo = self.has_undo or entry.has_undo
        self._unfed.sort(key=attrgetter("position"), reverse=True)
        self._position = self._unfed[0].position if self._unfed else 0
        self._last = self._last_fact() if entries else 0
        self._reached = 0
        self.must_follow = is_strict and bool(self._unfed or self.unreached or self._tried)
        """True while the code must ask for recorded entries, in recorded order, before it does anything new."""
        self.to_replay: list[tuple[int, int, Operation, Entry]] = []
        """Heap of the requested operations whose outcome is recorded. `pop_replay` takes from it."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of the lease, and those added by `remember`."""
        return tuple(self._entries.values())

    @property
    def is_behind(self) -> bool:
        """True until the last recorded fact is fed."""
        return self._reached < self._last

    @property
    def position(self) -> int:
        """The position of the last fact fed."""
        return self._reached if self._reached < self._last else self._position

    @property
    def upcoming(self) -> int:
        """The position of the next new fact."""
        return self._position + 1

    def next_position(self) -> int:
        """Return the next position in commit order."""
        self._position += 1
        return self._position

    def place_fact(self, now: Micros) -> int:
        """Return the position of a new fact, and set the time to `now`, but never before the previous fact."""
        self.has_news = True
        self.stamp = max(self.stamp, now)
        self._position += 1
        return self._position

    def remember(self, entries: Iterable[Entry]) -> None:
        """Add entries that were recorded after the claim."""
        for entry in entries:
            self._entries[entry.location] = entry
            self.iterations.add(entry.location)
            if entry.kind is EntryKind.CHILD:
                self._children.add(entry.ref)

    def forget(self, iterations: Iterable[str]) -> None:
        """Drop the entries of loop iterations, except those that a rollback would undo."""
        for path in iterations:
            for location in self.iterations.pop(path):
                if location in self.unreached:
                    self.diverge(f"iteration {path} is about to be pruned, but the code skipped an entry in it")
                if not self._entries[location].has_undo:
                    self._children.discard(self._entries.pop(location).ref)
                else:
                    self.iterations.add(location)

    # Reaching entries

    def get(self, location: str) -> Entry | None:
        """Return the entry at a location, even if the code has not reached it."""
        return self._entries.get(location)

    def has_child(self, child_id: str) -> bool:
        """True if the history has this child, so that the code may still ask for its end."""
        return child_id in self._children

    def skip(self, locations: Iterable[str]) -> None:
        """Mark locations as done, because the code will never ask for them."""
        for location in locations:
            self._visit(location)
            self._fed.add(location)

    def reach(self, location: str, kind: EntryKind) -> Entry | None:
        """Return the entry at a location that the code asks for now. Another kind is a divergence."""
        recorded = self._entries.get(location)
        if recorded is None:
            return None
        self._visit(location)
        if recorded.kind is not kind:
            self.diverge(
                f"at {location!r} the history has a {recorded.kind.value}, but the code now asks for a {kind.value}",
                {location: kind},
                recorded=recorded,
            )
        elif kind in _ANSWERED_AT_ONCE:
            self._fed.add(location)
        return recorded

    def accept(self, location: str, kind: EntryKind | None) -> list[Entry]:
        """Return the entries of an operation that the code declares as removed, in order. They are not fed.

        No kind means an operation that consists only of its branches, which are recorded below it.
        """
        recorded = self._entries.get(location)
        accepted: list[Entry] = []
        if kind in (None, EntryKind.LOOP):
            accepted += [entry for at, entry in self._entries.items() if at.startswith(f"{location}/")]
        if recorded is not None and recorded.kind is not EntryKind.REMOVED:
            if recorded.kind is not kind:
                word = kind.value if kind is not None else "operation with branches"
                self.diverge(
                    f"at {location!r} the history has a {recorded.kind.value}, not the {word} that was removed",
                    recorded=recorded,
                    is_over=True,
                )
                return []
            accepted.append(recorded)
        elif recorded is not None:
            self.reach(location, EntryKind.REMOVED)
        for entry in accepted:
            self._visit(entry.location)
        return sorted(accepted, key=lambda entry: entry.position or sys.maxsize)

    def mark_accepted(self, entry: Entry) -> bool:
        """Count an accepted entry as fed. Returns True if every entry before it was fed already."""
        is_next = entry.is_settled and self._is_next(entry)
        self._fed.add(entry.location)
        if is_next:
            self._reached = max(self._reached, entry.position)
        if entry.position == self._last:
            self._last = self._last_fact()
        return is_next

    def _visit(self, location: str) -> None:
        self.unreached.discard(location)
        self._tried.discard(location)

    def _last_fact(self) -> int:
        """Return the position of the last fact that is to be fed to the code."""
        facts = (e for e in self._entries.values() if e.kind not in _ABOUT_CODE and e.location not in self._fed)
        return max((entry.position for entry in facts), default=0)

    def has_unvisited(self, path: str) -> bool:
        """True if a scope, or one below it, has an entry that the code has not reached.

        This includes a step with failed attempts only: the code that asked for it had reached this scope.
        """
        return any(location.startswith(path) for location in chain(self.unreached, self._tried))

    def mark_fed(self, entry: Entry) -> None:
        """Note that the code has reached this entry, or that it was fed."""
        self._fed.add(entry.location)
        if self._unfed and self._unfed[-1] is entry:
            self._unfed.pop()
        if entry.kind not in _ABOUT_CODE:
            self._reached = max(self._reached, entry.position)

    def _is_next(self, entry: Entry) -> bool:
        unfed = self._next_unfed()
        return unfed is None or unfed.position >= entry.position

    def _next_unfed(self) -> Entry | None:
        while self._unfed and self._unfed[-1].location in self._fed:
            self._unfed.pop()
        return self._unfed[-1] if self._unfed else None

    # Replaying

    def schedule(self, operation: Operation, recorded: Entry) -> None:
        """Queue the recorded outcome of an operation, to be fed when its position is next."""
        heapq.heappush(self.to_replay, (recorded.position, operation.serial, operation, recorded))

    def pop_replay(self) -> tuple[Operation, Entry]:
        """Return the requested operation with the lowest recorded position, and its entry.

        If the code must follow and that entry is not the next recorded one, this is a divergence.
        """
        _, _, operation, entry = heapq.heappop(self.to_replay)
        if self.must_follow and not (self._unfed and self._unfed[-1] is entry):
            missed = self._next_unfed()
            if missed is not None and missed is not entry:
                self.pass_by(missed)
        return operation, entry

    def check_withdrawn(self, entry: Entry) -> None:
        """Note that the code gave up an operation before its recorded outcome was fed.

        The code may ask for it again. Code that must follow has to: the code that wrote the history got this outcome.
        """
        is_asked_again = bool(self.to_replay) and self.to_replay[0][3] is entry
        if self.must_follow and not is_asked_again:
            self.pass_by(entry)

    def check_followed(self) -> None:
        """Check, when nothing is left to replay, that every outcome was fed and every begun operation was reached."""
        self.must_follow = False
        if (missed := self._next_unfed()) is not None:
            self.pass_by(missed)
        elif self.has_unvisited(""):
            self.diverge("the code continues without an operation that the history has begun")

    def pass_by(self, entry: Entry) -> None:
        """Diverge because the code must follow and does not ask for the next recorded result."""
        self.diverge(
            f"the next recorded result is that of {entry.location!r} (a {entry.kind.value}, position "
            f"{entry.position}), and the code does not ask for it",
            recorded=entry,
        )

    # Diverging

    def diverge(
        self,
        what: str,
        asking: Mapping[str, EntryKind] | None = None,
        *,
        recorded: Entry | None = None,
        is_over: bool = False,
    ) -> HistoryDiverged:
        """Record a divergence, unless there is one already, and return the first.

        `recorded` is the entry that the code does not fit. By default it is the first entry not reached.
        `asking` are the operations requested instead. By default they are all open ones, or none if the code `is_over`.
        """
        if self.diverged is None:
            missing = sorted(
                self.unreached | self._tried, key=lambda at: (self._entries[at].position or sys.maxsize, at)
            )
            asked = {**self._open.kinds(), **(asking or {})}
            if recorded is None and missing:
                recorded = self._entries[missing[0]]
            requested = None
            if recorded is not None and not is_over:
                requested = divergence.requested_instead(recorded, asking or asked, self._entries)
            self.diverged = self._misfit(what, missing, asked, recorded, requested)
        return self.diverged

    def misread(self, what: str) -> HistoryDiverged:
        """Record a divergence because a recorded value does not fit the code that asks for it."""
        if self.diverged is None:
            self.diverged = self._misfit(what, (), self._open.kinds(), None, None)
        return self.diverged

    def _misfit(
        self,
        what: str,
        missing: Sequence[str],
        asked: Mapping[str, EntryKind],
        recorded: Entry | None,
        requested: divergence.Requested | None,
    ) -> HistoryDiverged:
        run = self._run
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        by = f"It was recorded on Python {run.python}, this is {python}." if run.python != python else ""
        never = f" Recorded but never reached: {_listed(missing)}." if missing else ""
        now = f" Asked for: {_listed(list(asked))}." if asked else ""
        pair = (
            None if recorded is None else divergence.shown(recorded.location, recorded.kind),
            None if requested is None else divergence.shown(*requested),
        )
        hints = self._hints(recorded, requested, self._entries)
        return HistoryDiverged(
            f"the code of {run.type!r} does not fit this run's history: {what}.{never}{now}{by and ' ' + by} "
            "Deploy code that fits, or rewind or cancel the run",
            divergence.report(
                f"The code of {run.type!r} does not fit the history of run {run.id}: {what}",
                [entry for entry in self.entries if entry.location not in BOOKKEEPING],
                missing,
                asked,
                pair=pair,
                hints=hints,
                notes=[by] if by else [],
            ),
            what=what,
            recorded=pair[0],
            requested=pair[1],
            hints=hints,
        )


def _listed(locations: Sequence[str]) -> str:
    more = f" and {len(locations) - _SHOWN} more" if len(locations) > _SHOWN else ""
    return ", ".join(locations[:_SHOWN]) + more


class ShortHistory:
    """The part of a history that the turn of a flow or a task needs. Nothing is replayed from it.

    `position` is the last one that an entry has. `since` is the last position of a fact or of a snapshot, `last_fact`
    only of a fact. `stamp` is the time of the last fact.
    """

    def __init__(self, entries: Iterable[Entry], stamp: Micros) -> None:
        self._entries = {entry.location: entry for entry in entries}
        self.stamp = stamp
        self.position = 0
        self.since = 0
        self.last_fact = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    def get(self, location: str) -> Entry | None:
        return self._entries.get(location)

    def remember(self, entries: Iterable[Entry]) -> None:
        """Add entries of the engine, which a lease contains. Those for people are left out."""
        self._entries.update((one.location, one) for one in entries if one.location.startswith("~"))

    def drop(self, location: str) -> None:
        self._entries.pop(location, None)

    def next_position(self) -> int:
        self.position += 1
        return self.position

    def place_fact(self, now: Micros) -> int:
        """Return the position of the next fact, and let time continue to it."""
        self.stamp = max(self.stamp, now)
        self.since = self.last_fact = self.next_position()
        return self.position

    def place_snapshot(self) -> int:
        """Return the position of a snapshot. What the program asks for from now on is not in it."""
        self.since = self.next_position()
        return self.position


class Iterations:
    """Locations by loop and iteration. A location inside nested loops is listed under each of them."""

    def __init__(self) -> None:
        self._loops: dict[str, dict[int, set[str]]] = {}

    def add(self, location: str) -> None:
        """Add a location if it is inside a loop. The mark at the start of an iteration belongs to that iteration."""
        if "/~" in location:
            for loop, number in iterations_around(location):
                self._loops.setdefault(loop, {}).setdefault(number, set()).add(location)

    def numbers(self, loop: str) -> list[int]:
        """Return the numbers of the iterations that have entries."""
        return list(self._loops.get(loop, ()))

    def inside(self, loop: str, *, before: int | None = None) -> Iterator[str]:
        """Yield the locations inside a loop, or only those before an iteration."""
        for number, locations in self._loops.get(loop, {}).items():
            if before is None or number < before:
                yield from locations

    def pop(self, path: str) -> set[str]:
        """Remove an iteration and return its locations."""
        loop, _, number = path.rpartition("/~")
        locations = self._loops.get(loop, {}).pop(int(number), set())
        for location in locations:
            self._drop(location)
        return locations

    def _drop(self, location: str) -> None:
        """Remove a location from all loops around it, outer and inner."""
        for loop, number in iterations_around(location):
            iterations = self._loops.get(loop, {})
            if number in iterations:
                iterations[number].discard(location)
                if not iterations[number]:
                    del iterations[number]
            if not iterations:
                self._loops.pop(loop, None)
