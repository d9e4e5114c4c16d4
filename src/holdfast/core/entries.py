"""Entries of a history: what followed from a fact, what was received and undone, and what a dropped part changes.

Pure decisions. The runner feeds the code one fact at a time, and the code then runs to a standstill. So everything that
the code asks for there, in any branch, follows from that fact.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.errors import InvalidRequest
from holdfast.core.location import is_within, name_from
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Run, WaitKind
from holdfast.core.states import RunState

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


class Received(msgspec.Struct, array_like=True):
    """One message or event that a run took. `raw` is the JSON of its payload."""

    name: str
    raw: msgspec.Raw
    at: Micros
    ref: str | None
    is_exclusive: bool = False

    @property
    def payload(self) -> str:
        return bytes(self.raw).decode()

    def arrival(self, kind: EntryKind, number: int) -> Arrival:
        """Return it as an arrival in the inbox, under another number."""
        return Arrival(
            number=number,
            kind=WaitKind.MESSAGE if kind is EntryKind.MESSAGE else WaitKind.EVENT,
            name=self.name,
            at=self.at,
            payload=self.payload,
            ref=self.ref,
            is_exclusive=self.is_exclusive,
        )


_decode_received = msgspec.json.Decoder(list[Received]).decode


def record_of(arrivals: Iterable[Arrival]) -> str:
    """Return the result of a reception that took these arrivals."""
    received = [
        Received(one.name, msgspec.Raw((one.payload or "null").encode()), one.at, one.ref, one.is_exclusive)
        for one in arrivals
    ]
    return msgspec.json.encode(received).decode()


def received_in(entry: Entry) -> list[Received]:
    """Return the messages or events that an entry received. An open entry is the table of event cursors: nothing."""
    return _decode_received(entry.result or "[]") if entry.is_settled else []


def patched(entry: Entry, payload: str) -> str:
    """Return the result of a reception with another payload for its first item."""
    first, *rest = _decode_received(entry.result or "[]")
    first.raw = msgspec.Raw(payload.encode())
    return msgspec.json.encode([first, *rest]).decode()


ROUNDS_LOCATION = "~rounds"

_decode_rounds = msgspec.json.Decoder(dict[str, int]).decode


def rounds_in(entry: Entry | None) -> dict[str, int]:
    """Return the number of completed undos by location, from the entry `~rounds`."""
    return {} if entry is None or entry.result is None else _decode_rounds(entry.result)


def rounds_after(entry: Entry | None, undone: Iterable[str], now: Micros) -> Entry:
    """Return the entry `~rounds` after the undos of these locations were dropped from the history.

    It has no position: it is not a fact, and a replay never asks for it.
    """
    rounds = rounds_in(entry)
    for location in undone:
        rounds[location] = rounds.get(location, 0) + 1
    return Entry(
        location=ROUNDS_LOCATION,
        kind=EntryKind.ROUNDS,
        state=EntryState.DONE,
        result=msgspec.json.encode(rounds, order="sorted").decode(),
        started_at=now,
        finished_at=now,
    )


EVENTS_LOCATION = "~events"
"""Location of the entry that records the last event a run received per topic. It outlives pruned entries."""

FLOW_LOCATION = "~flow"
"""Location of the newest snapshot of a flow: the text in `result`, the version of the program in `ref`.

`attempts` is the number of the turn that wrote it, so that each turn supersedes the one before. `since` is the position
of the last fact that it includes, `finished_at` the instant of that turn. After a revision, `retry_at` is the instant
of the revision: the deadlines in the snapshot move by `retry_at - finished_at`. A `result` of None means the beginning.
"""

ADOPTED_LOCATION = "~adopted"
"""Location of the children that a recovered flow started in the turn that failed: JSON, from locations to run ids.

The snapshot does not know them. If the flow starts a child at such a location again, it takes this one.
"""

TURN_PREFIX = "@turn/"
"""Beginning of the locations of the snapshots that a flow keeps for people, which the number of the turn completes.

Such an entry is settled, at the last position of its checkpoint. The `since` of an entry of a flow is the last position
of a fact or of a snapshot before the program asked for it. So a snapshot includes exactly the entries before it.
"""

BOOKKEEPING = frozenset({EVENTS_LOCATION, ROUNDS_LOCATION, FLOW_LOCATION, ADOPTED_LOCATION})
"""Locations of the engine's own entries. They have no position, and no revision drops them."""

