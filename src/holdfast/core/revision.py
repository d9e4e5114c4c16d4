"""A revision: how a person changes the history of a run. Pure decisions; stores carry them out.

`rewind` forgets everything from a location on, `recover` only what the run failed at, `fork` gives another run
the beginning. What was forgotten did happen: messages it took become unread, children it started are cancelled.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core import audit, received, rules
from holdfast.core.aftermath import FACTS, aftermath, cancelled_children, is_beside
from holdfast.core.checkpoint import Fork, Recover, Rewind
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, InvalidRequest, RunBusy
from holdfast.core.location import is_within, iterations_around
from holdfast.core.model import Arrival, AuditFact, Entry, EntryKind, EntryState, Run, RunOptions, Value, WaitKind
from holdfast.core.rounds import ROUNDS_LOCATION, rounds_after
from holdfast.core.states import RunState

EVENTS_LOCATION = "~events"
"""Which events a run has had, where the entries that tell it were pruned."""

BOOKKEEPING = frozenset({EVENTS_LOCATION, ROUNDS_LOCATION})
"""Entries that the engine keeps for itself. They have no position, and no revision drops them."""

UNDO_PREFIX = "~undo/"
PRUNED = "pruned"
"""The `ref` of a loop's mark before which iterations were pruned."""

_SHOWN = 20


class Revision(Value, frozen=True, kw_only=True):
    """What a store has to change about a run.

    `dropped` are locations, `reset` entries to be written over what stands there, `unread` what goes back into the
    inbox, without numbers. `cancelled` are children to be cancelled and detached, `attached` those that are to tell
    of their end again, with the location at which they are awaited. `is_from_start`: time begins anew as well.
    """

    dropped: tuple[str, ...] = ()
    reset: tuple[Entry, ...] = ()
    unread: tuple[Arrival, ...] = ()
    cancelled: tuple[str, ...] = ()
    attached: dict[str, str] = {}
    is_from_start: bool = False


class Revised(Value, frozen=True, kw_only=True):
    """A run after a revision: its row, its whole inbox, and the rest as a `Revision` says it."""

    run: Run
    inbox: tuple[Arrival, ...]
    fact: AuditFact
    dropped: tuple[str, ...] = ()
    reset: tuple[Entry, ...] = ()
    cancelled: tuple[str, ...] = ()
    attached: dict[str, str] = {}


def check_free(run: Run, *, is_forced: bool) -> None:
    """Refuse to change the history of a run that a worker is changing."""
    if run.is_held and not is_forced:
        raise RunBusy(
            f"worker {run.worker} holds run {run.id}; try again when it has let go (pausing the run makes it), or use "
            "force, which takes the run away from it"
        )


