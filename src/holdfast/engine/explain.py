"""One sentence that says why a run is not moving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from holdfast.core import audit
from holdfast.core.clock import Micros, moment
from holdfast.core.model import AuditFact, Run, Wait, WaitKind, WorkerInfo
from holdfast.core.ports import Details
from holdfast.core.revision import UNDO_PREFIX
from holdfast.core.rules import MAX_RUN_LOCATION, MAX_SUSPEND_LOCATION
from holdfast.core.states import RunState
from holdfast.engine.routing import alive, is_handled

_LIMITS = {
    MAX_RUN_LOCATION: "it is cancelled, as it may take no longer (max_run),",
    MAX_SUSPEND_LOCATION: "it is cancelled, if nothing comes (max_suspend),",
}
"""Where the limits of a run stand among its waits, and what they do to it."""


def explain(details: Details, workers: Sequence[WorkerInfo], facts: Sequence[AuditFact], now: Micros) -> str:
    """Why the run is where it is, for a person in a hurry. `facts` is its audit."""
    run = details.run
    if run.state.is_end:
        return _end(run)
    if run.is_held:
        return _held(run, workers, facts, now)
    if run.state is RunState.PAUSED:
        return _paused(run, facts)
    if run.state is RunState.BLOCKED:
        return _blocked(run)
    undoing = _rolling_back(run)
    if run.ready_at is not None and run.ready_at <= now:
        return undoing + _ready(run, workers, facts, now)
    if run.state is RunState.PENDING and run.ready_at is not None:
        return f"Starts at {_at(run.ready_at)}."
    return f"{undoing}Waiting: {'; '.join(_in_order(details.waits)) or 'for nothing that is named'}."


def _end(run: Run) -> str:
    why = f": {run.error}" if run.error is not None and run.state is RunState.FAILED else ""
    if run.state is RunState.CANCELLED and run.error is not None and run.error.message:
        why = f": {run.error.message}"
    return f"Ended as {run.state.value} at {_at(run.finished_at)}{why}."


def _held(run: Run, workers: Sequence[WorkerInfo], facts: Sequence[AuditFact], now: Micros) -> str:
    name = next((worker.name for worker in workers if worker.id == run.worker), run.worker)
    late = ""
    if (run.ready_at or now) < now:
        can = (
            "so another worker takes over"
            if is_handled(run.type, alive(workers, now))
            else ("and no worker is running that could take over; start one with `holdfast worker`")
        )
        late = f"; its lease has run out, {can}"
    pausing = f"; it pauses as soon as no step of it executes{_reason(facts)}" if run.is_pausing else ""
    return f"{_rolling_back(run)}Running on worker {name}{late}{pausing}."


def _paused(run: Run, facts: Sequence[AuditFact]) -> str:
    since = next((fact.at for fact in reversed(facts) if fact.event == "paused"), run.updated_at)
    undoing = " while it was rolling back" if run.rollback is not None else ""
    return f"Paused since {_at(since)}{undoing}{_reason(facts)}; `holdfast resume {run.id}` lets it go on."


def _reason(facts: Sequence[AuditFact]) -> str:
    """What the one who paused a run had to say."""
    asked = next((fact for fact in reversed(facts) if audit.REQUEST in fact.data), None)
    reason = asked.data.get("reason") if asked is not None else None
    return f" ({reason})" if reason else ""


def _blocked(run: Run) -> str:
    undoing = " while it was rolling back" if run.rollback is not None else ""
    again = f"it is tried again at {_at(run.ready_at)}"
    if run.ready_at is None:
        again = f"it is not tried again by itself: once the cause is mended, `holdfast recover {run.id}` continues it"
    return f"Blocked{undoing} by {run.error}; {again}."


def _rolling_back(run: Run) -> str:
    if run.rollback is None:
        return ""
    return f"Rolling back because of {run.error}, to end as {run.rollback.value}. "


def _ready(run: Run, workers: Sequence[WorkerInfo], facts: Sequence[AuditFact], now: Micros) -> str:
    living = alive(workers, now)
    since = f"Ready since {_at(run.ready_at)}{_by_hand(facts)}"
    if is_handled(run.type, living):
        return f"{since}; waits for a worker with a free slot."
    if not living:
        return f"{since}, but no worker is running{_last_heard(run, workers)}; start one with `holdfast worker`."
    running = (
        "the one worker that is running does not handle"
        if len(living) == 1
        else (f"none of the {len(living)} workers that are running handles")
    )
    return f"{since}, but {running} type {run.type}{_last_heard(run, workers)}; start one that does."


def _last_heard(run: Run, workers: Sequence[WorkerInfo]) -> str:
    """Who would have handled a run, but died or hangs. Workers that stop in good order are forgotten."""
    able = [worker for worker in workers if run.type in worker.types]
    if not able:
        return ""
    last = max(able, key=lambda worker: worker.heartbeat_at)
    return f" (worker {last.name}, which does, was last heard of at {_at(last.heartbeat_at)})"


def _by_hand(facts: Sequence[AuditFact]) -> str:
    """What a person did to a run that has made it ready."""
    last = facts[-1] if facts else None
    if last is None or audit.REQUEST not in last.data:
        return ""
    at = f" to {last.data['location']}" if last.event == "rewound" else ""
    of = f" from run {last.data['of']}" if last.event == "forked" and "of" in last.data else ""
    return f", {last.event}{at}{of}" if last.event in ("resumed", "woken", "rewound", "recovered") or of else ""


def _in_order(waits: Sequence[Wait]) -> list[str]:
    """What is waited for, and then by when it must have come."""
    limits = [wait for wait in waits if wait.location in _LIMITS]
    others = [_wait(wait) for wait in waits if wait.location not in _LIMITS]
    return others + [f"{_LIMITS[limit.location]} at {_at(limit.deadline)}" for limit in limits]


def _wait(wait: Wait) -> str:
    names = " or ".join(wait.names)
    match wait.kind:
        case WaitKind.TIME:
            return f"sleeping until {_at(wait.deadline)} ({wait.location})"
        case WaitKind.RETRY:
            step = wait.location.removeprefix(UNDO_PREFIX)
            what = f"step {step}" if step == wait.location else f"the undo of step {step}"
            return f"{what} is tried again at {_at(wait.deadline)}"
        case WaitKind.MESSAGE:
            what = f"message {names}" if names else "any message"
        case WaitKind.EVENT:
            what = f"event {names}"
        case WaitKind.CHILD:
            what = f"child run {names}"
        case WaitKind.CHILDREN:
            what = f"{wait.count} child runs"
        case WaitKind.SLOT:
            what = "one of its siblings to end, as so many may run at once"
        case _:
            assert_never(wait.kind)
    until = f", at most until {_at(wait.deadline)}" if wait.deadline is not None else ""
    return f"for {what} since {_at(wait.since)}{until} ({wait.location})"


def _at(when: Micros | None) -> str:
    return "an unknown time" if when is None else moment(when).strftime("%Y-%m-%d %H:%M:%S UTC")