UNDO_PREFIX = "~undo/"
PRUNED = "pruned"
"""The `ref` of a loop's mark if iterations before it were pruned."""


# Questions about an entry


def beginning(entry: Entry) -> int:
    """Return the first position that is not before an entry."""
    return entry.position if entry.is_settled else entry.since + 1


def is_after(entry: Entry, cut: int) -> bool:
    """True if an entry settled at or after a position. An open entry counts if the code asked for it from there on."""
    if is_bookkeeping(entry):
        return False
    return entry.position >= cut if entry.is_settled else entry.since >= cut


def undone(entries: Iterable[Entry]) -> Iterator[str]:
    """The locations of the steps that were undone."""
    return (e.location.removeprefix(UNDO_PREFIX) for e in entries if e.kind is EntryKind.UNDO and is_done(e))


def is_done(entry: Entry) -> bool:
    return entry.state is EntryState.DONE


def is_undoing(entry: Entry) -> bool:
    return entry.kind in (EntryKind.UNDO, EntryKind.ROLLBACK)


def is_bookkeeping(entry: Entry) -> bool:
    return entry.location in BOOKKEEPING


# Changes of an entry


def unsettled(entry: Entry) -> Entry:
    """The entry of a child without the recorded end."""
    return replace(entry, state=EntryState.STARTED, position=0, result=None, error=None, finished_at=None)


def end_of(run: Run, entry: Entry) -> Arrival:
    """The end of a child as an arrival, rebuilt from its entry."""
    error = entry.error
    state = RunState.SUCCEEDED
    if not is_done(entry):
        state = RunState.CANCELLED if error is not None and rules.is_cancellation(error) else RunState.FAILED
    scope = entry.location.rpartition("/")[0]
    return Arrival(
        number=0,
        kind=WaitKind.CHILD,
        name=entry.ref or "",
        at=entry.finished_at or 0,
        payload=entry.result,
        state=state,
        error=error,
        group=f"{run.id}/{scope}" if scope else None,
    )


def latest_fact(entries: Iterable[Entry], last: int) -> Entry | None:
    """The last fact that the runner fed to the code, up to a position."""
    facts = [entry for entry in entries if entry.kind in FACTS and 0 < entry.position <= last]
    return max(facts, key=lambda entry: entry.position, default=None)


# Loops


def loops(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The marks of each loop, in order of position.

    A mark is an entry that records the state before an iteration, or the end of the loop.
    """
    found: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda one: one.position):
        if entry.kind is EntryKind.LOOP:
            *outer, last = entry.location.split("/")
            loop = "/".join(outer) if last.startswith("~") else entry.location
            found.setdefault(loop, []).append(entry)
    return found


def check_pruned(
    target: str,
    cut: int,
    entries: Iterable[Entry],
    *,
    instead: str = "choose a later location, or one before the loop",
) -> None:
    """Refuse to go back to a point inside iterations of a loop that were pruned."""
    for loop, marks in loops(entries).items():
        is_pruned = marks[-1].ref == PRUNED and marks[0].position >= cut
        if is_pruned and (is_within(target, loop) or is_beside(target, loop)):
            raise InvalidRequest(f"at {target!r} the loop {loop!r} was in iterations that are now pruned; {instead}")


def marks_past(locations: Iterable[str], entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the marks that keep the code of loops from reaching these locations again.

    A loop resumes at its oldest mark. Without any mark it starts at its first iteration.
    """
    for loop, marks in loops(entries).items():
        inside = [at.removeprefix(f"{loop}/~") for at in locations if at.startswith(f"{loop}/~")]
        if not inside:
            continue
        earliest = min(int(at.partition("/")[0]) for at in inside)
        numbers = {int(mark.location.rpartition("~")[2]): mark for mark in marks if mark.location != loop}
        yield from (mark for mark in marks if mark.location == loop)
        if numbers and min(numbers) > earliest:
            if marks[-1].ref == PRUNED:
                raise InvalidRequest(
                    f"iteration {earliest} of the loop {loop!r} must run again, but the history after it is pruned; "
                    "start another run instead"
                )
            yield from numbers.values()
