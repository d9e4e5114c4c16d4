"""Controls: apply a person's request to a run. The audit keeps the request id, so a repeat changes nothing."""

from __future__ import annotations

from holdfast.core import audit, flow_revision, retention, revision, rules
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
from holdfast.core.model import Run
from holdfast.core.verbs import VERBS
from holdfast.stores.operations import flows, revisions, transitions
from holdfast.stores.operations.unit_of_work import UnitOfWork


def control(unit: UnitOfWork, request: RunControl, now: Micros) -> bool | None:
    """Apply a control request. Raises before it writes.

    Return False if nothing changed, and None if the request has to be repeated to be completed (`revisions.revise`).
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
    return _carry_out(unit, run, request, now)


def _carry_out(unit: UnitOfWork, run: Run, request: RunControl, now: Micros) -> bool | None:
    match request:
        case Cancel():
            return transitions.cancel(unit, run.id, Cancellation.of(request), now)
        case Rewind() | Recover():
            return revisions.revise(unit, _whole(unit, run), request, now)
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
        unit.news.arrived.add(after.id)  # the hint makes the holder look at the run
    return True


def _fork(unit: UnitOfWork, run: Run, request: Fork, now: Micros) -> bool:
    revision.check_free(run, is_forced=request.force)
    forked, entries = revision.fork(run, unit.histories.all(run.id), request, now)
    if unit.runs.get(forked.id) is not None:
        return False
    flow = flow_revision.flow_in(entries)
    if flow is not None:
        flows.keep_for_fork(unit, run.type, flow.ref, now)
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
