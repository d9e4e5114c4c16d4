"""One sentence that says why a run is not moving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from holdfast.core.clock import SECOND, Micros, moment
from holdfast.core.model import Run, Wait, WaitKind, WorkerInfo
from holdfast.core.ports import Details
from holdfast.core.states import RunState

DEAD_AFTER: Micros = 60 * SECOND
"""A worker that has not been heard of for so long is not counted on."""


def explain(details: Details, workers: Sequence[WorkerInfo], now: Micros) -> str:
    """Why the run is where it is, for a person in a hurry."""
    run = details.run
    if run.state.is_end:
        return _end(run)
    if run.is_held:
        name = next((worker.name for worker in workers if worker.id == run.worker), run.worker)
        late = "; its lease has run out, so another worker takes over" if (run.ready_at or now) < now else ""
        return f"Running on worker {name}{late}."
    if run.state is RunState.BLOCKED:
        again = f"it is tried again at {_at(run.ready_at)}" if run.ready_at else "it is not tried again by itself"
        return f"Blocked by {run.error}; {again}."
    if run.ready_at is not None and run.ready_at <= now:
        return _ready(run, workers, now)
    if run.state is RunState.PENDING and run.ready_at is not None:
        return f"Starts at {_at(run.ready_at)}."
    return f"Waiting: {'; '.join(_wait(wait) for wait in details.waits) or 'for nothing that is named'}."


def _end(run: Run) -> str:
    why = f": {run.error}" if run.error is not None and run.state is RunState.FAILED else ""
    if run.state is RunState.CANCELLED and run.error is not None and run.error.message:
        why = f": {run.error.message}"
    return f"Ended as {run.state.value} at {_at(run.finished_at)}{why}."


def _ready(run: Run, workers: Sequence[WorkerInfo], now: Micros) -> str:
    alive = [worker for worker in workers if worker.heartbeat_at > now - DEAD_AFTER]
    if not alive:
        return f"Ready since {_at(run.ready_at)}, but no worker is running; start one with `holdfast worker`."
    if not any(run.type in worker.types for worker in alive):
        return f"Ready since {_at(run.ready_at)}, but none of the {len(alive)} workers handles type {run.type}."
    return f"Ready since {_at(run.ready_at)}; waits for a worker with a free slot."


def _wait(wait: Wait) -> str:
    names = " or ".join(wait.names)
    match wait.kind:
        case WaitKind.TIME:
            return f"sleeping until {_at(wait.deadline)} ({wait.location})"
        case WaitKind.RETRY:
            return f"step {wait.location} is tried again at {_at(wait.deadline)}"
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
