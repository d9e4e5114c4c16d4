"""Entries: questions about the entries of a history, and how entries change when a part is dropped. Pure functions."""

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
"""Location of the entry that records the last event a run received per topic. It outlives pruned entries."""

FLOW_LOCATION = "~flow"
"""Location of the newest snapshot of a flow: the text in `result`, the version of the program in `ref`.

`attempts` is the number of the turn that wrote it, so that each turn supersedes the one before. `since` is the position
of the last fact that it includes, `finished_at` the instant of that turn. After a revision, `retry_at` is the instant
of the revision: the deadlines in the snapshot move by `retry_at - finished_at`. A `result` of None means the beginning.
"""

ADOPTED_LOCATION = "~adopted"
"""Location of the children that a recovered flow started in the turn that failed: JSON, from locations to run ids.

The snapshot does not know them. If the flow starts a child at such a location again, it takes this one.
"""

TURN_PREFIX = "@turn/"
"""Beginning of the locations of the snapshots that a flow keeps for people, which the number of the turn completes.

Such an entry is settled, at the last position of its checkpoint. The `since` of an entry of a flow is the last position
of a fact or of a snapshot before the program asked for it. So a snapshot includes exactly the entries before it.
"""

BOOKKEEPING = frozenset({EVENTS_LOCATION, ROUNDS_LOCATION, FLOW_LOCATION, ADOPTED_LOCATION})
"""Locations of the engine's own entries. They have no position, and no revision drops them."""

UNDO_PREFIX = "~undo/"
PRUNED = "pruned"
"""The `ref` of a loop's mark if iterations before it were pruned."""


# Questions about an entry


def beginning(entry: Entry) -> int:
    """Return the first position that is not before an entry."""
    return entry.position if entry.is_settled else entry.since + 1


def is_after(entry: Entry, cut: int) -> bool:
    """True if an entry settled at or after a position. An open entry counts if the code asked for it from there on."""
    if is_bookkeeping(entry):
        return False
    return entry.position >= cut if entry.is_settled else entry.since >= cut


def undone(entries: Iterable[Entry]) -> Iterator[str]:
    """The locations of the steps that were undone."""
    return (e.location.removeprefix(UNDO_PREFIX) for e in entries if e.kind is EntryKind.UNDO and is_done(e))


def is_done(entry: Entry) -> bool:
    return entry.state is EntryState.DONE


def is_undoing(entry: Entry) -> bool:
    return entry.kind in (EntryKind.UNDO, EntryKind.ROLLBACK)


def is_bookkeeping(entry: Entry) -> bool:
    return entry.location in BOOKKEEPING


# Changes of an entry


def unsettled(entry: Entry) -> Entry:
    """The entry of a child without the recorded end."""
    return replace(entry, state=EntryState.STARTED, position=0, result=None, error=None, finished_at=None)


def end_of(run: Run, entry: Entry) -> Arrival:
    """The end of a child as an arrival, rebuilt from its entry."""
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
    """The last fact that the runner fed to the code, up to a position."""
    facts = [entry for entry in entries if entry.kind in FACTS and 0 < entry.position <= last]
    return max(facts, key=lambda entry: entry.position, default=None)


# Loops


def loops(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The marks of each loop, in order of position.

    A mark is an entry that records the state before an iteration, or the end of the loop.
    """
    found: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda one: one.position):
        if entry.kind is EntryKind.LOOP:
            *outer, last = entry.location.split("/")
            loop = "/".join(outer) if last.startswith("~") else entry.location
            found.setdefault(loop, []).append(entry)
    return found


def check_pruned(
    target: str,
    cut: int,
    entries: Iterable[Entry],
    *,
    instead: str = "choose a later location, or one before the loop",
) -> None:
    """Refuse to go back to a point inside iterations of a loop that were pruned."""
    for loop, marks in loops(entries).items():
        is_pruned = marks[-1].ref == PRUNED and marks[0].position >= cut
        if is_pruned and (is_within(target, loop) or is_beside(target, loop)):
            raise InvalidRequest(f"at {target!r} the loop {loop!r} was in iterations that are now pruned; {instead}")


def marks_past(locations: Iterable[str], entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the marks that keep the code of loops from reaching these locations again.

    A loop resumes at its oldest mark. Without any mark it starts at its first iteration.
    """
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
                    f"iteration {earliest} of the loop {loop!r} must run again, but the history after it is pruned; "
                    "start another run instead"
                )
            yield from numbers.values()
