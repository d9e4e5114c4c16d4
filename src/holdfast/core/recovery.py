"""A recovery: another chance for a run that failed, was cancelled or is blocked. Pure decisions; stores carry them out.

It forgets what the run failed at and what followed from that, and all since the first thing that was undone. Children
are never started twice: those that failed are reopened, and the others are taken as they are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from holdfast.core import kinship, received, rules
from holdfast.core.audit import KEY_REUSED, REQUEST
from holdfast.core.clock import Micros
from holdfast.core.consequences import Consequences, cancelled_children, consequences_of
from holdfast.core.entries import (
    EVENTS_LOCATION,
    check_pruned,
    end_of,
    is_after,
    is_done,
    is_undoing,
    marks_past,
    undone,
    unsettled,
)
from holdfast.core.errors import KeyConflict, RunBusy
from holdfast.core.model import Arrival, AuditFact, Entry, EntryKind, EntryState, Run
from holdfast.core.revision import Revision, restamped, rewound, with_rounds
from holdfast.core.states import RunState

RECOVERABLE = frozenset({RunState.FAILED, RunState.CANCELLED, RunState.BLOCKED})


def is_willed(facts: Iterable[AuditFact]) -> bool:
    """Whether a person cancelled a run, and nobody reopened it since; the facts are those that name a request."""
    events = [fact.event for fact in facts if REQUEST in fact.data]
    relevant = ("cancelled", "rolling_back", "recovered", "rewound")
    return next((event for event in reversed(events) if event in relevant), "") in ("cancelled", "rolling_back")


class Recovery:
    """What a recovery makes of one run, read from its history.

    First it says which children decide how it goes on, then which of them are `lost` and have to be reopened. When that
    is done, its `revision` takes all of them as they are.
    """

    def __init__(self, run: Run, entries: Sequence[Entry]) -> None:
        self.run = run
        self._entries = entries
        by_location = {entry.location: entry for entry in entries}
        self._undone = [by_location[at] for at in undone(entries) if at in by_location]
        self._cut = min((entry.position for entry in self._undone), default=0)
        self._faults = [by_location[at] for at in _locations_of(run) if at in by_location]
        self._aftermath = Consequences(set(), set())
        self._gone: set[str] = set()
        if run.rollback is None:  # else it goes on undoing, and keeps the rest
            self._forget()

    def _forget(self) -> None:
        self._faults = [entry for entry in self._faults if entry.state in (EntryState.FAILED, EntryState.TIMED_OUT)]
        self._aftermath = consequences_of(self._faults, self._entries)
        again = [entry.location for entry in (*self._faults, *self._undone)]
        self._gone = self._aftermath.gone | {mark.location for mark in marks_past(again, self._entries)}
        if self._undone:
            # What came after something that was undone relied on it, or would be told before it could be done again.
            first = min(self._undone, key=lambda entry: entry.position)
            instead = "what was undone there cannot be done again, start another run"
            check_pruned(first, self._cut, self._entries, instead=instead)
            self._gone |= {entry.location for entry in self._entries if is_after(entry, self._cut)}

    @cached_property
    def _last_kept(self) -> int:
        """The last position that is not forgotten."""
        kept = (one.position for one in self._entries if one.location not in self._gone and not is_undoing(one))
        return max(kept, default=0)

    # Children

    @property
    def concerned(self) -> list[str]:
        """The children of whom it has to be known how they are: a success that is recorded stands."""
        return [entry.ref for entry in self._open_children() if entry.ref is not None and not is_done(entry)]

    def lost(self, children: Mapping[str, Run], willed: Container[str]) -> Iterator[tuple[str, str]]:
        """The children to reopen, and where: awaited ones that failed, and those cancelled for this run's sake.

        `willed` are those that a person cancelled.
        """
        if not self.run.state.is_end:
            return  # it was not told of their ends yet: its code decides what becomes of them
        cancelled = {entry.ref for entry in cancelled_children(self._entries, self._gone, children)}
        at_fault = {entry.location for entry in self._faults}
        for entry in self._open_children():
            child = children.get(entry.ref or "")
            if child is None or child.id in willed or child.state not in (RunState.FAILED, RunState.CANCELLED):
                continue
            is_for_our_sake = rules.is_cancelled_as(child, rules.CLOSING) or child.id in cancelled
            is_uncaught = entry.location in at_fault if entry.is_settled else entry.attempts > 0
            if is_for_our_sake or (is_uncaught and not rules.is_cancelled_as(child, rules.BY_PARENT)):
                yield child.id, entry.location

    def check_undone(self, children: Mapping[str, Run]) -> None:
        """Refuse while a child that was cancelled for this run's sake still undoes what it did: it ends cancelled."""
        cancelled = {entry.ref for entry in cancelled_children(self._entries, self._gone, children)}
        for child in children.values() if self.run.state.is_end else ():
            is_ours = rules.is_cancelled_as(child, rules.CLOSING) or child.id in cancelled
            if is_ours and not child.state.is_end:
                raise RunBusy(
                    f"run {child.id}, a child of run {self.run.id}, still undoes what it did, as it was cancelled "
                    "with its parent; recover the parent when that is over"
                )

    def _open_children(self) -> Iterator[Entry]:
        """The children whose end is not recorded, or is forgotten."""
        for entry in self._entries:
            if entry.kind is EntryKind.CHILD and (not entry.is_settled or entry.location in self._gone):
                yield entry

    # What becomes of the run

    def revision(self, children: Mapping[str, Run], told: Container[str], now: Micros) -> Revision:
        """What changes about the run, now that its lost children are reopened; `told` are ends in its inbox."""
        if self.run.rollback is not None:
            reason = next((entry.error for entry in self._entries if entry.kind is EntryKind.ROLLBACK), None)
            attempts = (e.location for e in self._entries if e.kind is EntryKind.UNDO and not is_done(e))
            return Revision(dropped=tuple(attempts), reason=reason)
        forgotten = (e for e in self._entries if e.location in self._gone or is_undoing(e))
        dropped = [entry for entry in forgotten if entry.kind is not EntryKind.CHILD]
        unread = [(entry.position, one) for entry in dropped for one in _read_in(entry)]
        kept: list[Entry] = []
        attached: dict[str, str] = {}
        for entry in self._open_children():
            child = children.get(entry.ref or "")
            if child is None and not is_done(entry):
                dropped += [] if entry.ref in told else [entry]  # it is started again, if the code comes there
            elif entry.is_settled or self.run.state.is_end:  # else it has told its end, or will
                kept.append(entry)
                if (end := self._end_of(entry, child)) is not None:
                    unread.append((entry.position, end))
                elif child is not None:
                    attached[child.id] = entry.location
        # What was read comes first again, in its order; what nobody was there to be told comes last.
        arrivals = [arrival for _, arrival in sorted(unread, key=lambda one: (not one[0], one[0]))]
        revision = Revision(
            dropped=tuple(entry.location for entry in dropped),
            reset=tuple(self._reset(kept, arrivals)),
            unread=tuple(arrivals),
            attached=attached,
        )
        begun = [*dropped, *(entry for entry in kept if self._begins_again(entry, children.get(entry.ref or "")))]
        since = [entry.since for entry in begun if entry.kind is not EntryKind.LOOP and not is_undoing(entry)]
        revision = with_rounds(revision, self._entries, now)
        return restamped(revision, self._entries, min(since), now) if since else revision

    def _end_of(self, entry: Entry, child: Run | None) -> Arrival | None:
        """The end of a child, for the run to be told; None if it is alive."""
        if is_done(entry) or child is None:
            return end_of(self.run, entry)
        return rules.child_end(child, 0, child.finished_at or 0) if child.state.is_end else None

    def _again(self, entry: Entry) -> Entry:
        """The record of a child whose end is forgotten.

        Where the code comes only after something that it does anew, it may as well go another way: it does not have to
        come to such a child, whose record is `retrying`, and if it does it finds the one there is.
        """
        is_sure = entry.location not in self._aftermath.followed and (not self._cut or entry.since < self._cut)
        if is_sure and entry.state is not EntryState.RETRYING:
            return unsettled(entry)
        return replace(unsettled(entry), state=EntryState.RETRYING, since=min(entry.since, self._last_kept))

    def _reset(self, kept: Iterable[Entry], unread: Iterable[Arrival]) -> Iterator[Entry]:
        """The entries that are otherwise than before: of children, and of which events the run has had."""
        for entry in kept:
            if (again := self._again(entry)) != entry:
                yield again
        yield from (rewound(entry, unread) for entry in self._entries if entry.location == EVENTS_LOCATION)

    def _begins_again(self, entry: Entry, child: Run | None) -> bool:
        """Whether waits beside a child get their full time again, because the child goes on where it had stopped.

        A child that never stopped has gone on meanwhile, and so has the time of everything beside it. A child that
        nobody awaits (it has no attempts) moves no time: the waits of the run are as long as they were.
        """
        if entry.is_settled:
            return entry.location in self._aftermath.gone
        if child is None or not entry.attempts:
            return False
        return kinship.is_reopened(child) and child.start_at >= (self.run.finished_at or 0)


def _read_in(entry: Entry) -> list[Arrival]:
    """What an entry tells that the run has received."""
    if entry.kind not in (EntryKind.MESSAGE, EntryKind.EVENT) or not is_done(entry):
        return []
    return [one.arrival(entry.kind, 0) for one in received.received_in(entry)]


def _locations_of(run: Run) -> tuple[str, ...]:
    """What a run failed at. One that is blocked has not failed: only its code has to be mended."""
    return run.error.locations if run.error is not None and run.state.is_end else ()


# Keys


def lost_key(run: Run, facts: Iterable[AuditFact]) -> str | None:
    """The key that another run has taken over from an ended one, which takes it again when it is reopened."""
    lost = [str(fact.data["key"]) for fact in facts if fact.event == KEY_REUSED]
    return lost[-1] if lost and run.key is None else None


def key_conflict(run: Run, key: str, holder: str) -> KeyConflict:
    """The refusal to reopen a run whose key belongs to another one now."""
    return KeyConflict(f"run {run.id} cannot be reopened: its key {key!r} now belongs to run {holder}", run_id=holder)
