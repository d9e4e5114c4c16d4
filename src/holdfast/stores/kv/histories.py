"""The entries of runs: one field of the history for each location."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.core import rules
from holdfast.core.location import PEOPLE_PREFIX, is_for_people, is_within
from holdfast.core.model import Entry
from holdfast.stores.kv import names
from holdfast.stores.kv.runs import decoding
from holdfast.stores.kv.workspace import Workspace

encode = msgspec.json.encode
_decode = msgspec.json.Decoder(Entry).decode


class _PositionOfEntry(msgspec.Struct):
    """The position of an entry, without the rest of it."""

    position: int = 0


_decode_position = msgspec.json.Decoder(_PositionOfEntry).decode


def entry_value(entry: Entry) -> bytes:
    """Return an entry as the value of its field: JSON without the location, which is the name of the field."""
    encoded = encode(entry)
    # The location comes first. It cannot contain this text, because a quotation mark in it is escaped.
    return b"{" + encoded[encoded.index(b',"kind":') + 1 :]


def entry_of(location: str, value: bytes) -> Entry:
    return _decode(b'{"location":' + encode(location) + b"," + value[1:])


def in_order(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return entries in the order in which they were settled, unsettled ones last."""
    return tuple(sorted(entries, key=lambda entry: (not entry.is_settled, entry.position, entry.location)))


def history_of(fields: Mapping[str, bytes]) -> tuple[Entry, ...]:
    """Return the entries of a history in their order."""
    return in_order(entry_of(location, value) for location, value in fields.items())


def leased_of(fields: Mapping[str, bytes]) -> tuple[Entry, ...]:
    """Return the entries of a history that a lease has, in their order."""
    if not fields:
        return ()
    return history_of({location: value for location, value in fields.items() if not is_for_people(location)})


class KvHistories:
    """The entries of runs."""

    def __init__(self, space: Workspace) -> None:
        self._space = space

    def entry(self, run_id: str, location: str) -> Entry | None:
        value = self._space.field(names.history(run_id), location)
        with decoding(run_id, "the history of run"):
            return None if value is None else entry_of(location, value)

    def all(self, run_id: str) -> Sequence[Entry]:
        fields = self._space.whole(names.history(run_id))
        with decoding(run_id, "the history of run"):
            return history_of(fields)

    def leased(self, run_id: str) -> Sequence[Entry]:
        fields = self._space.whole(names.history(run_id), PEOPLE_PREFIX)
        with decoding(run_id, "the history of run"):
            return history_of(fields)

    def record(self, run_id: str, token: int, entry: Entry) -> None:
        self.try_record(run_id, token, entry)

    def try_record(self, run_id: str, token: int, entry: Entry) -> bool:
        recorded = self.entry(run_id, entry.location)
        is_written = recorded is None or rules.supersedes(entry, recorded)
        if is_written:
            self.put(run_id, token, [entry])
        return is_written

    def put(self, run_id: str, token: int, entries: Iterable[Entry]) -> None:
        new = {entry.location: entry_value(entry) for entry in entries if self._note_undo(run_id, entry)}
        if new:
            self._space.put(names.history(run_id), new)

    def _note_undo(self, run_id: str, entry: Entry) -> bool:
        if entry.has_undo:
            self._space.add(names.undo_index(run_id), entry.location)
        return True

    def drop(self, run_id: str, locations: Iterable[str]) -> None:
        dropped = list(locations)
        if dropped:
            self._space.drop(names.history(run_id), dropped)
            for location in dropped:
                self._space.remove(names.undo_index(run_id), location)

    def clear(self, run_id: str) -> None:
        history = names.history(run_id)
        self._space.guard(history)
        self._space.clear(history)
        self._space.clear(names.undo_index(run_id))
        self._space.put(history, {})

    def prune(self, run_id: str, scope: str) -> None:
        inside = [entry for entry in self.all(run_id) if is_within(entry.location, scope)]
        self.drop(run_id, [entry.location for entry in inside if not entry.has_undo])

    def forget(self, run_id: str, before: int) -> None:
        shown = [one for one in self._space.whole(names.history(run_id)).items() if is_for_people(one[0])]
        with decoding(run_id, "the history of run"):
            # Only their positions: these entries may have large payloads.
            old = [location for location, value in shown if 0 < _decode_position(value).position < before]
        self.drop(run_id, old)

    def has_undo(self, run_id: str) -> bool:
        return bool(self._space.range(names.all_undo(run_id), names.history(run_id)))

    def last_position(self, run_id: str) -> int:
        return max((entry.position for entry in self.all(run_id)), default=0)
