"""The values of a namespace: what is behind each key, as MessagePack."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Event, Intent, Run, Wait

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


class HistoryValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of an operation."""

    kind: EntryKind
    position: int
    result: str | None
    error: ErrorRecord | None
    ref: str | None
    since: int
    has_undo: bool


class EntryMetadata(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The progress of an operation."""

    state: EntryState
    attempts: int
    started_at: Micros
    finished_at: Micros | None
    retry_at: Micros | None


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
    history = HistoryValue(
        entry.kind, entry.position, entry.result, entry.error, entry.ref, entry.since, entry.has_undo
    )
    metadata = EntryMetadata(entry.state, entry.attempts, entry.started_at, entry.finished_at, entry.retry_at)
    return encode(history), encode(metadata)


def joined(location: str, history: HistoryValue, metadata: EntryMetadata) -> Entry:
    """Return an entry from its two values."""
    return Entry(
        location=location,
        kind=history.kind,
        state=metadata.state,
        position=history.position,
        attempts=metadata.attempts,
        result=history.result,
        error=history.error,
        started_at=metadata.started_at,
        finished_at=metadata.finished_at,
        retry_at=metadata.retry_at,
        ref=history.ref,
        since=history.since,
        has_undo=history.has_undo,
    )
