"""The layout of a namespace: what each key means, and its value as MessagePack.

Locations are keys of numbers from the registry of names.

| key | value |
| --- | --- |
| (1, index) | a name: part of a location |
| (2, part, …) | an entry of the history, at its location |
| (3, id), (3, id, kind) | mail: what the host has written and the run has not accepted |
| (3, number) | an arrival in the inbox |
| (4, 1) … (4, 9) | the run: state, result, error, header, input, input of the generation, waits, values, seal |
| (4, 10, id) | the receipt of a message |
| (4, 11) | the opening: a copy of the seal, which a batch writes first, as it writes the seal last |
| (5, part, …) | the metadata of the entry at that location: state, attempts, times |
| (6, run id) | a child that has not ended |
| (7, number) | an item of the outbox |
| (8, number) | an event that was published in this namespace |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeAlias

import msgspec
from msgspec.structs import asdict

from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Arrival, Entry, Event, Intent, Run, Wait, columns_of

# Keys as tuples: the encoding whose byte order is tuple order. It is the tuple encoding of FoundationDB for texts,
# whole numbers from 0 on, and tuples of these in a tuple.

Part: TypeAlias = "str | int | tuple[Part, ...]"

_TEXT = 0x02
_NESTED = 0x05
_ZERO = 0x14  # a number of n bytes begins with 0x14 + n
_LONGEST = 8


def pack(parts: Iterable[Part]) -> bytes:
    """Return the key of a tuple."""
    return b"".join(map(pack_part, parts))


def pack_part(part: Part) -> bytes:
    """Return the bytes of one part of a key. The key of a tuple is the bytes of its parts, one after the other."""
    if isinstance(part, int):
        length = (part.bit_length() + 7) // 8
        if part < 0 or length > _LONGEST:
            raise ValueError(f"{part} is not a number of a key")
        return bytes((_ZERO + length,)) + part.to_bytes(length, "big")
    if isinstance(part, str):
        # A zero byte ends the text, so a zero inside it is followed by 0xff, which is in no UTF-8 text.
        return b"\x02" + part.encode().replace(b"\0", b"\0\xff") + b"\0"
    return b"\x05" + pack(part) + b"\0"


def unpack(key: bytes) -> tuple[Part, ...]:
    """Return the tuple of a key. Raises `ValueError` if the bytes are not a key."""
    parts, end = _unpacked(key, 0, is_nested=False)
    if end != len(key) or pack(parts) != key:
        raise ValueError(f"{key!r} is not the key of a tuple")
    return parts


def _unpacked(key: bytes, at: int, *, is_nested: bool) -> tuple[tuple[Part, ...], int]:
    parts: list[Part] = []
    while at < len(key):
        code = key[at]
        if code == 0 and is_nested:
            return tuple(parts), at + 1
        if code == _NESTED and not is_nested:
            nested, at = _unpacked(key, at + 1, is_nested=True)
            parts.append(nested)
        elif code == _TEXT:
            text, at = _text(key, at + 1)
            parts.append(text)
        elif _ZERO <= code <= _ZERO + _LONGEST and at + code - _ZERO < len(key):
            end = at + 1 + code - _ZERO
            parts.append(int.from_bytes(key[at + 1 : end], "big"))
            at = end
        else:
            raise ValueError(f"{key!r} is not the key of a tuple")
    if is_nested:
        raise ValueError(f"{key!r} ends inside a tuple")
    return tuple(parts), at


def _text(key: bytes, at: int) -> tuple[str, int]:
    end = key.find(b"\0", at)
    while end >= 0 and key[end + 1 : end + 2] == b"\xff":
        end = key.find(b"\0", end + 2)
    if end < 0:
        raise ValueError(f"{key!r} ends inside a text")
    return key[at:end].replace(b"\0\xff", b"\0").decode(), end + 1


# What the keys mean

SCHEMA = 1
"""Number of this layout. A namespace with another number is refused."""

NAMES, HISTORY, MESSAGES, WORKFLOW, METADATA, CHILDREN, OUTBOX, EVENTS = range(1, 9)

STATE = pack((WORKFLOW, 1))
RESULT = pack((WORKFLOW, 2))
ERROR = pack((WORKFLOW, 3))
HEADER = pack((WORKFLOW, 4))
INPUT = pack((WORKFLOW, 5))
CONTINUED = pack((WORKFLOW, 6))
WAITS = pack((WORKFLOW, 7))
VALUES = pack((WORKFLOW, 8))
SEAL = pack((WORKFLOW, 9))
RECEIPTS = 10
OPENING = pack((WORKFLOW, 11))

RUN = (STATE, RESULT, ERROR, HEADER, INPUT, CONTINUED, WAITS, VALUES, SEAL, OPENING)
"""The keys of the run itself."""

_HISTORY, _METADATA = pack((HISTORY,)), pack((METADATA,))
_NUMBERED = re.compile(r"(~|\+|[^#]+#)(0|[1-9]\d{0,17})")


class NameRegistry:
    """The names in the locations of a run, numbered in the order in which they first occurred.

    A numbered part of a location is a tuple: `charge#2` is (name of `charge#`, 2), `~3` is (name of `~`, 3). So the
    iterations of a loop are next to each other, in order, and take no names of their own.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self._indexes = {name: index for index, name in enumerate(names)}
        self._packed: dict[str, bytes] = {}

    def keys_of(self, location: str) -> tuple[bytes, bytes]:
        """Return the keys of the entry and of the metadata at a location. New names get the next numbers."""
        path = b"".join([self._packed.get(segment) or self._pack(segment) for segment in location.split("/")])
        return _HISTORY + path, _METADATA + path

    def location(self, parts: Sequence[Part]) -> str:
        """Return the location of a key. Raises `ValueError` if a part is not in the registry."""
        return "/".join(map(self._segment, parts))

    def _pack(self, segment: str) -> bytes:
        numbered = _NUMBERED.fullmatch(segment)
        if numbered is None:
            packed = pack_part(self._index(segment))
        else:
            packed = pack_part((self._index(numbered[1]), int(numbered[2])))
        if numbered is None or numbered[1] != "~":  # iterations occur once, and a loop may have millions
            self._packed[segment] = packed
        return packed

    def _index(self, name: str) -> int:
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = len(self.names)
            self.names.append(name)
        return index

    def _segment(self, part: Part) -> str:
        match part:
            case int(index):
                return self._name(index)
            case (int(index), int(number)):
                return f"{self._name(index)}{number}"
            case _:
                raise ValueError(f"{part!r} is not part of a location")

    def _name(self, index: int) -> str:
        if index >= len(self.names):
            raise ValueError(f"there is no name {index}")
        return self.names[index]


