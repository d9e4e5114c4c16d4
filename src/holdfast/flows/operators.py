"""Operators on values: the results and errors of CPython, within the limits.

Operands are plain JSON values and handles. An operation that could take long or need much memory is measured first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from holdfast.flows.cursors import Cursor
from holdfast.flows.faults import fault
from holdfast.flows.instructions import BINARY_OPERATORS, COMPARISONS
from holdfast.flows.meter import SCALARS, Meter, type_name, width_of

SMALL = 1 << 62
"""Integers below this size need no measuring."""


def finite(value: Any) -> Any:
    """Return a result of arithmetic, unless it is no JSON value."""
    kind = type(value)
    if kind is float and not -1.7976931348623157e308 <= value <= 1.7976931348623157e308:
        raise fault("OverflowError", "the result is too large for a float")
    if kind is complex:
        raise fault("ValueError", "the result is a complex number")
    return value


def add(left: Any, right: Any, meter: Meter) -> Any:
    """Return `left + right`."""
    kind = type(left)
    if kind is type(right):
        if kind is str:
            meter.characters(len(left) + len(right), width_of(left, right))
        elif kind is list:
            meter.items(len(left) + len(right))
        elif kind is int:
            meter.bits(max(left.bit_length(), right.bit_length()) + 1)
    return finite(left + right)


def subtract(left: Any, right: Any, meter: Meter) -> Any:
    """Return `left - right`."""
    if type(left) is type(right) is int:
        meter.bits(max(left.bit_length(), right.bit_length()) + 1)
    return finite(left - right)


def multiply(left: Any, right: Any, meter: Meter) -> Any:
    """Return `left * right`."""
    if isinstance(left, int):
        if isinstance(right, int):
            meter.bits(left.bit_length() + right.bit_length())
            return left * right
        left, right = (right, left) if isinstance(right, str | list) else (left, right)
    if isinstance(right, int):
        if type(left) is str:
            meter.characters(len(left) * max(right, 0), width_of(left))
        elif type(left) is list:
            meter.items(len(left) * max(right, 0))
    return finite(left * right)


def modulo(left: Any, right: Any, meter: Meter) -> Any:
    """Return `left % right`. Text has no such operator."""
    if type(left) is str:
        raise fault("TypeError", "text has no operator %; use an f-string")
    return finite(left % right)


def power(left: Any, right: Any, meter: Meter) -> Any:
    """Return `left ** right`."""
    if isinstance(left, int) and isinstance(right, int) and right > 0 and left not in (0, 1, -1):
        # The power has at least this many bits, and at most twice as many. Then its exact length counts.
        meter.bits((left.bit_length() - 1) * right if right < SMALL else SMALL)
        result = left**right
        meter.bits(result.bit_length())
        return result
    return finite(left**right)


_BinaryFunction = Callable[[Any, Any, Meter], Any]
BINARY_FUNCTIONS: tuple[_BinaryFunction, ...] = (
    add,
    subtract,
    multiply,
    lambda left, right, meter: finite(left / right),
    lambda left, right, meter: finite(left // right),
    modulo,
    power,
)
"""The operators in the order of `BINARY_OPERATORS`."""
assert len(BINARY_FUNCTIONS) == len(BINARY_OPERATORS)


def change_in_place(number: int, left: Any, right: Any, meter: Meter) -> Any:
    """Return the result of an augmented assignment. A list is changed itself, as in Python."""
    if type(left) is list and BINARY_OPERATORS[number] == "+":
        if type(right) not in (list, dict, str):
            raise TypeError(f"'{type_name(right)}' object is not iterable")
        meter.items(len(left) + len(right))
        left += right
        return left
    if type(left) is list and BINARY_OPERATORS[number] == "*" and isinstance(right, int):
        meter.items(len(left) * max(right, 0))
        left *= right
        return left
    return BINARY_FUNCTIONS[number](left, right, meter)


_COMPARE = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_IN, _NOT_IN, _IS = COMPARISONS.index("in"), COMPARISONS.index("not in"), COMPARISONS.index("is")


def compare(number: int, left: Any, right: Any, meter: Meter) -> bool:
    """Return the result of a comparison."""
    if number < _IN:
        if type(left) not in SCALARS and type(right) not in SCALARS:
            meter.measure(left, right)
        elif type(left) is str and type(right) is str:
            meter.cost += min(len(left), len(right)) >> 9
        return bool(_COMPARE[number](left, right))
    if number <= _NOT_IN:
        return contains(right, left, meter) is (number == _IN)
    return (left is right) is (number == _IS)


def contains(container: Any, item: Any, meter: Meter) -> bool:
    """Return `item in container`."""
    kind = type(container)
    if kind is Cursor:
        return bool(container.contains(item, meter))
    if kind is list:
        meter.items(len(container))
        if type(item) not in SCALARS:
            for part in container:
                meter.measure(part, item)
    elif kind is str and type(item) is str:
        meter.characters(len(container))
    return item in container


def index(container: Any, key: Any) -> Any:
    """Return `container[key]`."""
    if type(container) not in (dict, list, str):
        raise TypeError(f"'{type_name(container)}' object is not subscriptable")
    return container[key]


def store_index(container: Any, key: Any, value: Any, meter: Meter) -> None:
    """Assign `container[key]`."""
    if type(container) is dict:
        set_key(container, key, value, meter)
    elif type(container) is list:
        container[key] = value
    else:
        raise TypeError(f"'{type_name(container)}' object does not support item assignment")


def set_key(target: dict[str, Any], key: Any, value: Any, meter: Meter) -> None:
    """Set a key of a dict. Keys are strings, because values are JSON."""
    if type(key) is not str:
        raise TypeError(f"keys of a dict are text, not {type_name(key)}")
    if len(target) >= meter.limits.collection_items and key not in target:
        meter.items(len(target) + 1, "the dict")
    target[key] = value


def delete_index(container: Any, key: Any) -> None:
    """Delete `container[key]`."""
    if type(container) not in (list, dict):
        raise TypeError(f"'{type_name(container)}' object doesn't support item deletion")
    del container[key]


def take_slice(container: Any, start: Any, stop: Any, step: Any, meter: Meter) -> Any:
    """Return `container[start:stop:step]`."""
    if type(container) not in (list, str):
        if type(container) is dict:
            raise TypeError("unhashable type: 'slice'")
        raise TypeError(f"'{type_name(container)}' object is not subscriptable")
    bounds = slice(start, stop, step)
    count = len(range(*bounds.indices(len(container))))
    if type(container) is str:
        meter.characters(count, width_of(container))
    else:
        meter.items(count)
    return container[bounds]


UNARY: tuple[Callable[[Any], Any], ...] = (operator.neg, operator.pos, operator.not_)
"""The operators in the order of `UNARY_OPERATORS`."""
