"""The export format, in which runs move between stores: one JSON value per line, tagged by its kind.

The first line is the header. The last line has the number of lines of each kind, so that a truncated file is noticed.
To add a kind, define a struct here and name it in `Line`. The header lists all kinds and fields that the writer knows,
so that an older holdfast can refuse a file with unknown ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.codec import json_flaw
from holdfast.core.errors import InvalidRequest
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import check_id, check_key, check_tags, check_text, check_topic, check_type
from holdfast.core.model import DeadLetter, Schedule, Topic, TypeRule, Value
from holdfast.core.schedules import check_schedule_name
from holdfast.core.transfer import LAST_EVENT_LIMIT, Dump, KeptEvent, check_restorable, flaw_of, values_of

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
