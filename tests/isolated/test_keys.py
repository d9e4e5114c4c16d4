"""Keys: byte order is tuple order, every key can be read back, and anything else is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.isolated.layout import NameRegistry, pack, unpack

NUMBERS = st.integers(min_value=0, max_value=2**63)
PLAIN = st.one_of(NUMBERS, st.text(max_size=5))
TUPLES = st.lists(st.one_of(PLAIN, st.lists(PLAIN, max_size=3).map(tuple)), max_size=4).map(tuple)


def order(part: Any) -> Any:
    """Return what sorts parts of different kinds as the encoding does: texts, then tuples, then numbers."""
    if isinstance(part, str):
        return (0, part.encode())
    return (1, [order(one) for one in part]) if isinstance(part, tuple) else (2, part)


@given(st.lists(TUPLES, max_size=8))
def test_byte_order_is_tuple_order(tuples: list[tuple[Any, ...]]) -> None:
    in_bytes = sorted(tuples, key=pack)
    assert in_bytes == sorted(tuples, key=lambda one: [order(part) for part in one])


@given(TUPLES)
def test_a_key_is_read_back(parts: tuple[Any, ...]) -> None:
    assert unpack(pack(parts)) == parts


@given(st.binary(max_size=12))
def test_other_bytes_are_refused(key: bytes) -> None:
    try:
        parts = unpack(key)
    except ValueError:
        return
    assert pack(parts) == key


@pytest.mark.parametrize("part", [-1, 2**64])
def test_a_number_out_of_range_is_refused(part: int) -> None:
    with pytest.raises(ValueError, match="not a number of a key"):
        pack((part,))


LOCATIONS = [
    "charge",
    "charge#2",
    "loop/~0/step",
    "loop/~11/step",
    "+1/charge",
    "~rollback",
    "~undo/loop/~3/a#10",
    "a~3",
]


def test_locations_are_read_back_from_their_keys() -> None:
    registry = NameRegistry()
    keys = [registry.keys_of(location)[0] for location in LOCATIONS]
    again = NameRegistry(registry.names)
    assert [again.location(unpack(key)[1:]) for key in keys] == LOCATIONS


def test_iterations_are_in_order_and_take_no_names() -> None:
    registry = NameRegistry()
    keys = [registry.keys_of(f"loop/~{number}/step")[0] for number in range(1_000)]
    assert keys == sorted(keys)
    assert registry.names == ["loop", "~", "step"]


@pytest.mark.parametrize("location", ["a#01", "~01", "a#1234567890123456789", "+x", "#3"])
def test_a_part_that_only_looks_numbered_is_a_name(location: str) -> None:
    registry = NameRegistry()
    key, _ = registry.keys_of(location)
    assert registry.location(unpack(key)[1:]) == location


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no name 7"):
        NameRegistry(["a"]).location((7,))
