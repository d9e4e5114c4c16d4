"""A revision: how a person changes the history of a run. Pure decisions; stores carry them out.

`rewind` forgets everything from a location on, `recover` only what the run failed at, `fork` gives another run
the beginning. What was forgotten did happen: messages it took become unread, children it started are cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from holdfast.core import received
from holdfast.core.checkpoint import Fork
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.core.model import Entry, EntryKind, EntryState, Run, RunOptions, Value
from holdfast.core.rules import ROLLBACK_LOCATION
from holdfast.core.states import RunState

EVENTS_LOCATION = "~events"
"""Which events a run has had, where the entries that tell it were pruned."""

UNDO_PREFIX = "~undo/"
PRUNED = "pruned"
"""The `ref` of a loop's mark before which iterations were pruned."""

_ITERATION = re.compile(r"/~\d+(?=/|$)")
_SHOWN = 20


class Revision(Value, frozen=True, kw_only=True):
    """What a store has to change in a history.

    `dropped` are locations, `reset` entries as they were before they were settled, `unread` entries whose messages and
    events go back into the inbox, `cancelled` children to be cancelled, `returned` children whose end, if they have
    ended, is to arrive again.
    """

    dropped: tuple[str, ...] = ()
    reset: tuple[Entry, ...] = ()
    unread: tuple[Entry, ...] = ()
    cancelled: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


def rewind(entries: Sequence[Entry], location: str) -> Revision:
    """Forget the entry at a location and everything that came later. In a loop, the whole loop is forgotten."""
    by_location = {entry.location: entry for entry in entries}
    target = _found(by_location, location)
    cut = _beginning(target)
    loop = _enclosing_loop(target)
    if loop is not None:
        members = [entry for entry in entries if entry.location == loop or entry.location.startswith(f"{loop}/")]
        if any(entry.ref == PRUNED for entry in members if entry.kind is EntryKind.LOOP):
            raise InvalidRequest(
                f"{location!r} belongs to the loop {loop!r}, whose first iterations are pruned; it can only be rewound "
                "to a location outside of it"
            )
        cut = min(_beginning(member) for member in members)
    # What was undone is not done any more, whatever the history says.
    cut = min((cut, *(by_location[at].position for at in _undone(entries) if at in by_location)))
    gone = [entry for entry in entries if _is_after(entry, cut) or entry is target]
    return _revision(gone, cut)


def recover(run: Run, entries: Sequence[Entry]) -> Revision:
    """Forget what the run failed at and what followed from it; and what it has undone, which is to be done again."""
    if run.rollback is not None:
        return Revision(dropped=tuple(e.location for e in entries if e.kind is EntryKind.UNDO and not _is_done(e)))
    by_location = {entry.location: entry for entry in entries}
    undone = set(_undone(entries))
    at_fault = [by_location[at] for at in _locations(run.error) if at in by_location]
    faults = [entry for entry in at_fault if entry.state is EntryState.FAILED]
    gone = [
        entry
        for entry in entries
        if entry.kind in (EntryKind.UNDO, EntryKind.ROLLBACK)
        or entry.location in undone
        or any(entry is fault or _follows(entry, fault) for fault in faults)
    ]
    return _revision(gone)


def fork(run: Run, entries: Sequence[Entry], request: Fork, now: Micros) -> tuple[Run, tuple[Entry, ...]]:
    """The run that a fork makes, and its history. What it copies is not its own to undo."""
    by_location = {entry.location: entry for entry in entries}
    cut = _beginning(_found(by_location, request.location))
    kept = [entry for entry in entries if not _is_after(entry, cut) and (entry.is_settled or _is_cursor(entry))]
    is_open = [e.location for e in entries if e.kind is EntryKind.CHILD and e.since < cut <= (e.position or cut)]
    if is_open:
        raise InvalidRequest(
            f"at {request.location!r} the children {_listed(is_open)} are open; a fork cannot share them"
        )
    undone = set(_undone(entries)).intersection(entry.location for entry in kept)
    if undone:
        raise InvalidRequest(
            f"{_listed(sorted(undone))} was undone, so a fork would not find what it did; recover the run"
        )
    history = {entry.location: replace(entry, has_undo=False) for entry in kept}
    for location, value in request.patch.items():
        if location not in history:
            raise InvalidRequest(f"there is nothing to patch at {location!r} before {request.location!r}")
        history[location] = _patched(history[location], value)
    forked = Run(
        id=request.run_id,
        type=run.type,
        state=RunState.PENDING,
        payload=run.payload,
        created_at=now,
        start_at=now,
        updated_at=now,
        priority=run.priority,
        ready_at=now,
        tags=run.tags,
        token=1,  # it has a history, as one that was claimed before
        first_claimed_at=run.first_claimed_at,
        python=run.python,
        generation=run.generation,
        continued=run.continued,
        options=RunOptions(
            max_run=run.options.max_run,
            max_suspend=run.options.max_suspend,
            undelivered=run.options.undelivered,
            seed=run.options.seed or run.id,
        ),
    )
    return forked, tuple(history.values())


