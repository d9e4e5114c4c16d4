"""Entries: what can be told of the records in a history, and how they change when a part of it is forgotten. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.consequences import FACTS, is_beside
from holdfast.core.errors import InvalidRequest
from holdfast.core.location import is_within
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Run, WaitKind
from holdfast.core.rounds import ROUNDS_LOCATION
from holdfast.core.states import RunState

EVENTS_LOCATION = "~events"
"""Which events a run has had, where the entries that tell it were pruned."""

BOOKKEEPING = frozenset({EVENTS_LOCATION, ROUNDS_LOCATION})
"""Entries that the engine keeps for itself. They have no position, and no revision drops them."""

UNDO_PREFIX = "~undo/"
PRUNED = "pruned"
"""The `ref` of a loop's mark before which iterations were pruned."""


# What an entry is


def beginning(entry: Entry) -> int:
    """The first position that is not before an entry."""
    return entry.position if entry.is_settled else entry.since + 1


def is_after(entry: Entry, cut: int) -> bool:
    """Whether an entry was settled at or after a position or, if it is not settled, asked for after it."""
    if is_bookkeeping(entry):
        return False
    return entry.position >= cut if entry.is_settled else entry.since >= cut


def undone(entries: Iterable[Entry]) -> Iterator[str]:
    """The locations of what was undone."""
    return (e.location.removeprefix(UNDO_PREFIX) for e in entries if e.kind is EntryKind.UNDO and is_done(e))


def is_done(entry: Entry) -> bool:
    return entry.state is EntryState.DONE


def is_undoing(entry: Entry) -> bool:
    return entry.kind in (EntryKind.UNDO, EntryKind.ROLLBACK)


def is_bookkeeping(entry: Entry) -> bool:
    return entry.location in BOOKKEEPING


# What it becomes


def unsettled(entry: Entry) -> Entry:
    """The record of a child whose end is forgotten."""
    return replace(entry, state=EntryState.STARTED, position=0, result=None, error=None, finished_at=None)


def end_of(run: Run, entry: Entry) -> Arrival:
    """The end of a child as it arrived before it was recorded."""
    error = entry.error
    state = RunState.SUCCEEDED
    if not is_done(entry):
        state = RunState.CANCELLED if error is not None and rules.is_cancellation(error) else RunState.FAILED
    scope = entry.location.rpartition("/")[0]
    return Arrival(
        number=0,
        kind=WaitKind.CHILD,
        name=entry.ref or "",
        at=entry.finished_at or 0,
        payload=entry.result,
        state=state,
        error=error,
        group=f"{run.id}/{scope}" if scope else None,
    )


def latest_fact(entries: Iterable[Entry], last: int) -> Entry | None:
    """The last thing that code was told, up to a position."""
    facts = [entry for entry in entries if entry.kind in FACTS and 0 < entry.position <= last]
    return max(facts, key=lambda entry: entry.position, default=None)


# Loops


def loops(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The marks of each loop, its end among them, by position."""
    found: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda one: one.position):
        if entry.kind is EntryKind.LOOP:
            *outer, last = entry.location.split("/")
            loop = "/".join(outer) if last.startswith("~") else entry.location
            found.setdefault(loop, []).append(entry)
    return found


def check_pruned(
    target: Entry,
    cut: int,
    entries: Iterable[Entry],
    *,
    instead: str = "choose a later location, or one before the loop",
) -> None:
    """Refuse to go back to where a loop was in the middle of iterations of which nothing is left."""
    for loop, marks in loops(entries).items():
        is_pruned = marks[-1].ref == PRUNED and marks[0].position >= cut
        if is_pruned and (is_within(target.location, loop) or is_beside(target.location, loop)):
            raise InvalidRequest(
                f"at {target.location!r} the loop {loop!r} was in iterations that are pruned; {instead}"
            )


def marks_past(locations: Iterable[str], entries: Sequence[Entry]) -> Iterator[Entry]:
    """The marks of loops that would keep their code from coming to these locations again: it begins at the first."""
    for loop, marks in loops(entries).items():
        inside = [at.removeprefix(f"{loop}/~") for at in locations if at.startswith(f"{loop}/~")]
        if not inside:
            continue
        earliest = min(int(at.partition("/")[0]) for at in inside)
        numbers = {int(mark.location.rpartition("~")[2]): mark for mark in marks if mark.location != loop}
        yield from (mark for mark in marks if mark.location == loop)
        if numbers and min(numbers) > earliest:
            if marks[-1].ref == PRUNED:
                raise InvalidRequest(
                    f"iteration {earliest} of the loop {loop!r} has to be done again, but what came after it is "
                    "pruned; start another run instead"
                )
            yield from numbers.values()
