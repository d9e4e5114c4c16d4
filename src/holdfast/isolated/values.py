"""The values of a namespace: what is behind each key, as MessagePack."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict

from holdfast.core.clock import Micros
from holdfast.core.columns import columns_of
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Arrival, Entry, Event, Intent, Run, Wait

V = TypeVar("V")


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


class ValueReader:
    """Decodes the values of one type. Raises `ValueError` for bytes that are not such a value."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def __call__(self, value: bytes) -> Any:
        try:
            return self._decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from error


read_header = ValueReader(NamespaceHeader)
read_seal = ValueReader(Seal)
read_run = ValueReader(Run)
read_error = ValueReader(ErrorRecord)
read_waits = ValueReader(tuple[Wait, ...])
read_values = ValueReader(dict[str, str])
read_text = ValueReader(str)
read_instant = ValueReader(int)
read_history = ValueReader(HistoryValue)
read_metadata = ValueReader(EntryMetadata)
read_arrival = ValueReader(Arrival)
read_child = ValueReader(ChildStub)
read_event = ValueReader(EventValue)


def split(entry: Entry) -> tuple[bytes, bytes]:
    """Return the two values of an entry: the one of the history, and its metadata."""
    return encode(_outcome(entry)), encode(_progress(entry))


def joined(location: str, history: msgspec.Struct, metadata: msgspec.Struct) -> Entry:
    """Return an entry from its two values."""
    return Entry(location=location, **asdict(history), **asdict(metadata))