def _revision(gone: Iterable[Entry], cut: int = 0) -> Revision:
    """What it means that entries are gone; a child that was started before the cut has only its end forgotten."""
    dropped: list[str] = []
    reset: list[Entry] = []
    unread: list[Entry] = []
    cancelled: list[str] = []
    returned: list[str] = []
    for entry in gone:
        if entry.kind is EntryKind.CHILD and entry.is_settled and entry.since < cut:
            reset.append(_unsettled(entry))
            returned.append(entry.ref or "")
            continue
        dropped.append(entry.location)
        if entry.kind is EntryKind.CHILD:
            cancelled.append(entry.ref or "")
        elif entry.kind in (EntryKind.MESSAGE, EntryKind.EVENT) and _is_done(entry):
            unread.append(entry)
    return Revision(
        dropped=tuple(dropped),
        reset=tuple(reset),
        unread=tuple(sorted(unread, key=lambda entry: entry.position)),
        cancelled=tuple(cancelled),
        returned=tuple(returned),
    )


def _found(by_location: Mapping[str, Entry], location: str) -> Entry:
    entry = by_location.get(location)
    if entry is None or location in (EVENTS_LOCATION, ROLLBACK_LOCATION) or location.startswith(UNDO_PREFIX):
        raise InvalidRequest(f"the run has no entry at {location!r}; it has {_listed(list(by_location)) or 'none'}")
    return entry


def _beginning(entry: Entry) -> int:
    """The first position that is not before an entry."""
    return entry.position if entry.is_settled else entry.since + 1


def _is_after(entry: Entry, cut: int) -> bool:
    """Whether an entry was settled at or after a position or, if it is not settled, asked for after it."""
    return entry.position >= cut if entry.is_settled else entry.since >= cut


def _follows(entry: Entry, fault: Entry) -> bool:
    """Whether an entry was asked for after a failure was known, by code that the failure may have reached."""
    return entry.since >= fault.position and not _is_beside(entry.location, fault.location)


def _is_beside(location: str, other: str) -> bool:
    """Whether two locations are in different branches of one operation, or in different tasks.

    Locations read `join/key/step`: an operation, a branch of it, an operation in that. A task is a branch of none.
    """
    is_branch = False
    for part, other_part in zip(location.split("/"), other.split("/"), strict=False):
        if part != other_part:
            is_task = part.startswith("+") or other_part.startswith("+")
            return is_task or (is_branch and not part.startswith("~"))
        is_branch = not is_branch and not part.startswith("+")
    return False


def _enclosing_loop(entry: Entry) -> str | None:
    inside = _ITERATION.search(entry.location)
    if inside is not None:
        return entry.location[: inside.start()]
    return entry.location if entry.kind is EntryKind.LOOP else None


def _undone(entries: Iterable[Entry]) -> Iterator[str]:
    """The locations of what was undone."""
    return (e.location.removeprefix(UNDO_PREFIX) for e in entries if e.kind is EntryKind.UNDO and _is_done(e))


def _is_done(entry: Entry) -> bool:
    return entry.state is EntryState.DONE


def _is_cursor(entry: Entry) -> bool:
    return entry.location == EVENTS_LOCATION


def _unsettled(entry: Entry) -> Entry:
    return replace(entry, state=EntryState.STARTED, position=0, attempts=0, result=None, error=None, finished_at=None)


def _locations(error: ErrorRecord | None) -> Iterator[str]:
    while error is not None:
        yield from error.locations
        error = error.cause


def _patched(entry: Entry, value: str) -> Entry:
    """An entry with another result, as if it had succeeded with it."""
    if entry.kind in (EntryKind.MESSAGE, EntryKind.EVENT) and _is_done(entry):
        return replace(entry, result=received.patched(entry, value))
    if entry.kind in (EntryKind.STEP, EntryKind.TX, EntryKind.CHILD, EntryKind.VERSION):
        return replace(entry, state=EntryState.DONE, result=value, error=None)
    raise InvalidRequest(
        f"{entry.location!r} is a {entry.kind.value} in state {entry.state.value}; it has no result to patch"
    )


def _listed(locations: Sequence[str]) -> str:
    more = f" and {len(locations) - _SHOWN} more" if len(locations) > _SHOWN else ""
    return ", ".join(repr(location) for location in locations[:_SHOWN]) + more
