"""The heap of a snapshot: lists and dicts by number, so that sharing survives."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.errors import Unreadable
from holdfast.flows.cursors import ENUMERATE, ITEMS, KEYS, REVERSED, SEQUENCE, VALUES, ZIP, Cursor
from holdfast.flows.faults import ErrorValue
from holdfast.flows.frames import UNSET_SLOT
from holdfast.flows.handle import Handle
from holdfast.flows.meter import SCALARS


class SavedCursor(msgspec.Struct, omit_defaults=True):
    """A cursor in a snapshot. Its source is a value, or three bounds of a range."""

    kind: int
    at: int
    source: Any = None
    bounds: tuple[int, int, int] | None = None
    names: list[str] = []
    parts: list[int] = []


class SavedError(msgspec.Struct, array_like=True):
    """An error in a snapshot."""

    type: str
    message: str
    fields: Any
    places: list[tuple[str, int, int]]


class HeapWriter:
    """Gives each list, dict, cursor and error a number, and writes it once. It needs no recursion."""

    def __init__(self) -> None:
        self.heap: list[Any] = []
        self.cursors: list[Any] = []
        self.errors: list[Any] = []
        self.handles: set[int] = set()
        """The numbers of all handles that were found."""
        self._numbers: dict[int, int] = {}
        self._pending: list[tuple[Any, int]] = []

    def put(self, value: Any) -> Any:
        """Return the form of a value in the snapshot. What it contains is written by `finish`."""
        kind = type(value)
        if kind in SCALARS:
            return value
        if kind is list or kind is dict:
            return [self._number(value, self.heap)]
        if value is UNSET_SLOT:
            return {}
        if kind is Handle:
            self.handles.add(value.number)
            return {"h": value.number}
        if kind is Cursor:
            return {"c": self._number(value, self.cursors)}
        assert kind is ErrorValue, kind
        return {"e": self._number(value, self.errors)}

    def _number(self, value: Any, table: list[Any]) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(table)
            table.append(None)
            self._pending.append((value, number))
        return number

    def finish(self) -> None:
        """Write everything that has a number."""
        pending, put = self._pending, self.put
        while pending:
            value, number = pending.pop()
            kind = type(value)
            if kind is list:
                is_flat = SCALARS.issuperset(map(type, value))
                self.heap[number] = value if is_flat else [put(item) for item in value]
            elif kind is dict:
                is_flat = SCALARS.issuperset(map(type, value.values()))
                self.heap[number] = value if is_flat else {key: put(item) for key, item in value.items()}
            elif kind is Cursor:
                self.cursors[number] = self._saved_cursor(value)
            else:
                self.errors[number] = SavedError(value.type, value.message, put(value.fields), value.places)

    def _saved_cursor(self, cursor: Cursor) -> SavedCursor:
        source = cursor.source
        bounds = (source.start, source.stop, source.step) if type(source) is range else None
        return SavedCursor(
            kind=cursor.kind,
            at=cursor.at,
            source=None if bounds or source == () else self.put(source),
            bounds=bounds,
            names=cursor.names,
            parts=[self.put(part)["c"] for part in cursor.parts],
        )


class HeapReader:
    """Builds the values of a snapshot, each list, dict, cursor and error once."""

    def __init__(self, heap: list[Any], cursors: list[SavedCursor], errors: list[SavedError]) -> None:
        self.handles: set[int] = set()
        self._heap: list[Any] = [[] if isinstance(one, list) else {} for one in heap]
        self._cursors = [Cursor(one.kind) for one in cursors]
        self._errors = [ErrorValue(one.type, one.message) for one in errors]
        for built, saved in zip(self._heap, heap, strict=True):
            if isinstance(saved, list):
                built.extend(saved if SCALARS.issuperset(map(type, saved)) else [self.get(one) for one in saved])
            else:
                built.update({key: self.get(one) for key, one in saved.items()})
        for cursor, one in zip(self._cursors, cursors, strict=True):
            self._fill(cursor, one)
        for error, kept in zip(self._errors, errors, strict=True):
            error.fields, error.places = self.mapping(kept.fields), list(kept.places)

    def get(self, saved: Any) -> Any:
        """Return the value of its form in the snapshot."""
        kind = type(saved)
        if kind in SCALARS:
            return saved
        if kind is list and len(saved) == 1:
            return self._heap[_index(saved[0], self._heap)]
        if saved == {}:
            return UNSET_SLOT
        if kind is dict and len(saved) == 1:
            ((name, number),) = saved.items()
            if name == "h" and type(number) is int:
                self.handles.add(number)
                return Handle(number)
            if name == "c":
                return self._cursors[_index(number, self._cursors)]
            if name == "e":
                return self._errors[_index(number, self._errors)]
        raise Unreadable("this snapshot of a flow has a value of unknown form")

    def mapping(self, saved: Any) -> dict[str, Any]:
        """Return a value that must be a dict."""
        value = self.get(saved)
        if type(value) is not dict:
            raise Unreadable("this snapshot of a flow has no dict where one is needed")
        return value

    def error(self, saved: Any) -> ErrorValue:
        """Return a value that must be an error."""
        value = self.get(saved)
        if type(value) is not ErrorValue:
            raise Unreadable("this snapshot of a flow has no error where one is needed")
        return value

    def _fill(self, cursor: Cursor, saved: SavedCursor) -> None:
        if saved.bounds is not None:
            cursor.source = range(*saved.bounds)
        else:
            cursor.source = () if saved.source is None else self.get(saved.source)
        cursor.at, cursor.names = saved.at, saved.names
        cursor.parts = [self._cursors[_index(part, self._cursors)] for part in saved.parts]
        kinds: tuple[type, ...] = (list, str, range, tuple) if saved.kind in (SEQUENCE, REVERSED) else (dict,)
        if saved.kind not in (SEQUENCE, REVERSED, KEYS, VALUES, ITEMS, ENUMERATE, ZIP):
            raise Unreadable("this snapshot of a flow has a cursor of unknown kind")
        if saved.kind not in (ENUMERATE, ZIP) and type(cursor.source) not in kinds:
            raise Unreadable("this snapshot of a flow has a cursor without a source")


def _index(number: Any, table: list[Any]) -> int:
    if type(number) is not int or not 0 <= number < len(table):
        raise Unreadable("this snapshot of a flow refers to a value that it does not have")
    return number