def open_children(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The children whose end is not recorded; a revision asks how they are."""
    return tuple(e.ref for e in entries if e.kind is EntryKind.CHILD and not e.is_settled and e.ref is not None)


def revise(
    run: Run,
    entries: Sequence[Entry],
    inbox: Iterable[Arrival],
    children: Mapping[str, Run],
    request: Rewind | Recover,
    *,
    now: Micros,
) -> Revised:
    """What a rewind or recovery makes of a run; `children` are the open ones that there are."""
    check_free(run, is_forced=request.force)
    if isinstance(request, Rewind):
        revision = rewind(run, entries, request.location, children, now)
        event, data = "rewound", {"location": request.location}
    else:
        revision = recover(run, entries, children, now)
        event, data = "recovered", {}
    # With new numbers, as nobody has seen this inbox yet: what was read comes first again.
    left = (one for one in inbox if not (one.kind is WaitKind.CHILD and one.name in revision.cancelled))
    unread = tuple(
        replace(arrival, number=number)
        for number, arrival in enumerate((*revision.unread, *left), start=run.arrivals + 1)
    )
    if isinstance(request, Recover) and run.rollback is not None:
        why = next((entry.error for entry in entries if entry.kind is EntryKind.ROLLBACK), run.error)
        after = replace(rules.undoing_again(run, now), error=why)
    else:
        after = rules.reopened(run, now, is_from_start=revision.is_from_start)
    return Revised(
        run=replace(after, arrivals=run.arrivals + len(unread)),
        inbox=unread,
        fact=audit.of_control(run.id, event, request, now, **data, dropped=len(revision.dropped)),
        dropped=revision.dropped,
        reset=revision.reset,
        cancelled=revision.cancelled,
        attached=revision.attached,
    )


def rewind(run: Run, entries: Sequence[Entry], location: str, children: Mapping[str, Run], now: Micros) -> Revision:
    """Forget the entry at a location and everything that came later. In a loop, the whole loop is forgotten."""
    by_location = {entry.location: entry for entry in entries}
    target = _found(by_location, location)
    cut = _beginning(target)
    loop = _enclosing_loop(target)
    if loop is not None:
        members = [entry for entry in entries if is_within(entry.location, loop)]
        if any(entry.ref == PRUNED for entry in members if entry.kind is EntryKind.LOOP):
            raise InvalidRequest(
                f"{location!r} belongs to the loop {loop!r}, whose first iterations are pruned; it can only be rewound "
                "to a location outside of it"
            )
        cut = min(_beginning(member) for member in members)
    # What was undone is not done any more, whatever the history says.
    cut = min((cut, *(by_location[at].position for at in _undone(entries) if at in by_location)))
    _check_pruned(target, cut, entries)
    gone = [entry for entry in entries if entry is target or _is_after(entry, cut) or _is_undoing(entry)]
    revision = _with_rounds(_revision(run, entries, gone, children, cut=cut, anew={location}), entries, now)
    return _restamped(revision, entries, cut - 1, now)


def recover(run: Run, entries: Sequence[Entry], children: Mapping[str, Run], now: Micros) -> Revision:
    """Forget what the run failed at and what followed from it, and all since the first thing that it has undone."""
    if run.state not in (RunState.FAILED, RunState.CANCELLED, RunState.BLOCKED):
        raise InvalidRequest(
            f"run {run.id} is {run.state.value}; only a run that failed, was cancelled or is blocked is recovered, "
            "any other can be rewound"
        )
    if run.rollback is not None:  # it goes on undoing
        return Revision(dropped=tuple(e.location for e in entries if e.kind is EntryKind.UNDO and not _is_done(e)))
    by_location = {entry.location: entry for entry in entries}
    at_fault = [by_location[at] for at in _locations(run.error) if at in by_location]
    faults = [entry for entry in at_fault if entry.state in (EntryState.FAILED, EntryState.TIMED_OUT)]
    undone = [by_location[at] for at in _undone(entries) if at in by_location]
    anew = aftermath(faults, entries, children)
    forgotten = {mark.location for mark in _marks_past([entry.location for entry in (*faults, *undone)], entries)}
    forgotten |= anew
    cut = 0
    if undone:
        # What came after something that was undone relied on it, or would be told before it could be done again.
        first = min(undone, key=lambda entry: entry.position)
        cut = first.position
        _check_pruned(first, cut, entries, instead="what was undone there cannot be done again, start another run")
        forgotten |= {entry.location for entry in entries if _is_after(entry, cut)}
    gone = [entry for entry in entries if entry.location in forgotten or _is_undoing(entry)]
    revision = _with_rounds(_revision(run, entries, gone, children, cut=cut, anew=anew), entries, now)
    dropped = [by_location[at] for at in revision.dropped]
    since = [entry.since for entry in dropped if entry.kind is not EntryKind.LOOP and not _is_undoing(entry)]
    return _restamped(revision, entries, min(since), now) if since else revision


def fork(run: Run, entries: Sequence[Entry], request: Fork, now: Micros) -> tuple[Run, tuple[Entry, ...]]:
    """The run that a fork makes, and its history. What it copies is not its own to undo."""
    by_location = {entry.location: entry for entry in entries}
    target = _found(by_location, request.location)
    cut = _beginning(target)
    kept = [entry for entry in entries if not _is_after(entry, cut) and (entry.is_settled or _is_bookkeeping(entry))]
    _check_forkable(target, cut, entries, kept)
    history = {entry.location: replace(entry, has_undo=False) for entry in kept}
    for location, value in request.patch.items():
        if location not in history:
            raise InvalidRequest(
                f"there is nothing to patch at {location!r} before {request.location!r}; there is "
                f"{_listed(list(history)) or 'nothing at all'}"
            )
        history[location] = _patched(history[location], value)
    latest = _latest_fact(history.values(), cut - 1)
    if latest is not None:
        history[latest.location] = replace(latest, retry_at=now)
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
        token=1 if history else 0,  # one that has a history is as one that was claimed before
        first_claimed_at=run.first_claimed_at if latest is not None else None,
        python=run.python if history else None,
        generation=run.generation,
        continued=run.continued,
        retention=run.retention,
        options=RunOptions(
            max_run=run.options.max_run,
            max_suspend=run.options.max_suspend,
            undelivered=run.options.undelivered,
            seed=run.options.seed or run.id,
        ),
    )
    return forked, tuple(history.values())


def _check_forkable(target: Entry, cut: int, entries: Sequence[Entry], kept: Sequence[Entry]) -> None:
    """Refuse a fork that would share a child, or find that what it relies on is undone or pruned."""
    where = f"at {target.location!r}"
    children = [e for e in entries if e.kind is EntryKind.CHILD and e is not target]
    if is_open := [e.location for e in children if e.since < cut <= (e.position or cut)]:
        raise InvalidRequest(f"{where} the children {_listed(is_open)} are open; a fork cannot share them")
    if undone := sorted(set(_undone(entries)).intersection(entry.location for entry in kept)):
        raise InvalidRequest(
            f"before {target.location!r} {_listed(undone)} was undone, so a fork would not find what it did; "
            "recover the run, or fork it at an earlier location"
        )
    _check_pruned(target, cut, entries)


def _revision(
    run: Run,
    entries: Iterable[Entry],
    gone: Sequence[Entry],
    children: Mapping[str, Run],
    *,
    cut: int = 0,
    anew: Container[str] = (),
) -> Revision:
    """What it means that entries are gone; those at `anew` wholly.

    Of another child that was started before the cut only the end is forgotten, unless that came of what is gone.
    """
    dropped: list[str] = []
    reset: list[Entry] = []
    unread: list[Arrival] = []
    cancelled: list[str] = []
    attached: dict[str, str] = {}
    forgotten = {entry.location for entry in gone}
    restarted = {entry.location for entry in cancelled_children(entries, forgotten, children)}
    for entry in sorted(gone, key=lambda one: one.position):
        is_child = entry.kind is EntryKind.CHILD
        is_anew = entry.since >= cut or entry.location in anew or entry.location in restarted
        if is_child and entry.is_settled and not is_anew:
            reset.append(_unsettled(entry))
            unread.append(_end_of(run, entry))
            continue
        dropped.append(entry.location)
        if is_child:
            cancelled.append(entry.ref or "")
        elif entry.kind in (EntryKind.MESSAGE, EntryKind.EVENT) and _is_done(entry):
            unread += [one.arrival(entry.kind, 0) for one in received.received_in(entry)]
    for entry in entries:
        if entry.kind is not EntryKind.CHILD or entry.is_settled or entry.location in forgotten:
            continue
        child = children.get(entry.ref or "")
        if child is None or entry.location in restarted or rules.is_cancelled_as(child, rules.CLOSING):
            dropped.append(entry.location)  # it is to be started anew
            cancelled.append(entry.ref or "")
        elif run.state.is_end and child.state.is_end:  # nobody was there to be told
            unread.append(rules.child_end(child, 0, child.finished_at or 0))
        elif run.state.is_end:
            attached[child.id] = entry.location
    reset += [_rewound(entry, unread) for entry in entries if entry.location == EVENTS_LOCATION]
    return Revision(
        dropped=tuple(dropped),
        reset=tuple(reset),
        unread=tuple(unread),
        cancelled=tuple(cancelled),
        attached=attached,
    )


def _with_rounds(revision: Revision, entries: Iterable[Entry], now: Micros) -> Revision:
    """Count the completed undos, which every revision but that of a run that goes on undoing drops."""
    undone = list(_undone(entries))
    if not undone:
        return revision
    known = next((entry for entry in entries if entry.location == ROUNDS_LOCATION), None)
    return replace(revision, reset=(*revision.reset, rounds_after(known, undone, now)))


def _restamped(revision: Revision, entries: Iterable[Entry], last: int, now: Micros) -> Revision:
    """Let time go on from now after the last fact up to a position, so that what is awaited again has its full time."""
    gone = {*revision.dropped, *(entry.location for entry in revision.reset)}
    latest = _latest_fact((entry for entry in entries if entry.location not in gone), last)
    if latest is None:
        return replace(revision, is_from_start=True)
    return replace(revision, reset=(*revision.reset, replace(latest, retry_at=now)))


def _latest_fact(entries: Iterable[Entry], last: int) -> Entry | None:
    facts = [entry for entry in entries if entry.kind in FACTS and 0 < entry.position <= last]
    return max(facts, key=lambda entry: entry.position, default=None)


def _rewound(cursors: Entry, unread: Iterable[Arrival]) -> Entry:
    """The record of which events a run has had, without those that are unread again."""
    had = msgspec.json.decode(cursors.result or "{}", type=dict[str, int])
    for arrival in unread:
        if arrival.kind is WaitKind.EVENT and not arrival.is_exclusive and arrival.name in had:
            had[arrival.name] = min(had[arrival.name], int(arrival.ref or 0) - 1)
    return replace(cursors, result=msgspec.json.encode(had, order="sorted").decode())


def _end_of(run: Run, entry: Entry) -> Arrival:
    """The end of a child as it arrived before it was recorded."""
    error = entry.error
    state = RunState.SUCCEEDED
    if not _is_done(entry):
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


def _found(by_location: Mapping[str, Entry], location: str) -> Entry:
    entry = by_location.get(location)
    if entry is None or _is_bookkeeping(entry) or _is_undoing(entry):
        there = [one.location for one in by_location.values() if not (_is_bookkeeping(one) or _is_undoing(one))]
        raise InvalidRequest(f"the run has no entry at {location!r}; it has {_listed(there) or 'none at all'}")
    return entry


def _beginning(entry: Entry) -> int:
    """The first position that is not before an entry."""
    return entry.position if entry.is_settled else entry.since + 1


def _is_after(entry: Entry, cut: int) -> bool:
    """Whether an entry was settled at or after a position or, if it is not settled, asked for after it."""
    if _is_bookkeeping(entry):
        return False
    return entry.position >= cut if entry.is_settled else entry.since >= cut


def _enclosing_loop(entry: Entry) -> str | None:
    outermost, _ = next(iterations_around(entry.location), (None, 0))
    if outermost is not None:
        return outermost
    return entry.location if entry.kind is EntryKind.LOOP else None


def _loops(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The marks of each loop, its end among them, by position."""
    loops: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda one: one.position):
        if entry.kind is EntryKind.LOOP:
            *outer, last = entry.location.split("/")
            loop = "/".join(outer) if last.startswith("~") else entry.location
            loops.setdefault(loop, []).append(entry)
    return loops


