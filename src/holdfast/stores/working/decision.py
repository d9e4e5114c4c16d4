"""A decision: the answer of an operation on a working set, and its changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.core.rules import is_due
from holdfast.stores.working.changes import Changes, changes_of
from holdfast.stores.working.load_request import LoadRequest
from holdfast.stores.working.working_set import Loaded, WorkingSet

ROUNDS_LIMIT = 200
"""Maximum number of rounds of one operation. Each round loads more than the one before, so reaching it is a bug."""

A = TypeVar("A")

Operation = Callable[[WorkingSet, Micros], A]


@dataclass(frozen=True, slots=True)
class Decision(Generic[A]):
    """The answer to the caller, the changes to write, and the hints to give once they are written."""

    answer: A
    changes: Changes
    news: News


def decide(loaded: Loaded, request: LoadRequest, operation: Operation[A]) -> Decision[A]:
    """Run an operation on what was loaded. Raises `NotLoaded` if that was too little: load more and repeat."""
    working = WorkingSet(loaded, request)
    answer = operation(working, loaded.now)
    changes = changes_of(working)
    # Claims skip rows that this transaction has locked. So give a hint for those that are due once it is committed.
    runs = [record.run for record in working.records.values()]
    working.news.ready |= {run.type for run in runs if run.worker is None and is_due(run, loaded.now)}
    return Decision(answer, changes, working.news)
