"""A planned rewind: computes what a rewind would drop, without doing it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import revision
from holdfast.core.errors import RunNotFound
from holdfast.core.model import Entry, Run
from holdfast.core.ports import Store
from holdfast.core.revision import Revision


async def planned_rewind(store: Store, run_id: str, location: str) -> tuple[Revision, Sequence[Entry]]:
    """Return the revision that a rewind to a location would make, and the entries that it would drop.

    Raises `InvalidRequest` if nothing is recorded at the location.
    """
    run, entries, children = await read_run(store, run_id)
    planned = revision.rewind(run, entries, location, children, await store.now())
    return planned, [entry for entry in entries if entry.location in planned.dropped]


async def read_run(store: Store, run_id: str) -> tuple[Run, Sequence[Entry], dict[str, Run]]:
    """Return a run, its history, and its open children by their ids."""
    details = await store.get(run_id)
    if details is None:
        raise RunNotFound(f"there is no run {run_id}")
    entries = await store.history(run_id)
    found = [await store.get(child_id) for child_id in revision.open_children(entries)]
    return details.run, entries, {child.run.id: child.run for child in found if child is not None}
