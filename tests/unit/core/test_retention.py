"""Retention: when a run is pruned, and how much is pruned at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.clock import DAY
from holdfast.core.model import Run
from holdfast.core.retention import DELETED_RETENTION, PARENT_PATIENCE, deferred, deleted, fitting, verdict
from holdfast.core.states import RunState

NOW = 100 * DAY
ENDED = Run(
    id="r",
    type="t",
    state=RunState.FAILED,
    payload="{}",
    created_at=0,
    start_at=0,
    updated_at=0,
    key="k",
    finished_at=NOW - DAY,
)
OWN = replace(ENDED, retention=1, purge_at=NOW)


@pytest.mark.parametrize(
    ("run", "retention", "is_kept_for_parent", "expected"),
    [
        (ENDED, DAY, False, "purge"),
        (ENDED, DAY, True, "wait for parent"),
        (ENDED, DAY + 1, False, "wait for type"),
        (ENDED, DAY + 1, True, "wait for type"),
        (OWN, 2 * DAY, False, "purge"),
        (OWN, 2 * DAY, True, "wait for parent"),
        (deleted(ENDED, NOW - DAY), 2 * DAY, False, "purge"),
    ],
)
def test_a_run_is_pruned_after_its_retention_unless_its_parent_needs_it(
    run: Run, retention: int, *, is_kept_for_parent: bool, expected: str
) -> None:
    assert verdict(run, retention=retention, is_kept_for_parent=is_kept_for_parent, now=NOW) == expected


def test_a_run_that_has_to_wait_is_checked_again_when_it_may_have_changed() -> None:
    assert deferred(OWN, "wait for parent", NOW).purge_at == NOW + PARENT_PATIENCE
    assert deferred(replace(ENDED, purge_at=NOW), "wait for type", NOW).purge_at is None


def test_a_deleted_run_has_no_key_and_is_pruned_regardless_of_its_retention() -> None:
    gone = deleted(replace(OWN, retention=100 * DAY), NOW)

    assert (gone.key, gone.deleted_at, gone.purge_at) == (None, NOW, NOW + DELETED_RETENTION)


@pytest.mark.parametrize(
    ("sizes", "rows", "expected"), [([], 10, 0), ([3, 3, 4], 10, 3), ([3, 3, 5], 10, 2), ([11, 1], 10, 0), ([0], 0, 1)]
)
def test_a_batch_takes_as_many_runs_as_its_rows_allow(sizes: list[int], rows: int, expected: int) -> None:
    assert fitting(sizes, rows) == expected
