"""The export format: how runs travel between stores. One JSON value on each line, tagged by its kind.

The first line is the header, the last one says how many there were of each kind, so that a file that was cut off is
noticed. To add a kind, make a struct of it here and name it in `Line`; whoever reads files of a newer holdfast is told
of kinds and fields it does not know, and refuses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.codec import json_flaw
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_id, check_key, check_tags, check_text, check_topic, check_type
from holdfast.core.model import DeadLetter, Schedule, Topic, TypeRule, Value
from holdfast.core.schedules import check_schedule_name
from holdfast.core.transfer import LAST_EVENT_LIMIT, Dump, KeptEvent, check_restorable, flaw_of, values_of

FORMAT = 1
_SHOWN = 60


class Header(Value, frozen=True, kw_only=True, tag_field="line", tag="holdfast"):
    """Where the lines come from. `fields` are the names of all that the writer may have written."""

    format: int
    export_id: str
    exported_at: Micros
    version: str
    store: str
    last_event: int
    fields: dict[str, tuple[str, ...]]


class TopicLine(Value, frozen=True, kw_only=True, tag_field="line", tag="topic"):
    """The rules for a topic."""

    topic: Topic


class TypeLine(Value, frozen=True, kw_only=True, tag_field="line", tag="type"):
    """What was said of a type."""

    type: TypeRule


class ScheduleLine(Value, frozen=True, kw_only=True, tag_field="line", tag="schedule"):
    """A rule that makes runs over time."""

    schedule: Schedule


class RunLine(Value, frozen=True, kw_only=True, tag_field="line", tag="run"):
    """A run with all that belongs to it."""

    dump: Dump


class UnreadableLine(Value, frozen=True, kw_only=True, tag_field="line", tag="unreadable"):
    """A run that could not be read, and stays where it is: its id, and why."""

    id: str
    why: str


class EventLine(Value, frozen=True, kw_only=True, tag_field="line", tag="event"):
    """An event that somebody may still get."""

    event: KeptEvent


class LetterLine(Value, frozen=True, kw_only=True, tag_field="line", tag="letter"):
    """A dead letter."""

    letter: DeadLetter


class Footer(Value, frozen=True, kw_only=True, tag_field="line", tag="end"):
    """How many lines of each kind there were; `left` are runs that had to be left where they are."""

    counts: dict[str, int]
    left: int = 0


Content = TopicLine | TypeLine | ScheduleLine | RunLine | UnreadableLine | EventLine | LetterLine
Line = Header | Content | Footer

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Line)


def tag_of(line: Value) -> str:
    """What a line says that it is."""
    return str(line.__struct_config__.tag)


def encode(line: Line) -> bytes:
    """A line as it is written, with its end."""
    return _encode(line) + b"\n"


def known_fields() -> dict[str, tuple[str, ...]]:
    """The names of all structs that lines are made of, and of their fields."""
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
    """Reads lines one after the other, and refuses what is not as it should be, with the number of the line."""

    def __init__(self) -> None:
        self.number = 0
        self.header: Header | None = None
        self.footer: Footer | None = None
        self.counts: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    def read(self, text: str | bytes) -> Header | Content | None:
        """What the next line says; None if that was the last one, or an empty one."""
        self.number += 1
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if not data.strip():
            return None
        if self.footer is not None:
            raise self._refusal("comes after the end; are there two files in one?")
        line = self._decoded(data)
        if isinstance(line, Header):
            return self._begun(line)
        if self.header is None:
            raise self._refusal(
                "is no header, so this was not written by `holdfast export`, or its beginning is missing"
            )
        if isinstance(line, Footer):
            self.footer = self._checked(line)
            return None
        self._check(line)
        self.counts[tag_of(line)] += 1
        return line

    def end(self) -> Footer:
        """To be called after the last line."""
        if self.header is None:
            raise InvalidRequest("there is nothing to import: no line, not even a header")
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
                raise self._refusal(f"is not as it should be: {error}") from None
            start = data[:_SHOWN].decode("utf-8", "replace").rstrip()
            raise self._refusal(f"is no JSON: {start!r}… ({error}); was the file cut off or changed?") from None
        return line

    def _begun(self, header: Header) -> Header:
        if self.header is not None:
            raise self._refusal("is a second header; import the files one after the other")
        if header.format > FORMAT:
            raise self._refusal(
                f"says format {header.format}, of holdfast {header.version}; this one reads up to {FORMAT}: upgrade it"
            )
        if unknown := sorted(_unknown(header.fields)):
            raise self._refusal(
                f"tells of {', '.join(unknown)}, which holdfast {header.version} writes and this one does not know; "
                "upgrade it, or what they hold would be lost"
            )
        if not 0 <= header.last_event < LAST_EVENT_LIMIT:
            raise self._refusal(f"says that the last event had number {header.last_event}, which none has")
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
                    raise self._refusal(
                        f"has event {line.event.number}, but the header says that there is none so high"
                    )
                self._check_value(line.event.payload)
            case LetterLine():
                self._check_order("letter", line.letter.number)
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
            raise self._refusal(f"says that run {dump.run.id} {flaw}; was it changed?")

    def _check_value(self, value: str) -> None:
        """Values of users are JSON in strings; what is not would block whoever reads it later."""
        if (flaw := json_flaw(value)) is not None:
            raise self._refusal(f"has a value that is no JSON ({flaw}); was it changed?")

    def _check_order(self, kind: str, number: int) -> None:
        """Whoever takes them in remembers only the number of the last one."""
        if number <= self._last.get(kind, 0):
            raise self._refusal(f"has {kind} {number} after {kind} {self._last[kind]}; they come by their numbers")
        self._last[kind] = number

    def _checked(self, footer: Footer) -> Footer:
        if footer.counts != dict(self.counts):
            raise self._refusal(
                f"says that there are {_told(footer.counts)} before it, but there are {_told(self.counts)}; lines were "
                "lost or added: export again"
            )
        return footer

    def _refusal(self, why: str) -> InvalidRequest:
        return InvalidRequest(f"line {self.number} {why}")


def _check_names(line: Content) -> None:
    """Refuse names that nobody could have given where the file comes from."""
    match line:
        case RunLine(dump=dump):
            check_id(dump.run.id)
            check_type(dump.run.type)
            check_tags(dump.run.tags)
            if dump.run.key is not None:
                check_key(dump.run.key)
            for arrival in dump.inbox:
                check_text(arrival.name, "name of what reached a run")
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


def _told(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
