"""A revision: a requested change to the history of a run. Pure decisions; stores carry them out.

`rewind` drops everything from a location on. `fork` gives the beginning to a new run. `Recovery` is the third kind.
Dropped entries did happen, so the messages they took become unread, and the children they started are cancelled. A flow
goes back to a snapshot: `flow_revision` decides which one.

A recovery is another try of a run that failed, was cancelled or is blocked. It drops the failed entries and everything
that followed from them. If steps were undone, it also drops everything since the first of these. Children are never
started twice: failed ones are reopened, the others are taken as they are. A flow continues from its newest snapshot,
which is the one before the turn that failed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from holdfast.core import audit, flow_revision, rules
from holdfast.core.audit import KEY_REUSED, REQUEST
from holdfast.core.clock import Micros
from holdfast.core.commands import Fork, Recover, Rewind
from holdfast.core.entries import (
    EVENTS_LOCATION,
    PRUNED,
    ROUNDS_LOCATION,
    Consequences,
    beginning,
    cancelled_children,
    check_pruned,
    consequences_of,
    end_of,
    is_after,
    is_bookkeeping,
    is_done,
    is_undoing,
    latest_fact,
    marks_past,
    patched,
    rounds_after,
    undone,
    unsettled,
)
from holdfast.core.errors import InvalidRequest, KeyConflict, RunBusy
from holdfast.core.flow_revision import FlowPoint, Revision
from holdfast.core.location import is_within, iterations_around, listed
from holdfast.core.model import Arrival, AuditFact, Entry, EntryKind, EntryState, Run, Value, WaitKind
from holdfast.core.states import RunState
from holdfast.core.verbs import VERBS


class Revised(Value, frozen=True, kw_only=True):
    """A run after a revision: its row and its whole inbox. `fact` goes to its audit."""

    run: Run
    inbox: tuple[Arrival, ...]
    fact: AuditFact


def check_free(run: Run, *, is_forced: bool) -> None:
    """Refuse to change the history of a run that a worker holds."""
    if run.is_held and not is_forced:
        raise RunBusy(
            f"worker {run.worker} holds run {run.id}; pause the run and try again when it is released, or use force, "
            "which takes the run from the worker"
        )


def open_children(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return the ids of children whose end is not recorded. A revision needs their state."""
    return tuple(e.ref for e in entries if e.kind is EntryKind.CHILD and not e.is_settled and e.ref is not None)


def revised(
    run: Run,
    inbox: Iterable[Arrival],
    revision: Revision,
    request: Rewind | Recover,
    now: Micros,
    *,
    parent_location: str | None,
) -> Revised:
    """Return the run after a rewind or recovery. `parent_location` is its location in its parent's history, if any."""
    if isinstance(request, Rewind):
        fact = audit.of_control(
            run.id, "rewound", request, now, location=request.location, dropped=len(revision.dropped)
        )
    else:
        fact = audit.of_control(run.id, "recovered", request, now, dropped=len(revision.dropped))
    # Renumbered, because no holder has seen this inbox yet. Arrivals that were read come first again.
    left = (one for one in inbox if not (one.kind is WaitKind.CHILD and one.name in revision.cancelled))
    unread = tuple(
        replace(arrival, number=number)
        for number, arrival in enumerate((*revision.unread, *left), start=run.arrivals + 1)
    )
    if isinstance(request, Recover) and run.rollback is not None:
        after = replace(rules.undoing_again(run, now), error=revision.reason or run.error)
    else:
        after = rules.reopened(run, now, parent_location=parent_location, is_from_start=revision.is_from_start)
    return Revised(run=replace(after, arrivals=run.arrivals + len(unread)), inbox=unread, fact=fact)


def rewind(
    run: Run,
    entries: Sequence[Entry],
    location: str,
    children: Mapping[str, Run],
    now: Micros,
    *,
    reported: Container[str] = (),
) -> Revision:
    """Drop the entry at a location and everything that came later. Inside a loop, drop the whole loop.

    A location that only has entries below it, such as a step of a pipeline, stands for all of them. `children` are the
    open children that exist, `reported` those whose ends are in the inbox.
    """
    if flow_revision.is_flow(entries):
        changes = flow_revision.rewound_flow(run, entries, location, children, now, reported=reported)
        # The event cursors go back to before the events that are unread again.
        cursors = (rewound(entry, changes.unread) for entry in entries if entry.location == EVENTS_LOCATION)
        return replace(changes, reset=(*changes.reset, *cursors))
    by_location = {entry.location: entry for entry in entries}
    targets = _found(by_location, location)
    cut = min(map(beginning, targets.values()))
    loop = _enclosing_loop(location, by_location.get(location))
    if loop is not None:
        members = [entry for entry in entries if is_within(entry.location, loop)]
        if any(entry.ref == PRUNED for entry in members if entry.kind is EntryKind.LOOP):
            raise InvalidRequest(
                f"{location!r} belongs to the loop {loop!r}, whose first iterations are pruned; rewind to a "
                "location outside the loop"
            )
        cut = min(beginning(member) for member in members)
    # Undone steps have no effect, although the history says done. So go back to before the first of them.
    cut = min((cut, *(by_location[at].position for at in undone(entries) if at in by_location)))
    check_pruned(location, cut, entries)
    gone = [entry for entry in entries if entry.location in targets or is_after(entry, cut) or is_undoing(entry)]
    revision = _revision(run, entries, gone, children, cut=cut, targets=targets, reported=reported)
    return restamped(with_rounds(revision, entries, now), entries, cut - 1, now)


