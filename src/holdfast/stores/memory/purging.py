"""Purging: ended runs go away, with all that belongs to them, when their time has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from holdfast.core import kinship
from holdfast.core.clock import Micros
from holdfast.core.model import Run
from holdfast.core.retention import Verdict, deferred, verdict
from holdfast.stores.memory.state import Record, State


def purge(state: State, limit: int | None, usual: Micros, now: Micros) -> tuple[dict[str, int], bool]:
    """Look at the first runs that are due; how many went, by type, and whether there are more. Without limit: at all.

    `usual` is how long runs are kept whose type does not say.
    """
    due = list(islice(_due_runs(state, usual, now), limit))
    return _purge(state, due, usual, now), len(due) == limit


def _due_runs(state: State, usual: Micros, now: Micros) -> Iterator[Record]:
    """Runs whose time has come: those with an instant of their own first, then the others by the time they ended."""
    runs = [record.run for record in state.records.values()]
    own = [run for run in runs if run.purge_at is not None and run.purge_at <= now]
    by_type = [
        run
        for run in runs
        if run.purge_at is None and run.finished_at is not None and run.finished_at <= now - _kept(state, run, usual)
    ]
    for run in sorted(own, key=lambda run: (run.purge_at, run.id)):
        yield state.records[run.id]
    for run in sorted(by_type, key=lambda run: (run.finished_at, run.id)):
        yield state.records[run.id]


def _kept(state: State, run: Run, usual: Micros) -> Micros:
    """How long runs of the type are kept."""
    rule = state.types.get(run.type)
    return usual if rule is None or rule.retention is None else rule.retention


def _judged(state: State, run: Run, usual: Micros, now: Micros) -> Verdict:
    parent = state.records.get(run.parent_id or "")
    recorded = parent.recorded(run.parent_location or "") if parent is not None else None
    is_kept = kinship.is_kept_for_parent(recorded, run)
    return verdict(run, retention=_kept(state, run, usual), is_kept_for_parent=is_kept, now=now)


def _purge(state: State, due: Iterable[Record], usual: Micros, now: Micros) -> dict[str, int]:
    """Remove runs with all that belongs to them, but for those that have to wait longer; how many by type."""
    purged: Counter[str] = Counter()
    # All are judged before the first one goes: a child is never removed together with the parent it was kept for.
    judged = [(record, _judged(state, record.run, usual, now)) for record in due]
    for record, found in judged:
        run = record.run
        if found != "purge":
            record.run = deferred(run, found, now)
            continue
        del state.records[run.id]
        if run.key is not None:
            del state.keys[run.key]
        if run.parent_id is not None:
            state.children[run.parent_id].remove(run.id)
        purged[run.type] += 1
    return dict(sorted(purged.items()))
