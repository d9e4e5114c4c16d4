"""The index of runs: claimable runs in claim order, and runs that wait for events. A claim need not read all runs.

A lane is a heap with the ready times of runs. A change of a run adds its new place and leaves the old one. Readers
compare each place with its run, and skip it if it is out of date.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, merge
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.core.claim_order import rank_of
from holdfast.core.clock import Micros
from holdfast.core.model import Run, Wait, WaitKind
from holdfast.stores.operations.leases import Queue

if TYPE_CHECKING:
    from holdfast.stores.memory.state import Record

LaneName = tuple[int, int, str | None]
"""Priority, rank and holder of the runs in a lane."""
ReadyRun = tuple[Micros, str, Run]
"""A run with its ready time and id. These decide the order in a lane."""

_run_of = itemgetter(2)

OUTDATED = 4
"""A lane is cleaned up when it has this many times as many places as there are runs."""
SMALL = 64
"""A lane with fewer places is not cleaned up."""


def lane_of(run: Run) -> LaneName:
    return run.priority, rank_of(run), run.worker


class RunIndex:
    """Finds runs of a state by type and ready time, and by the topic of an awaited event."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._lanes: dict[str, dict[LaneName, list[tuple[Micros, str]]]] = {}
        self._waiting: dict[str, dict[str, None]] = {}

    def note(self, before: Run | None, run: Run) -> None:
        """Note that a run was added or has changed."""
        ready_at = run.ready_at
        if ready_at is None:
            return
        name = lane_of(run)
        if before is not None and before.ready_at == ready_at and lane_of(before) == name:
            return
        lane = self._lanes.setdefault(run.type, {}).setdefault(name, [])
        heappush(lane, (ready_at, run.id))
        if len(lane) > SMALL + OUTDATED * len(self._records):
            lane[:] = sorted({place for place in lane if self._current(name, place) is not None})

    def note_waits(self, run_id: str, before: Iterable[Wait], after: Iterable[Wait]) -> None:
        """Note that the waits of a run have changed."""
        for topic in _topics(before):
            if (waiting := self._waiting.get(topic)) is not None:
                waiting.pop(run_id, None)
                if not waiting:
                    del self._waiting[topic]
        for topic in _topics(after):
            self._waiting.setdefault(topic, {})[run_id] = None

    def waiting(self, topic: str) -> Sequence[str]:
        """Return the ids of the runs that wait for an event of a topic."""
        return list(self._waiting.get(topic, ()))

    def due(self, types: Iterable[str], limited: Collection[str], now: Micros) -> Queue:
        """Return the runs of some types that may be claimed now.

        Those of types with limits are chosen at once: each admission may change other runs of the type.
        """
        found: dict[int, dict[int, list[Iterator[ReadyRun]]]] = {}
        for type in types:
            for name, lane in self._cleaned(type):
                if lane[0][0] <= now:
                    runs = self._due(name, lane.copy(), now)
                    lanes = found.setdefault(name[0], {}).setdefault(name[1], [])
                    lanes.append(iter(list(runs)) if type in limited else runs)
        return [{rank: map(_run_of, merge(*lanes)) for rank, lanes in found[at].items()} for at in sorted(found)]

    def next_ready_at(self, types: Iterable[str], worker: str) -> Micros | None:
        """Return when the next run of some types is ready that a worker does not hold itself."""
        lanes = (one for type in types for one in self._cleaned(type))
        return min((lane[0][0] for name, lane in lanes if name[2] != worker), default=None)

    def _cleaned(self, type: str) -> Iterator[tuple[LaneName, list[tuple[Micros, str]]]]:
        """Yield the lanes of a type that have runs. The first place of each one is not out of date."""
        lanes = self._lanes.get(type, {})
        for name, lane in list(lanes.items()):
            while lane and self._current(name, lane[0]) is None:
                heappop(lane)
            if lane:
                yield name, lane
            else:
                del lanes[name]

    def _due(self, name: LaneName, lane: list[tuple[Micros, str]], now: Micros) -> Iterator[ReadyRun]:
        last = None
        while lane and lane[0][0] <= now:
            place = heappop(lane)
            run = self._current(name, place) if place != last else None  # a run may have been there before
            if run is not None:
                yield *place, run
            last = place

    def _current(self, name: LaneName, place: tuple[Micros, str]) -> Run | None:
        """Return the run at a place of a lane, or None if the place is out of date."""
        record = self._records.get(place[1])
        if record is None:
            return None
        run = record.run
        return run if run.ready_at == place[0] and lane_of(run) == name else None


def index_of(records: Mapping[str, Record]) -> RunIndex:
    """Return the index of runs that have none yet."""
    index = RunIndex(records)
    for run_id, record in records.items():
        index.note(None, record.run)
        index.note_waits(run_id, (), record.waits)
    return index


def _topics(waits: Iterable[Wait]) -> set[str]:
    return {wait.names[0] for wait in waits if wait.kind is WaitKind.EVENT}
