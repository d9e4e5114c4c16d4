"""Controls: apply a person's request to a run. The audit keeps the request id, so a repeat changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core import audit, flow_revision, retention, revision, rules
from holdfast.core.audit import REQUEST
from holdfast.core.clock import Micros
from holdfast.core.commands import (
    Cancel,
    Cancellation,
    Delete,
    DropMessage,
    Fork,
    Recover,
    Rewind,
    RunControl,
)
from holdfast.core.errors import RunBusy, RunNotFound
from holdfast.core.flow_revision import Revision
from holdfast.core.model import Arrival, Run, Wait, WaitKind
from holdfast.core.revision import Recovery
from holdfast.core.states import RunState
from holdfast.core.verbs import VERBS
from holdfast.stores.operations import transitions, types
from holdfast.stores.operations.unit_of_work import UnitOfWork


def control(unit: UnitOfWork, request: RunControl, now: Micros) -> bool | None:
    """Apply a control request. Raises before it writes.

    Return False if nothing changed, and None if the request has to be repeated to be completed (`revise`).
    A repeat of an applied request returns True.
    """
    run_id = request.run_id
    run = unit.runs.get(run_id)
    if run is None:
        raise RunNotFound(f"there is no run {run_id}")
    # Before the check for deletion, because a repeated delete finds the run deleted by its first attempt.
    if unit.audit.has_request(run_id, request.id):
        return True
    if run.deleted_at is not None:
        raise RunNotFound(f"there is no run {run_id}")
    return _apply(unit, run, request, now)


def _apply(unit: UnitOfWork, run: Run, request: RunControl, now: Micros) -> bool | None:
    match request:
        case Cancel():
            return transitions.cancel(unit, run.id, Cancellation.of(request), now)
        case Recover(fail=True):
            return transitions.give_up(unit, run, request, now)
        case Rewind() | Recover():
            return revise(unit, _whole(unit, run), request, now)
        case Fork():
            return _fork(unit, _whole(unit, run), request, now)
        case Delete():
            return _delete(unit, run, request, now)
        case DropMessage():
            return _drop_message(unit, run, request, now)
        case _:
            return _change(unit, run, request, now)


def _whole(unit: UnitOfWork, run: Run) -> Run:
    whole = unit.runs.whole(run.id)
    assert whole is not None, "`control` has just read this run"
    return whole


def _change(unit: UnitOfWork, run: Run, request: RunControl, now: Micros) -> bool:
    """Apply the rule of a verb that changes only the run itself."""
    verb = VERBS[request.verb]
    after = verb.applied(run, unit.waits.of(run.id), now)
    if after is None:
        return False
    transitions.move(unit, run, after, now, audit.of_change(after, request, verb, now))
    if after.is_held:
        unit.news.arrived.add(after.id)  # the hint makes the holder check the run
    return True


def _fork(unit: UnitOfWork, run: Run, request: Fork, now: Micros) -> bool:
    revision.check_free(run, is_forced=request.force)
    forked, entries = revision.fork(run, unit.histories.all(run.id), request, now)
    if unit.runs.get(forked.id) is not None:
        return False
    flow = flow_revision.flow_in(entries)
    if flow is not None:
        types.keep_flow_for_fork(unit, run.type, flow.ref, now)
    unit.runs.add([forked])
    unit.histories.put(forked.id, forked.token, entries)
    for fact in audit.of_fork(run, request, now):
        unit.audit.note(fact)
    unit.news.ready.add(forked.type)
    return True


def _delete(unit: UnitOfWork, run: Run, request: Delete, now: Micros) -> bool:
    """Hide a run. A live run is cancelled first, by force, so nothing is undone."""
    revision.check_free(run, is_forced=request.force)
    transitions.cancel(unit, run.id, rules.deletion(request), now)
    run = unit.runs.get(run.id) or run
    if run.key is not None:
        unit.runs.set_key(run, None)
    unit.runs.put(retention.deleted(run, now))
    unit.audit.note(audit.of_control(run.id, "deleted", request, now))
    return True


def _drop_message(unit: UnitOfWork, run: Run, request: DropMessage, now: Micros) -> bool:
    """Remove an unread message. Refused while a worker holds the run: it may have read the message already."""
    if run.is_held:
        raise RunBusy(
            f"worker {run.worker} holds run {run.id} and may have read the message; "
            "pause the run, and try again when the worker has released it"
        )
    found = next((one for one in unit.inboxes.messages(run) if one.ref == request.message_id), None)
    if found is None:
        return False
    unit.inboxes.take(run.id, found.number)
    unit.inboxes.keep_receipts(run.id, {request.message_id: now})
    unit.audit.note(
        audit.of_control(run.id, "message_dropped", request, now, message=request.message_id, name=found.name)
    )
    return True


# Rewind and recovery
#
# Everything is decided, or refused, before the first write. A recovery goes from the leaves of the tree to its root, so
# no parent runs while one of its children is still to be reopened. A transaction that has reopened as many runs as it
# may stops, and the next one continues.


def revise(unit: UnitOfWork, run: Run, request: Rewind | Recover, now: Micros) -> bool | None:
    """Rewind or recover a run. Return False if nothing changed, and None if it has to be repeated to be completed."""
    writer = _Writer(unit, request, now)
    if isinstance(request, Rewind):
        revision.check_free(run, is_forced=request.force)
        entries, inbox = unit.histories.all(run.id), _inbox(unit, run)
        children = _present(unit, revision.open_children(entries))
        change = revision.rewind(run, entries, request.location, children, now, reported=_ends_in(inbox))
        writer.write(_place(unit, run, _location_of(unit, run)), inbox, change)
        return True
    if run.state not in revision.RECOVERABLE:
        return False
    planned, is_complete = _planned(unit, run, request)
    for place, one in planned:
        inbox = _inbox(unit, place.run)
        writer.write(place, inbox, one.revision(_present(unit, one.concerned), _ends_in(inbox), now))
    return True if is_complete else None


class _Place(NamedTuple):
    """A run to reopen, its location in the history of its parent, and the key that it takes again."""

    run: Run
    location: str | None
    key: str | None


# Planning


_Branch = tuple[_Place, Recovery, Iterator[tuple[str, str]]]
"""A run on the path down the tree, its recovery, and its children that are still to be visited."""


def _planned(unit: UnitOfWork, root: Run, request: Recover) -> tuple[list[tuple[_Place, Recovery]], bool]:
    """Return the runs to reopen, children before their parents, and True if these are all. Write nothing."""
    # No recursion: a chain of runs may be longer than Python's recursion limit.
    path = [_branch(unit, _place(unit, root, _location_of(unit, root)), request)]
    seen = {root.id}
    planned: list[tuple[_Place, Recovery]] = []
    while path:
        place, one, below = path[-1]
        found = next((child for child in below if child[0] not in seen), None)
        if len(planned) == request.limit and (found is not None or len(path) > 1):
            return planned, False
        if found is None:
            planned.append((place, one))
            path.pop()
            continue
        child_id, location = found
        seen.add(child_id)
        child = unit.runs.whole(child_id)
        assert child is not None, "`_lost` has just read this run"
        path.append(_branch(unit, _place(unit, child, location), request))
    return planned, True


def _branch(unit: UnitOfWork, place: _Place, request: Recover) -> _Branch:
    one = Recovery(place.run, unit.histories.all(place.run.id))
    return place, one, _lost(unit, one, request)


def _lost(unit: UnitOfWork, parent: Recovery, request: Recover) -> Iterator[tuple[str, str]]:
    """Yield the children of a run that are to be reopened, each with its location in the run's history."""
    children = _present(unit, parent.concerned)
    parent.check_undone(children)
    ended = [child for child in children.values() if child.state in (RunState.FAILED, RunState.CANCELLED)]
    ours = [child for child in ended if child.parent_id == parent.run.id]
    for begin in range(0, len(ours), request.limit):
        some = {child.id: child for child in ours[begin : begin + request.limit]}
        unit.runs.expect(some, with_histories=True)
        facts = {child_id: unit.audit.requests(child_id) for child_id in some}
        willed = {child_id for child_id in some if revision.is_willed(facts[child_id])}
        # A child that this request has reopened, and that failed again, stays failed. Otherwise a request that takes
        # several transactions might never end.
        again = {child_id for child_id in some if any(f.data.get(REQUEST) == request.id for f in facts[child_id])}
        yield from parent.lost(some, willed | again)


