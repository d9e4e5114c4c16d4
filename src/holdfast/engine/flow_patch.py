"""The patch of a forked flow: sets variables in the snapshot with which the fork begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.core.entries import FLOW_LOCATION, TURN_PREFIX
from holdfast.core.errors import InvalidRequest, RunNotFound
from holdfast.core.flow_revision import FlowPoint, is_flow, point_at
from holdfast.core.model import Entry, Run
from holdfast.core.ports import Reader
from holdfast.engine.flow_snapshot import definition_of, loaded


class ForkPoint(NamedTuple):
    """Where a fork begins, and what it changes there: JSON texts by location, or by variable of a flow."""

    location: str
    patch: Mapping[str, str]


async def fork_point(store: Reader, run_id: str, wanted: ForkPoint) -> ForkPoint:
    """Return the point as a store understands it. Only that of a flow changes: it gets a patched snapshot."""
    details = await store.get(run_id)
    if details is None:
        raise RunNotFound(f"there is no run {run_id}")
    return await patched_point(store, details.run, await store.history(run_id), wanted)


async def patched_point(store: Reader, run: Run, entries: Sequence[Entry], wanted: ForkPoint) -> ForkPoint:
    """Return the point as a store understands it, given the run and its history."""
    if not wanted.patch or not is_flow(entries):
        return wanted
    point = point_at(entries, wanted.location)
    if point.snapshot is None:
        names = ", ".join(sorted(wanted.patch))
        raise InvalidRequest(
            f"at {wanted.location!r} the flow is at its beginning, so there is no variable {names} to set; "
            "start a new run with another payload instead"
        )
    definition = await definition_of(store, run, point.snapshot.ref)
    snapshot = loaded(definition, point.snapshot)
    snapshot.machine.edit_variables(dict(wanted.patch))
    return ForkPoint(_kept_at(entries, point, wanted.location), {FLOW_LOCATION: snapshot.encoded()})


def _kept_at(entries: Sequence[Entry], point: FlowPoint, location: str) -> str:
    """Return the location of the kept snapshot, which means the same point even if the run moves on meanwhile."""
    assert point.snapshot is not None
    kept = f"{TURN_PREFIX}{point.snapshot.attempts}"
    is_kept = any(entry.location == kept and entry.since == point.since for entry in entries)
    return kept if is_kept else location
