"""Encoding of a batch of checkpoints for the server."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.stores.postgres.checkpoints import array_of
from tests.plugin.tiers import amount
from tests.unit.stores.postgres.database import Place

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def read(place: Place, kind: str, array: str) -> object:
    row = place.execute(f"select %s::{kind}[]", array).fetchone()
    assert row is not None
    return row[0]


def test_an_encoded_array_is_decoded_to_the_same_values(empty: Place) -> None:
    @settings(max_examples=amount(short=30, long=300), deadline=None)
    @given(st.lists(TEXTS, max_size=20))
    def is_read(texts: list[str]) -> None:
        assert read(empty, "text", array_of(texts)) == texts

    is_read()
    hostile = ["null", "", "{}", ' a,"b\\ ', "\n"]
    assert read(empty, "text", array_of(hostile)) == hostile
    assert read(empty, "bigint", array_of([1, 0, 2**62])) == [1, 0, 2**62]
