"""The meter: charges large operations on values, and refuses them before they exceed a limit.

Values from outside, and values that go there, are JSON text within the limits.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.errors import Unreadable
from holdfast.flows.faults import exceeded, fault
from holdfast.flows.limits import DEPTH_LIMIT, FlowLimits

SCALARS = frozenset((int, str, float, bool, type(None)))


class Meter:
    """The limits of a run, and the instructions that large operations cost in addition to their own."""

    __slots__ = ("cost", "created", "limits")

    def __init__(self, limits: FlowLimits) -> None:
        self.limits = limits
        self.cost = 0
        self.created = 0
        """An upper bound of the bytes that were added to the state."""

    def items(self, count: int, what: str = "the list") -> None:
        """Charge an operation on the items of a collection. Refuse it if there are too many."""
        if count > self.limits.collection_items:
            raise exceeded("collection_items", self.limits.collection_items, f"{what} would have {count:,} items")
        self.cost += count >> 3
        self.created += 8 * count

    def characters(self, count: int, width: int = 1) -> None:
        """Charge an operation on a string. Refuse it if its result is too long. `width` is the bytes of a character."""
        if count > self.limits.string_characters:
            maximum = self.limits.string_characters
            raise exceeded("string_characters", maximum, f"the string would have {count:,} characters")
        self.cost += count * width >> 9
        self.created += count * width

    def bits(self, count: int) -> None:
        """Refuse an integer that is too large."""
        if count > self.limits.integer_bits:
            raise exceeded("integer_bits", self.limits.integer_bits, f"the integer would have {count:,} bits")
        self.created += count >> 3

    def measure(self, *values: Any) -> int:
        """Charge an operation on whole values, and return an upper bound of their length as text.

        Refuses values that are too large, too deep, or contain themselves. Parts that occur twice count twice, because
        comparing and writing visits them twice. It needs no recursion.
        """
        nodes, characters = 0, 0
        pending: list[tuple[Any, int]] = [(value, 0) for value in values]
        while pending:
            value, depth = pending.pop()
            kind = type(value)
            if kind is list or kind is dict:
                if depth >= DEPTH_LIMIT:
                    raise fault("ValueError", f"the value is nested deeper than {DEPTH_LIMIT} levels")
                nodes += len(value)
                characters += 4 * len(value) + 2
                if nodes > self.limits.value_nodes:
                    raise exceeded("value_nodes", self.limits.value_nodes, "the value has too many parts")
                parts = value.values() if kind is dict else value
                if kind is dict:
                    characters += sum(map(len, value)) * 6
                if SCALARS.issuperset(map(type, parts)):
                    characters += sum(map(_length, parts))
                else:
                    pending += [(part, depth + 1) for part in parts]
            else:
                characters += _length(value)
        self.cost += (nodes >> 2) + (characters >> 8)
        return characters


WIDEST = 4
"""Maximum number of bytes of a character, in memory and in UTF-8."""


def width_of(*texts: str) -> int:
    """Return an upper bound of the bytes that each character of these texts takes in memory."""
    return 1 if all(map(str.isascii, texts)) else WIDEST


def _length(value: Any) -> int:
    kind = type(value)
    if kind is str:
        return len(value)
    return value.bit_length() // 3 + 2 if kind is int else 25


def type_name(value: Any) -> str:
    """Return the name of a value's type, as Python's messages have it."""
    return "NoneType" if value is None else type(value).__name__


# JSON


def _refuse(value: Any) -> Any:  # noqa: ARG001 - the hook of an encoder
    raise TypeError("a handle has no JSON form; await it, and use the result")


_encode = msgspec.json.Encoder(enc_hook=_refuse).encode
_decode = msgspec.json.Decoder().decode


def to_json(value: Any, what: str, meter: Meter) -> str:
    """Return a value as JSON text. Raises an error of the program if it has none, or is too large."""
    if type(value) not in SCALARS:
        meter.measure(value)
    text = _encode(value)
    if type(value) is str:
        meter.cost += len(text) >> 8
    if len(text) > meter.limits.value_bytes:
        raise exceeded("value_bytes", meter.limits.value_bytes, f"{what} has {len(text):,} bytes as JSON")
    return text.decode()


def each_to_json(values: list[Any], what: str, meter: Meter) -> tuple[str, ...]:
    """Return the JSON text of each value. Raises an error of the program if all together are too large."""
    meter.measure(values)
    texts = tuple(_encode(value).decode() for value in values)
    if (size := sum(map(len, texts))) > meter.limits.value_bytes:
        raise exceeded("value_bytes", meter.limits.value_bytes, f"{what} have {size:,} bytes as JSON")
    return texts


def from_json(text: str, what: str, limits: FlowLimits) -> Any:
    """Return the value of a JSON text from outside. Raises an error of the program if it is too large."""
    if len(text) > limits.value_bytes:
        raise exceeded("value_bytes", limits.value_bytes, f"{what} has {len(text):,} characters as JSON")
    try:
        value = _decode(text)
    except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"{what} cannot be read as JSON: {error}") from error
    if text.count("[") + text.count("{") > DEPTH_LIMIT:
        Meter(limits).measure(value)
    return value
