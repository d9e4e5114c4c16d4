"""The states of a run, and the table of all moves between them."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """The state of a run, also usable as a string: `info.state == "failed"`."""

    PENDING = "pending"
    """Ready to begin or continue, or waiting for its start time. No worker has it yet."""
    RUNNING = "running"
    """A worker executes it."""
    SUSPENDED = "suspended"
    """It waits for time, a message, an event, a child or a next attempt. No worker holds it."""
    PAUSED = "paused"
    """Paused by a person or program until it is resumed."""
    BLOCKED = "blocked"
    """It cannot continue by itself: its code diverged, broke a rule, or crashed its workers. `explain` says why."""
    ROLLING_BACK = "rolling_back"
    """It undoes its finished steps, before it ends."""
    SUCCEEDED = "succeeded"
    """Ended: the workflow returned."""
    FAILED = "failed"
    """Ended: the workflow raised."""
    CANCELLED = "cancelled"
    """Ended: it was cancelled, or exceeded `max_run` or `max_suspend`."""

    @property
    def is_end(self) -> bool:
        """True if the run has ended: succeeded, failed or cancelled."""
        return self in ENDS


ENDS = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})
LIVE = frozenset(RunState) - ENDS

_REOPENED = "reopened by rewind or recover"

TRANSITIONS: dict[RunState, dict[RunState, str]] = {
    RunState.PENDING: {
        RunState.RUNNING: "claimed by a worker",
        RunState.PENDING: "rewound",
        RunState.PAUSED: "paused",
        RunState.ROLLING_BACK: "cancelled, with something to undo",
        RunState.CANCELLED: "cancelled",
    },
    RunState.RUNNING: {
        RunState.RUNNING: "worker lost, claimed again",
        RunState.PENDING: "released by a worker that shuts down, rewound, or continued as new",
        RunState.SUSPENDED: "nothing left to do but wait",
        RunState.PAUSED: "paused, at a standstill",
        RunState.BLOCKED: "cannot go on: divergence, violation, crash loop",
        RunState.ROLLING_BACK: "failed, cancelled or timed out, with something to undo",
        RunState.SUCCEEDED: "the workflow returned",
        RunState.FAILED: "the workflow raised",
        RunState.CANCELLED: "cancelled or timed out",
    },
    RunState.SUSPENDED: {
        RunState.RUNNING: "woken or due, claimed by a worker",
        RunState.PENDING: "rewound",
        RunState.PAUSED: "paused",
        RunState.ROLLING_BACK: "cancelled, with something to undo",
        RunState.CANCELLED: "cancelled",
    },
    RunState.PAUSED: {
        RunState.PENDING: "resumed or rewound",
        RunState.ROLLING_BACK: "cancelled, with something to undo, or resumed while undoing",
        RunState.CANCELLED: "cancelled",
    },
    RunState.BLOCKED: {
        RunState.RUNNING: "tried again",
        RunState.PENDING: "recovered or rewound",
        RunState.PAUSED: "paused",
        RunState.ROLLING_BACK: "cancelled, with something to undo, or recovered while undoing",
        RunState.CANCELLED: "cancelled",
    },
    RunState.ROLLING_BACK: {
        RunState.ROLLING_BACK: "claimed, released, or waiting to try an undo again",
        RunState.PENDING: "rewound",
        RunState.PAUSED: "paused",
        RunState.BLOCKED: "an undo was not found, or used up its attempts",
        RunState.FAILED: "undone, after a failure",
        RunState.CANCELLED: "undone, after a cancel or time-out; or cancelled by force",
    },
    RunState.SUCCEEDED: {RunState.PENDING: "reopened by rewind"},
    RunState.FAILED: {RunState.PENDING: _REOPENED},
    RunState.CANCELLED: {RunState.PENDING: _REOPENED},
}
"""The allowed moves from each state, with their causes. A run makes no other moves."""


def check_move(before: RunState, after: RunState) -> RunState:
    """Return `after` if the table allows the move. Any other move is a bug in holdfast."""
    if after not in TRANSITIONS[before]:
        raise AssertionError(f"a run cannot move from {before} to {after}")
    return after


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the architecture page."""
    lines = ["stateDiagram-v2", f"    [*] --> {RunState.PENDING}: start"]
    for before, moves in TRANSITIONS.items():
        lines += [f"    {before} --> {after}: {why}" for after, why in moves.items()]
    lines += [f"    {end} --> [*]" for end in RunState if end.is_end]
    return "\n".join(lines)
