"""Transfer: the data that moves from one store to another, and how it is imported. Pure decisions for stores.

A run moves only while it is *at rest*: only a request can make it continue, so it never runs in two places. Events keep
their numbers, because the histories of runs name them. If the target store has given a number to another event before,
the imported event is skipped or renumbered. For each export that it imports, a store remembers an `Origin`. So every
restoration may be repeated, in part or as a whole.

An export is lines of JSON. The first line is the header. The last line has the number of lines of each kind, so that a
truncated file is noticed. To add a kind, define a struct here and name it in `Line`. The header lists all kinds and
fields that the writer knows, so that an older holdfast can refuse a file with unknown ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.audit import REQUEST
from holdfast.core.clock import Micros
from holdfast.core.codec import json_flaw
from holdfast.core.entries import received_in, record_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import check_id, check_key, check_tags, check_text, check_topic, check_type
from holdfast.core.model import (
    Arrival,
    AuditFact,
    DeadLetter,
    Entry,
    EntryKind,
    Run,
    Schedule,
    Topic,
    TypeChange,
    TypeRule,
    Value,
    Wait,
    WaitKind,
)
from holdfast.core.schedules import check_schedule_name
from holdfast.core.states import RunState

EXPORT = "export:"
"""Prefix of the ids of requests with which an export pauses runs."""

IMPORT = "import:"
"""Prefix of the ids of requests with which an import resumes them."""

LAST_EVENT_LIMIT = 2**53
"""Event numbers are below this."""

_TOLD = 20

Outcome = Literal["restored", "known", "newer", "stranger", "key"]
"""The result for a run: `restored` (it was written), `known` (it already exists), `newer` (the file has more of it than
the store), `stranger` (another run has its id), `key` (another run has its key). Only `restored` changes anything."""


class Dump(Value, frozen=True, kw_only=True):
    """A run with everything that belongs to it, at one instant. `replies` are payloads and instants."""

    run: Run
    entries: tuple[Entry, ...] = ()
    inbox: tuple[Arrival, ...] = ()
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = {}
    receipts: dict[str, Micros] = {}
    replies: dict[str, tuple[str, Micros]] = {}
    audit: tuple[AuditFact, ...] = ()


class KeptEvent(Value, frozen=True, kw_only=True):
    """An event that a store keeps for runs that begin to wait, or, in a queue, for the run that takes it."""

    number: int
    topic: str
    id: str
    payload: str
    at: Micros
    reached: int = 0
    is_queued: bool = False


class Restoration(Value, frozen=True, kw_only=True):
    """A part of an export, to be written unchanged. Events and letters are in order of number.

    `last_event` is the highest event number in the source store. `is_last`: this is the last part.
    """

    export_id: str
    last_event: int
    runs: tuple[Dump, ...] = ()
    events: tuple[KeptEvent, ...] = ()
    letters: tuple[DeadLetter, ...] = ()
    flows: tuple[FlowDefinition, ...] = ()
    is_last: bool = False


class Fate(Value, frozen=True, kw_only=True):
    """The result for one run. `other` is the run that has its key."""

    run_id: str
    outcome: Outcome
    other: str | None = None


class Restored(Value, frozen=True, kw_only=True):
    """The result of a restoration: one result per run, in order, and the numbers of events and letters.

    `skipped` events could not keep their number or their place in time. `is_finished`: all of this export was restored
    before, so nothing was done.
    """

    fates: tuple[Fate, ...] = ()
    events: int = 0
    skipped: int = 0
    letters: int = 0
    flows: int = 0
    is_finished: bool = False


class Origin(Value, frozen=True, kw_only=True):
    """A store's memory of an export.

    At the first restoration, the store's own events had numbers up to `high` and times up to `since`. `event` and
    `letter` are the numbers of the last ones it imported, `at` is the time of that event.
    """

    high: int
    since: Micros
    at: Micros
    event: int = 0
    letter: int = 0
    is_finished: bool = False


def is_at_rest(run: Run) -> bool:
    """True if only a request can make a run continue."""
    is_given_up = run.state is RunState.BLOCKED and run.ready_at is None
    return not run.is_held and (run.state.is_end or run.state is RunState.PAUSED or is_given_up)


def is_ruled(rule: TypeRule) -> bool:
    """True if a type has settings of its own, not only reports of workers."""
    return ruling(rule) != ruling(TypeRule(name=rule.name))


def ruling(rule: TypeRule) -> TypeChange:
    """Return the settings of a type, without the reports of workers, as a change."""
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
    """Refuse a run that could continue in the store it comes from."""
    run = dump.run
    if not is_at_rest(run):
        held = f", held by worker {run.worker}" if run.is_held else ""
        raise InvalidRequest(
            f"run {run.id} is {run.state}{held}: a run can be moved only while it is paused or has ended, so that it "
            "never runs in two places; `holdfast export` pauses it first"
        )
    if any(fact.run_id != run.id for fact in dump.audit):
        raise InvalidRequest(f"run {run.id} comes with audit facts of another run; export it again")


def values_of(dump: Dump) -> Iterator[tuple[str, str]]:
    """Yield all user values of a run as JSON, each with a description."""
    run = dump.run
    found = [("payload", run.payload), ("payload of its generation", run.continued), ("result", run.result)]
    found += [(f"value {name!r}", value) for name, value in dump.values.items()]
    found += [(f"result at {entry.location!r}", entry.result) for entry in dump.entries]
    found += [(f"payload of {arrival.name!r}", arrival.payload) for arrival in dump.inbox]
    found += [("reply", payload) for payload, _ in dump.replies.values()]
    return ((what, value) for what, value in found if value is not None)


def flaw_of(dump: Dump) -> str | None:
    """Return a contradiction in a dump that would keep a worker from ever writing the run; None if there is none."""
    run = dump.run
    if run.state.is_end != (run.finished_at is not None):
        return f"is {run.state} and " + ("has no end time" if run.state.is_end else "has an end time")
    numbers = [arrival.number for arrival in dump.inbox]
    if len(set(numbers)) < len(numbers) or any(not 1 <= number <= run.arrivals for number in numbers):
        return f"had {run.arrivals} arrivals, but its inbox has the numbers {numbers[:_TOLD]}"
    locations = [entry.location for entry in dump.entries]
    if len(set(locations)) < len(locations):
        return "has two entries at one location"
    try:
        refs = [one.ref for one in dump.inbox if one.kind is WaitKind.EVENT]
        refs += [one.ref for entry in dump.entries if entry.kind is EntryKind.EVENT for one in received_in(entry)]
    except msgspec.DecodeError as error:
        return f"has an event in its history that cannot be decoded ({error})"
    wrong = [ref for ref in refs if ref is not None and not (ref.isdecimal() and int(ref) < LAST_EVENT_LIMIT)]
    return f"received an event with the invalid number {wrong[0][:_TOLD]!r}" if wrong else None


def fate(dump: Dump, known: Run | None, facts: Iterable[AuditFact], key_holder: str | None) -> Fate:
    """Decide about a run that may already exist here (`known`, with these facts), or whose key another run may have.

    A run at rest continues only after a request, and its audit keeps all requests. So the run here is up to date if it
    has every request of the dump.
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
    """Return the id of the request with which an export paused a run, if that is the last request for the run."""
    asked = [fact for fact in facts if REQUEST in fact.data and fact.event != "forked"]  # a fork changes another run
    last = str(asked[-1].data[REQUEST]) if asked else ""
    return last if last.startswith(EXPORT) else None


