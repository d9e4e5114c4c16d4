"""Consequences: what a run did because of a failure, or of another fact that a revision drops.

Read from its history alone. Code is told one fact at a time and then runs to a standstill, so whatever it asked for
there, in any branch, goes back to that fact. What becomes of all this, `revision` decides.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Container, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from holdfast.core import rules
from holdfast.core.location import is_within, name_from
from holdfast.core.model import Entry, EntryKind, Run

FACTS = frozenset(
    {
        EntryKind.STEP,
        EntryKind.TX,
        EntryKind.TIMER,
        EntryKind.MESSAGE,
        EntryKind.EVENT,
        EntryKind.CHILD,
        EntryKind.LOOP,
    }
)
"""What code is told of in the order of positions. The others it does by itself, between one fact and the next."""


class Consequences(NamedTuple):
    """The locations of faults and of all that followed from them, in whatever branch.

    `followed` are those that code asked for because of another: it comes there again only if that happens again.
    """

    gone: set[str]
    followed: set[str]


def consequences_of(faults: Iterable[Entry], entries: Sequence[Entry]) -> Consequences:
    """What a run did because of faults."""
    roots = list(faults)
    while True:
        found = _followers(roots, entries)
        ends = [end for end in cancelled_children(entries, found.gone, {}) if end.is_settled]
        if all(end.location in found.gone for end in ends):
            return found
        roots += ends  # code was told of an end that came of what is gone


def cancelled_children(entries: Iterable[Entry], gone: Container[str], children: Mapping[str, Run]) -> list[Entry]:
    """The children that were cancelled by what is gone, and by nothing else; `children` are the open ones."""
    cancels = [entry for entry in entries if entry.kind is EntryKind.CANCEL]
    refs = {cancel.ref for cancel in cancels if cancel.location in gone}
    refs -= {cancel.ref for cancel in cancels if cancel.location not in gone}
    maps = [cancel.location for cancel in cancels if cancel.ref is None and cancel.location in gone]
    return [
        entry
        for entry in entries
        if entry.kind is EntryKind.CHILD
        and (entry.ref in refs or any(_is_of_map(entry.location, at) for at in maps))
        and _was_cancelled(entry, children.get(entry.ref or ""))
    ]


def is_beside(location: str, other: str) -> bool:
    """Whether two locations are in different branches of one operation, or in different tasks."""
    return _parting(location.split("/"), other.split("/")) > 0


def _followers(roots: Sequence[Entry], entries: Sequence[Entry]) -> Consequences:
    """The locations of roots and of all that code asked for because of them, or of what they led to.

    That is whatever comes after one in the same branch. In another branch, what code asked for when it was told
    something in the branch of the root: a join that fails when its last branch has ended has those around it cancelled
    long after the failure that it tells of.
    """
    facts = sorted((e for e in entries if e.kind in FACTS and e.is_settled), key=lambda fact: fact.position)
    positions = [fact.position for fact in facts]
    gone = {root.location for root in roots}
    followed: set[str] = set()
    known = sorted((root.position, root.location.split("/")) for root in roots)
    # By when they were asked for: so what an entry goes back to is always looked at before it.
    for entry in sorted(entries, key=lambda one: one.since):
        told = bisect_right(positions, entry.since)
        if not told:
            continue
        cause = facts[told - 1].location
        before = known[: bisect_right(known, entry.since, key=itemgetter(0))]
        parts = entry.location.split("/")
        if cause in gone or any(_has_reached(root, parts, cause.split("/")) for _, root in before):
            followed.add(entry.location)
            if entry.is_settled and entry.location not in gone:
                insort(known, (entry.position, parts))
            gone.add(entry.location)
    return Consequences(gone, followed)


def _has_reached(root: list[str], entry: list[str], cause: list[str]) -> bool:
    """Whether code that asked for an entry when it was told a cause may have known of a root, by their parts."""
    depth = _parting(root, entry)
    return depth == 0 or cause[:depth] == root[:depth]


def _parting(parts: list[str], others: list[str]) -> int:
    """How many parts of a location name the branch or task that another is beside; 0 if that is in the same.

    Locations read `join/key/step`: an operation, a branch of it, an operation in that. A task is a branch of none.
    """
    is_branch = False
    for depth, (part, other) in enumerate(zip(parts, others, strict=False), start=1):
        if part != other:
            is_task = part[0] == "+" or other[0] == "+"
            return depth if is_task or (is_branch and part[0] != "~") else 0
        is_branch = not is_branch and part[0] != "+"
    return 0


def _is_of_map(location: str, cancel: str) -> bool:
    """Whether a child is one of those that a `map` has cancelled: its record names no child, as there may be many."""
    group, _, number = location.rpartition("/")
    scope, _, name = group.rpartition("/")
    cancel_scope, _, cancel_name = cancel.rpartition("/")
    is_named_so = number.isdigit() and name_from("cancel", name) == cancel_name.partition("#")[0]
    return is_named_so and (not scope or is_within(cancel_scope, scope))


def _was_cancelled(entry: Entry, child: Run | None) -> bool:
    """Whether its parent's cancel is what a child ends of."""
    if entry.is_settled:
        return entry.error == rules.cancellation(rules.BY_PARENT.reason)
    return child is not None and rules.is_cancelled_as(child, rules.BY_PARENT)
