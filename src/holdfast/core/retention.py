"""Retention: how long runs are kept after their end, and what a pruner makes of one whose time has come.

A run that was started with a retention of its own, or was deleted, is looked at when its `purge_at` has come; any other
when the retention of its type is over, as that is at the time. Pure decisions; stores carry them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from holdfast.core.clock import DAY, Micros
from holdfast.core.model import Run

RUN_RETENTION: Micros = 30 * DAY
"""How long a run is kept after its end, if nothing else was said."""

DELETED_RETENTION: Micros = DAY
"""How long a run that was deleted is kept, out of sight."""

PARENT_PATIENCE: Micros = DAY
"""A run that is kept for its parent is looked at again after so long."""

ROWS_PER_RUN = 20
"""So many rows a bite may remove for each run it was asked for; a run that has more of them takes several bites."""


Verdict = Literal["purge", "wait for parent", "wait for type"]


def verdict(run: Run, *, retention: Micros, is_kept_for_parent: bool, now: Micros) -> Verdict:
    """What becomes of an ended run that was found to be due. `retention` is that of its type."""
    is_by_type = run.retention is None and run.deleted_at is None
    if is_by_type and (run.finished_at is None or run.finished_at > now - retention):
        return "wait for type"  # it waited for its parent, and its type was given more time meanwhile
    return "wait for parent" if is_kept_for_parent else "purge"


def deferred(run: Run, why: Literal["wait for parent", "wait for type"], now: Micros) -> Run:
    """The run, to be looked at later."""
    return replace(run, purge_at=now + PARENT_PATIENCE if why == "wait for parent" else None)


def deleted(run: Run, now: Micros) -> Run:
    """The ended run, out of sight. Somebody else may have its key."""
    return replace(run, deleted_at=now, purge_at=now + DELETED_RETENTION, key=None)


def fitting(sizes: Iterable[int], rows: int) -> int:
    """How many of the runs that have so many rows, from the first on, are removed with these rows."""
    count = 0
    for size in sizes:
        rows -= size
        if rows < 0:
            break
        count += 1
    return count
