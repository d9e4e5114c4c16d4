"""Control requests of the machine, as small plans that become requests."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st

from holdfast.core.commands import Cancel, Delete, Evict, Fork, Pause, Recover, Resume, Rewind, RunControl, Wake
from holdfast.testing.contract.arrange import an_id

KINDS = ("cancel", "force", *("pause", "resume", "rewind", "recover") * 2, "wake", "evict", "fork", "delete")
WISHES = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 2),  # selects the id of the request: a few, so that repeats are common
    st.integers(0, 5),  # selects the location, and the run that a fork becomes
    st.booleans(),  # True if the request is forced
)
Wish = tuple[str, int, int, bool]


def request_of(wish: Wish, run_id: str, locations: Sequence[str]) -> RunControl:
    """Return the request for a run that has entries at these locations."""
    kind, number, index, is_forced = wish
    id = f"{kind}-{run_id}-{number}"
    location = locations[index % len(locations)] if locations else "nowhere"
    match kind:
        case "cancel" | "force":
            return Cancel(run_id=run_id, id=id, reason="it's %", force=kind == "force")
        case "pause":
            return Pause(run_id=run_id, id=id, reason="it's %")
        case "resume":
            return Resume(run_id=run_id, id=id)
        case "evict":
            return Evict(run_id=run_id, id=id)
        case "wake":
            return Wake(run_id=run_id, id=id)
        case "rewind":
            return Rewind(run_id=run_id, id=id, location=location, force=is_forced)
        case "delete":
            return Delete(run_id=run_id, id=id, force=is_forced)
        case "recover":
            return Recover(run_id=run_id, id=id, force=is_forced, limit=1 + index)
        case _:
            patch = {locations[0]: '"patched"'} if is_forced and locations else {}
            return Fork(run_id=run_id, id=id, new_run_id=an_id(index), location=location, patch=patch, force=is_forced)
