"""Receptions: the form in which received messages and events are recorded in a history.

A reception records everything it took, each item with name, payload, instant and id. So a reader of the history, or a
revision that takes it back, finds everything that arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Entry, EntryKind, Value, WaitKind


class Received(Value, frozen=True, kw_only=True):
    """One message or event that a run took."""

    name: str
    payload: str
    at: Micros
    ref: str | None
    is_exclusive: bool = False

    def arrival(self, kind: EntryKind, number: int) -> Arrival:
        """Return it as an arrival in the inbox, under another number."""
        return Arrival(
            number=number,
            kind=WaitKind.MESSAGE if kind is EntryKind.MESSAGE else WaitKind.EVENT,
            name=self.name,
            at=self.at,
            payload=self.payload,
            ref=self.ref,
            is_exclusive=self.is_exclusive,
        )


class _Record(msgspec.Struct, array_like=True):
    name: str
    payload: msgspec.Raw
    at: Micros
    ref: str | None
    is_exclusive: bool = False


_decode = msgspec.json.Decoder(list[_Record]).decode


def record_of(arrivals: Iterable[Arrival]) -> str:
    """Return the result of a reception that took these arrivals."""
    records = [
        _Record(one.name, msgspec.Raw((one.payload or "null").encode()), one.at, one.ref, one.is_exclusive)
        for one in arrivals
    ]
    return msgspec.json.encode(records).decode()


def received_in(entry: Entry) -> list[Received]:
    """Return the messages or events that an entry received. An open entry is the table of event cursors: nothing."""
    if not entry.is_settled:
        return []
    return [
        Received(
            name=record.name,
            payload=bytes(record.payload).decode(),
            at=record.at,
            ref=record.ref,
            is_exclusive=record.is_exclusive,
        )
        for record in _decode(entry.result or "[]")
    ]


def patched(entry: Entry, payload: str) -> str:
    """Return the result of a reception with another payload for its first item."""
    first, *rest = _decode(entry.result or "[]")
    first.payload = msgspec.Raw(payload.encode())
    return msgspec.json.encode([first, *rest]).decode()
