"""Requests: how each call of the driver becomes the arguments of a script, and how its reply is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, assert_never

import msgspec

from holdfast.core.checkpoint import ClaimRequest
from holdfast.stores.kv.driver import (
    AllFields,
    ClaimAnswer,
    ClaimedRun,
    Committed,
    Fields,
    Gain,
    Log,
    Lowest,
    Part,
    Partition,
    Range,
    Read,
    Reserve,
    Size,
)
from holdfast.stores.kv.names import META
from holdfast.stores.redis.scripts import MARKS, Argument

_NO_BOUND = "+inf"


# Loads


def load_arguments(reads: Sequence[Read], prefix: str) -> tuple[list[str], list[Argument]]:
    """Return the keys and arguments of reads. `load.lua` describes their order."""
    keys: list[str] = []
    arguments: list[Argument] = []
    for read in reads:
        match read:
            case Fields():
                keys.append(prefix + read.partition)
                arguments += ("F", len(read.fields), *read.fields)
            case AllFields():
                keys.append(prefix + read.partition)
                arguments += ("X", read.without) if read.without else ("W",)
            case Range():
                keys.append(prefix + read.index)
                low, high = f"[{read.low}" if read.low else "-", f"({read.high}" if read.high else "+"
                arguments += ("V" if read.is_reverse else "R", low, high, read.limit)
            case Lowest():
                keys.append(prefix + read.index)
                arguments += ("L", read.limit, "" if read.is_due else _NO_BOUND)
            case Size():
                keys.append(prefix + read.index)
                arguments += ("S", "" if read.is_due else _NO_BOUND)
            case Log():
                keys.append(prefix + read.log)
                arguments.append("G")
            case Reserve():
                keys.append(prefix + read.counter)
                arguments += ("N", read.count)
            case _:
                assert_never(read)
    return keys, arguments


def load_answer(read: Read, reply: Any) -> object:
    """Return the answer to a read."""
    match read:
        case Fields():
            found = zip(read.fields, reply[1:], strict=True)
            return Partition(int(reply[0] or 0), {name: value for name, value in found if value is not None})
        case AllFields():
            return partition_of(reply)
        case Range():
            return [member.decode() for member in reply]
        case Lowest():
            flat = iter(reply)
            return [(member.decode(), _score(score)) for member, score in zip(flat, flat, strict=True)]
        case Size():
            return reply
        case Log():
            return reply
        case Reserve():
            return range(reply - read.count + 1, reply + 1)
        case _:
            assert_never(read)


def partition_of(flat: Sequence[bytes]) -> Partition:
    """Return a partition from the flat fields and values of its hash. The version is the field without a name."""
    if not flat:
        return Partition(0, {})
    pieces = iter(flat)
    fields = {name.decode(): value for name, value in zip(pieces, pieces, strict=True)}
    return Partition(int(fields.pop("", 0)), fields)


def _score(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:  # the server writes large numbers with an exponent
        return int(float(text))


# Claims


def claim_arguments(request: ClaimRequest) -> list[Argument]:
    """Return the arguments of a claim: `claim.lua` describes their order."""
    return [
        request.id,
        request.worker,
        request.limit,
        request.lease,
        request.python,
        int(request.may_suspect),
        int(request.is_repeat),
        request.shares.since_new,
        request.shares.since_child,
        *dict.fromkeys(request.types),
    ]


def found_of(reply: list[Any]) -> tuple[ClaimAnswer, int]:
    """Read the answer to a claim. The second value is the version that was written, or 0."""
    now, version, next_ready_at, limited, runs, odd = reply
    found = ClaimAnswer(
        now=now,
        runs=[
            ClaimedRun(id.decode(), partition_of(head), partition_of(history), partition_of(inbox).fields)
            for id, head, history, inbox in runs
        ],
        next_ready_at=next_ready_at,
        limited=tuple(type.decode() for type in limited),
        odd=tuple(run_id.decode() for run_id in odd),
    )
    return found, version


# Commits: the hot path of all writes


PARTS_AT_ONCE = 500
"""Maximum number of parts in one call, so that a call does not stop the server for long."""
CALL_BYTES = 256 * 1024
"""Maximum size of a call with several parts, about. One part is never cut."""

_NAME_BYTES = 60
"""About the size of the name of a partition or member in a call, with its framing and numbers."""
_FIELD_BYTES = 40
"""About the size of the name of a field, with the framing of its value."""
_GAIN_BYTES = 180
"""About the size of a `Gain` in a call, without its fields."""


ListItem = str | int | list[int] | msgspec.Raw
"""An item of the list for `commit.lua`."""

PIECE_BYTES = 64 * 1024 * 1024
"""Maximum size of one argument with a part of the list. A server refuses arguments of 512 MB."""


def _plain(value: object) -> str | int:
    """Return a value of a subclass of `str` or `int` as one of these. Names may come from users."""
    if isinstance(value, str):
        return str.__str__(value)
    assert isinstance(value, int), value
    return int.__int__(value)


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


IndexChanges = defaultdict[str, tuple[list[int], list[ListItem]]]
"""The entries that a call adds to indexes or removes from them: the part of each entry, and the arguments."""


class CommitCall:
    """Parts that one call writes, with its keys and arguments. `commit.lua` describes their order."""

    def __init__(self, prefix: str) -> None:
        self.parts: list[Part | Gain] = []
        self._prefix = prefix
        self._size = 0
        self._keys: list[str] = []
        self._arguments: list[ListItem] = []
        self._removed: IndexChanges = defaultdict(lambda: ([], []))
        self._added: IndexChanges = defaultdict(lambda: ([], []))

    def add(self, part: Part | Gain) -> bool:
        """Add a part, unless the call becomes too large: then return False. The first part is always added."""
        more = _estimated_bytes(part)
        if self.parts and (self._size + more > CALL_BYTES or len(self.parts) == PARTS_AT_ONCE):
            return False
        self._size += more
        self.parts.append(part)
        if isinstance(part, Gain):
            self._keys += (self._prefix + part.guard, self._prefix + part.partition)
            self._arguments += ("+", part.guard_version, part.version, 2 * len(part.fields))
            for name, value in part.fields.items():
                self._arguments += (name, _text(value))
        else:
            _pack(part, self._prefix, self._keys, self._arguments)
            self._pack_entries(part, len(self.parts))
        return True

    def _pack_entries(self, part: Part, number: int) -> None:
        for index, members in part.removes.items():
            numbers, arguments = self._removed[index]
            numbers += [number] * len(members)
            arguments += members
        for index, scores in part.adds.items():
            numbers, arguments = self._added[index]
            numbers += [number] * len(scores)
            for member, score in scores.items():
                arguments += (score, member)

    def packed(self) -> tuple[list[str], list[bytes]]:
        """Return the keys, and the list of all parts and indexes, in one piece unless it is very large."""
        keys, arguments = self._keys, self._arguments
        for kind, changed in (("R", self._removed), ("A", self._added)):
            for index, (numbers, entries) in changed.items():
                keys.append(self._prefix + index)
                arguments += (kind, len(entries), numbers, *entries)
        return keys, _in_pieces(arguments)


def _in_pieces(items: list[ListItem]) -> list[bytes]:
    piece = _encode(items)
    if len(piece) <= PIECE_BYTES or len(items) == 1:
        return [piece]
    middle = len(items) // 2
    return [*_in_pieces(items[:middle]), *_in_pieces(items[middle:])]


def _text(value: bytes) -> str | msgspec.Raw:
    """Return bytes as a string of MessagePack, because the scripts cannot read the type for bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)


