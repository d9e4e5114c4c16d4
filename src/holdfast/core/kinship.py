"""Kinship: what a parent and its children know of each other. Pure decisions that every store makes in the same way."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.model import Entry, EntryKind, Run, Wait
from holdfast.core.states import RunState


def knows(recorded: Entry | None, child: Run) -> bool:
    """Whether a parent has this child on record; `recorded` stands where the child says it was started.

    A parent that forgot it, or has another one there, counts it neither among its children nor among their slots.
    """
    return recorded is not None and recorded.kind is EntryKind.CHILD and recorded.ref == child.id


def is_reopened(child: Run) -> bool:
    """Whether a child may have told its parent of an end before; if not, its parent need not be looked at."""
    return child.attempt > 1


def waits_for(recorded: Entry | None, child: Run, *, has_unread_end: bool) -> bool:
    """Whether a parent is still to be told of the end of a child: the first end that it was told of stands."""
    is_open = recorded is not None and not recorded.is_settled
    return is_open and knows(recorded, child) and not has_unread_end


def is_kept_for_parent(recorded: Entry | None, child: Run) -> bool:
    """Whether an ended child is not pruned before its parent: it did not succeed, and its end is awaited.

    Recovering the parent reopens it. An entry of a child counts an attempt as soon as the end is awaited.
    """
    is_awaited = recorded is not None and knows(recorded, child) and recorded.attempts > 0
    return is_awaited and child.state is not RunState.SUCCEEDED and child.deleted_at is None


def seated(run: Run, taken: int) -> tuple[Run, tuple[Wait, ...]]:
    """A reopened child of a `map` with a limit: it waits if that many of its siblings have a slot."""
    limit = run.options.map_limit
    if limit is None or run.group is None or taken < limit:
        return run, ()
    return replace(run, ready_at=None), (rules.parking(run),)
