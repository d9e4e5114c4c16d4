"""The parts of a JSON text: as a decoder finds them, and also in a text that a decoder would refuse."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.postgres.unreadable import items, members

LEAVES = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(st.lists(VALUES), st.sampled_from([None, 1]), st.booleans())
def test_the_items_of_a_list_are_found(values: list[object], indent: int | None, is_ascii: bool) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=is_ascii)

    assert [json.loads(item) for item in items(text)] == values


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), VALUES), st.sampled_from([None, 1]))
def test_the_members_of_an_object_are_found(values: dict[str, object], indent: int | None) -> None:
    text = json.dumps(values, indent=indent)

    assert {name: json.loads(value) for name, value in members(text).items()} == values


def test_a_part_that_cannot_be_decoded_hides_no_other() -> None:
    deep = "[" * 5_000 + "]" * 5_000

    assert members(rf'{{"a": "\ud800", "b": {deep}, "c": 1}}') == {"a": r'"\ud800"', "b": deep, "c": "1"}
    assert items(rf'["\ud800",{deep},1]') == [r'"\ud800"', deep, "1"]


def test_null_has_no_parts() -> None:
    assert items("null") == []
    assert members("null") == {}
