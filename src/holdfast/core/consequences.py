"""Consequences: the entries that followed from a failure, or from another fact that a revision drops.

They are found in the history alone. The runner feeds the code one fact at a time, and the code then runs to a
standstill. So everything that the code asks for there, in any branch, follows from that fact. `recovery` and `revision`
decide what happens to these entries.
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
"""Kinds of entries that the runner feeds to the code, by position. Code does the others itself, between two facts."""


class Consequences(NamedTuple):
    """The locations of faults and of everything that followed from them, in any branch.

    `gone` has all of them. `followed` has those that the code asked for because of another one in `gone`. The code
    reaches them again only if that one happens again.
    """

    gone: set[str]
    followed: set[str]


def consequences_of(faults: Iterable[Entry], entries: Sequence[Entry]) -> Consequences:
    """Find everything that followed from the faults."""
    roots = list(faults)
    while True:
        found = _followers(roots, entries)
        ends = [end for end in cancelled_children(entries, found.gone, {}) if end.is_settled]
        if all(end.location in found.gone for end in ends):
            return found
        roots += ends  # a dropped entry cancelled this child, and the code was fed its end


def cancelled_children(entries: Iterable[Entry], gone: Container[str], children: Mapping[str, Run]) -> list[Entry]:
    """The children that only dropped (`gone`) entries cancelled. `children` are the open ones, by id."""
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
    """True if two locations are in different branches of one operation, or in different tasks."""
    return _parting(location.split("/"), other.split("/")) > 0


def _followers(roots: Sequence[Entry], entries: Sequence[Entry]) -> Consequences:
    """Find the roots and everything that the code asked for because of them, directly or indirectly.

    In the branch of a root, that is everything after it. In another branch, it is what the code asked for when it was
    fed a fact from the root's branch. Example: a join fails only when its last branch has ended. It then causes
    cancels around it, long after the failure that it reports.
    """
    facts = sorted((e for e in entries if e.kind in FACTS and e.is_settled), key=lambda fact: fact.position)
    positions = [fact.position for fact in facts]
    gone = {root.location for root in roots}
    followed: set[str] = set()
    known = sorted((root.position, root.location.split("/")) for root in roots)
    # In the order in which the code asked for them, so that every cause is handled before its consequences.
    for entry in sorted(entries, key=lambda one: one.since):
        count = bisect_right(positions, entry.since)
        if not count:
            continue
        cause = facts[count - 1].location
        before = known[: bisect_right(known, entry.since, key=itemgetter(0))]
        parts = entry.location.split("/")
        if cause in gone or any(_has_reached(root, parts, cause.split("/")) for _, root in before):
            followed.add(entry.location)
            if entry.is_settled and entry.location not in gone:
                insort(known, (entry.position, parts))
            gone.add(entry.location)
    return Consequences(gone, followed)


def _has_reached(root: list[str], entry: list[str], cause: list[str]) -> bool:
    """True if code that asked for `entry` when it was fed `cause` may have known of `root`. All are split locations."""
    depth = _parting(root, entry)
    return depth == 0 or cause[:depth] == root[:depth]


def _parting(parts: list[str], others: list[str]) -> int:
    """Return the depth at which two locations part into different branches or tasks; 0 if they are in the same one.

    A location reads `join/key/step`: an operation, one of its branches, an operation in that branch. A task (`+1`) is
    not a branch of an operation.
    """
    is_branch = False
    for depth, (part, other) in enumerate(zip(parts, others, strict=False), start=1):
        if part != other:
            is_task = part[0] == "+" or other[0] == "+"
            return depth if is_task or (is_branch and part[0] != "~") else 0
        is_branch = not is_branch and part[0] != "+"
    return 0


def _is_of_map(location: str, cancel: str) -> bool:
    """True if a `map` cancelled this child. The entry of such a cancel names no child, because there may be many."""
    group, _, number = location.rpartition("/")
    scope, _, name = group.rpartition("/")
    cancel_scope, _, cancel_name = cancel.rpartition("/")
    is_named_so = number.isdigit() and name_from("cancel", name) == cancel_name.partition("#")[0]
    return is_named_so and (not scope or is_within(cancel_scope, scope))


def _was_cancelled(entry: Entry, child: Run | None) -> bool:
    """True if a child ended, or will end, because its parent cancelled it."""
    if entry.is_settled:
        return entry.error == rules.cancellation(rules.BY_PARENT.reason)
    return child is not None and rules.is_cancelled_as(child, rules.BY_PARENT)
