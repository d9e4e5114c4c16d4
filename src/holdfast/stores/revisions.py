"""Revisions: how a rewind or a recovery is carried out. The same for every store.

A store gives a `Book` to look things up and write them down in. Everything is decided, and refused, before the first
write. A recovery goes from the leaves of the tree to its root: no parent runs while one of its children is still to be
reopened, and where a transaction reopens as many as it may, the next one goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from holdfast.core import kinship, recovery, revision
from holdfast.core.audit import REQUEST
from holdfast.core.checkpoint import Recover, Rewind
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, AuditFact, Entry, Run, Wait, WaitKind
from holdfast.core.recovery import Recovery
from holdfast.core.revision import Revised, Revision
from holdfast.core.states import RunState


class Book(Protocol):
    """Runs with all that belongs to them, as a store keeps them."""

    def expect(self, run_ids: Collection[str], *, with_histories: bool = False) -> None:
        """These runs are about to be looked up, or their histories and facts too: a store may load them at once."""
        ...

    def run(self, run_id: str) -> Run | None:
        """A run as it is now, with its options."""
        ...

    def history(self, run_id: str) -> Sequence[Entry]: ...

    def entry(self, run_id: str, location: str) -> Entry | None:
        """What stands at one location of a run, if both are there."""
        ...

    def inbox(self, run_id: str) -> Sequence[Arrival]: ...

    def facts(self, run_id: str) -> Sequence[AuditFact]:
        """The facts of a run's audit that name a request, or tell that its key was reused."""
        ...

    def key_holder(self, key: str) -> str | None: ...

    def seated(self, child: Run) -> int:
        """How many siblings of a child have a slot of their group."""
        ...

    def write(self, revised: Revised, waits: Sequence[Wait]) -> None:
        """Give a run its revised history, inbox, waits and row, with the key that stands there."""
        ...

    def attach(self, child_id: str, location: str) -> None:
        """Have a child tell of its end at this location of its parent."""
        ...

    def part_with(self, child_id: str) -> None:
        """Cancel a child of which its parent knows no more, and wants to hear no more."""
        ...


def revise(book: Book, run: Run, request: Rewind | Recover, now: Micros) -> bool | None:
    """Carry out a request. False if nothing changed, None if it has to be repeated to be completed."""
    writer = _Writer(book, request, now)
    if isinstance(request, Rewind):
        revision.check_free(run, is_forced=request.force)
        entries, inbox = book.history(run.id), book.inbox(run.id)
        children = _present(book, revision.open_children(entries))
        change = revision.rewind(run, entries, request.location, children, now, told=_ends_in(inbox))
        writer.write(_place(book, run, _location_of(book, run)), inbox, change)
        return True
    if run.state not in recovery.RECOVERABLE:
        return False
    planned, is_complete = _planned(book, run, request)
    for place, one in planned:
        inbox = book.inbox(place.run.id)
        writer.write(place, inbox, one.revision(_present(book, one.concerned), _ends_in(inbox), now))
    return True if is_complete else None


class _Place(NamedTuple):
    """A run that is to be reopened, where its parent knows it, and the key that it takes again."""

    run: Run
    location: str | None
    key: str | None


# Planning


_Branch = tuple[_Place, Recovery, Iterator[tuple[str, str]]]
"""A run on a path down the tree, and what of its children is left to be looked at."""


def _planned(book: Book, root: Run, request: Recover) -> tuple[list[tuple[_Place, Recovery]], bool]:
    """The runs to reopen, children before their parents, and whether that is all; writes nothing."""
    # No recursion: a chain of runs may be longer than calls may be deep.
    path = [_branch(book, _place(book, root, _location_of(book, root)), request)]
    seen = {root.id}
    planned: list[tuple[_Place, Recovery]] = []
    while path:
        place, one, below = path[-1]
        found = next((child for child in below if child[0] not in seen), None)
        if len(planned) == request.limit and (found is not None or len(path) > 1):
            return planned, False
        if found is None:
            planned.append((place, one))
            path.pop()
            continue
        child_id, location = found
        seen.add(child_id)
        child = book.run(child_id)
        assert child is not None, "it was looked at a moment ago"
        path.append(_branch(book, _place(book, child, location), request))
    return planned, True


