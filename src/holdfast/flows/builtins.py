"""The builtins of flows on values: the results and errors of CPython, within the limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from holdfast.flows.cursors import Cursor, cursor_of
from holdfast.flows.faults import exceeded, fault
from holdfast.flows.meter import SCALARS, WIDEST, Meter, width_of
from holdfast.flows.operators import finite, multiply, set_key, type_name

Builtin = Callable[[list[Any], dict[str, Any], Meter], Any]


def items_of(value: Any, meter: Meter) -> list[Any]:
    """Return the items of anything that can be iterated. The list may be the value itself: do not change it."""
    if type(value) is list:
        meter.items(len(value))
        return value
    return cursor_of(value, meter).drain(meter)


def _measured(items: list[Any], meter: Meter) -> list[Any]:
    """Measure items that are compared with each other."""
    if not SCALARS.issuperset(map(type, items)):
        meter.measure(items)
    meter.cost += len(items) >> 2
    return items


def _len(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    (value,) = arguments
    if type(value) is Cursor:
        return value.length()
    if type(value) not in (list, dict, str):
        raise TypeError(f"object of type '{'NoneType' if value is None else type(value).__name__}' has no len()")
    return len(value)


def _extreme(choose: Callable[..., Any], name: str) -> Builtin:
    def extreme(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
        if len(arguments) > 1:
            if words:
                raise TypeError(f"Cannot specify a default for {name}() with multiple positional arguments")
            return choose(_measured(arguments, meter))
        items = _measured(items_of(arguments[0], meter), meter)
        return choose(items, **words)

    return extreme


def _sum(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    start = arguments[1] if len(arguments) > 1 else words.get("start", 0)
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    items = items_of(arguments[0], meter)
    if type(start) is list:
        return _concatenated(start, items, meter)
    meter.cost += len(items) >> 2
    bits = max((item.bit_length() for item in items if type(item) is int), default=0)
    if bits > 64:
        meter.bits(bits + len(items).bit_length())
        meter.cost += len(items) * (bits >> 10)
    return finite(sum(items, start))


def _concatenated(start: list[Any], lists: list[Any], meter: Meter) -> list[Any]:
    """Return the sum of lists. Python copies the sum for each of them, which would take long."""
    meter.items(len(start) + sum(len(one) for one in lists if type(one) is list))
    joined = list(start)
    for one in lists:
        if type(one) is not list:
            raise TypeError(f'can only concatenate list (not "{type_name(one)}") to list')
        joined += one
    return joined


def _sorted(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    items = items_of(arguments[0], meter)
    return sorted(ordered(items, meter), reverse=_truth(words.get("reverse", False)))


def ordered(items: list[Any], meter: Meter) -> list[Any]:
    """Charge sorting items, and return them."""
    _measured(items, meter)
    meter.cost += len(items)
    return items


def _truth(value: Any) -> bool:
    if not isinstance(value, int):
        raise TypeError(
            f"'{'NoneType' if value is None else type(value).__name__}' object cannot be interpreted as an integer"
        )
    return bool(value)


def _abs(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    return abs(arguments[0])


def _round(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    value = arguments[0]
    digits = arguments[1] if len(arguments) > 1 else words.get("ndigits")
    if digits is None or type(value) not in (int, float, bool) or not isinstance(digits, int):
        return round(value) if digits is None else round(value, digits)
    if type(value) is float:
        if digits > 400:
            return value
        return math.copysign(0.0, value) if digits < -400 else finite(round(value, digits))
    if digits >= 0:
        return int(value)
    return 0 if -digits > value.bit_length() else round(value, digits)


def _int(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    if arguments and type(arguments[0]) is str:
        meter.characters(len(arguments[0]))
        if len(arguments) > 1 and len(arguments[0]) > meter.limits.integer_bits:
            raise exceeded("integer_bits", meter.limits.integer_bits, f"the text has {len(arguments[0]):,} digits")
    elif arguments and type(arguments[0]) in (list, dict):
        raise TypeError(
            "int() argument must be a string, a bytes-like object or a real number, "
            f"not '{type(arguments[0]).__name__}'"
        )
    found = int(*arguments)
    meter.bits(found.bit_length())
    return found


def _float(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    if arguments and type(arguments[0]) is str:
        meter.characters(len(arguments[0]))
        found = float(arguments[0])
        if not math.isfinite(found):
            raise ValueError(f"could not convert string to float: {arguments[0]!r:.80}: it is not finite")
        return found
    return float(*arguments)


def text_of(value: Any, meter: Meter) -> str:
    """Return `str(value)`."""
    if type(value) is str:
        return value
    if type(value) in (list, dict):
        meter.characters(meter.measure(value), WIDEST)
    return str(value)


def repr_of(value: Any, meter: Meter) -> str:
    """Return `repr(value)`."""
    if type(value) in (list, dict, str):
        meter.characters(meter.measure(value), WIDEST)
    return repr(value)


def formatted(value: Any, conversion: str, specification: str, meter: Meter) -> str:
    """Return the text of one part of an f-string."""
    if conversion:
        value = repr_of(value, meter) if conversion == "r" else text_of(value, meter)
    if not specification:
        return text_of(value, meter)
    if type(value) in (list, dict) or value is None:
        kind = "NoneType" if value is None else type(value).__name__
        raise TypeError(f"unsupported format string passed to {kind}.__format__")
    if type(value) is str:
        meter.characters(len(value) + 1000, width_of(value, specification))
    return format(value, specification)


def _str(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    return text_of(arguments[0], meter) if arguments else ""


def _bool(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    return bool(*arguments)


def _list(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    return list(items_of(arguments[0], meter)) if arguments else []


def _dict(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    found: dict[str, Any] = {}
    if arguments:
        update(found, arguments[0], meter)
    return found


def update(target: dict[str, Any], source: Any, meter: Meter) -> None:
    """Add the items of a dict, or pairs, to a dict."""
    if type(source) is dict:
        meter.items(len(target) + len(source), "the dict")
        target.update(source)
        return
    for place, pair in enumerate(items_of(source, meter)):
        if type(pair) not in (list, str, dict):
            raise TypeError(f"cannot convert dictionary update sequence element #{place} to a sequence")
        if len(pair) != 2:
            raise ValueError(f"dictionary update sequence element #{place} has length {len(pair)}; 2 is required")
        key, value = pair
        set_key(target, key, value, meter)


def _any(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    return any(items_of(arguments[0], meter))


def _all(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    return all(items_of(arguments[0], meter))


def _length_of_time(seconds: int) -> Builtin:
    def length(arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
        if type(arguments[0]) not in (int, float, bool):
            raise fault("TypeError", f"a length of time is a number, not {type(arguments[0]).__name__}")
        return multiply(arguments[0], seconds, meter)

    return length


BUILTIN_FUNCTIONS: dict[str, Builtin] = {
    "len": _len,
    "min": _extreme(min, "min"),
    "max": _extreme(max, "max"),
    "sum": _sum,
    "sorted": _sorted,
    "abs": _abs,
    "round": _round,
    "int": _int,
    "float": _float,
    "str": _str,
    "bool": _bool,
    "list": _list,
    "dict": _dict,
    "any": _any,
    "all": _all,
    "days": _length_of_time(86_400),
    "hours": _length_of_time(3_600),
    "minutes": _length_of_time(60),
}
"""The builtins without those that need the state of the run: now, uuid, random."""