def _check_pruned(
    target: Entry,
    cut: int,
    entries: Iterable[Entry],
    *,
    instead: str = "choose a later location, or one before the loop",
) -> None:
    """Refuse to go back to where a loop was in the middle of iterations of which nothing is left."""
    for loop, marks in _loops(entries).items():
        is_pruned = marks[-1].ref == PRUNED and marks[0].position >= cut
        if is_pruned and (is_within(target.location, loop) or is_beside(target.location, loop)):
            raise InvalidRequest(
                f"at {target.location!r} the loop {loop!r} was in iterations that are pruned; {instead}"
            )


def _marks_past(locations: Iterable[str], entries: Sequence[Entry]) -> Iterator[Entry]:
    """The marks of loops that would keep their code from coming to these locations again: it begins at the first."""
    for loop, marks in _loops(entries).items():
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


def _undone(entries: Iterable[Entry]) -> Iterator[str]:
    """The locations of what was undone."""
    return (e.location.removeprefix(UNDO_PREFIX) for e in entries if e.kind is EntryKind.UNDO and _is_done(e))


def _is_done(entry: Entry) -> bool:
    return entry.state is EntryState.DONE


def _is_undoing(entry: Entry) -> bool:
    return entry.kind in (EntryKind.UNDO, EntryKind.ROLLBACK)


def _is_bookkeeping(entry: Entry) -> bool:
    return entry.location in BOOKKEEPING


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
