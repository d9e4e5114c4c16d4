"""Retention: how long ended runs are kept, and what a pruner does with a run that is due.

A run with its own retention, or a deleted run, is due at its `purge_at`. Any other run is due when the current
retention of its type is over. Pure decisions; stores carry them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from holdfast.core.clock import DAY, Micros
from holdfast.core.model import Run

RUN_RETENTION: Micros = 30 * DAY
"""Default retention of an ended run."""

DELETED_RETENTION: Micros = DAY
"""Retention of a deleted run, which is hidden."""

PARENT_PATIENCE: Micros = DAY
"""Interval after which a run that is kept for its parent is checked again."""

ROWS_PER_RUN = 20
"""Maximum number of rows that one call of `prune` removes, per run of its limit. A larger run takes several calls."""


Verdict = Literal["purge", "wait for parent", "wait for type"]


def verdict(run: Run, *, retention: Micros, is_kept_for_parent: bool, now: Micros) -> Verdict:
    """Decide about an ended run that is due. `retention` is that of its type."""
    is_by_type = run.retention is None and run.deleted_at is None
    if is_by_type and (run.finished_at is None or run.finished_at > now - retention):
        return "wait for type"  # it waited for its parent, and meanwhile the retention of its type grew
    return "wait for parent" if is_kept_for_parent else "purge"


def deferred(run: Run, why: Literal["wait for parent", "wait for type"], now: Micros) -> Run:
    """Return the run with the time of its next check."""
    return replace(run, purge_at=now + PARENT_PATIENCE if why == "wait for parent" else None)


def deleted(run: Run, now: Micros) -> Run:
    """Return the ended run as deleted: hidden, and without its key, which another run may now take."""
    return replace(run, deleted_at=now, purge_at=now + DELETED_RETENTION, key=None)


def fitting(sizes: Iterable[int], rows: int) -> int:
    """Return how many runs, from the first on, fit into a number of rows. `sizes` are the rows of each run."""
    count = 0
    for size in sizes:
        rows -= size
        if rows < 0:
            break
        count += 1
    return count
