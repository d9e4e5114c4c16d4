"""Loading: reads the keys and values of a namespace as the state of its run, or refuses them. It writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.errors import InvalidRequest, SchemaOutOfDate, Unreadable
from holdfast.core.model import Arrival, Entry, Run, Wait
from holdfast.isolated import layout
from holdfast.isolated.driver import CheckedDriver
from holdfast.isolated.layout import ChildStub, EventValue, NameRegistry, Part, Seal, joined, unpack
from holdfast.isolated.mail import Mail, OutboxItem, read_item, read_mail

D = TypeVar("D")
T = TypeVar("T")
V = TypeVar("V")

Keys = dict[tuple[Part, ...], bytes]
"""The keys of one kind, by their tuples without the kind."""

_RUN_KEYS = frozenset(unpack(key)[1:] for key in layout.RUN)


class Contents:
    """The contents of a namespace, decoded. `run` is None if the run has not begun; there may be mail for it."""

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


class Loader:
    """Reads the namespace of a run: first the keys and the run itself, then, if there is something to do, the rest.

    Raises `SchemaOutOfDate` for another layout, `InvalidRequest` for the namespace of another run, and `Unreadable`
    for anything that this layout does not have.
    """

    def __init__(self, driver: CheckedDriver, run_id: str) -> None:
        self._driver = driver
        self._id = run_id
        self._contents = Contents()
        self._present: frozenset[bytes] = frozenset()
        self._keys: dict[Part, Keys] = defaultdict(dict)
        self._mail: list[bytes] = []

    @property
    def has_mail(self) -> bool:
        """True if `outline` has found mail of the host."""
        return bool(self._mail)

    async def outline(self) -> Contents:
        """Read all keys, the run and its outbox: enough for a run that stands still, however long its history is."""
        keys = await self._driver.list(b"")
        self._present = frozenset(keys)
        if layout.HEADER in self._present:
            _check_header(await self._driver.read(layout.HEADER), self._id)
        for key in keys:
            self._sort(key)
        contents = self._contents
        if layout.HEADER in self._present:
            contents.seal = await self._required(layout.read_seal, layout.SEAL)
            if await self._required(layout.read_seal, layout.OPENING) != contents.seal:
                raise _unreadable(layout.SEAL, "the driver has written a part of a batch; a batch is all or none")
            self._check_counts(contents.seal)
            contents.run = await self._run()
            for parts, key in self._keys[layout.OUTBOX].items():
                if (value := await self._driver.get(key)) is not None:  # None if the host has just delivered it
                    contents.outbox[_number(parts)] = _decoded(read_item, value, key)
        elif len(self._mail) < len(keys):
            raise Unreadable("the namespace has no header, but more than mail; nothing was written")
        return contents

    async def rest(self) -> Contents:
        """Read everything else."""
        contents = self._contents
        for key in self._mail:
            if (value := await self._driver.get(key)) is not None:  # None if the host has taken it back
                contents.mail[key] = _decoded(read_mail, value, key)
        if contents.run is None:
            return contents
        contents.waits = await self._optional(layout.read_waits, layout.WAITS, ())
        contents.values = await self._optional(layout.read_values, layout.VALUES, {})
        names = [await self._required(bytes.decode, key) for key in self._keys[layout.NAMES].values()]
        contents.registry = NameRegistry(names)
        contents.entries = await self._entries(contents.registry)
        contents.inbox = await self._numbered(layout.MESSAGES, layout.read_arrival)
        contents.events = await self._numbered(layout.EVENTS, layout.read_event)
        for parts, key in self._keys[layout.WORKFLOW].items():
            if parts[0] == layout.RECEIPTS:
                contents.receipts[str(parts[1])] = await self._required(layout.read_instant, key)
        for key in self._keys[layout.CHILDREN].values():
            child = await self._required(layout.read_child, key)
            contents.children[child.intent.id] = child
        return contents

    def _sort(self, key: bytes) -> None:
        """Put a key to those of its kind, or refuse it."""
        parts = _decoded(unpack, key, key)
        if not _is_known(parts):
            raise _unreadable(key, "holdfast writes no such key")
        if parts[0] == layout.MESSAGES and isinstance(parts[1], str):
            self._mail.append(key)
        else:
            self._keys[parts[0]][parts[1:]] = key

    def _check_counts(self, seal: Seal) -> None:
        """Check that no name and no entry is missing."""
        names, entries = self._keys[layout.NAMES], self._keys[layout.HISTORY]
        is_whole = list(names) == [(index,) for index in range(seal.names)] and len(entries) == seal.entries
        if not is_whole or entries.keys() != self._keys[layout.METADATA].keys():
            raise _unreadable(layout.SEAL, "names or entries are missing: a batch of the driver was not atomic")

    async def _run(self) -> Run:
        """Return the run from its parts: large ones have keys of their own, so that they are written once."""
        run = await self._required(layout.read_run, layout.STATE)
        if run.id != self._id:
            raise _unreadable(layout.STATE, f"it has the run {run.id}")
        return replace(
            run,
            payload=await self._required(layout.read_text, layout.INPUT),
            result=await self._optional(layout.read_text, layout.RESULT, None),
            error=await self._optional(layout.read_error, layout.ERROR, None),
            continued=await self._optional(layout.read_text, layout.CONTINUED, None),
        )

    async def _entries(self, registry: NameRegistry) -> dict[str, Entry]:
        metadata = self._keys[layout.METADATA]
        found = {}
        for parts, key in self._keys[layout.HISTORY].items():
            location = _decoded(registry.location, parts, key)
            outcome = await self._required(layout.read_history, key)
            found[location] = joined(location, outcome, await self._required(layout.read_metadata, metadata[parts]))
        return found

    async def _numbered(self, kind: int, read: Callable[[bytes], T]) -> dict[int, T]:
        return {_number(parts): await self._required(read, key) for parts, key in self._keys[kind].items()}

    async def _required(self, read: Callable[[bytes], T], key: bytes) -> T:
        if key not in self._present:
            raise _unreadable(key, "it is missing")
        return _decoded(read, await self._driver.read(key), key)

    async def _optional(self, read: Callable[[bytes], T], key: bytes, default: D) -> T | D:
        return await self._required(read, key) if key in self._present else default


def _is_known(parts: tuple[Part, ...]) -> bool:
    """True for a tuple of which the layout has keys."""
    match parts:
        case (layout.NAMES | layout.OUTBOX | layout.EVENTS | layout.MESSAGES, int()):
            return True
        case (layout.CHILDREN | layout.MESSAGES, str()) | (layout.MESSAGES, str(), 1 | 2 | 3):
            return True
        case (layout.HISTORY | layout.METADATA, _, *_) | (layout.WORKFLOW, layout.RECEIPTS, str()):
            return True
        case (layout.WORKFLOW, *rest):
            return tuple(rest) in _RUN_KEYS
        case _:
            return False


def _number(parts: tuple[Part, ...]) -> int:
    assert isinstance(parts[0], int), "other keys of this kind are refused"
    return parts[0]


def _check_header(value: bytes, run_id: str) -> None:
    header = _decoded(layout.read_header, value, layout.HEADER)
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


def _decoded(read: Callable[[V], T], value: V, key: bytes) -> T:
    try:
        return read(value)
    except ValueError as error:
        raise _unreadable(key, str(error)) from error


def _unreadable(key: bytes, problem: str) -> Unreadable:
    return Unreadable(f"the namespace cannot be read at key {key!r}: {problem}; nothing was written")