def fresh_letters(origin: Origin, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Return the dead letters that were not imported before."""
    return [letter for letter in letters if letter.number > origin.letter]


def placed(origin: Origin, event: KeptEvent) -> tuple[Origin, KeptEvent | None]:
    """Return the origin afterwards, and the event to keep: None to skip it, number 0 to give it a new number.

    A fanout event needs its own number and its place in time: runs remember by number which events they have received,
    and a higher number is never earlier in time. A queue event does not, because no run has received it.
    """
    origin = replace(origin, event=event.number)
    if event.is_queued:
        return origin, event if event.number > origin.high else replace(event, number=0)
    if event.number <= origin.high or event.at < origin.since:
        return origin, None
    at = max(event.at, origin.at)  # two events emitted at once may have their times in reverse order at the source
    return replace(origin, at=at), replace(event, at=at)


def accept(
    origin: Origin,
    events: Iterable[KeptEvent],
    is_known: Callable[[KeptEvent], bool],
    keep: Callable[[KeptEvent], object],
) -> tuple[Origin, int, int]:
    """Import the new events. Return the origin afterwards, and the numbers of events imported and skipped."""
    taken = skipped = 0
    for event in events:
        if event.number <= origin.event:
            continue  # imported or skipped before
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
    """Return the run with new numbers for its queue events, if other events may have these numbers here.

    A queue event that the run has or had may go back to its queue, and must not be mistaken for another event there.
    Other events are never looked up.
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


FORMAT = 1
_SHOWN = 60


class Header(Value, frozen=True, kw_only=True, tag_field="line", tag="holdfast"):
    """The origin of the lines. `fields` names every struct and field that the writer may have written."""

    format: int
    export_id: str
    exported_at: Micros
    version: str
    store: str
    last_event: int
    fields: dict[str, tuple[str, ...]]


class TopicLine(Value, frozen=True, kw_only=True, tag_field="line", tag="topic"):
    """The rules of a topic."""

    topic: Topic


class TypeLine(Value, frozen=True, kw_only=True, tag_field="line", tag="type"):
    """The settings of a type."""

    type: TypeRule


class ScheduleLine(Value, frozen=True, kw_only=True, tag_field="line", tag="schedule"):
    """A schedule."""

    schedule: Schedule


class FlowLine(Value, frozen=True, kw_only=True, tag_field="line", tag="flow"):
    """A registration of a flow. These come before the runs that execute it."""

    flow: FlowDefinition


class RunLine(Value, frozen=True, kw_only=True, tag_field="line", tag="run"):
    """A run with everything that belongs to it."""

    dump: Dump


class UnreadableLine(Value, frozen=True, kw_only=True, tag_field="line", tag="unreadable"):
    """A run that could not be read and stays in its store: its id, and the reason."""

    id: str
    why: str


class EventLine(Value, frozen=True, kw_only=True, tag_field="line", tag="event"):
    """An event that a run may still receive."""

    event: KeptEvent


class LetterLine(Value, frozen=True, kw_only=True, tag_field="line", tag="letter"):
    """A dead letter."""

    letter: DeadLetter


class Footer(Value, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """The number of lines of each kind. `left` is the number of runs that had to stay in their store."""

    counts: dict[str, int]
    left: int = 0


Content = FlowLine | TopicLine | TypeLine | ScheduleLine | RunLine | UnreadableLine | EventLine | LetterLine
Line = Header | Content | Footer

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Line)


def tag_of(line: Value) -> str:
    """Return the tag of a line."""
    return str(line.__struct_config__.tag)


def encode(line: Line) -> bytes:
    """Return a line as bytes, with a newline."""
    return _encode(line) + b"\n"


def known_fields() -> dict[str, tuple[str, ...]]:
    """Return the names of all structs that occur in lines, with the names of their fields."""
    found: dict[str, tuple[str, ...]] = {}
    todo: list[msgspec.inspect.Type] = [msgspec.inspect.type_info(Line)]
    while todo:
        match todo.pop():
            case msgspec.inspect.StructType(cls=cls, fields=fields) if cls.__name__ not in found:
                found[cls.__name__] = tuple(field.encode_name for field in fields)
                todo += [field.type for field in fields]
            case msgspec.inspect.UnionType(types=types):
                todo += types
            case msgspec.inspect.DictType(value_type=value):
                todo.append(value)
            case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.FrozenSetType(item_type=item):
                todo.append(item)
            case msgspec.inspect.TupleType(item_types=items):
                todo += items
            case _:
                pass
    return found


class ExportReader:
    """Reads lines one by one. It refuses an invalid line and names its number."""

    def __init__(self) -> None:
        self.number = 0
        self.header: Header | None = None
        self.footer: Footer | None = None
        self.counts: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    def read(self, text: str | bytes) -> Header | Content | None:
        """Return the content of the next line; None for the footer or an empty line."""
        self.number += 1
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if not data.strip():
            return None
        if self.footer is not None:
            raise self._refusal("comes after the end of the export; does the file contain two exports?")
        line = self._decoded(data)
        if isinstance(line, Header):
            return self._begun(line)
        if self.header is None:
            raise self._refusal(
                "is not a header: `holdfast export` did not write this file, or its beginning is missing"
            )
        if isinstance(line, Footer):
            self.footer = self._checked(line)
            return None
        self._check(line)
        self.counts[tag_of(line)] += 1
        return line

    def end(self) -> Footer:
        """Return the footer. Call it after the last line; it refuses a truncated file."""
        if self.header is None:
            raise InvalidRequest("there is nothing to import: the file is empty")
        if self.footer is None:
            raise InvalidRequest(
                f"the file was cut off after line {self.number}: its last line, with the counts, is missing; "
                "export again"
            )
        return self.footer

    def _decoded(self, data: bytes) -> Line:
        try:
            line: Line = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if isinstance(error, msgspec.ValidationError):
                raise self._refusal(f"is not valid: {error}") from None
            start = data[:_SHOWN].decode("utf-8", "replace").rstrip()
            raise self._refusal(f"is not JSON: {start!r}… ({error}); was the file cut off or changed?") from None
        return line

    def _begun(self, header: Header) -> Header:
        if self.header is not None:
            raise self._refusal("is a second header; import the files one after the other")
        if header.format > FORMAT:
            raise self._refusal(
                f"has format {header.format} of holdfast {header.version}; this one reads up to {FORMAT}: upgrade it"
            )
        if unknown := sorted(_unknown(header.fields)):
            raise self._refusal(
                f"names {', '.join(unknown)}, which holdfast {header.version} writes and this one does not know; "
                "upgrade this one, or the data would be lost"
            )
        if not 0 <= header.last_event < LAST_EVENT_LIMIT:
            raise self._refusal(f"has the last event number {header.last_event}, which is out of range")
        self.header = header
        return header

    def _check(self, line: Content) -> None:
        try:
            _check_names(line)
        except InvalidRequest as refusal:
            raise self._refusal(f"cannot be imported: {refusal}") from None
        match line:
            case RunLine():
                self._check_run(line.dump)
            case EventLine():
                self._check_order("event", line.event.number)
                if self.header is not None and line.event.number > self.header.last_event:
                    raise self._refusal(f"has event {line.event.number}, which is beyond the last event in the header")
                self._check_value(line.event.payload)
            case LetterLine():
                self._check_order("letter", line.letter.number)
            case FlowLine():
                self._check_value(line.flow.program)
            case _:
                pass

    def _check_run(self, dump: Dump) -> None:
        try:
            check_restorable(dump)
        except InvalidRequest as refusal:
            raise self._refusal(f"cannot be imported: {refusal}") from None
        for _, value in values_of(dump):
            self._check_value(value)
        if (flaw := flaw_of(dump)) is not None:
            raise self._refusal(f"is not valid: run {dump.run.id} {flaw}; was the file changed?")

    def _check_value(self, value: str) -> None:
        """Refuse a user's value that is not JSON text. It would block the run that reads it later."""
        if (flaw := json_flaw(value)) is not None:
            raise self._refusal(f"has a value that is not JSON ({flaw}); was the file changed?")

    def _check_order(self, kind: str, number: int) -> None:
        """Refuse numbers out of order: the store remembers only the last number it imported."""
        if number <= self._last.get(kind, 0):
            raise self._refusal(f"has {kind} {number} after {kind} {self._last[kind]}; numbers must increase")
        self._last[kind] = number

    def _checked(self, footer: Footer) -> Footer:
        if footer.counts != dict(self.counts):
            raise self._refusal(
                f"says that the file has {_summed(footer.counts)}, but it has {_summed(self.counts)}; lines were lost "
                "or added: export again"
            )
        return footer

    def _refusal(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"line {self.number} {why}")


def _check_names(line: Content) -> None:  # noqa: C901 - one case for each kind of line
    """Refuse names that the source store would not have accepted."""
    match line:
        case RunLine(dump=dump):
            check_id(dump.run.id)
            check_type(dump.run.type)
            check_tags(dump.run.tags)
            if dump.run.key is not None:
                check_key(dump.run.key)
            for arrival in dump.inbox:
                check_text(arrival.name, "name of an arrival")
        case EventLine(event=event):
            check_topic(event.topic)
            check_text(event.id, "event id")
        case UnreadableLine():
            pass  # nothing of it is imported
        case LetterLine(letter=letter):
            check_text(letter.name if letter.topic is None else letter.topic, "name of a dead letter")
        case TopicLine(topic=topic):
            check_topic(topic.name)
        case TypeLine(type=rule):
            check_type(rule.name)
        case FlowLine(flow=flow):
            check_type(flow.type)
            check_text(flow.version, "version of a flow")
        case ScheduleLine(schedule=schedule):
            check_schedule_name(schedule.name)
            check_type(schedule.type)
            check_tags(schedule.tags)


def _unknown(fields: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    known = known_fields()
    for struct, names in fields.items():
        if struct not in known:
            yield struct
        else:
            yield from (f"{struct}.{name}" for name in names if name not in known[struct])


def _summed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
