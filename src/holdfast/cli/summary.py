"""A summary of a run in a few words, for lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import assert_never

from holdfast.cli.output import Cell, ago, cleaned, spoken
from holdfast.core.model import WaitKind
from holdfast.core.rules import LIMIT_LOCATION
from holdfast.core.states import RunState
from holdfast.engine.controls import SelectedRun
from holdfast.engine.info import RunInfo, WaitInfo

STATE_STYLES: dict[RunState, str] = {
    RunState.PENDING: "",
    RunState.RUNNING: "busy",
    RunState.SUSPENDED: "wait",
    RunState.PAUSED: "wait",
    RunState.BLOCKED: "bad",
    RunState.ROLLING_BACK: "wait",
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "bad",
    RunState.CANCELLED: "dim",
}

UNKNOWN = "?"
"""Placeholder for a value that cannot be read."""


def state_cell(state: RunState | None) -> Cell:
    return (UNKNOWN, "bad") if state is None else (state.value, STATE_STYLES[state])


def state_word(state: RunState | None) -> str:
    return UNKNOWN if state is None else state.value


def type_word(type: str | None) -> str:
    return UNKNOWN if type is None else cleaned(type)


def age_word(created_at: datetime | None, now: datetime) -> str:
    return UNKNOWN if created_at is None else ago(created_at, now)


def run_words(run: RunInfo | SelectedRun, now: datetime) -> str:
    """Return a line about a run, for messages."""
    return f"{run.id}  {state_word(run.state):<9}  {type_word(run.type)}  {age_word(run.created_at, now)}"


def about(info: RunInfo, now: datetime, workers: Mapping[str, str]) -> str:
    """Return details of a run beyond its state. `workers` maps worker ids to names."""
    if info.unreadable is not None:
        return f"cannot be read: {cleaned(info.unreadable)}"
    match info.state:
        case RunState.SUCCEEDED:
            return f"took {spoken((info.finished_at or now) - info.created_at)}"
        case RunState.FAILED | RunState.BLOCKED:
            return cleaned(str(info.error)) if info.error else ""
        case RunState.CANCELLED:
            return cleaned(info.error.message) if info.error else ""
        case _:
            return _about_live(info, now, workers)


def _about_live(info: RunInfo, now: datetime, workers: Mapping[str, str]) -> str:
    if info.worker is not None:
        late = ", whose lease has ended" if info.ready_at is not None and info.ready_at < now else ""
        return f"on {cleaned(workers.get(info.worker, info.worker))}{late}"
    if info.ready_at is not None and info.ready_at <= now:
        return f"ready for {spoken(now - info.ready_at)}"
    if info.waits:
        return "; ".join(wait_words(wait, now) for wait in info.waits)
    return f"starts {ago(info.ready_at, now)}" if info.ready_at is not None else ""


def wait_words(wait: WaitInfo, now: datetime) -> str:
    """Describe a wait of a run."""
    names = cleaned(" or ".join(wait.names))
    match wait.kind:
        case WaitKind.TIME:
            return f"sleeps {_left(wait, now)} more" if _is_ahead(wait, now) else "the sleep is over"
        case WaitKind.RETRY:
            return f"retries {cleaned(wait.location)} {f'in {_left(wait, now)}' if _is_ahead(wait, now) else 'now'}"
        case WaitKind.MESSAGE:
            what = f"waits for message {names}" if names else "waits for any message"
        case WaitKind.EVENT:
            what = f"waits for event {names}"
        case WaitKind.CHILD:
            what = f"waits for child {names}"
        case WaitKind.CHILDREN:
            what = f"waits for {wait.count} children"
        case WaitKind.SLOT:
            is_limit = wait.location == LIMIT_LOCATION
            what = f"parked by limit {names}" if is_limit else "waits for a sibling to end"
        case _:
            assert_never(wait.kind)
    return f"{what} (at most {_left(wait, now)} more)" if _is_ahead(wait, now) else what


def _is_ahead(wait: WaitInfo, now: datetime) -> bool:
    return wait.deadline is not None and wait.deadline > now


def _left(wait: WaitInfo, now: datetime) -> str:
    return spoken((wait.deadline or now) - now)


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return the ids cut at the first dash where all of them still differ, so that a list is easy to read."""
    dashes = (13, 18, 23)
    for length in dashes:
        if len({id[:length] for id in ids}) == len(set(ids)):
            return {id: id[:length] for id in ids}
    return {id: id for id in ids}
