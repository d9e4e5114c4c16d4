"""The history of a run as its code meets it: what is recorded, and how far the code has come in it."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from holdfast.core.clock import Micros
from holdfast.core.entries import BOOKKEEPING
from holdfast.core.errors import HistoryDiverged
from holdfast.core.model import Entry, EntryKind, EntryState, Run
from holdfast.runner import divergence
from holdfast.runner.iterations import Iterations
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Operation

_ABOUT_CODE = frozenset({EntryKind.VERSION, EntryKind.REMOVED})
"""Entries that say something about the code, not about what happened to the run."""

_TOLD_AT_ONCE = _ABOUT_CODE | {EntryKind.SEND, EntryKind.EMIT, EntryKind.CANCEL, EntryKind.REPLY, EntryKind.ROLLBACK}
"""Kinds of which the code knows all when it comes to them. The outcome of the others is told in its turn."""

_SHOWN = 3


class History:
    """Hands recorded entries back in the order of their positions, and notices when the code does not fit them.

    `diverged` is the first misfit. It sticks, whatever the code does next.
    """

    def __init__(
        self, run: Run, entries: Sequence[Entry], open_operations: OpenOperations, *, is_strict: bool = False
    ) -> None:
        self.diverged: HistoryDiverged | None = None
        self.stamp: Micros = run.first_claimed_at or run.created_at
        """The instant of the last fact that the code was told; what it sees as the time."""
        self.has_news = run.token == 1
        """Whether the code was told something that was not recorded, or runs for the first time."""
        self._run = run
        self._open = open_operations
        self._entries = {entry.location: entry for entry in entries}
        self.iterations = Iterations(self._entries)
        self._children = {entry.ref for entry in entries if entry.kind is EntryKind.CHILD}
        self.unreached = {
            e.location
            for e in entries
            if (e.is_settled or e.state is EntryState.STARTED) and e.location not in BOOKKEEPING
        }
        """The locations of what is recorded and the code has not come to."""
        # A child that is `retrying` is there to be found, should the code come there again after a recovery.
        self._tried = {e.location for e in entries if e.state is EntryState.RETRYING and e.kind is not EntryKind.CHILD}
        self._told: set[str] = set()
        # Settled entries that the code has not been told, the lowest position last; those told are dropped when met.
        settled = [entry for entry in entries if entry.is_settled]
        self._untold = sorted(settled, key=attrgetter("position"), reverse=True)
        self.has_undo = any(entry.has_undo for entry in entries)
        self._position = self._untold[0].position if self._untold else 0
        self._last = self._last_fact()
        self._reached = 0
        self.must_follow = is_strict and bool(self._untold or self.unreached or self._tried)
        """Whether something is recorded that the code has to ask for, in this order, before it does anything new."""
        self.to_replay: list[tuple[int, int, Operation, Entry]] = []
        """What is asked for and its outcome recorded: a heap, of which `pop_replay` takes."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that this history began with or was told to remember."""
        return tuple(self._entries.values())

    @property
    def is_behind(self) -> bool:
        """Whether the code has not been told the last recorded fact yet."""
        return self._reached < self._last

    @property
    def position(self) -> int:
        """The place of the last fact the code has been told."""
        return self._reached if self._reached < self._last else self._position

    @property
    def upcoming(self) -> int:
        """The place that the next new fact will have."""
        return self._position + 1

    def next_position(self) -> int:
        """Give something new its place in commit order."""
        self._position += 1
        return self._position

    def place_fact(self, now: Micros) -> int:
        """Give a new fact its place in commit order, and its time: never earlier than the fact before."""
        self.has_news = True
        self.stamp = max(self.stamp, now)
        self._position += 1
        return self._position

    def remember(self, entries: Iterable[Entry]) -> None:
        """Take in what was recorded since."""
        for entry in entries:
            self._entries[entry.location] = entry
            self.iterations.add(entry.location)
            if entry.kind is EntryKind.CHILD:
                self._children.add(entry.ref)

    def forget(self, iterations: Iterable[str]) -> None:
        """Drop what happened in iterations of loops, but for what would have to be undone."""
        for path in iterations:
            for location in self.iterations.pop(path):
                if location in self.unreached:
                    self.diverge(f"iteration {path} is to be pruned, but the code passed something by in it")
                if not self._entries[location].has_undo:
                    self._children.discard(self._entries.pop(location).ref)
                else:
                    self.iterations.add(location)

    # Meeting

    def get(self, location: str) -> Entry | None:
        """What is recorded at a location, whether or not the code has come there."""
        return self._entries.get(location)

    def has_child(self, child_id: str) -> bool:
        """Whether a child is recorded whose end the code may still ask for."""
        return child_id in self._children

    def skip(self, locations: Iterable[str]) -> None:
        """The code does not come to these any more."""
        for location in locations:
            self._visit(location)
            self._told.add(location)

    def reach(self, location: str, kind: EntryKind) -> Entry | None:
        """What is recorded at a location that the code has come to."""
        recorded = self._entries.get(location)
        if recorded is None:
            return None
        self._visit(location)
        if recorded.kind is not kind:
            self.diverge(
                f"at {location!r} the history has a {recorded.kind.value}, the code now asks for a {kind.value}",
                {location: kind},
                recorded=recorded,
            )
        elif kind in _TOLD_AT_ONCE:
            self._told.add(location)
        return recorded

    def accept(self, location: str, kind: EntryKind | None) -> list[Entry]:
        """What is recorded of an operation that the code says was there once, in order; it is told to nobody.

        No kind: an operation that is nothing but its branches, which are recorded below it.
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

    def let_go(self, entry: Entry) -> bool:
        """An accepted entry counts as told from now on. True if everything before it was told already."""
        is_next = entry.is_settled and self._is_next(entry)
        self._told.add(entry.location)
        if is_next:
            self._reached = max(self._reached, entry.position)
        if entry.position == self._last:
            self._last = self._last_fact()
        return is_next

    def _visit(self, location: str) -> None:
        self.unreached.discard(location)
        self._tried.discard(location)

    def _last_fact(self) -> int:
        """The position of the last thing that happened, and that the code is to be told."""
        facts = (e for e in self._entries.values() if e.kind not in _ABOUT_CODE and e.location not in self._told)
        return max((entry.position for entry in facts), default=0)

    def has_unvisited(self, path: str) -> bool:
        """Whether something is recorded in a scope, or below it, that the code has not come to.

        That includes a step which was only tried: whoever asked for it was there before.
        """
        return any(location.startswith(path) for location in chain(self.unreached, self._tried))

    def passed(self, entry: Entry) -> None:
        """The code has come to, or been told, what stands at this position."""
        self._told.add(entry.location)
        if self._untold and self._untold[-1] is entry:
            self._untold.pop()
        if entry.kind not in _ABOUT_CODE:
            self._reached = max(self._reached, entry.position)

    def _is_next(self, entry: Entry) -> bool:
        untold = self._next_untold()
        return untold is None or untold.position >= entry.position

    def _next_untold(self) -> Entry | None:
        while self._untold and self._untold[-1].location in self._told:
            self._untold.pop()
        return self._untold[-1] if self._untold else None

    # Replaying

    def schedule(self, operation: Operation, recorded: Entry) -> None:
        """Have the recorded outcome of an operation fed when its position is next."""
        heapq.heappush(self.to_replay, (recorded.position, operation.serial, operation, recorded))

    def pop_replay(self) -> tuple[Operation, Entry]:
        """The recorded outcome of the lowest position among those asked for; the next one, if the code must follow."""
        _, _, operation, entry = heapq.heappop(self.to_replay)
        if self.must_follow and not (self._untold and self._untold[-1] is entry):
            missed = self._next_untold()
            if missed is not None and missed is not entry:
                self.pass_by(missed)
        return operation, entry

    def withdrawn(self, entry: Entry) -> None:
        """An operation was asked for and given up before its recorded outcome was told. The code may ask for it again.

        As it was told to the code that wrote it, code that must follow asks for it somewhere.
        """
        is_asked_again = bool(self.to_replay) and self.to_replay[0][3] is entry
        if self.must_follow and not is_asked_again:
            self.pass_by(entry)

    def check_followed(self) -> None:
        """Where nothing is left to replay: code that must follow has been told all, and has come to what was begun."""
        self.must_follow = False
        if (missed := self._next_untold()) is not None:
            self.pass_by(missed)
        elif self.has_unvisited(""):
            self.diverge("the code goes on without what the history has begun")

    def pass_by(self, entry: Entry) -> None:
        """The code does not ask for the next recorded result, which it should if it must follow."""
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
        """Note that the code does not fit; the first misfit is the one that is told.

        `recorded` is the entry that it does not fit, `asking` what it asked for there. By default it is about the first
        entry that the code has not come to, and about what the code asks for now; nothing if it `is_over`.
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
        """Note that the code asks for what is recorded, and cannot make anything of it."""
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
        hints = divergence.hints(recorded, requested, self._entries)
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
