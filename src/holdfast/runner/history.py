"""The history of a run as its code meets it: what is recorded, and how far the code has come in it."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Sequence

from holdfast.core.errors import HistoryDiverged
from holdfast.core.model import Entry, EntryKind, EntryState, Run
from holdfast.core.revision import EVENTS_LOCATION
from holdfast.runner.asked import Asked
from holdfast.runner.iterations import Iterations
from holdfast.runner.operation import Operation


class History:
    """Hands recorded entries back in the order of their positions, and notices when the code does not fit them.

    `diverged` is the first misfit. It sticks, whatever the code does next.
    """

    def __init__(self, run: Run, entries: Sequence[Entry], asked: Asked) -> None:
        self.diverged: HistoryDiverged | None = None
        self._run = run
        self._asked = asked
        self._entries = {entry.location: entry for entry in entries}
        self.iterations = Iterations(self._entries)
        self._unreached = {
            e.location
            for e in entries
            if (e.is_settled or e.state is EntryState.STARTED) and e.location != EVENTS_LOCATION
        }
        self.has_undo = any(entry.has_undo for entry in entries)
        self._last = max((entry.position for entry in entries), default=0)
        self._position = self._last
        self._reached = 0
        self._to_replay: list[tuple[int, int, Operation, Entry]] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that this history began with or was told to remember."""
        return tuple(self._entries.values())

    @property
    def has_unreached(self) -> bool:
        """Whether something is recorded that the code has not come to."""
        return bool(self._unreached)

    @property
    def is_behind(self) -> bool:
        """Whether the code has not been told the last recorded fact yet."""
        return self._reached < self._last

    @property
    def position(self) -> int:
        """The place of the last fact the code has been told."""
        return self._reached if self.is_behind else self._position

    def next_position(self) -> int:
        """The place of a new fact in commit order."""
        self._position += 1
        return self._position

    def remember(self, entries: Iterable[Entry]) -> None:
        """Take in what was recorded since."""
        for entry in entries:
            self._entries[entry.location] = entry
            self.iterations.add(entry.location)

    def forget(self, iterations: Iterable[str]) -> None:
        """Drop what happened in iterations of loops, but for what would have to be undone."""
        for path in iterations:
            for location in self.iterations.pop(path):
                if not self._entries[location].has_undo:
                    del self._entries[location]
                else:
                    self.iterations.add(location)

    # Meeting

    def get(self, location: str) -> Entry | None:
        """What is recorded at a location, whether or not the code has come there."""
        return self._entries.get(location)

    def skip(self, locations: Iterable[str]) -> None:
        """The code does not come to these any more."""
        self._unreached.difference_update(locations)

    def reach(self, location: str, kind: EntryKind) -> Entry | None:
        """What is recorded at a location that the code has come to."""
        recorded = self._entries.get(location)
        if recorded is None:
            return None
        self._unreached.discard(location)
        if recorded.kind is not kind:
            self.diverge(
                f"at {location!r} the history has a {recorded.kind.value}, the code now asks for a {kind.value}"
            )
        return recorded

    def passed(self, entry: Entry) -> None:
        """The code has come to, or been told, what stands at this position."""
        self._reached = max(self._reached, entry.position)

    # Replaying

    @property
    def has_replay(self) -> bool:
        """Whether something is asked for whose outcome is recorded."""
        return bool(self._to_replay)

    def schedule(self, operation: Operation, recorded: Entry) -> None:
        """An operation was asked for whose outcome is recorded; it is told in its turn."""
        heapq.heappush(self._to_replay, (recorded.position, operation.serial, operation, recorded))

    def pop_replay(self) -> tuple[Operation, Entry]:
        """The recorded outcome of the lowest position among those asked for."""
        _, _, operation, entry = heapq.heappop(self._to_replay)
        return operation, entry

    # Diverging

    def diverge(self, what: str) -> HistoryDiverged:
        """Note that the code does not fit; the first misfit is the one that is told."""
        if self.diverged is None:
            run = self._run
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            by = f" It was recorded on Python {run.python}, this is {python}." if run.python != python else ""
            missing = sorted(self._unreached, key=lambda at: self._entries[at].position)[:5]
            never = f" Recorded but never reached: {', '.join(missing)}." if missing else ""
            asked = f" Asked for: {', '.join(list(self._asked)[:5])}." if self._asked else ""
            self.diverged = HistoryDiverged(
                f"the code of {run.type!r} does not fit this run's history: {what}.{never}{asked}{by} "
                "Deploy code that fits, or cancel the run"
            )
        return self.diverged
