"""Transfer: what moves from one store to another, and what a store makes of it. Pure decisions; stores carry them out.

A run moves only while it is *at rest*: nothing but a person's hand can move it on, so it never goes on in two places.
Events keep their numbers, because the histories of runs name them; where a store has given such a number to another
event before, the move gives way. What a store has to remember of an export it takes in is its `Origin`: so every
restoration may be repeated, in part or as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.audit import REQUEST
from holdfast.core.clock import Micros
from holdfast.core.errors import InvalidRequest
from holdfast.core.model import (
    Arrival,
    AuditFact,
    DeadLetter,
    Entry,
    EntryKind,
    Run,
    TypeChange,
    TypeRule,
    Value,
    Wait,
    WaitKind,
)
from holdfast.core.received import received_in, record_of
from holdfast.core.states import RunState

EXPORT = "export:"
"""How the ids of requests begin by which an export pauses runs."""

IMPORT = "import:"
"""How the ids of requests begin by which an import resumes them."""

LAST_EVENT_LIMIT = 2**53
"""No event has a number so high."""

_TOLD = 20

Outcome = Literal["restored", "known", "newer", "stranger", "key"]
"""What became of a run: it is written; it was there already; the file has more of it than was there; there is another
run with its id; its key belongs to another run. Only the first of them changes anything."""


class Dump(Value, frozen=True, kw_only=True):
    """A run with all that belongs to it, as it was at one instant. `replies` are payloads and instants."""

    run: Run
    entries: tuple[Entry, ...] = ()
    inbox: tuple[Arrival, ...] = ()
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = {}
    receipts: dict[str, Micros] = {}
    replies: dict[str, tuple[str, Micros]] = {}
    audit: tuple[AuditFact, ...] = ()


class KeptEvent(Value, frozen=True, kw_only=True):
    """An event that a store keeps for whoever begins to wait, or, in a queue, for whoever takes it."""

    number: int
    topic: str
    id: str
    payload: str
    at: Micros
    reached: int = 0
    is_queued: bool = False


class Restoration(Value, frozen=True, kw_only=True):
    """Some of what an export brings, to be written as it was. Events and letters come in the order of their numbers.

    `last_event` is the highest number an event had where it comes from. `is_last`: there is no more.
    """

    export_id: str
    last_event: int
    runs: tuple[Dump, ...] = ()
    events: tuple[KeptEvent, ...] = ()
    letters: tuple[DeadLetter, ...] = ()
    is_last: bool = False


class Fate(Value, frozen=True, kw_only=True):
    """What became of a run. `other` is the run that its key belongs to."""

    run_id: str
    outcome: Outcome
    other: str | None = None


class Restored(Value, frozen=True, kw_only=True):
    """What became of a restoration: of its runs in order, of its events and letters in numbers.

    `skipped` events had a number that is another's here. `is_finished`: all of this export was restored before, so
    that nothing was done.
    """

    fates: tuple[Fate, ...] = ()
    events: int = 0
    skipped: int = 0
    letters: int = 0
    is_finished: bool = False


class Origin(Value, frozen=True, kw_only=True):
    """What a store remembers of an export.

    When it first heard of it, its own events had numbers up to `high` and times up to `since`. `event` and `letter`
    are the last ones it took in, `at` is the time of that event.
    """

    high: int
    since: Micros
    at: Micros
    event: int = 0
    letter: int = 0
    is_finished: bool = False


def is_at_rest(run: Run) -> bool:
    """Whether nothing but a person's hand can move a run on."""
    is_given_up = run.state is RunState.BLOCKED and run.ready_at is None
    return not run.is_held and (run.state.is_end or run.state is RunState.PAUSED or is_given_up)


def is_ruled(rule: TypeRule) -> bool:
    """Whether a person has said something of a type, and not only workers."""
    return ruling(rule) != ruling(TypeRule(name=rule.name))


def ruling(rule: TypeRule) -> TypeChange:
    """What a person may say of a type, as this rule has it."""
    return TypeChange(
        name=rule.name,
        description=rule.description,
        is_enabled=rule.is_enabled,
        concurrency=rule.concurrency,
        per_key=rule.per_key,
        rate=rule.rate,
        retention=rule.retention,
    )


def check_restorable(dump: Dump) -> None:
    """Refuse a run that could go on where it comes from."""
    run = dump.run
    if not is_at_rest(run):
        held = f", held by worker {run.worker}" if run.is_held else ""
        raise InvalidRequest(
            f"run {run.id} is {run.state}{held}: a run is moved only while it is paused or has ended, so that it never "
            "goes on in two places; `holdfast export` pauses it first"
        )
    if any(fact.run_id != run.id for fact in dump.audit):
        raise InvalidRequest(f"run {run.id} comes with facts of another run's life; export it again")


def values_of(dump: Dump) -> Iterator[tuple[str, str]]:
    """All values of users that belong to a run, as JSON, each with what it is."""
    run = dump.run
    found = [("payload", run.payload), ("payload of its generation", run.continued), ("result", run.result)]
    found += [(f"value {name!r}", value) for name, value in dump.values.items()]
    found += [(f"result at {entry.location!r}", entry.result) for entry in dump.entries]
    found += [(f"payload of {arrival.name!r}", arrival.payload) for arrival in dump.inbox]
    found += [("reply", payload) for payload, _ in dump.replies.values()]
    return ((what, value) for what, value in found if value is not None)