def _place(unit: UnitOfWork, run: Run, location: str | None) -> _Place:
    """Return the place of a run to reopen. Raises `KeyConflict` if its key now belongs to another run."""
    key = revision.lost_key(run, unit.audit.requests(run.id)) if run.state.is_end else None
    if key is not None and (holder := unit.runs.with_key(key)) is not None:
        raise revision.key_conflict(run, key, holder)
    return _Place(run, location, key)


def _present(unit: UnitOfWork, run_ids: Sequence[str]) -> dict[str, Run]:
    """Return the runs that exist and are not deleted, by id."""
    unit.runs.expect(run_ids)
    found = ((run_id, unit.runs.whole(run_id)) for run_id in run_ids)
    return {run_id: run for run_id, run in found if run is not None and run.deleted_at is None}


def _location_of(unit: UnitOfWork, run: Run) -> str | None:
    """Return the location at which the parent of a run has it on record, or None."""
    if run.parent_id is None or run.parent_location is None or not run.state.is_end:
        return run.parent_location
    recorded = unit.histories.entry(run.parent_id, run.parent_location)
    return run.parent_location if rules.knows(recorded, run) else None


def _inbox(unit: UnitOfWork, run: Run) -> Sequence[Arrival]:
    """Return the inbox of a run. The inbox of an ended run is empty, so it is not read."""
    return () if run.state.is_end else unit.inboxes.newer(run, 0)


