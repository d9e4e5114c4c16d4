"""A revision of a flow: which snapshot it goes back to, and what that snapshot does not know. Pure decisions.

A flow has no replay. Its state is the snapshot in `~flow`, and going back means to put an older snapshot there. The
snapshot includes the facts up to its `since`, and everything that the program asked for before it. The other entries
are dropped: messages and events in them become unread, and children that the program started there are cancelled. If a
child was started before, only its recorded end is dropped, and arrives again.

The program does not ask again for what it has in its snapshot. So a child that no longer exists gets an end here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancellation
from holdfast.core.entries import (
    ADOPTED_LOCATION,
    FACTS,
    FLOW_LOCATION,
    TURN_PREFIX,
    end_of,
    is_bookkeeping,
    is_done,
    received_in,
    unsettled,
)
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.core.location import is_for_people, listed
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Run, Value
from holdfast.core.states import RunState

REMOVED = Cancellation(reason="it was removed from the store")
"""The end of a child that a flow waits for and that no longer exists."""

REOPENED = "Reopened"
"""The type of the error of a snapshot after a recovery. Its locations are children that have failed in the snapshot."""

_LAST = 2**63 - 1


class FlowPoint(NamedTuple):
    """A point to which a flow can go back: a snapshot, or None for its beginning.

    `since` is the position of the last fact that it includes. Other entries are included up to `position`.
    """

    snapshot: Entry | None
    since: int
    position: int

    def includes(self, entry: Entry) -> bool:
        """True if the snapshot knows an entry, and its end if it is settled."""
        if entry.since > self.since:
            return False
        if not entry.is_settled:
            return True
        return entry.position <= (self.since if entry.kind in FACTS else self.position)


BEGINNING = FlowPoint(None, -1, 0)


class Revision(Value, frozen=True, kw_only=True):
    """The changes that a store makes to a run.

    `dropped` are locations. `reset` are entries that replace those at their locations. `unread` are arrivals that go
    back into the inbox, without numbers. `cancelled` are children to cancel and detach. `attached` are children that
    report their end again, with the location at which they are awaited. `is_from_start`: the run's time starts again
    too. `reason` is the reason of a rollback that continues.
    """

    dropped: tuple[str, ...] = ()
    reset: tuple[Entry, ...] = ()
    unread: tuple[Arrival, ...] = ()
    cancelled: tuple[str, ...] = ()
    attached: dict[str, str] = {}
    is_from_start: bool = False
    reason: ErrorRecord | None = None


# Points


def is_flow(entries: Iterable[Entry]) -> bool:
    """True if a history is that of a flow. One that failed in its first turn has no snapshot."""
    return any(entry.location == FLOW_LOCATION or is_for_people(entry.location) for entry in entries)


def flow_in(entries: Iterable[Entry]) -> Entry | None:
    """Return the newest snapshot of a history; None if the run is not a flow, or has none yet."""
    return next((entry for entry in entries if entry.location == FLOW_LOCATION), None)


def newest_point(entries: Sequence[Entry]) -> FlowPoint | None:
    """Return the point of the newest snapshot; None if the run is not a flow. A failed turn came after it."""
    if not is_flow(entries):
        return None
    flow = flow_in(entries)
    if flow is None or flow.result is None:
        return BEGINNING
    copies = (entry for entry in entries if entry.location == f"{TURN_PREFIX}{flow.attempts}")
    position = next((copy.position for copy in copies if copy.since == flow.since), _LAST)
    return FlowPoint(flow, flow.since, position)


def point_at(entries: Sequence[Entry], location: str) -> FlowPoint:
    """Return the point that a location means: a kept snapshot, or the newest one that does not include the entry."""
    by_location = {entry.location: entry for entry in entries}
    newest = newest_point(entries)
    assert newest is not None, "the caller knows that the run is a flow"
    if location == FLOW_LOCATION:
        return newest
    target = by_location.get(location)
    if target is None or is_bookkeeping(target):
        there = [entry.location for entry in entries if not is_bookkeeping(entry)]
        raise InvalidRequest(f"the flow keeps no entry at {location!r}; it has {listed(there) or 'none at all'}")
    if _is_copy(target):
        return _point_of(target)
    points = [newest, *(_point_of(entry) for entry in entries if _is_copy(entry))]
    before = [point for point in points if not point.includes(target)]
    if before:
        return max(before, key=lambda point: (point.since, point.position))
    if f"{TURN_PREFIX}1" in by_location:
        return BEGINNING
    kept = [entry.location for entry in entries if _is_copy(entry)]
    raise InvalidRequest(
        f"the snapshot before {location!r} is not kept any more; the flow keeps {listed(kept) or 'no snapshot'}"
    )


def not_included(entries: Iterable[Entry], point: FlowPoint) -> list[Entry]:
    """Return the entries that a snapshot does not know, in the order of their positions, open ones first."""
    gone = [entry for entry in entries if not (is_bookkeeping(entry) or point.includes(entry))]
    return sorted(gone, key=lambda entry: entry.position)


def restored(entries: Iterable[Entry], point: FlowPoint, now: Micros, reopened: Sequence[str] = ()) -> Iterator[Entry]:
    """Yield the entry `~flow` after a revision at this instant, if there is one. Its version always stays.

    `reopened` are the locations of children whose failure the snapshot has, and which run again.
    """
    if point.snapshot is not None:
        known = dict.fromkeys((*reopened_in(point.snapshot), *reopened))
        error = ErrorRecord(type=REOPENED, message="", locations=tuple(known)) if known else None
        again = replace(point.snapshot, error=error, retry_at=now)
        yield replace(again, location=FLOW_LOCATION, state=EntryState.STARTED, position=0)
    elif (flow := flow_in(entries)) is not None:
        yield replace(flow, attempts=0, result=None, since=0, finished_at=None, retry_at=None)


def reopened_in(flow: Entry) -> tuple[str, ...]:
    """Return the children of a snapshot that have failed in it and run again. Its next snapshot has them as open."""
    return () if flow.error is None else flow.error.locations


def _is_copy(entry: Entry) -> bool:
    return entry.kind is EntryKind.SNAPSHOT and entry.is_settled


def _point_of(copy: Entry) -> FlowPoint:
    return FlowPoint(copy, copy.since, copy.position)


# Rewind


def rewound_flow(
    run: Run,
    entries: Sequence[Entry],
    location: str,
    children: Mapping[str, Run],
    now: Micros,
    *,
    reported: Container[str],
) -> Revision:
    """Return the changes of a rewind.

    `children` are the open ones that exist, `reported` those with ends in the inbox.
    """
    point = point_at(entries, location)
    dropped = [ADOPTED_LOCATION] if any(entry.location == ADOPTED_LOCATION for entry in entries) else []
    reset = [*restored(entries, point, now, _running_after(entries, point))]
    unread: list[Arrival] = []
    cancelled: list[str] = []
    attached: dict[str, str] = {}
    for entry in not_included(entries, point):
        is_child = entry.kind is EntryKind.CHILD
        if is_child and entry.since <= point.since:
            reset.append(unsettled(entry))
            unread.append(end_of(run, entry))
            continue
        dropped.append(entry.location)
        if is_child:
            cancelled.append(entry.ref or "")
        unread += arrivals_in(entry)
    for entry in entries:
        if entry.kind is not EntryKind.CHILD or entry.is_settled or not point.includes(entry):
            continue
        child = children.get(entry.ref or "")
        if child is None:
            unread += [] if entry.ref in reported else [removed_end(entry, now)]
        elif run.state.is_end and child.state.is_end:  # the run had ended, so this end never reached it
            unread.append(rules.child_end(child, 0, child.finished_at or 0))
        elif run.state.is_end:
            attached[child.id] = entry.location
    return Revision(
        dropped=tuple(dropped),
        reset=tuple(reset),
        unread=tuple(unread),
        cancelled=tuple(cancelled),
        attached=attached,
        is_from_start=point.snapshot is None,
    )


def _running_after(entries: Iterable[Entry], point: FlowPoint) -> list[str]:
    """Return the children that a snapshot knows and that ended after it, if at all.

    In the snapshot, a child may have failed that a recovery has reopened since. The others are open in it anyway.
    """
    known = (entry for entry in entries if entry.kind is EntryKind.CHILD and entry.since <= point.since)
    return [entry.location for entry in known if not (entry.is_settled and point.includes(entry))]


def arrivals_in(entry: Entry) -> list[Arrival]:
    """Return the messages or events that an entry records as received."""
    if entry.kind not in (EntryKind.MESSAGE, EntryKind.EVENT) or not is_done(entry):
        return []
    return [one.arrival(entry.kind, 0) for one in received_in(entry)]


def removed_end(entry: Entry, now: Micros) -> Arrival:
    """Return the end of a child that no longer exists."""
    gone = Run(
        id=entry.ref or "",
        type="",
        state=RunState.CANCELLED,
        payload="",
        created_at=now,
        start_at=now,
        updated_at=now,
        error=rules.cancellation(REMOVED.reason),
    )
    return rules.child_end(gone, 0, now)


# Recover


def adopted(children: Iterable[Entry], now: Micros) -> Entry:
    """Return the entry `~adopted`, which names children that the snapshot does not know."""
    known = {entry.location: entry.ref for entry in children}
    return Entry(
        location=ADOPTED_LOCATION,
        kind=EntryKind.SNAPSHOT,
        state=EntryState.STARTED,
        result=msgspec.json.encode(known, order="sorted").decode(),
        started_at=now,
    )


def adopted_in(entry: Entry | None) -> dict[str, str]:
    """Return the children that a flow has to take again, by location, from the entry `~adopted`."""
    return {} if entry is None else msgspec.json.decode(entry.result or "{}", type=dict[str, str])


# Fork


def forked_flow(entries: Sequence[Entry], location: str, patch: Mapping[str, str], now: Micros) -> tuple[Entry, ...]:
    """Return the history of a fork: the snapshot of a point, and the entries that it includes."""
    point = point_at(entries, location)
    _check_forkable(entries, location, point, patch)
    snapshot = [replace(one, result=patch.get(FLOW_LOCATION, one.result)) for one in restored(entries, point, now)]
    own = (FLOW_LOCATION, ADOPTED_LOCATION)
    kept = [e for e in entries if e.location not in own and (is_bookkeeping(e) or (e.is_settled and point.includes(e)))]
    return (*kept, *snapshot)


def _check_forkable(entries: Iterable[Entry], location: str, point: FlowPoint, patch: Mapping[str, str]) -> None:
    """Refuse a fork that would share a child, or that patches something other than the snapshot."""
    if others := sorted(set(patch) - {FLOW_LOCATION}):
        raise InvalidRequest(
            f"there is nothing to patch at {listed(others)}: the state of a flow is its snapshot, at {FLOW_LOCATION!r}"
        )
    if is_open := _running_after(entries, point):
        raise InvalidRequest(f"at {location!r} the children {listed(is_open)} are open; a fork cannot share them")
