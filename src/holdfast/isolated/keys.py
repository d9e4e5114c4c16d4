"""Keys as tuples: the encoding whose byte order is tuple order. It decides nothing about what the keys mean.

It is the tuple encoding of FoundationDB for texts, whole numbers from 0 on, and tuples of these in a tuple.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Part: TypeAlias = "str | int | tuple[Part, ...]"

_TEXT = 0x02
_NESTED = 0x05
_ZERO = 0x14  # a number of n bytes begins with 0x14 + n
_LONGEST = 8


def pack(parts: Iterable[Part]) -> bytes:
    """Return the key of a tuple."""
    return b"".join(map(pack_part, parts))


def pack_part(part: Part) -> bytes:
    """Return the bytes of one part of a key. The key of a tuple is the bytes of its parts, one after the other."""
    if isinstance(part, int):
        length = (part.bit_length() + 7) // 8
        if part < 0 or length > _LONGEST:
            raise ValueError(f"{part} is not a number of a key")
        return bytes((_ZERO + length,)) + part.to_bytes(length, "big")
    if isinstance(part, str):
        # A zero byte ends the text, so a zero inside it is followed by 0xff, which is in no UTF-8 text.
        return b"\x02" + part.encode().replace(b"\0", b"\0\xff") + b"\0"
    return b"\x05" + pack(part) + b"\0"


def unpack(key: bytes) -> tuple[Part, ...]:
    """Return the tuple of a key. Raises `ValueError` if the bytes are not a key."""
    parts, end = _unpacked(key, 0, is_nested=False)
    if end != len(key) or pack(parts) != key:
        raise ValueError(f"{key!r} is not the key of a tuple")
    return parts


def _unpacked(key: bytes, at: int, *, is_nested: bool) -> tuple[tuple[Part, ...], int]:
    parts: list[Part] = []
    while at < len(key):
        code = key[at]
        if code == 0 and is_nested:
            return tuple(parts), at + 1
        if code == _NESTED and not is_nested:
            nested, at = _unpacked(key, at + 1, is_nested=True)
            parts.append(nested)
        elif code == _TEXT:
            text, at = _text(key, at + 1)
            parts.append(text)
        elif _ZERO <= code <= _ZERO + _LONGEST and at + code - _ZERO < len(key):
            end = at + 1 + code - _ZERO
            parts.append(int.from_bytes(key[at + 1 : end], "big"))
            at = end
        else:
            raise ValueError(f"{key!r} is not the key of a tuple")
    if is_nested:
        raise ValueError(f"{key!r} ends inside a tuple")
    return tuple(parts), at


def _text(key: bytes, at: int) -> tuple[str, int]:
    end = key.find(b"\0", at)
    while end >= 0 and key[end + 1 : end + 2] == b"\xff":
        end = key.find(b"\0", end + 2)
    if end < 0:
        raise ValueError(f"{key!r} ends inside a text")
    return key[at:end].replace(b"\0\xff", b"\0").decode(), end + 1