def _ends_in(inbox: Iterable[Arrival]) -> set[str]:
    """Return the ids of the children whose ends are in an inbox."""
    return {arrival.name for arrival in inbox if arrival.kind is WaitKind.CHILD}


# Writing


class _Writer:
    """Writes the decided changes. It counts the slots that are taken, by group of siblings."""

    def __init__(self, unit: UnitOfWork, request: Rewind | Recover, now: Micros) -> None:
        self._unit = unit
        self._request = request
        self._now = now
        self._seats: dict[str, int] = {}

    def write(self, place: _Place, inbox: Sequence[Arrival], change: Revision) -> None:
        """Reopen a run with its revised history, and cancel or attach its children."""
        before = place.run
        revised = revision.revised(before, inbox, change, self._request, self._now, parent_location=place.location)
        run = revised.run if place.key is None else replace(revised.run, key=place.key)
        waits: tuple[Wait, ...] = ()
        if before.state.is_end:
            run, waits = self._seated(run)
        unit = self._unit
        stored = unit.runs.get(run.id)
        assert stored is not None, "the caller has read this run"
        unit.histories.drop(run.id, (*change.dropped, *(entry.location for entry in change.reset)))
        unit.histories.put(run.id, run.token, change.reset)
        unit.inboxes.clear(stored)
        unit.inboxes.put(run.id, revised.inbox)
        if stored.is_held:
            unit.news.taken.add(run.id)
        transitions.move(unit, stored, run, self._now, revised.fact)
        unit.waits.put(run.id, waits)
        if run.key != stored.key:
            unit.runs.set_key(run, run.key)
        for child_id in change.cancelled:
            self._part_with(child_id)
        for child_id, location in change.attached.items():
            # The location of the parent at which the end of the child is delivered.
            if (child := unit.runs.get(child_id)) is not None:
                unit.runs.put(replace(child, parent_location=location))

    def _part_with(self, child_id: str) -> None:
        """Cancel a child that its parent no longer has on record. Its end is not delivered to the parent."""
        unit = self._unit
        child = unit.runs.get(child_id)
        if child is None:
            return
        has_slot = child.group is not None and not child.state.is_end and not rules.is_parked(unit.waits.of(child_id))
        if has_slot:
            transitions.pass_slot_on(unit, child, self._now)
        unit.runs.put(replace(child, parent_location=None))
        transitions.cancel(unit, child_id, rules.FORGOTTEN, self._now)

    def _seated(self, run: Run) -> tuple[Run, tuple[Wait, ...]]:
        """Give a reopened child of a `map` a slot again, or a wait for one."""
        if run.options.map_limit is None or run.group is None:
            return run, ()
        if run.group not in self._seats:
            self._seats[run.group] = self._unit.families.seated(run.parent_id, run.group)
        seated, waits = rules.reseated(run, self._seats[run.group])
        self._seats[run.group] += not waits
        return seated, waits
