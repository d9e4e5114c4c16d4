"""The snapshot: the whole state of a machine as one JSON document.

Lists and dicts stand in one table, the heap, and refer to each other by number. So a list that two variables share is
still shared after a resume, and a value may even contain itself. A reference is `[number]`, a handle `{"h": number}`, a
cursor `{"c": number}`, an error `{"e": number}`, a variable without a value `{}`. Everything else is a scalar.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.errors import Unreadable
from holdfast.flows.cursors import ENUMERATE, ITEMS, KEYS, REVERSED, SEQUENCE, VALUES, ZIP, Cursor
from holdfast.flows.faults import ErrorValue
from holdfast.flows.handles import Handles
from holdfast.flows.limits import FlowLimits
from holdfast.flows.meter import SCALARS
from holdfast.flows.operations import (
    FAILED,
    FIRST,
    JOIN,
    MAIN_PATH,
    MAP,
    OPEN,
    PATH,
    PRIMITIVE,
    RACE,
    UNSET_SLOT,
    Frame,
    Handle,
    OpenOperation,
    Path,
)
from holdfast.flows.program import Program
from holdfast.flows.requests import OpenRequest

FORMAT = 1


class SavedFrame(msgspec.Struct, array_like=True):
    """A frame in a snapshot."""

    function: int
    pc: int
    slots: list[Any]
    stack: list[Any]


class SavedPath(msgspec.Struct, array_like=True):
    """A path in a snapshot."""

    number: int
    handle: int
    wait: int
    error: Any
    frames: list[SavedFrame]


class SavedOperation(msgspec.Struct, omit_defaults=True):
    """An operation in a snapshot."""

    n: int
    kind: int
    state: int = OPEN
    request: OpenRequest | None = None
    value: Any = None
    error: Any = None
    paths: list[int] = []
    groups: list[int] = []
    keys: list[str] | None = None
    members: list[int] = []
    left: int = 0
    fails_fast: bool = False
    results: Any = None
    errors: Any = None


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


class SavedMachine(msgspec.Struct):
    """The document."""

    format: int
    program: str
    seed: str
    now: Micros
    draws: int
    used: int
    next: tuple[int, int]
    ready: list[int]
    paths: list[SavedPath]
    operations: list[SavedOperation]
    heap: list[list[Any] | dict[str, Any]]
    cursors: list[SavedCursor]
    errors: list[SavedError]

    @property
    def part_count(self) -> int:
        frames = sum(len(path.frames) for path in self.paths)
        return len(self.heap) + len(self.operations) + len(self.cursors) + frames


class SavedEnvelope(msgspec.Struct):
    """The document with a checksum, so that an edited or cut snapshot is noticed."""

    check: int
    state: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode_envelope = msgspec.json.Decoder(SavedEnvelope).decode
_decode_machine = msgspec.json.Decoder(SavedMachine).decode


# Writing


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


def encode_state(
    handles: Handles, program: Program, *, seed: str, now: Micros, draws: int, used: int
) -> tuple[str, int]:
    """Return the snapshot of a machine, and the number of its parts.

    Operations that nothing refers to any more are removed from it.
    """
    writer = HeapWriter()
    paths = [_save_path(path, writer) for path in handles.paths.values()]
    writer.finish()
    operations = _save_operations(handles, writer)
    document = SavedMachine(
        format=FORMAT,
        program=program.version,
        seed=seed,
        now=now,
        draws=draws,
        used=used,
        next=(handles.next_number, handles.next_path),
        ready=list(handles.ready),
        paths=paths,
        operations=operations,
        heap=writer.heap,
        cursors=writer.cursors,
        errors=writer.errors,
    )
    body = _encode(document)
    return f'{{"check":{zlib.crc32(body)},"state":{body.decode()}}}', document.part_count


def _save_path(path: Path, writer: HeapWriter) -> SavedPath:
    frames = [
        SavedFrame(
            frame.function, frame.pc, [writer.put(one) for one in frame.slots], [writer.put(one) for one in frame.stack]
        )
        for frame in path.frames
    ]
    error = None if path.error is None else writer.put(path.error)
    return SavedPath(path.number, path.handle, path.wait, error, frames)


def _save_operations(handles: Handles, writer: HeapWriter) -> list[SavedOperation]:
    """Save the operations that something refers to. A result may have handles itself, so more may become known."""
    awaited = {path.wait for path in handles.paths.values()} | {path.handle for path in handles.paths.values()}
    handles.keep((writer.handles | awaited) & handles.table.keys(), writer)
    return [_save_operation(one, writer) for one in handles.table.values()]


def _save_operation(one: OpenOperation, writer: HeapWriter) -> SavedOperation:
    if one.state == OPEN and one.kind == PRIMITIVE:  # most are, and there may be thousands
        return SavedOperation(n=one.number, kind=PRIMITIVE, request=one.request, paths=one.paths, groups=one.groups)
    saved = SavedOperation(
        n=one.number,
        kind=one.kind,
        state=one.state,
        request=one.saved_request() if one.request is not None and (one.state == OPEN or one.is_child) else None,
        value=writer.put(one.value),
        error=None if one.error is None else writer.put(one.error),
        paths=one.paths,
        groups=one.groups,
        keys=one.keys,
        members=one.members,
        left=one.left,
        fails_fast=one.fails_fast,
        results=writer.put(one.results) if one.results else None,
        errors=writer.put(one.errors) if one.errors else None,
    )
    writer.finish()
    return saved


# Reading


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


def decode_state(text: str, program: Program, limits: FlowLimits) -> tuple[SavedMachine, Handles]:
    """Return the document of a snapshot, and its operations and paths.

    Raises `Unreadable` if it is not a snapshot of this program.
    """
    try:
        envelope = _decode_envelope(text)
        body = bytes(envelope.state)
        if zlib.crc32(body) != envelope.check:
            raise Unreadable("this snapshot of a flow was changed after it was written")
        document = _decode_machine(body)
        if document.format != FORMAT:
            raise Unreadable(f"this snapshot of a flow has format {document.format}; upgrade holdfast")
        if document.program != program.version:
            raise Unreadable("this snapshot belongs to another version of the flow")
        return document, _restored(document, program, limits)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, KeyError, IndexError, TypeError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"this is not a snapshot of a flow: {error}") from error


def _restored(document: SavedMachine, program: Program, limits: FlowLimits) -> Handles:
    reader = HeapReader(document.heap, document.cursors, document.errors)
    handles = Handles(limits)
    handles.next_number, handles.next_path = document.next
    for saved in document.operations:
        handles.table[saved.n] = _restored_operation(saved, reader)
    for path in document.paths:
        handles.paths[path.number] = _restored_path(path, reader, program)
    handles.ready.extend(document.ready)
    handles.open_count = sum(one.state == OPEN for one in handles.table.values())
    _check(handles, reader)
    return handles


def _restored_operation(saved: SavedOperation, reader: HeapReader) -> OpenOperation:
    one = OpenOperation(saved.n, saved.kind, saved.request)
    one.state = saved.state
    one.value = reader.get(saved.value)
    one.error = None if saved.error is None else reader.error(saved.error)
    one.paths, one.groups, one.keys, one.members = saved.paths, saved.groups, saved.keys, saved.members
    one.left, one.fails_fast = saved.left, saved.fails_fast
    one.results = {} if saved.results is None else reader.mapping(saved.results)
    one.errors = {} if saved.errors is None else reader.mapping(saved.errors)
    return one


def _restored_path(saved: SavedPath, reader: HeapReader, program: Program) -> Path:
    frames = []
    for one in saved.frames:
        if not 0 <= one.function < len(program.functions):
            raise Unreadable("this snapshot has a function that the flow does not have")
        function = program.functions[one.function]
        if len(one.slots) != len(function.slots) or not 0 <= one.pc < len(function.handlers):
            raise Unreadable(f"this snapshot does not fit the function {function.name}")
        slots = [reader.get(value) for value in one.slots]
        frames.append(Frame(one.function, slots, one.pc, [reader.get(value) for value in one.stack]))
    if not frames:
        raise Unreadable("this snapshot has a path that has ended")
    path = Path(saved.number, saved.handle, frames)
    path.wait = saved.wait
    path.error = None if saved.error is None else reader.error(saved.error)
    return path


def _check(handles: Handles, reader: HeapReader) -> None:
    """Refuse a snapshot with references to what it does not have."""
    table, paths = handles.table, handles.paths
    if MAIN_PATH not in paths:
        raise Unreadable("this snapshot has no main path")
    if not reader.handles <= {0, *table}:
        raise Unreadable("this snapshot has a handle without an operation")
    if not set(handles.ready) <= set(paths) or not all(path.wait in (-1, *table) for path in paths.values()):
        raise Unreadable("this snapshot has a path that waits for nothing")
    for one in table.values():
        is_known = one.kind in (PRIMITIVE, JOIN, RACE, FIRST, PATH, MAP) and OPEN <= one.state <= FAILED
        if not is_known or (one.state == FAILED and one.error is None):
            raise Unreadable("this snapshot has an operation of unknown kind")
        needs_request = one.state == OPEN and one.kind in (PRIMITIVE, MAP)
        if needs_request and one.request is None:
            raise Unreadable("this snapshot has an operation without a request")
        if one.state == OPEN and not set(one.paths) <= set(paths):
            raise Unreadable("this snapshot has an operation that an unknown path awaits")
        members = set(paths) if one.kind == PATH else set(table)
        if one.state == OPEN and not set(one.members) <= members:
            raise Unreadable("this snapshot has a group with an unknown branch")
