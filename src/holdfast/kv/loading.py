"""Loading: turns the pairs of a namespace into the state of its run, or refuses them. It writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import InvalidRequest, SchemaOutOfDate, Unreadable
from holdfast.core.model import Arrival, Entry, Run, Wait
from holdfast.kv import layout
from holdfast.kv.keys import Part, unpack
from holdfast.kv.layout import NameRegistry
from holdfast.kv.mail import Mail, read_mail
from holdfast.kv.outbox import OutboxItem, read_item
from holdfast.kv.values import (
    ChildStub,
    EventValue,
    Seal,
    joined,
    read_arrival,
    read_child,
    read_error,
    read_event,
    read_header,
    read_history,
    read_instant,
    read_metadata,
    read_run,
    read_seal,
    read_text,
    read_values,
    read_waits,
)

Rows = dict[tuple[Part, ...], bytes]


class Contents:
    """Everything in a namespace, decoded. `run` is None if the run has not begun; there may be mail for it."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.waits: tuple[Wait, ...] = ()
        self.values: dict[str, str] = {}
        self.seal = Seal(0, 0, 0, 0, 0)
        self.registry = NameRegistry()
        self.entries: dict[str, Entry] = {}
        self.mail: dict[bytes, Mail] = {}
        self.inbox: dict[int, Arrival] = {}
        self.receipts: dict[str, int] = {}
        self.children: dict[str, ChildStub] = {}
        self.outbox: dict[int, OutboxItem] = {}
        self.events: dict[int, EventValue] = {}


def loaded(pairs: Sequence[tuple[bytes, bytes]], run_id: str) -> Contents:
    """Decode all pairs of a namespace.

    Raises `SchemaOutOfDate` for another layout, `InvalidRequest` for the namespace of another run, and `Unreadable`
    for anything that this layout does not have.
    """
    values = dict(pairs)
    if layout.HEADER in values:
        _check_header(values[layout.HEADER], run_id)
    contents = Contents()
    rows: dict[Part, Rows] = defaultdict(dict)
    for key, value in pairs:
        parts = _read(unpack, key, key)
        if len(parts) < 2:
            raise _unreadable(key, "this layout has no such key")
        rows[parts[0]][parts[1:]] = value
        if parts[0] == layout.MESSAGES and isinstance(parts[1], str):
            contents.mail[key] = _read(read_mail, value, key)
    if unknown := rows.keys() - set(range(layout.NAMES, layout.EVENTS + 1)):
        raise Unreadable(f"a namespace with keys of the kinds {sorted(map(str, unknown))} was not written by holdfast")
    if layout.HEADER not in values:
        if len(contents.mail) < len(pairs):
            raise Unreadable("the namespace has no header, but more than mail; nothing was written")
        return contents
    _fill(contents, rows, values, run_id)
    return contents


def _check_header(value: bytes, run_id: str) -> None:
    header = _read(read_header, value, layout.HEADER)
    if header.schema != layout.SCHEMA:
        raise SchemaOutOfDate(
            f"this namespace has schema {header.schema}, and this version of holdfast has {layout.SCHEMA}; "
            "advance it with the version that wrote it; nothing was written"
        )
    if header.run_id != run_id:
        raise InvalidRequest(
            f"this namespace belongs to run {header.run_id}, not to {run_id}; give each run a namespace of its own; "
            "nothing was written"
        )


def _fill(contents: Contents, rows: dict[Part, Rows], values: dict[bytes, bytes], run_id: str) -> None:
    contents.seal = _required(read_seal, values, layout.SEAL)
    contents.run = _run(values)
    if contents.run.id != run_id:
        raise _unreadable(layout.STATE, f"it has the run {contents.run.id}")
    if layout.WAITS in values:
        contents.waits = _read(read_waits, values[layout.WAITS], layout.WAITS)
    if layout.VALUES in values:
        contents.values = _read(read_values, values[layout.VALUES], layout.VALUES)
    contents.registry = NameRegistry([_read(bytes.decode, one, b"names") for one in rows[layout.NAMES].values()])
    contents.entries = _entries(contents.registry, rows[layout.HISTORY], rows[layout.METADATA])
    if (len(contents.registry.names), len(contents.entries)) != (contents.seal.names, contents.seal.entries):
        raise _unreadable(layout.SEAL, "names or entries are missing: a batch of the driver was not atomic")
    for parts, value in rows[layout.MESSAGES].items():
        if isinstance(parts[0], int):
            contents.inbox[parts[0]] = _read(read_arrival, value, b"messages")
    for parts, value in rows[layout.WORKFLOW].items():
        if parts[0] == layout.RECEIPTS:
            contents.receipts[str(parts[1])] = _read(read_instant, value, b"receipts")
    children = (_read(read_child, value, b"children") for value in rows[layout.CHILDREN].values())
    contents.children = {child.intent.id: child for child in children}
    contents.outbox = _numbered(rows[layout.OUTBOX], read_item)
    contents.events = _numbered(rows[layout.EVENTS], read_event)


def _run(values: dict[bytes, bytes]) -> Run:
    """Return the run from its parts: large ones have keys of their own, so that they are written once."""
    run: Run = _required(read_run, values, layout.STATE)
    parts: dict[str, Any] = {"payload": _required(read_text, values, layout.INPUT)}
    for name, key, read in _PARTS:
        if key in values:
            parts[name] = _read(read, values[key], key)
    return replace(run, **parts)


_PARTS = (
    ("result", layout.RESULT, read_text),
    ("error", layout.ERROR, read_error),
    ("continued", layout.CONTINUED, read_text),
)


def _entries(registry: NameRegistry, history: Rows, metadata: Rows) -> dict[str, Entry]:
    if history.keys() != metadata.keys():
        raise Unreadable("history and metadata do not have the same entries; nothing was written")
    found = {}
    for parts, value in history.items():
        location = _read(registry.location, parts, b"history")
        done = _read(read_history, value, b"history")
        found[location] = joined(location, done, _read(read_metadata, metadata[parts], b"metadata"))
    return found


def _numbered(rows: Rows, read: Callable[[bytes], Any]) -> dict[int, Any]:
    return {parts[0]: _read(read, value, b"outbox or events") for parts, value in rows.items() if type(parts[0]) is int}


def _required(read: Callable[[bytes], Any], values: dict[bytes, bytes], key: bytes) -> Any:
    if key not in values:
        raise _unreadable(key, "it is missing")
    return _read(read, values[key], key)


def _read(read: Callable[[Any], Any], value: Any, key: bytes) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise _unreadable(key, str(error)) from error


def _unreadable(key: bytes, problem: str) -> Unreadable:
    return Unreadable(f"the namespace cannot be read at key {key!r}: {problem}; nothing was written")
