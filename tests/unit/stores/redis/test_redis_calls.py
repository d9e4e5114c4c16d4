"""Arguments and answers of the scripts of the Redis driver."""

from __future__ import annotations

import re

import pytest

from holdfast.stores.kv.driver import Fields, Lowest, Part, Range, Reserve
from holdfast.stores.redis.commits import (
    CALL_BYTES,
    PARTS_AT_ONCE,
    commit_reply,
    in_batches,
    packed_parts,
    written_names,
)
from holdfast.stores.redis.loads import load_answer, load_arguments, partition_of
from holdfast.stores.redis.scripts import lua_scripts


def test_a_part_is_packed_in_the_order_of_its_fields() -> None:
    part = Part(
        checks={"a": 1, "b": 0},
        clears=["c"],
        puts={"p": {"x": b"1", "y": b"2"}, "q": {}},
        drops={"d": ["x", "y"]},
        touches=["t"],
        removes={"i": ["m"]},
        adds={"i": {"n": 5}},
        cuts={"l": [b"old"]},
        appends={"l": [b"new"]},
        marks=["a"],
        owner="me",
    )

    keys, arguments = packed_parts([part, Part()], "{ns}:")

    assert keys == [f"{{ns}}:{name}" for name in ("a", "b", "c", "p", "q", "d", "t", "i", "i", "l", "l", "x")]
    assert arguments == [
        *("me", 2, 1, 0),
        *("C", 0),
        *("P", 4, "x", b"1", "y", b"2"),
        *("P", 0),
        *("D", 2, "x", "y"),
        *("T", 0),
        *("R", 1, "m"),
        *("A", 2, 5, "n"),
        *("X", 1, b"old"),
        *("L", 1, b"new"),
        *("M", 2, 50, "a"),
        ".",
        *("", 0, "."),
    ]
    assert written_names([part]) == {"p", "q", "d", "t"}


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (PARTS_AT_ONCE, [500]), (1_001, [500, 500, 1])])
def test_parts_are_cut_into_batches(count: int, sizes: list[int]) -> None:
    parts = [Part() for _ in range(count)]

    batches = in_batches(parts)

    assert [len(batch) for batch in batches] == sizes
    assert [part for batch in batches for part in batch] == parts


def test_large_parts_are_cut_into_batches_before_they_are_packed() -> None:
    """As many as fit into one call. A part that is too large alone is a batch of its own."""
    half, small = Part(puts={"p": {"x": b"x" * (CALL_BYTES // 2)}}), Part(puts={"p": {"x": b"x"}})

    assert [len(batch) for batch in in_batches([half, small, half, half, small])] == [2, 1, 2]


def test_the_batches_of_ended_runs_fit_into_one_call() -> None:
    """The estimate is above the size of a typical end of a run, so that no call has to be packed twice."""
    id = "0" * 36
    part = Part(
        checks={f"{kind}:{id}": 1 for kind in "rhc"},
        puts={f"h:{id}": {"charge": b"x" * 140}, f"r:{id}": {"b": b"x" * 330}},
        drops={f"r:{id}": ["m", "t"]},
        removes={"by:running:shop.order.v1": [id * 2], "H:worker-a": [id], "Q:l:100:shop.order.v1": [id]},
        adds={"by:succeeded:shop.order.v1": {id * 2: 0}, "ended:shop.order.v1": {id * 2: 0}},
        appends={f"a:{id}": [b"x" * 45]},
    )

    batches = in_batches([part] * PARTS_AT_ONCE)

    calls = [lua_scripts().commit.call(*packed_parts(batch, "{holdfast}:")) for batch in batches]
    assert len(calls) > 1
    assert max(map(len, calls)) <= CALL_BYTES
    assert max(map(len, calls)) > CALL_BYTES // 2


def test_a_reply_to_a_commit_names_what_was_refused() -> None:
    parts = [Part(checks={"a": 1, "b": 2}), Part()]

    assert commit_reply([7, 8], parts, is_repeat=False) == (7, 8, [None, None], False)
    assert commit_reply([7, 8, 2, 0], parts, is_repeat=True) == (7, 8, ["b", None], True)


def test_reads_have_one_key_each() -> None:
    keys, arguments = load_arguments([Fields("p", ("x",)), Range("i", "a", "b", 3), Reserve("n", 0)], "{ns}:")

    assert keys == ["{ns}:p", "{ns}:i", "{ns}:n"]
    assert arguments == ["F", 1, "x", "R", "[a", "(b", 3, "N", 0]


@pytest.mark.parametrize("text", [b"1800000000000000", b"1.8e+15", b"1800000000000000.0"])
def test_a_score_is_a_whole_number_however_it_is_written(text: bytes) -> None:
    assert load_answer(Lowest("i", 1), [b"m", text]) == [("m", 1_800_000_000_000_000)]


def test_the_version_is_the_field_without_a_name() -> None:
    assert partition_of([b"x", b"1", b"", b"42"]) == (42, {"x": b"1"})
    assert partition_of([]) == (0, {})


def test_every_constant_of_the_scripts_is_filled_in() -> None:
    scripts = lua_scripts()

    for script in (scripts.load, scripts.commit, scripts.claim, scripts.renew, scripts.epoch):
        assert not re.search(r"\{\{\w+\}\}", script.text)
        assert re.fullmatch(r"[0-9a-f]{40}", script.sha)
