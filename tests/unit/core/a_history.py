"""Builders of histories, for decisions that need no store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import revision, rules
from holdfast.core.errors import ErrorRecord
from holdfast.core.flow_revision import Revision
from holdfast.core.model import Entry, EntryKind, EntryState, Run
from holdfast.core.revision import Recovery
from holdfast.core.states import RunState

NOW = 1_000
RUN = Run(id="run", type="t", state=RunState.FAILED, payload="{}", created_at=0, start_at=0, updated_at=0)


def step(location: str, position: int, since: int | None = None, **options: Any) -> Entry:
    since = max(0, position - 1) if since is None else since
    fields: dict[str, Any] = {"kind": EntryKind.STEP, "state": EntryState.DONE, "result": "1", "finished_at": position}
    fields |= {"location": location, "position": position, "since": since} | options
    return Entry(**fields)


def failed(location: str, position: int, since: int | None = None, **options: Any) -> Entry:
    error = ErrorRecord(type="ValueError", message="no")
    return step(location, position, since, **{"state": EntryState.FAILED, "result": None, "error": error} | options)


def child(location: str, position: int, since: int, **options: Any) -> Entry:
    fields: dict[str, Any] = {"kind": EntryKind.CHILD, "ref": location}
    if not position:
        fields |= {"state": EntryState.STARTED, "result": None, "finished_at": None}
    return step(location, position, since, **fields | options)


def mark(location: str, position: int, ref: str | None = None) -> Entry:
    return step(location, position, kind=EntryKind.LOOP, ref=ref)


def undo(location: str, position: int, state: EntryState = EntryState.DONE) -> Entry:
    return step(f"~undo/{location}", position, 0, kind=EntryKind.UNDO, state=state)


def rollback(position: int) -> Entry:
    return step(rules.ROLLBACK_LOCATION, position, kind=EntryKind.ROLLBACK)


def cancel(location: str, position: int, since: int, ref: str | None = None) -> Entry:
    return step(location, position, since, kind=EntryKind.CANCEL, result=None, ref=ref)


CANCELLED = rules.cancellation(rules.BY_PARENT.reason)


def a_child(state: RunState, reason: str = "", **options: Any) -> Run:
    error = rules.cancellation(reason) if reason else None
    return replace(RUN, id="call", state=state, parent_id="run", error=error, **options)


OPEN = [step("a", 1), step("b", 2), child("call", 0, 1)]
"""A run that has started a child and executed two steps."""


def rewind(entries: Sequence[Entry], location: str, run: Run = RUN, **children: Run) -> Revision:
    return revision.rewind(run, entries, location, children, NOW)


def failed_at(*faults: str) -> Run:
    return replace(RUN, error=ErrorRecord(type="StepFailed", message="no", locations=faults))


def recover(entries: Sequence[Entry], *faults: str, children: Mapping[str, Run] | None = None) -> Revision:
    return Recovery(failed_at(*faults), entries).revision(children or {}, (), NOW)


def lost(
    entries: Sequence[Entry], *faults: str, children: Mapping[str, Run], willed: Sequence[str] = ()
) -> dict[str, str]:
    """Return the children that a recovery reopens, and their locations."""
    return dict(Recovery(failed_at(*faults), entries).lost(children, willed))
