"""Kinship: rules about parents and their children. Pure decisions, the same for every store."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.model import Entry, EntryKind, Run, Wait
from holdfast.core.states import RunState


def knows(recorded: Entry | None, child: Run) -> bool:
    """True if a parent has this child in its history. `recorded` is the entry at the child's `parent_location`.

    A parent may have dropped the entry, or have another child there. It then counts this run neither as a child nor for
    its slots.
    """
    return recorded is not None and recorded.kind is EntryKind.CHILD and recorded.ref == child.id


def is_child(run: Run) -> bool:
    """True if the end of a run concerns its parent, or the parent's end the run. A `parent_id` alone is lineage."""
    return run.parent_id is not None and (run.parent_location is not None or run.on_close == "cancel")


def is_reopened(child: Run) -> bool:
    """True if a child may have reported an end to its parent before. If not, its parent need not be checked."""
    return child.attempt > 1


def waits_for(recorded: Entry | None, child: Run, *, has_unread_end: bool) -> bool:
    """True if a parent still needs the end of a child. The first end that reached it stands."""
    is_open = recorded is not None and not recorded.is_settled
    return is_open and knows(recorded, child) and not has_unread_end


def is_kept_for_parent(recorded: Entry | None, child: Run) -> bool:
    """True if an ended child must not be pruned before its parent: it did not succeed, and its parent awaits it.

    Recovering the parent may reopen the child. The entry of a child counts an attempt once the code awaits its end.
    """
    is_awaited = recorded is not None and knows(recorded, child) and recorded.attempts > 0
    return is_awaited and child.state is not RunState.SUCCEEDED and child.deleted_at is None


def seated(run: Run, taken: int) -> tuple[Run, tuple[Wait, ...]]:
    """Return a reopened child and its waits. In a `map` with a limit it is parked if its siblings use all slots."""
    limit = run.options.map_limit
    if limit is None or run.group is None or taken < limit:
        return run, ()
    return replace(run, ready_at=None), (rules.parking(run),)
