"""Cursors: the position of a loop in what it iterates. They can be saved, unlike Python's iterators."""

from __future__ import annotations

from typing import Any

from holdfast.flows.faults import fault
from holdfast.flows.instructions import LAZY_ITERABLES
from holdfast.flows.meter import SCALARS, Meter, type_name

END = object()
"""The answer of an exhausted cursor."""

SEQUENCE, REVERSED, KEYS, VALUES, ITEMS, ENUMERATE, ZIP = range(7)
NESTING = 6
"""Maximum nesting of enumerate and zip, which call each other."""


class Cursor:
    """A position in a list, string, range or dict, or in several cursors side by side."""

    __slots__ = ("at", "kind", "names", "parts", "source")

    def __init__(
        self,
        kind: int,
        source: Any = None,
        at: int = 0,
        names: list[str] | None = None,
        parts: list[Cursor] | None = None,
    ) -> None:
        self.kind = kind
        self.source = source
        self.at = at
        self.names: list[str] = [] if names is None else names
        """The keys of a dict at the beginning."""
        self.parts: list[Cursor] = [] if parts is None else parts

    def next(self) -> Any:
        """Return the next item, or `END`."""
        kind = self.kind
        if kind == SEQUENCE:
            at = self.at
            if at < len(self.source):
                self.at = at + 1
                return self.source[at]
            self.source = ()
            return END
        if kind in (KEYS, VALUES, ITEMS):
            return self._next_of_dict()
        if kind == REVERSED:
            if 0 <= self.at < len(self.source):
                self.at -= 1
                return self.source[self.at + 1]
            self.at = -1
            return END
        return self._next_of_parts()

    def _next_of_dict(self) -> Any:
        source = self.source
        if self.at < 0:
            return END
        if len(source) != len(self.names):
            raise fault("RuntimeError", "dictionary changed size during iteration")
        if self.at >= len(self.names):
            self.at = -1
            return END
        name = self.names[self.at]
        if name not in source:
            raise fault("RuntimeError", "dictionary keys changed during iteration")
        self.at += 1
        if self.kind == KEYS:
            return name
        return source[name] if self.kind == VALUES else [name, source[name]]

    def _next_of_parts(self) -> Any:
        row = []
        for part in self.parts:
            item = part.next()
            if item is END:
                return END
            row.append(item)
        if self.kind == ZIP:
            return row or END
        self.at += 1
        return [self.at - 1, *row]

    def length(self) -> int:
        """Return `len` of what it iterates."""
        return len(self.names) if self.kind in (KEYS, VALUES, ITEMS) else len(self.source)

    def contains(self, item: Any, meter: Meter) -> bool:
        """Return `item in` what it iterates."""
        if self.kind == SEQUENCE:
            if type(self.source) is range and type(item) in (int, bool):
                return item in self.source
        elif self.kind == KEYS:
            return item in self.source
        while (found := self.next()) is not END:
            meter.cost += 1
            if type(found) not in SCALARS and type(item) not in SCALARS:
                meter.measure(found, item)
            if found == item:
                return True
            if meter.cost > meter.limits.collection_items:
                meter.items(meter.cost)
        return False

    def drain(self, meter: Meter) -> list[Any]:
        """Return all items that are left, as a list."""
        if self.kind == SEQUENCE:
            left = self.source[self.at :]
            meter.items(len(left))
            return list(left)
        items: list[Any] = []
        limit = meter.limits.collection_items
        while (item := self.next()) is not END:
            items.append(item)
            if len(items) > limit:
                meter.items(len(items))
        meter.cost += len(items)
        return items


def cursor_of(value: Any, meter: Meter) -> Cursor:
    """Return a cursor over a value. Raises the error of Python if it cannot be iterated."""
    kind = type(value)
    if kind is Cursor:
        return value  # type: ignore[no-any-return]
    if kind is list or kind is str:
        return Cursor(SEQUENCE, value)
    if kind is dict:
        meter.cost += len(value) >> 4
        return Cursor(KEYS, value, names=list(value))
    raise TypeError(f"'{type_name(value)}' object is not iterable")


def lazy(number: int, arguments: list[Any], meter: Meter) -> Cursor:
    """Return the cursor of a lazy builtin or method."""
    name = LAZY_ITERABLES[number]
    if name == "range":
        return Cursor(SEQUENCE, _range(arguments))
    if name == "enumerate":
        if len(arguments) > 1 and not isinstance(arguments[1], int):
            raise TypeError(f"'{type(arguments[1]).__name__}' object cannot be interpreted as an integer")
        return _nested(Cursor(ENUMERATE, at=int(arguments[1]) if len(arguments) > 1 else 0), arguments[:1], meter)
    if name == "zip":
        return _nested(Cursor(ZIP), arguments, meter)
    (source,) = arguments
    if name == "reversed":
        return _reversed(source, meter)
    if type(source) is not dict:
        raise AttributeError(f"'{type_name(source)}' object has no attribute '{name}'")
    meter.cost += len(source) >> 4
    return Cursor({"keys": KEYS, "values": VALUES, "items": ITEMS}[name], source, names=list(source))


def _range(arguments: list[Any]) -> range:
    found = range(*arguments)
    for bound in (found.start, found.stop, found.step):
        if not -(1 << 62) < bound < 1 << 62:
            raise fault("OverflowError", "a bound of range is too large")
    return found


def _reversed(source: Any, meter: Meter) -> Cursor:
    if type(source) is Cursor:
        if source.kind == SEQUENCE:
            return Cursor(REVERSED, source.source, len(source.source) - 1)
        return Cursor(source.kind, source.source, names=source.names[::-1])
    cursor = cursor_of(source, meter) if type(source) in (list, str, dict) else None
    if cursor is None:
        raise TypeError(f"'{type_name(source)}' object is not reversible")
    if cursor.kind == SEQUENCE:
        return Cursor(REVERSED, source, len(source) - 1)
    return Cursor(KEYS, source, names=cursor.names[::-1])


def _nested(cursor: Cursor, sources: list[Any], meter: Meter) -> Cursor:
    cursor.parts = [cursor_of(source, meter) for source in sources]
    if _depth(cursor) > NESTING:
        raise fault("ValueError", f"enumerate and zip may be nested {NESTING} times")
    return cursor


def _depth(cursor: Cursor) -> int:
    return 1 + max(map(_depth, cursor.parts), default=0)
