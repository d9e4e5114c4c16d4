"""The builtins and methods of flows on values: the results and errors of CPython, within the limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from holdfast.flows.cursors import Cursor, cursor_of
from holdfast.flows.faults import exceeded, fault
from holdfast.flows.grammar import METHODS, Shape
from holdfast.flows.meter import SCALARS, WIDEST, Meter, type_name, width_of
from holdfast.flows.operators import finite, multiply, set_key

Builtin = Callable[[list[Any], dict[str, Any], Meter], Any]
Method = Callable[[Any, list[Any], dict[str, Any], Meter], Any]

_EXPANDING = ("upper", "lower", "title", "capitalize", "swapcase", "casefold")
_CHARACTERS_GROW = 3
"""One character becomes at most three when its case changes."""


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
        raise TypeError(f"object of type '{type_name(value)}' has no len()")
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
        raise TypeError(f"'{type_name(value)}' object cannot be interpreted as an integer")
    return bool(value)


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
        raise TypeError(f"unsupported format string passed to {type_name(value)}.__format__")
    if type(value) is str:
        meter.characters(len(value) + 1000, width_of(value, specification))
    return format(value, specification)


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
    "abs": lambda arguments, words, meter: abs(arguments[0]),
    "round": _round,
    "int": _int,
    "float": _float,
    "str": lambda arguments, words, meter: text_of(arguments[0], meter) if arguments else "",
    "bool": lambda arguments, words, meter: bool(*arguments),
    "list": lambda arguments, words, meter: list(items_of(arguments[0], meter)) if arguments else [],
    "dict": _dict,
    "any": lambda arguments, words, meter: any(items_of(arguments[0], meter)),
    "all": lambda arguments, words, meter: all(items_of(arguments[0], meter)),
    "days": _length_of_time(86_400),
    "hours": _length_of_time(3_600),
    "minutes": _length_of_time(60),
}
"""The builtins without those that need the state of the run: now, uuid, random."""


# Methods


def call_method(target: Any, name: str, arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    """Return the result of a method of a value."""
    kind = type_name(target)
    shape = check_method(target, name)
    if not shape.least <= len(arguments) <= shape.most or not words.keys() <= set(shape.keywords):
        raise TypeError(f"{name} of a {kind} takes {shape.least} to {shape.most} arguments, not {len(arguments)}")
    if kind == "str":
        return _call_text(target, name, arguments, meter)
    return (_LIST if kind == "list" else _DICT)[name](target, arguments, words, meter)


def check_method(target: Any, name: str) -> Shape:
    """Return the arguments of a method. Raises the error of Python if the value does not have it."""
    kind = type_name(target)
    shape = METHODS.get(kind, {}).get(name)
    if shape is None:
        raise AttributeError(f"'{kind}' object has no attribute '{name}'")
    return shape


# Methods of text


def _call_text(text: str, name: str, arguments: list[Any], meter: Meter) -> Any:
    meter.characters(len(text) * (_CHARACTERS_GROW if name in _EXPANDING else 1), width_of(text))
    for argument in arguments:
        if type(argument) is str:
            meter.characters(len(argument))
    special = _TEXT.get(name)
    return special(text, arguments, meter) if special is not None else _PLAIN_TEXT[name](text, *arguments)


def _join(text: str, arguments: list[Any], meter: Meter) -> Any:
    items = items_of(arguments[0], meter)
    texts = [item for item in items if type(item) is str]
    meter.characters(sum(map(len, texts)) + len(text) * len(items), width_of(text, *texts))
    return text.join(items)


def _replace(text: str, arguments: list[Any], meter: Meter) -> Any:
    if type(arguments[0]) is str and type(arguments[1]) is str:
        times = text.count(arguments[0])
        if len(arguments) > 2 and isinstance(arguments[2], int) and 0 <= arguments[2] < times:
            times = arguments[2]
        count = len(text) + times * (len(arguments[1]) - len(arguments[0]))
        meter.characters(count, width_of(text, arguments[1]))
    return text.replace(*arguments)


def _padded(name: str) -> Callable[[str, list[Any], Meter], Any]:
    def padded(text: str, arguments: list[Any], meter: Meter) -> Any:
        if isinstance(arguments[0], int):
            filling = (one for one in arguments[1:] if type(one) is str)
            meter.characters(max(arguments[0], 0), width_of(text, *filling))
        return _PLAIN_TEXT[name](text, *arguments)

    return padded


def _split(name: str) -> Callable[[str, list[Any], Meter], Any]:
    def split(text: str, arguments: list[Any], meter: Meter) -> Any:
        found = list(_PLAIN_TEXT[name](text, *arguments))
        meter.items(len(found))
        return found

    return split


def _text_method(name: str) -> Callable[..., Any]:
    return getattr(str, name)  # type: ignore[no-any-return]  # a name of the table, not of a program


_PLAIN_TEXT: dict[str, Callable[..., Any]] = {name: _text_method(name) for name in METHODS["str"]}
_TEXT: dict[str, Callable[[str, list[Any], Meter], Any]] = {
    "join": _join,
    "replace": _replace,
    **{name: _padded(name) for name in ("zfill", "ljust", "rjust", "center")},
    **{name: _split(name) for name in ("split", "rsplit", "splitlines", "partition", "rpartition")},
}


# Methods of lists


def _append(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    if len(target) >= meter.limits.collection_items:
        meter.items(len(target) + 1)
    target.append(arguments[0])


def _extend(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    items = items_of(arguments[0], meter)
    meter.items(len(target) + len(items))
    target.extend(items)


def _insert(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    meter.items(len(target) + 1)
    target.insert(arguments[0], arguments[1])


def _searched(target: list[Any], item: Any, meter: Meter) -> None:
    meter.items(len(target))
    if type(item) not in SCALARS:
        for part in target:
            meter.measure(part, item)


def _remove(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    _searched(target, arguments[0], meter)
    target.remove(arguments[0])


def _index(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    _searched(target, arguments[0], meter)
    return target.index(*arguments)


def _count(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    _searched(target, arguments[0], meter)
    return target.count(arguments[0])


def _pop(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    meter.cost += len(target) >> 9
    return target.pop(*arguments)


def _sort(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    meter.items(len(target))
    ordered(target, meter)
    target.sort(reverse=_truth(words.get("reverse", False)))


def _reverse(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    meter.items(len(target))
    target.reverse()


def _copy(target: Any, arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    meter.items(len(target))
    return target.copy()


_LIST: dict[str, Method] = {
    "append": _append,
    "extend": _extend,
    "insert": _insert,
    "pop": _pop,
    "remove": _remove,
    "index": _index,
    "count": _count,
    "sort": _sort,
    "reverse": _reverse,
    "copy": _copy,
    "clear": lambda target, arguments, words, meter: target.clear(),
}


# Methods of dicts


def _setdefault(target: dict[str, Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    key = arguments[0]
    if type(key) is not str or key not in target:
        set_key(target, key, arguments[1] if len(arguments) > 1 else None, meter)
    return target[key]


def _view(target: dict[str, Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    raise fault("TypeError", "keys(), values() and items() can only be iterated")


_DICT: dict[str, Method] = {
    "get": lambda target, arguments, words, meter: target.get(*arguments),
    "pop": lambda target, arguments, words, meter: target.pop(*arguments),
    "setdefault": _setdefault,
    "update": lambda target, arguments, words, meter: update(target, arguments[0], meter),
    "copy": _copy,
    "clear": lambda target, arguments, words, meter: target.clear(),
    **dict.fromkeys(("keys", "values", "items"), _view),
}
