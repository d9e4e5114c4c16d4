"""Loads: how reads become arguments of `load.lua`, and how its answers are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from holdfast.stores.kv.driver import AllFields, Fields, Log, Lowest, Partition, Range, Read, Reserve, Size
from holdfast.stores.redis.scripts import Argument

_NO_BOUND = "+inf"


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