def flaw_of(dump: Dump) -> str | None:
    """What is said of a run that cannot be so, and would keep a worker from ever writing it; None if nothing is."""
    run = dump.run
    if run.state.is_end != (run.finished_at is not None):
        return f"is {run.state} and " + ("never ended" if run.state.is_end else "has ended")
    numbers = [arrival.number for arrival in dump.inbox]
    if len(set(numbers)) < len(numbers) or any(not 1 <= number <= run.arrivals for number in numbers):
        return f"had {run.arrivals} arrivals, but not with the numbers {numbers[:_TOLD]}"
    locations = [entry.location for entry in dump.entries]
    if len(set(locations)) < len(locations):
        return "has two entries at one location"
    try:
        refs = [one.ref for one in dump.inbox if one.kind is WaitKind.EVENT]
        refs += [one.ref for entry in dump.entries if entry.kind is EntryKind.EVENT for one in received_in(entry)]
    except msgspec.DecodeError as error:
        return f"has an event in its history that is none ({error})"
    wrong = [ref for ref in refs if ref is not None and not (ref.isdecimal() and int(ref) < LAST_EVENT_LIMIT)]
    return f"has had an event with the number {wrong[0][:_TOLD]!r}" if wrong else None


def fate(dump: Dump, known: Run | None, facts: Iterable[AuditFact], key_holder: str | None) -> Fate:
    """What is to become of a run that may be there already, with these facts, or whose key may be another run's.

    Each time a run moves on after it was at rest, a request made it do so, which its audit keeps. So whoever knows all
    requests of the other is not behind it.
    """
    run = dump.run
    if known is not None:
        if (known.type, known.created_at) != (run.type, run.created_at):
            return Fate(run_id=run.id, outcome="stranger")
        is_behind = not _requests(dump.audit) <= _requests(facts)
        return Fate(run_id=run.id, outcome="newer" if is_behind else "known")
    if key_holder is not None:
        return Fate(run_id=run.id, outcome="key", other=key_holder)
    return Fate(run_id=run.id, outcome="restored")


def export_pause(facts: Sequence[AuditFact]) -> str | None:
    """The request by which an export paused a run, if that is the last thing anybody asked of it."""
    asked = [fact for fact in facts if REQUEST in fact.data and fact.event != "forked"]  # a fork changes another run
    last = str(asked[-1].data[REQUEST]) if asked else ""
    return last if last.startswith(EXPORT) else None


def fresh_letters(origin: Origin, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Those of the dead letters that were not taken in before."""
    return [letter for letter in letters if letter.number > origin.letter]


def placed(origin: Origin, event: KeptEvent) -> tuple[Origin, KeptEvent | None]:
    """An event as a store is to keep it, if at all; without a number, 0, if it is to have a new one.

    One for everybody needs its own number and its place in time: runs know by numbers what they have had, and later
    in number is never earlier in time. One of a queue does not, as nobody has had it.
    """
    origin = replace(origin, event=event.number)
    if event.is_queued:
        return origin, event if event.number > origin.high else replace(event, number=0)
    if event.number <= origin.high or event.at < origin.since:
        return origin, None
    at = max(event.at, origin.at)  # where it comes from, two that were emitted at once may be the other way round
    return replace(origin, at=at), replace(event, at=at)


def take_in(
    origin: Origin,
    events: Iterable[KeptEvent],
    is_known: Callable[[KeptEvent], bool],
    keep: Callable[[KeptEvent], object],
) -> tuple[Origin, int, int]:
    """Have a store keep what is new of the events: how far it is then, and how many it took in and skipped."""
    taken = skipped = 0
    for event in events:
        if event.number <= origin.event:
            continue  # taken in, or skipped, before
        origin, kept = placed(origin, event)
        if is_known(event):
            continue
        if kept is None:
            skipped += 1
        else:
            keep(kept)
            taken += 1
    return origin, taken, skipped


def renumbered(dump: Dump, high: int, next_number: Callable[[], int]) -> Dump:
    """The run with new numbers for the events of queues it has, or had, if these numbers may be another event's here.

    They could go back to their queue, and must not be taken for that one then. Others are never looked up.
    """
    given: dict[str, str] = {}

    def ref_of(ref: str | None) -> str | None:
        if ref is None or int(ref) > high:
            return ref
        if ref not in given:
            given[ref] = str(next_number())
        return given[ref]

    def arrived(arrival: Arrival) -> Arrival:
        return replace(arrival, ref=ref_of(arrival.ref)) if arrival.is_exclusive else arrival

    def recorded(entry: Entry) -> Entry:
        if entry.kind is not EntryKind.EVENT or entry.result is None:
            return entry
        received = [one.arrival(entry.kind, 0) for one in received_in(entry)]
        if not any(one.is_exclusive and int(one.ref or 0) <= high for one in received):
            return entry
        result = record_of(map(arrived, received))
        return replace(entry, result=result, ref=given.get(entry.ref or "", entry.ref))

    return replace(dump, inbox=tuple(map(arrived, dump.inbox)), entries=tuple(map(recorded, dump.entries)))


def _requests(facts: Iterable[AuditFact]) -> set[str]:
    return {str(fact.data[REQUEST]) for fact in facts if REQUEST in fact.data}
