"""What a turn gained: a block keeps the facts as they were before the code asked for more."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.runner.pending_checkpoint import PendingCheckpoint

CHILD = Entry(location="child", kind=EntryKind.CHILD, state=EntryState.STARTED, started_at=0)
FACT = Entry(location="step", kind=EntryKind.STEP, state=EntryState.DONE, started_at=0)


def test_an_entry_that_a_dropped_request_has_changed_is_as_before() -> None:
    gains = PendingCheckpoint()
    gains.request(CHILD)
    gains.add(FACT)
    gains.amend(replace(CHILD, attempts=1))
    gains.amend(replace(CHILD, attempts=2))
    gains.drop_requests()

    assert gains.entries == {"child": CHILD, "step": FACT}


def test_an_entry_that_came_with_a_dropped_request_is_gone() -> None:
    gains = PendingCheckpoint()
    gains.add(FACT)
    gains.request(CHILD)
    gains.amend(replace(CHILD, attempts=1))
    gains.drop_requests()

    assert gains.entries == {"step": FACT}


def test_a_fact_keeps_what_was_asked_for_before_it() -> None:
    gains = PendingCheckpoint()
    gains.request(CHILD)
    gains.amend(replace(CHILD, attempts=1))
    gains.add(FACT)
    gains.drop_requests()

    assert gains.entries == {"child": replace(CHILD, attempts=1), "step": FACT}
