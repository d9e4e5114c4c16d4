"""A recovery: another try of a run that failed, was cancelled or is blocked. Pure decisions; stores carry them out.

It drops the failed entries and everything that followed from them. If steps were undone, it also drops everything since
the first of these. Children are never started twice: failed ones are reopened, the others are taken as they are.
A flow continues from its newest snapshot, which is the one before the turn that failed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from holdfast.core import flow_revision, kinship, rules
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
from holdfast.core.flow_revision import FlowPoint
from holdfast.core.model import Arrival, AuditFact, Entry, EntryKind, EntryState, Run
from holdfast.core.revision import Revision, restamped, rewound, with_rounds
from holdfast.core.states import RunState
from holdfast.core.verbs import VERBS

RECOVERABLE = VERBS["recover"].states


def is_willed(facts: Iterable[AuditFact]) -> bool:
    """True if a person cancelled a run and it was not reopened since. Only facts that name a request matter."""
    events = [fact.event for fact in facts if REQUEST in fact.data]
    relevant = ("cancelled", "rolling_back", "recovered", "rewound")
    return next((event for event in reversed(events) if event in relevant), "") in ("cancelled", "rolling_back")


class Recovery:
    """The recovery of one run, decided from its history.

    `concerned` names the children whose state matters. `lost` then names those that have to be reopened. After that,
    `revision` takes all children as they are.
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
        self._reopened: list[str] = []
        self._flow = flow_revision.newest_point(entries)
        if self._flow is not None and run.rollback is None:
            self._go_back(self._flow)
        elif run.rollback is None:  # otherwise the rollback continues, and the other entries stay
            self._forget()

    def _go_back(self, snapshot: FlowPoint) -> None:
        """Drop what a snapshot does not know. A child that the failed turn started is not started twice."""
        gone = flow_revision.not_included(self._entries, snapshot)
        self._faults = self._failed(self._faults)
        # The program has read these failures in earlier turns, and has awaited the children in the one that failed.
        self._reopened = [e.location for e in self._faults if e.kind is EntryKind.CHILD and snapshot.includes(e)]
        self._gone = {*self._reopened, *(entry.location for entry in gone)}
        self._aftermath = Consequences(self._gone, {e.location for e in gone if e.since > snapshot.since})

    @staticmethod
    def _failed(entries: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.state in (EntryState.FAILED, EntryState.TIMED_OUT)]

    def _forget(self) -> None:
        self._faults = self._failed(self._faults)
        self._aftermath = consequences_of(self._faults, self._entries)
        again = [entry.location for entry in (*self._faults, *self._undone)]
        self._gone = self._aftermath.gone | {mark.location for mark in marks_past(again, self._entries)}
        if self._undone:
            # Entries after an undone step relied on it, or would be fed before the step can run again.
            first = min(self._undone, key=lambda entry: entry.position)
            instead = "what was undone there cannot run again, start another run"
            check_pruned(first.location, self._cut, self._entries, instead=instead)
            self._gone |= {entry.location for entry in self._entries if is_after(entry, self._cut)}

    @cached_property
    def _last_kept(self) -> int:
        """The last position that is not dropped."""
        kept = (one.position for one in self._entries if one.location not in self._gone and not is_undoing(one))
        return max(kept, default=0)

    # Children

    @property
    def concerned(self) -> list[str]:
        """The ids of the children whose state must be known. A recorded success stands."""
        return [entry.ref for entry in self._open_children() if entry.ref is not None and not is_done(entry)]

    def lost(self, children: Mapping[str, Run], willed: Container[str]) -> Iterator[tuple[str, str]]:
        """Yield the children to reopen, with their locations.

        These are awaited children that failed, and children that were cancelled because of this run. `willed` are the
        children that a person cancelled. They stay cancelled.
        """
        if not self.run.state.is_end:
            return  # a blocked run: its code was not fed their ends yet, and decides itself
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
        """Refuse while a child that was cancelled because of this run is still rolling back: it would end cancelled."""
        cancelled = {entry.ref for entry in cancelled_children(self._entries, self._gone, children)}
        for child in children.values() if self.run.state.is_end else ():
            is_ours = rules.is_cancelled_as(child, rules.CLOSING) or child.id in cancelled
            if is_ours and not child.state.is_end:
                raise RunBusy(
                    f"run {child.id}, a child of run {self.run.id}, still undoes its steps, because it was cancelled "
                    "with its parent; recover the parent when that rollback is over"
                )

    def _open_children(self) -> Iterator[Entry]:
        """Yield the entries of children whose end is not recorded, or is dropped."""
        for entry in self._entries:
            if entry.kind is EntryKind.CHILD and (not entry.is_settled or entry.location in self._gone):
                yield entry

    # The run itself

    def revision(self, children: Mapping[str, Run], reported: Container[str], now: Micros) -> Revision:
        """Return the changes to the run, after its lost children were reopened.

        `reported` are the children whose ends are in its inbox.
        """
        if self.run.rollback is not None:
            reason = next((entry.error for entry in self._entries if entry.kind is EntryKind.ROLLBACK), None)
            attempts = (e.location for e in self._entries if e.kind is EntryKind.UNDO and not is_done(e))
            return Revision(dropped=tuple(attempts), reason=reason)
        forgotten = (e for e in self._entries if e.location in self._gone or is_undoing(e))
        dropped = [entry for entry in forgotten if entry.kind is not EntryKind.CHILD]
        unread = [(entry.position, one) for entry in dropped for one in flow_revision.arrivals_in(entry)]
        kept: list[Entry] = []
        attached: dict[str, str] = {}
        for entry in self._open_children():
            child = children.get(entry.ref or "")
            if child is None and not is_done(entry) and self._flow is not None:
                kept.append(entry)
                unread += [] if entry.ref in reported else [(entry.position, flow_revision.removed_end(entry, now))]
            elif child is None and not is_done(entry):
                dropped += [] if entry.ref in reported else [entry]  # started again, if the code gets there
            elif entry.is_settled or self.run.state.is_end:  # otherwise its end has arrived, or will
                kept.append(entry)
                if (end := self._end_of(entry, child)) is not None:
                    unread.append((entry.position, end))
                elif child is not None:
                    attached[child.id] = entry.location
        # Arrivals that were read come first again, in their order. Ends from after the end of this run come last.
        arrivals = [arrival for _, arrival in sorted(unread, key=lambda one: (not one[0], one[0]))]
        revision = Revision(
            dropped=tuple(entry.location for entry in dropped),
            reset=tuple(self._reset(kept, arrivals)),
            unread=tuple(arrivals),
            attached=attached,
        )
        if self._flow is not None:
            return self._continued(revision, kept, now)
        begun = [*dropped, *(entry for entry in kept if self._begins_again(entry, children.get(entry.ref or "")))]
        since = [entry.since for entry in begun if entry.kind is not EntryKind.LOOP and not is_undoing(entry)]
        revision = with_rounds(revision, self._entries, now)
        return restamped(revision, self._entries, min(since), now) if since else revision

    def _continued(self, revision: Revision, kept: Iterable[Entry], now: Micros) -> Revision:
        """Let a flow continue from its snapshot. Its waits have the time that was left when the snapshot was taken.

        The time of a blocked run went on, because it had not ended.
        """
        reset = [*revision.reset]
        if self._flow is not None and self.run.state.is_end:
            reset += flow_revision.restored(self._entries, self._flow, now, self._reopened)
        if unknown := [entry for entry in kept if entry.location in self._aftermath.followed]:
            reset.append(flow_revision.adopted(unknown, now))
        return replace(revision, reset=tuple(reset))

    def _end_of(self, entry: Entry, child: Run | None) -> Arrival | None:
        """Return the end of a child as an arrival; None if the child is alive."""
        if is_done(entry) or child is None:
            return end_of(self.run, entry)
        return rules.child_end(child, 0, child.finished_at or 0) if child.state.is_end else None

    def _again(self, entry: Entry) -> Entry:
        """Return the entry of a child whose end is dropped.

        If the code gets to the child only after something that it repeats, it may take another path this time. The
        entry is then `retrying`: the code need not get there, and if it does, it finds the existing child.
        """
        is_sure = entry.location not in self._aftermath.followed and (not self._cut or entry.since < self._cut)
        if is_sure and entry.state is not EntryState.RETRYING:
            return unsettled(entry)
        since = min(entry.since, self._last_kept) if self._flow is None else entry.since
        return replace(unsettled(entry), state=EntryState.RETRYING, since=since)

    def _reset(self, kept: Iterable[Entry], unread: Iterable[Arrival]) -> Iterator[Entry]:
        """Yield the changed entries: those of children, and the event cursors."""
        for entry in kept:
            if (again := self._again(entry)) != entry:
                yield again
        yield from (rewound(entry, unread) for entry in self._entries if entry.location == EVENTS_LOCATION)

    def _begins_again(self, entry: Entry, child: Run | None) -> bool:
        """True if waits beside a child get their full time again, because the child was stopped and continues.

        For a child that never stopped, time went on, and so it did for everything beside it. A child that the code
        does not await (its entry has no attempts) changes no waits.
        """
        if entry.is_settled:
            return entry.location in self._aftermath.gone
        if child is None or not entry.attempts:
            return False
        return kinship.is_reopened(child) and child.start_at >= (self.run.finished_at or 0)


def _locations_of(run: Run) -> tuple[str, ...]:
    """Return the locations of a run's failures. A blocked run has none: only its code has to be fixed."""
    return run.error.locations if run.error is not None and run.state.is_end else ()


# Keys


def lost_key(run: Run, facts: Iterable[AuditFact]) -> str | None:
    """Return the key that another run took over after this run ended. A reopened run takes its key again."""
    lost = [str(fact.data["key"]) for fact in facts if fact.event == KEY_REUSED]
    return lost[-1] if lost and run.key is None else None


def key_conflict(run: Run, key: str, holder: str) -> KeyConflict:
    """The refusal to reopen a run whose key now belongs to another run."""
    return KeyConflict(f"run {run.id} cannot be reopened: its key {key!r} now belongs to run {holder}", run_id=holder)