def fork(run: Run, entries: Sequence[Entry], request: Fork, now: Micros) -> tuple[Run, tuple[Entry, ...]]:
    """Return the run that a fork creates, and its history. Copied steps have no undo: the fork did not do them."""
    if flow_revision.is_flow(entries):
        history = flow_revision.forked_flow(entries, request.location, request.patch, now)
        flow = flow_revision.flow_in(history)
        has_begun = flow is not None and flow.result is not None
    else:
        history, has_begun = _forked_history(entries, request, now)
    return _forked_run(run, request, now, has_history=bool(history), has_begun=has_begun), history


def _forked_history(entries: Sequence[Entry], request: Fork, now: Micros) -> tuple[tuple[Entry, ...], bool]:
    """Return the history before a location, and True if it has a fact."""
    by_location = {entry.location: entry for entry in entries}
    targets = _found(by_location, request.location)
    cut = min(map(beginning, targets.values()))
    kept = [entry for entry in entries if not is_after(entry, cut) and (entry.is_settled or is_bookkeeping(entry))]
    _check_forkable(request.location, targets, cut, entries, kept)
    history = {entry.location: replace(entry, has_undo=False) for entry in kept}
    for location, value in request.patch.items():
        if location not in history:
            raise InvalidRequest(
                f"there is nothing to patch at {location!r} before {request.location!r}; there is "
                f"{listed(list(history)) or 'nothing at all'}"
            )
        history[location] = _patched(history[location], value)
    latest = latest_fact(history.values(), cut - 1)
    if latest is not None:
        history[latest.location] = replace(latest, retry_at=now)
    return tuple(history.values()), latest is not None


def _forked_run(run: Run, request: Fork, now: Micros, *, has_history: bool, has_begun: bool) -> Run:
    return Run(
        id=request.new_run_id,
        type=run.type,
        state=RunState.PENDING,
        payload=run.payload,
        created_at=now,
        start_at=now,
        updated_at=now,
        priority=run.priority,
        ready_at=now,
        tags=run.tags,
        token=1 if has_history else 0,  # with a history, it ranks like a run that was claimed before
        first_claimed_at=run.first_claimed_at if has_begun else None,
        python=run.python if has_history else None,
        generation=run.generation,
        continued=run.continued,
        retention=run.retention,
        options=replace(run.options, by=request.by, seed=run.options.seed or run.id, trace=None, map_limit=None),
    )


def _check_forkable(
    location: str, targets: Container[str], cut: int, entries: Sequence[Entry], kept: Sequence[Entry]
) -> None:
    """Refuse a fork that would share a child, or rely on steps that are undone or pruned."""
    where = f"at {location!r}"
    children = [e for e in entries if e.kind is EntryKind.CHILD and e.location not in targets]
    if is_open := [e.location for e in children if e.since < cut <= (e.position or cut)]:
        raise InvalidRequest(f"{where} the children {listed(is_open)} are open; a fork cannot share them")
    if was_undone := sorted(set(undone(entries)).intersection(entry.location for entry in kept)):
        raise InvalidRequest(
            f"{listed(was_undone)} before {location!r} was undone, so a fork cannot rely on it; "
            "recover the run, or fork it at an earlier location"
        )
    check_pruned(location, cut, entries)


