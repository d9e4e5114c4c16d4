"""Arguments and answers of the scripts of the Redis driver."""

from __future__ import annotations

import re

import msgspec
import pytest

from holdfast.stores.kv.driver import Fields, Gain, Lowest, Part, Range, Reserve
from holdfast.stores.redis.requests import (
    CALL_BYTES,
    PARTS_AT_ONCE,
    commit_reply,
    in_calls,
    load_answer,
    load_arguments,
    partition_of,
    written_names,
)
from holdfast.stores.redis.scripts import lua_scripts


def test_a_part_is_packed_in_the_order_of_its_fields_and_its_index_entries_at_the_end() -> None:
    part = Part(
        checks={"a": 1, "b": 0},
        clears=["c"],
        puts={"p": {"x": b"1", "y": b"2"}, "q": {}},
        drops={"d": ["x", "y"], "q": ["z"]},
        touches=["t"],
        removes={"i": ["m"]},
        adds={"i": {"n": 5}},
        cuts={"l": [b"old"]},
        appends={"l": [b"new"]},
        marks=["a"],
        owner="me",
    )

    (call,) = in_calls([part, Part()], "{ns}:")
    keys, (packed,) = call.packed()

    assert keys == [f"{{ns}}:{name}" for name in ("a", "b", "c", "p", "q", "d", "q", "t", "l", "l", "x", "i", "i")]
    assert msgspec.msgpack.decode(packed) == [
        *("me", 2, 1, 0),
        *("C", 0),
        *("P", 4, "x", "1", "y", "2"),
        *("P", 0),
        *("D", 2, "x", "y"),
        *("E", 1, "z"),
        *("T", 0),
        *("X", 1, "old"),
        *("L", 1, "new"),
        *("M", 2, 50, "a"),
        ".",
        *("", 0, "."),
        *("R", 1, [1], "m"),
        *("A", 2, [1], 5, "n"),
    ]
    assert written_names([part]) == {"p", "q", "d", "t"}


def test_parts_share_the_entries_of_an_index_and_a_gain_is_packed_short() -> None:
    gain = Gain("r", 1, "h", 2, {"x": b"1"})
    parts: list[Part | Gain] = [
        Part(removes={"i": ["a"]}, adds={"j": {"a": 1}}),
        gain,
        Part(removes={"i": ["b", "c"]}, adds={"j": {"b": 2}}),
    ]

    (call,) = in_calls(parts, "{ns}:")
    keys, (packed,) = call.packed()

    assert keys == [f"{{ns}}:{name}" for name in ("r", "h", "i", "j")]
    assert msgspec.msgpack.decode(packed) == [
        *("", 0, "."),
        *("+", 1, 2, 2, "x", "1"),
        *("", 0, "."),
        *("R", 3, [1, 3, 3], "a", "b", "c"),
        *("A", 4, [1, 3], 1, "a", 2, "b"),
    ]


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (PARTS_AT_ONCE, [500]), (1_001, [500, 500, 1])])
def test_parts_are_cut_into_calls(count: int, sizes: list[int]) -> None:
    parts = [Part() for _ in range(count)]

    calls = in_calls(parts, "{ns}:")

    assert [len(call.parts) for call in calls] == sizes
    assert [part for call in calls for part in call.parts] == parts


def test_large_parts_are_cut_into_calls() -> None:
    """As many as fit into one call. A part that is too large alone is a call of its own."""
    half, small = Part(puts={"p": {"x": b"x" * (CALL_BYTES // 2)}}), Part(puts={"p": {"x": b"x"}})

    assert [len(call.parts) for call in in_calls([half, small, half, half, small], "{ns}:")] == [2, 1, 2]


_ID = "0" * 36


@pytest.mark.parametrize(
    "part",
    [
        Part(
            checks={f"{kind}:{_ID}": 1 for kind in "rhc"},
            puts={f"h:{_ID}": {"charge": b"x" * 140}, f"r:{_ID}": {"b": b"x" * 330}},
            drops={f"r:{_ID}": ["m", "t"]},
            removes={"by:running:shop.order.v1": [_ID * 2], "H:worker-a": [_ID], "Q:l:100:shop.order.v1": [_ID]},
            adds={"by:succeeded:shop.order.v1": {_ID * 2: 0}, "ended:shop.order.v1": {_ID * 2: 0}},
            appends={f"a:{_ID}": [b"x" * 45]},
        ),
        Gain(f"r:{_ID}", 10**6, f"h:{_ID}", 10**6, {"charge": b"x" * 400}),
    ],
    ids=["end", "step"],
)
def test_the_estimated_size_of_a_call_is_about_right(part: Part | Gain) -> None:
    """The estimate is above the size of typical parts, but not far."""
    calls = in_calls([part] * PARTS_AT_ONCE, "{holdfast}:")

    commands = [lua_scripts().commit.call(*call.packed()) for call in calls]
    assert len(commands) > 1
    assert max(map(len, commands)) <= CALL_BYTES
    assert max(map(len, commands)) > CALL_BYTES // 2


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
