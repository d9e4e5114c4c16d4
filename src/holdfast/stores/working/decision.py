"""A decision: what an operation answers on a working set, and what it changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.core.model import Run
from holdfast.stores.working.changes import Changes, changes_of
from holdfast.stores.working.load_request import LoadRequest
from holdfast.stores.working.working_set import Loaded, WorkingSet

ROUNDS_LIMIT = 200
"""Each round loads more than the one before, so an operation that takes this many has a bug."""

A = TypeVar("A")

Operation = Callable[[WorkingSet, Micros], A]


@dataclass(frozen=True, slots=True)
class Decision(Generic[A]):
    """The answer to the caller, what the store has to write, and the hints to give once it is written."""

    answer: A
    changes: Changes
    news: News


def decide(loaded: Loaded, request: LoadRequest, operation: Operation[A]) -> Decision[A]:
    """Let an operation decide on what was loaded. Raises `NotLoaded` if that was too little: load more and repeat."""
    working = WorkingSet(loaded, request)
    answer = operation(working, loaded.now)
    changes = changes_of(working)
    # A claim passes over rows that are locked meanwhile, so those that are due are announced once it is written.
    runs = [record.run for record in working.records.values()]
    working.news.ready |= {run.type for run in runs if run.worker is None and _is_due(run, loaded.now)}
    return Decision(answer, changes, working.news)


def _is_due(run: Run, now: Micros) -> bool:
    return run.ready_at is not None and run.ready_at <= now