def in_calls(parts: Sequence[Part | Gain], prefix: str) -> list[CommitCall]:
    """Return the calls that write parts: at least one. None has too many parts, or probably too large ones."""
    calls = [CommitCall(prefix)]
    for part in parts:
        if not calls[-1].add(part):
            calls.append(CommitCall(prefix))
            calls[-1].add(part)
    return calls


def _pack(part: Part, prefix: str, keys: list[str], arguments: list[ListItem]) -> None:
    keys += [prefix + name for name in part.checks]
    arguments += (part.owner, len(part.checks), *part.checks.values())
    if part.clears:
        _pack_names("C", part.clears, prefix, keys, arguments)
    for name, fields in part.puts.items():
        keys.append(prefix + name)
        arguments += ("P", 2 * len(fields))
        for field, value in fields.items():
            arguments += (field, _text(value))
    for name, dropped in part.drops.items():
        keys.append(prefix + name)
        # With a put of the same partition, the version is written already.
        arguments += ("E" if name in part.puts else "D", len(dropped), *dropped)
    if part.touches:
        _pack_names("T", part.touches, prefix, keys, arguments)
    if part.cuts:
        _pack_lines("X", part.cuts, prefix, keys, arguments)
    if part.appends:
        _pack_lines("L", part.appends, prefix, keys, arguments)
    if part.marks:
        keys.append(prefix + MARKS)
        arguments += ("M", len(part.marks) + 1, part.mark_micros // 1_000, *part.marks)
    arguments.append(".")


def _pack_names(kind: str, written: Sequence[str], prefix: str, keys: list[str], arguments: list[ListItem]) -> None:
    for name in written:
        keys.append(prefix + name)
        arguments += (kind, 0)


def _pack_lines(
    kind: str, written: Mapping[str, Sequence[bytes]], prefix: str, keys: list[str], arguments: list[ListItem]
) -> None:
    for name, lines in written.items():
        keys.append(prefix + name)
        arguments += (kind, len(lines), *map(_text, lines))


def _estimated_bytes(part: Part | Gain) -> int:
    """Return about how many bytes a part takes in a call."""
    if isinstance(part, Gain):
        return _GAIN_BYTES + _FIELD_BYTES * len(part.fields) + sum(map(len, part.fields.values()))
    # With the names of members and lines of logs, which are one each for most parts of many.
    others = len(part.drops) + len(part.appends) + len(part.removes) + len(part.adds)
    size = _NAME_BYTES * (len(part.checks) + len(part.puts) + 2 * others)
    for fields in part.puts.values():
        for value in fields.values():
            size += len(value) + _FIELD_BYTES
    return size


def written_names(parts: Sequence[Part | Gain]) -> set[str]:
    """Return the partitions to which parts give a new version."""
    whole = (part.as_part() for part in parts)
    return {name for part in whole for name in chain(part.puts, part.drops, part.touches)}


def first_name(part: Part | Gain) -> str:
    """Return the first partition that a part checks."""
    return next(iter(part.as_part().checks), META)


def commit_reply(reply: list[int], parts: Sequence[Part | Gain], *, is_repeat: bool) -> Committed:
    """Read the answer to one call. Its version is 0 if none was needed."""
    if len(reply) == 2:
        return Committed(reply[0], reply[1], [None] * len(parts), is_repeat)
    refused = [
        None if failed == 0 else _refused_name(part.as_part(), failed)
        for part, failed in zip(parts, reply[2:], strict=True)
    ]
    return Committed(reply[0], reply[1], refused, is_repeat)


def _refused_name(part: Part, failed: int) -> str:
    return part.marks[0] if failed < 0 else list(part.checks)[failed - 1]
