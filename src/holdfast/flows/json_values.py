"""JSON text of the values of a flow, within the limits."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.errors import Unreadable
from holdfast.flows.faults import exceeded
from holdfast.flows.limits import DEPTH_LIMIT, FlowLimits
from holdfast.flows.meter import SCALARS, Meter


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