def _revision(
    run: Run,
    entries: Iterable[Entry],
    gone: Sequence[Entry],
    children: Mapping[str, Run],
    *,
    cut: int,
    targets: Container[str],
    reported: Container[str],
) -> Revision:
    """Return the revision that drops the entries in `gone`.

    The entries at `targets` are dropped completely. Of another child that was started before the cut, only the end is
    dropped, unless a dropped entry cancelled that child.
    """
    dropped: list[str] = []
    reset: list[Entry] = []
    unread: list[Arrival] = []
    cancelled: list[str] = []
    attached: dict[str, str] = {}
    forgotten = {entry.location for entry in gone}
    restarted = {entry.location for entry in cancelled_children(entries, forgotten, children)}
    for entry in sorted(gone, key=lambda one: one.position):
        is_child = entry.kind is EntryKind.CHILD
        starts_again = entry.since >= cut or entry.location in targets or entry.location in restarted
        if is_child and entry.is_settled and not starts_again:
            reset.append(unsettled(entry))
            unread.append(end_of(run, entry))
            continue
        dropped.append(entry.location)
        if is_child:
            cancelled.append(entry.ref or "")
        unread += flow_revision.arrivals_in(entry)
    for entry in entries:
        is_open = entry.kind is EntryKind.CHILD and not entry.is_settled and entry.location not in forgotten
        if not is_open or (entry.ref in reported and entry.ref not in children):
            continue  # the end of a removed child is in the inbox
        child = children.get(entry.ref or "")
        if child is None or entry.location in restarted or rules.is_cancelled_as(child, rules.CLOSING):
            dropped.append(entry.location)  # the code starts it again
            cancelled.append(entry.ref or "")
        elif run.state.is_end and child.state.is_end:  # the run had ended, so this end never reached it
            unread.append(rules.child_end(child, 0, child.finished_at or 0))
        elif run.state.is_end:
            attached[child.id] = entry.location
    reset += [rewound(entry, unread) for entry in entries if entry.location == EVENTS_LOCATION]
    return Revision(
        dropped=tuple(dropped),
        reset=tuple(reset),
        unread=tuple(unread),
        cancelled=tuple(cancelled),
        attached=attached,
    )


def with_rounds(revision: Revision, entries: Iterable[Entry], now: Micros) -> Revision:
    """Count the completed undos in `~rounds`, because the revision drops their entries."""
    was_undone = list(undone(entries))
    if not was_undone:
        return revision
    known = next((entry for entry in entries if entry.location == ROUNDS_LOCATION), None)
    return replace(revision, reset=(*revision.reset, rounds_after(known, was_undone, now)))


def rewound(cursors: Entry, unread: Iterable[Arrival]) -> Entry:
    """Return the event cursors of a run, set back to before the events that are unread again."""
    had = msgspec.json.decode(cursors.result or "{}", type=dict[str, int])
    for arrival in unread:
        if arrival.kind is WaitKind.EVENT and not arrival.is_exclusive and arrival.name in had:
            had[arrival.name] = min(had[arrival.name], int(arrival.ref or 0) - 1)
    return replace(cursors, result=msgspec.json.encode(had, order="sorted").decode())


def restamped(revision: Revision, entries: Iterable[Entry], last: int, now: Micros) -> Revision:
    """Let time continue from now after the last fact up to a position, so that repeated waits get their full time."""
    gone = {*revision.dropped, *(entry.location for entry in revision.reset)}
    latest = latest_fact((entry for entry in entries if entry.location not in gone), last)
    if latest is None:
        return replace(revision, is_from_start=True)
    return replace(revision, reset=(*revision.reset, replace(latest, retry_at=now)))


def _found(by_location: Mapping[str, Entry], location: str) -> dict[str, Entry]:
    """Return the entry at a location, or all entries below it if it has none itself, such as a step of a pipeline."""
    there = {at: one for at, one in by_location.items() if not (is_bookkeeping(one) or is_undoing(one))}
    if location in there:
        return {location: there[location]}
    found = {at: one for at, one in there.items() if is_within(at, location)}
    if not found:
        raise InvalidRequest(f"the run has no entry at {location!r}; it has {listed(list(there)) or 'none at all'}")
    return found


def _enclosing_loop(location: str, entry: Entry | None) -> str | None:
    outermost, _ = next(iterations_around(location), (None, 0))
    if outermost is not None:
        return outermost
    return location if entry is not None and entry.kind is EntryKind.LOOP else None


def _patched(entry: Entry, value: str) -> Entry:
    """Return an entry with another result, as if the operation had succeeded with it."""
    if entry.kind in (EntryKind.MESSAGE, EntryKind.EVENT) and is_done(entry):
        return replace(entry, result=patched(entry, value))
    if entry.kind in (EntryKind.STEP, EntryKind.TX, EntryKind.CHILD, EntryKind.VERSION):
        return replace(entry, state=EntryState.DONE, result=value, error=None)
    raise InvalidRequest(
        f"{entry.location!r} is a {entry.kind.value} in state {entry.state.value}; it has no result to patch"
    )


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
        return rules.is_reopened(child) and child.start_at >= (self.run.finished_at or 0)


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
