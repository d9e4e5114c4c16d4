"""The pending checkpoint: a block keeps the facts as they were before the code requested more."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.model import Entry, EntryKind, EntryState, Run
from holdfast.core.states import RunState
from holdfast.runner.inbox import Inbox
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.pending_checkpoint import PendingCheckpoint

CHILD = Entry(location="child", kind=EntryKind.CHILD, state=EntryState.STARTED, started_at=0)
FACT = Entry(location="step", kind=EntryKind.STEP, state=EntryState.DONE, started_at=0)


def a_pending_checkpoint() -> PendingCheckpoint:
    run = Run(id="r", type="t", state=RunState.RUNNING, payload="{}", created_at=0, start_at=0, updated_at=0, token=1)
    return PendingCheckpoint(run, OpenOperations(Inbox((), 0)))


def test_an_entry_changed_by_a_dropped_request_is_restored() -> None:
    pending = a_pending_checkpoint()
    pending.request(CHILD)
    pending.add(FACT)
    pending.amend(replace(CHILD, attempts=1))
    pending.amend(replace(CHILD, attempts=2))
    pending.drop_requests()

    assert pending.entries == {"child": CHILD, "step": FACT}


def test_an_entry_of_a_dropped_request_is_gone() -> None:
    pending = a_pending_checkpoint()
    pending.add(FACT)
    pending.request(CHILD)
    pending.amend(replace(CHILD, attempts=1))
    pending.drop_requests()

    assert pending.entries == {"step": FACT}


def test_a_fact_keeps_the_requests_before_it() -> None:
    pending = a_pending_checkpoint()
    pending.request(CHILD)
    pending.amend(replace(CHILD, attempts=1))
    pending.add(FACT)
    pending.drop_requests()

    assert pending.entries == {"child": replace(CHILD, attempts=1), "step": FACT}