def _branch(book: Book, place: _Place, request: Recover) -> _Branch:
    one = Recovery(place.run, book.history(place.run.id))
    return place, one, _lost(book, one, request)


def _lost(book: Book, parent: Recovery, request: Recover) -> Iterator[tuple[str, str]]:
    """The children of a run that are to be reopened, and where it knows them."""
    children = _present(book, parent.concerned)
    parent.check_undone(children)
    ended = [child for child in children.values() if child.state in (RunState.FAILED, RunState.CANCELLED)]
    ours = [child for child in ended if child.parent_id == parent.run.id]
    for begin in range(0, len(ours), request.limit):
        some = {child.id: child for child in ours[begin : begin + request.limit]}
        book.expect(some, with_histories=True)
        facts = {child_id: book.facts(child_id) for child_id in some}
        willed = {child_id for child_id in some if recovery.is_willed(facts[child_id])}
        # One that this request has reopened before, and which failed again, has had its chance.
        again = {child_id for child_id in some if any(f.data.get(REQUEST) == request.id for f in facts[child_id])}
        yield from parent.lost(some, willed | again)


def _place(book: Book, run: Run, location: str | None) -> _Place:
    """A run that is to be reopened; refused if its key belongs to another one by now."""
    key = recovery.lost_key(run, book.facts(run.id)) if run.state.is_end else None
    if key is not None and (holder := book.key_holder(key)) is not None:
        raise recovery.key_conflict(run, key, holder)
    return _Place(run, location, key)


def _present(book: Book, run_ids: Sequence[str]) -> dict[str, Run]:
    """Those of the runs that are there, and not deleted."""
    book.expect(run_ids)
    found = ((run_id, book.run(run_id)) for run_id in run_ids)
    return {run_id: run for run_id, run in found if run is not None and run.deleted_at is None}


def _location_of(book: Book, run: Run) -> str | None:
    """Where the parent of a run knows it, if it does."""
    if run.parent_id is None or run.parent_location is None or not run.state.is_end:
        return run.parent_location
    recorded = book.entry(run.parent_id, run.parent_location)
    return run.parent_location if kinship.knows(recorded, run) else None


def _ends_in(inbox: Iterable[Arrival]) -> set[str]:
    """The children whose ends wait in an inbox."""
    return {arrival.name for arrival in inbox if arrival.kind is WaitKind.CHILD}


# Writing


class _Writer:
    """Writes down what was decided. It knows how many slots it has given, by group."""

    def __init__(self, book: Book, request: Rewind | Recover, now: Micros) -> None:
        self._book = book
        self._request = request
        self._now = now
        self._seats: dict[str, int] = {}

    def write(self, place: _Place, inbox: Sequence[Arrival], change: Revision) -> None:
        """Reopen a run."""
        before = place.run
        revised = revision.revised(before, inbox, change, self._request, self._now, parent_location=place.location)
        run = revised.run if place.key is None else replace(revised.run, key=place.key)
        waits: tuple[Wait, ...] = ()
        if before.state.is_end:
            run, waits = self._seated(run)
        self._book.write(replace(revised, run=run), waits)
        for child_id in revised.cancelled:
            self._book.part_with(child_id)
        for child_id, location in revised.attached.items():
            self._book.attach(child_id, location)

    def _seated(self, run: Run) -> tuple[Run, tuple[Wait, ...]]:
        """A child of a `map` takes a slot again, or waits for one."""
        if run.options.map_limit is None or run.group is None:
            return run, ()
        if run.group not in self._seats:
            self._seats[run.group] = self._book.seated(run)
        seated, waits = kinship.seated(run, self._seats[run.group])
        self._seats[run.group] += not waits
        return seated, waits
