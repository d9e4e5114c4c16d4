"""A timeline: the history of a run, drawn against time. Long idle stretches are folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec

from holdfast.core.model import EntryKind, EntryState, WaitKind
from holdfast.engine.info import AuditInfo, EntryInfo, RunInfo, WaitInfo

_FOLD_SECONDS = 10.0
"""Minimum length of a stretch that is folded."""

_NOTHING = timedelta(0)
_BUSY_KINDS = (EntryKind.STEP, EntryKind.TX)
SILENT_KINDS = (EntryKind.TIMER, EntryKind.MESSAGE, EntryKind.EVENT, EntryKind.CHILD)
"""What only waits, so that no worker is needed meanwhile."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One row: an operation or a wait of the run, or (`kind` is None) a mark or a gap between rows.

    `failures` are the errors of earlier attempts.
    """

    label: str
    begin: datetime
    end: datetime
    kind: EntryKind | None = None
    state: EntryState | None = None
    attempts: int = 0
    failures: tuple[str, ...] = ()
    entry: EntryInfo | None = None
    wait: WaitInfo | None = None
    is_gap: bool = False

    @property
    def is_open(self) -> bool:
        return self.state in (EntryState.STARTED, EntryState.RETRYING)


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a run in order, and the stretches of time that are folded."""

    begin: datetime
    end: datetime
    items: tuple[Item, ...]
    folds: tuple[tuple[datetime, datetime], ...]

    def is_folded(self, begin: datetime, end: datetime) -> bool:
        """Return True if an interval covers most of a folded stretch."""
        return any(2 * (min(end, last) - max(begin, first)) > last - first for first, last in self.folds)


def timeline(
    info: RunInfo, entries: Sequence[EntryInfo], audit: Sequence[AuditInfo], workers: Mapping[str, str], now: datetime
) -> Timeline:
    """Return the timeline of a run at `now`. `workers` maps worker ids to names."""
    end = max(info.finished_at or now, info.created_at)
    items = _items(info, entries, audit, end)
    items += [Item(label=claim_words(fact, workers), begin=fact.at, end=fact.at) for fact in audit if is_takeover(fact)]
    items.sort(key=lambda item: (item.kind is not None and item.is_open, item.end))
    busy = sorted((item.begin, item.end) for item in items if item.kind in _BUSY_KINDS and not item.is_open)
    folds = _stretches(busy, info.created_at, end)
    total = sum((last - first for first, last in busy), _NOTHING)
    threshold = max(timedelta(seconds=_FOLD_SECONDS), 2 * total)
    folded = tuple((first, last) for first, last in folds if last - first > threshold)
    return Timeline(
        begin=info.created_at, end=end, items=_with_gaps(items, info.created_at, end, threshold), folds=folded
    )


def _items(info: RunInfo, entries: Sequence[EntryInfo], audit: Sequence[AuditInfo], end: datetime) -> list[Item]:
    waits = {wait.location: wait for wait in info.waits}
    failures: dict[str, list[str]] = {}
    for fact in audit:
        if fact.event == "retried":
            failures.setdefault(str(fact.data.get("location", "")), []).append(str(fact.data.get("error", "")))
    items = [
        Item(
            label=label_of(entry),
            begin=entry.started_at,
            end=max(entry.finished_at or end, entry.started_at),
            kind=entry.kind,
            state=entry.state,
            attempts=entry.attempts,
            failures=tuple(failures.get(entry.location, ())),
            entry=entry,
            wait=waits.pop(entry.location, None),
        )
        for entry in entries
        if entry.kind is not EntryKind.SNAPSHOT
    ]
    items += [
        Item(
            label=label_of(wait),
            begin=wait.since,
            end=max(end, wait.since),
            kind=_KINDS_OF_WAITS.get(wait.kind, EntryKind.CHILD),
            state=EntryState.STARTED,
            wait=wait,
        )
        for wait in waits.values()
    ]
    return items


def label_of(entry: EntryInfo | WaitInfo) -> str:
    """Return the name of an entry or wait; in a flow, with its line."""
    return entry.location if entry.line is None else f"line {entry.line} {entry.name}"


_KINDS_OF_WAITS = {
    WaitKind.TIME: EntryKind.TIMER,
    WaitKind.RETRY: EntryKind.STEP,
    WaitKind.MESSAGE: EntryKind.MESSAGE,
    WaitKind.EVENT: EntryKind.EVENT,
    WaitKind.CHILD: EntryKind.CHILD,
}


def is_takeover(fact: AuditInfo) -> bool:
    """Return True if a claim took the run over from a worker that had died."""
    return fact.event == "claimed" and "lost" in fact.data


def claim_words(fact: AuditInfo, workers: Mapping[str, str]) -> str:
    """Describe a claim: the worker that took the run, and the worker that lost it."""
    taker = _called(str(fact.data.get("worker")), workers) or "a worker"
    if not is_takeover(fact):
        return f"claimed by {taker}"
    return f"{_called(str(fact.data['lost']), workers) or 'its worker'} died; taken over by {taker}"


def _called(worker_id: str, workers: Mapping[str, str]) -> str:
    """Return the name of a worker. For a worker that is gone, its id contains the name."""
    return workers.get(worker_id) or worker_id.rpartition(".")[0]


def _stretches(
    busy: Sequence[tuple[datetime, datetime]], begin: datetime, end: datetime
) -> list[tuple[datetime, datetime]]:
    """Return the stretches between `begin` and `end` that no interval covers."""
    free: list[tuple[datetime, datetime]] = []
    at = begin
    for first, last in busy:
        if first > at:
            free.append((at, first))
        at = max(at, last)
    if end > at:
        free.append((at, end))
    return free


def _with_gaps(items: Sequence[Item], begin: datetime, end: datetime, threshold: timedelta) -> tuple[Item, ...]:
    """Return the rows with gaps inserted for long stretches that no row covers."""
    covered = sorted((item.begin, item.end) for item in items if item.kind is not None)
    gaps = [
        Item(label="", begin=first, end=last, is_gap=True)
        for first, last in _stretches(covered, begin, end)
        if last - first > threshold
    ]
    rows: list[Item] = []
    for item in items:
        while gaps and item.kind is not None and gaps[0].end <= item.begin:
            rows.append(gaps.pop(0))
        rows.append(item)
    return (*rows, *gaps)


class Scale(msgspec.Struct, frozen=True):
    """Maps moments to columns: each folded stretch takes a few columns, the rest is proportional."""

    timeline: Timeline
    width: int

    def columns(self, begin: datetime, end: datetime) -> tuple[int, int]:
        """Return the first and last column of an interval, at least one column wide."""
        first = min(self.width - 1, int(self._position(begin)))
        last = max(first + 1, min(self.width, round(self._position(end))))
        return first, last

    def _position(self, at: datetime) -> float:
        folds = self.timeline.folds
        fold_width = min(18.0, self.width * 0.5 / len(folds)) if folds else 0.0
        open_width = self.width - fold_width * len(folds)
        open_length = self.timeline.end - self.timeline.begin - sum((last - first for first, last in folds), _NOTHING)
        points = [self.timeline.begin, *(point for fold in folds for point in fold), self.timeline.end]
        position = 0.0
        for number, (first, last) in enumerate(pairwise(points)):
            share = min(1.0, max(0.0, (at - first) / (last - first))) if last > first else float(at >= last)
            is_fold = number % 2 == 1
            width = fold_width if is_fold else (last - first) / open_length * open_width if open_length else 0.0
            position += share * width
        return position