# The values


class NamespaceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Whose namespace it is, and the number of its layout."""

    schema: int
    run_id: str


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """The counts after a batch. Each batch writes one, so a batch that got lost is noticed."""

    revision: int
    names: int
    entries: int
    events: int
    outbox: int


_COLUMNS = columns_of(Entry)
_OUTCOME = ("kind", "position", "result", "error", "ref", "since", "has_undo")
_PROGRESS = ("state", "attempts", "started_at", "finished_at", "retry_at")
_LATER = [field for field in _COLUMNS if field not in ("location", *_OUTCOME, *_PROGRESS)]


def _part_of_entry(name: str, fields: Sequence[str], later: Sequence[str] = ()) -> type[msgspec.Struct]:
    """Return a struct of some fields of an entry. Their order is part of the layout; `later` ones may be missing."""
    required = [(field, _COLUMNS[field].annotation) for field in fields]
    optional = [(field, _COLUMNS[field].annotation, _COLUMNS[field].default) for field in later]
    return msgspec.defstruct(name, [*required, *optional], frozen=True, array_like=True, gc=False)


HistoryValue = _part_of_entry("HistoryValue", _OUTCOME)
"""The outcome of an operation."""
EntryMetadata = _part_of_entry("EntryMetadata", _PROGRESS, _LATER)
"""The progress of an operation."""

_outcome = attrgetter(*_OUTCOME)
_progress = attrgetter(*_PROGRESS, *_LATER)


class ChildStub(msgspec.Struct, frozen=True, kw_only=True):
    """A child that has not ended, as its parent knows it. A child that waits for a slot has not started."""

    intent: Intent
    created_at: Micros
    is_started: bool


class EventValue(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was published in this namespace."""

    event: Event
    at: Micros


encode = msgspec.msgpack.Encoder().encode


# Each raises `ValueError` for bytes that are not such a value.
read_header = msgspec.msgpack.Decoder(NamespaceHeader).decode
read_seal = msgspec.msgpack.Decoder(Seal).decode
read_run = msgspec.msgpack.Decoder(Run).decode
read_error = msgspec.msgpack.Decoder(ErrorRecord).decode
read_waits = msgspec.msgpack.Decoder(tuple[Wait, ...]).decode
read_values = msgspec.msgpack.Decoder(dict[str, str]).decode
read_text = msgspec.msgpack.Decoder(str).decode
read_instant = msgspec.msgpack.Decoder(int).decode
read_history = msgspec.msgpack.Decoder(HistoryValue).decode
read_metadata = msgspec.msgpack.Decoder(EntryMetadata).decode
read_arrival = msgspec.msgpack.Decoder(Arrival).decode
read_child = msgspec.msgpack.Decoder(ChildStub).decode
read_event = msgspec.msgpack.Decoder(EventValue).decode


def split(entry: Entry) -> tuple[bytes, bytes]:
    """Return the two values of an entry: the one of the history, and its metadata."""
    return encode(_outcome(entry)), encode(_progress(entry))


def joined(location: str, history: msgspec.Struct, metadata: msgspec.Struct) -> Entry:
    """Return an entry from its two values."""
    return Entry(location=location, **asdict(history), **asdict(metadata))
