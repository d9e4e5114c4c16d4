"""The methods of strings, lists and dicts: the results and errors of CPython, within the limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.flows.builtins import items_of, ordered, update
from holdfast.flows.faults import fault
from holdfast.flows.grammar import METHODS, Shape
from holdfast.flows.meter import SCALARS, Meter, width_of
from holdfast.flows.operators import set_key, type_name

Method = Callable[[Any, list[Any], dict[str, Any], Meter], Any]

_EXPANDING = ("upper", "lower", "title", "capitalize", "swapcase", "casefold")
_CHARACTERS_GROW = 3
"""One character becomes at most three when its case changes."""


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


# Text


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


# Lists


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
    reverse = words.get("reverse", False)
    if not isinstance(reverse, int):
        raise TypeError(f"'{type_name(reverse)}' object cannot be interpreted as an integer")
    target.sort(reverse=bool(reverse))


def _reverse(target: list[Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    meter.items(len(target))
    target.reverse()


def _copy(target: Any, arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    meter.items(len(target))
    return target.copy()


def _clear(target: Any, arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    target.clear()


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
    "clear": _clear,
}


# Dicts


def _get(target: dict[str, Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    return target.get(*arguments)


def _pop_key(target: dict[str, Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    return target.pop(*arguments)


def _setdefault(target: dict[str, Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    key = arguments[0]
    if type(key) is not str or key not in target:
        set_key(target, key, arguments[1] if len(arguments) > 1 else None, meter)
    return target[key]


def _update(target: dict[str, Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> None:
    update(target, arguments[0], meter)


def _view(target: dict[str, Any], arguments: list[Any], words: dict[str, Any], meter: Meter) -> Any:
    raise fault("TypeError", "keys(), values() and items() can only be iterated")


_DICT: dict[str, Method] = {
    "get": _get,
    "pop": _pop_key,
    "setdefault": _setdefault,
    "update": _update,
    "copy": _copy,
    "clear": _clear,
    **dict.fromkeys(("keys", "values", "items"), _view),
}
