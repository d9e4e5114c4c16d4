"""Values and names from SQL producers: accepted exactly if Python accepts them, and refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, InvalidRequest
from holdfast.core.codec import DEPTH_LIMIT, VALUE_LIMIT_BYTES, decode_any, encode_any
from holdfast.core.intent import KEY_LIMIT, check_id, check_key, check_tags, check_topic, check_type
from holdfast.core.location import NAME_LIMIT, REFUSED_CHARACTERS, check_name
from tests.unit.stores.postgres.database import Place
from tests.unit.stores.postgres.test_producers import a_started_run, taken


def refusal(place: Place, statement: str, *values: object) -> str | None:
    """Return why a statement is refused, or None. Its effects are rolled back."""
    try:
        with place.connection.transaction(force_rollback=True):
            place.execute(statement, *values)
    except psycopg.Error as error:
        return str(error)
    return None


INSERT = "insert into {schema}.intent (type, payload) values ('shop', %s)"
SEND = "select {schema}.send('r', 'go', %s::text::json)"
EMIT = "select {schema}.emit('t', %s::text::json)"


# Values


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


LARGEST = "1.7976931348623157e308"
UNREADABLE = {
    "1e400": "number",
    "-1e400": "number",
    "1.7976931348623159e308": "number",
    "1e99999999999999999999": "number",
    "9" * 309 + ".5": "number",
    "9" * 250 + "e99": "number",
    "1e-400": "number",
    "2e-324": "number",
    "1e-99999999999999999999": "number",
    "1" * 4_301: "4,301 digits",
    "-" + "1" * 6_000: "6,000 digits",
    r'"\ud800"': "surrogate",
    r'"\udc00"': "surrogate",
    r'"\ud800\ud800"': "surrogate",
    r'"\udc00\ud800"': "surrogate",
    r'"\ud800x"': "surrogate",
    r'"\uD83Dx\uDE00"': "surrogate",
    r'{"\ud800": 1}': "surrogate",
    nested(DEPTH_LIMIT + 1): "nested deeper than 64 levels",
    '{"a":' * 65 + "1" + "}" * 65: "nested deeper than 64 levels",
    '[{"a":' * 33 + "1" + "}]" * 33: "nested deeper than 64 levels",
    nested(5_000): "nested deeper than 64 levels",
    '{"a": 1, "a": 2}': "same key",
    r'{"a": 1, "\u0061": 2}': "same key",
    '[{"b": {"a": 1, "c": [], "a": 1}}]': "same key",
    '{"": 1, "": 2}': "same key",
    f'"{"x" * VALUE_LIMIT_BYTES}"': "the limit is",
}

READABLE = [
    "null",
    "-0",
    "-0.0",
    "0e400",
    "0.000e-99999",
    "1e22",
    "1E+5",
    "5e-324",
    LARGEST,
    "1.797693134862315807e308",
    "9007199254740993",
    "18446744073709551616",
    "-9223372036854775809",
    "1" * 4_300,
    "0.1000000000000000055511151231257827",
    "1" * 400 + "e-300",
    "0." + "0" * 300 + "1e300",
    r'"\ud83d\ude00"',
    r'"\u0000"',
    r'"\\u0000 \\ud800"',
    '"\u202e\u200b\x7f"',
    r'{"\u0000": 1, "\u0001": 2}',
    '{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}',
    '{"a:b": "c:d", "e": "\\":"}',
    nested(DEPTH_LIMIT),
    "[" + "[]," * 200 + "[]]",
    '"' + "[" * 200 + '"',
    f'"{"x" * (VALUE_LIMIT_BYTES - 2)}"',
    " [ 1 , 2 ] ",
]


@pytest.mark.parametrize("statement", [INSERT, SEND, EMIT], ids=["insert", "send", "emit"])
def test_a_value_that_python_cannot_read_is_refused_with_the_reason(place: Place, statement: str) -> None:
    a_started_run(place)
    for value, reason in UNREADABLE.items():
        payload = f'{{"value": {value}}}' if statement == INSERT and "nested" not in reason else value
        found = refusal(place, statement, payload)
        assert found is not None, value[:80]
        if not (statement == INSERT and "nested" in reason):
            assert reason in found, (value[:80], found)
        assert len(found) < 1_000


@pytest.mark.parametrize("statement", [INSERT, SEND, EMIT], ids=["insert", "send", "emit"])
def test_a_value_that_python_can_read_is_accepted(place: Place, statement: str) -> None:
    a_started_run(place)
    for value in READABLE:
        is_wrapped = statement == INSERT and value != nested(DEPTH_LIMIT) and len(value) < VALUE_LIMIT_BYTES - 2
        if statement == INSERT and not is_wrapped:
            continue
        payload = f'{{"value": {value}}}' if is_wrapped else value
        assert refusal(place, statement, payload) is None, value[:80]


def test_the_lists_of_this_module_agree_with_python() -> None:
    assert [value[:80] for value in UNREADABLE if python_accepts(value)] == []
    assert [value[:80] for value in READABLE if not python_accepts(value)] == []


def python_accepts(text: str) -> bool:
    """True if a Python producer could have written this: it reads back, within the limits, without loss."""
    try:
        encode_any(decode_any(text))
        json.loads(text, object_pairs_hook=_distinct, parse_float=_exact_enough)
    except (InvalidRequest, ValueError, RecursionError):
        return False
    return len(text.encode()) <= VALUE_LIMIT_BYTES


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("the same key twice")
    return dict(pairs)


def _exact_enough(text: str) -> float:
    value = float(text)
    if value == 0 and any(digit in text.lower().partition("e")[0] for digit in "123456789"):
        raise ValueError("too small for a double")
    return value


def _joined(parts: list[str]) -> str:
    return f"[{','.join(parts)}]"


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"


NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.one_of(st.integers(0, 10**20).map(str), st.integers(1, 4_310).map("7".__mul__)),
    st.sampled_from(["", ".0", ".5", ".0001", "." + "3" * 400]),
    st.sampled_from(
        ["", "e0", "E5", "e22", "e+99", "e299", "e307", "e308", "e309", "e-308", "e-323", "e-325", "e9999"]
    ),
)
PIECES = [
    r"\ud83d",
    r"\ude00",
    r"\ud800",
    r"\udfff",
    r"\u0000",
    r"\u0041",
    r"\\",
    r"\"",
    r"\n",
    "a",
    "é",
    ":",
    "{",
    "[",
    "]",
]
STRINGS = st.lists(st.sampled_from(PIECES), max_size=6).map(lambda pieces: f'"{"".join(pieces)}"')
KEYS = st.sampled_from(['"a"', '"b"', r'"\u0061"', '"a:b"', '""', r'"\u0000"', r'"\ud800"'])
TEXTS = st.recursive(
    st.one_of(st.sampled_from(["null", "true", "1", "0"]), NUMBERS, STRINGS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(_joined),
        st.lists(st.tuples(KEYS, inner), max_size=4).map(_object),
        st.tuples(inner, st.integers(1, 70)).map(lambda both: "[" * both[1] + both[0] + "]" * both[1]),
    ),
    max_leaves=12,
)


@pytest.fixture
def started(place: Place) -> Place:
    a_started_run(place)
    return place


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
@example(text="{}")
def test_sql_accepts_a_value_exactly_if_python_does(started: Place, text: str) -> None:
    found = refusal(started, SEND, text)

    assert (found is None) == python_accepts(text), found


# Names

CHARACTERS = [chr(code) for first, last, _ in REFUSED_CHARACTERS for code in (first, last) if code]
TEXT_OF_POSTGRES = [character for character in CHARACTERS if not "\ud800" <= character <= "\udfff"]

NAMES = {
    "insert into {schema}.intent (type) values (%s)": check_type,
    "insert into {schema}.intent (type, id) values ('a', %s)": check_id,
    "insert into {schema}.intent (type, idempotency_key) values ('a', %s)": check_key,
    "insert into {schema}.intent (type, tags) values ('a', jsonb_build_object(%s::text, 'x'))": lambda name: check_tags(
        {name: "x"}
    ),
    "insert into {schema}.intent (type, tags) values ('a', jsonb_build_object('x', %s::text))": lambda name: check_tags(
        {"x": name}
    ),
    "select {schema}.send('r', %s)": check_name,
    "select {schema}.send('r', 'go', id => %s)": check_id,
    "select {schema}.emit(%s)": check_topic,
    "select {schema}.emit('t', id => %s)": check_id,
}

SAMPLES = [
    *(f"a{character}b" for character in TEXT_OF_POSTGRES),
    *("a\u200cb", "a\u200db", "a\ue000b", "é", "漢", "a\u0300", "\U0001f600"),
    *("a b", "a\u00a0b", "a\u2003b", "a\u3000b", " a", "a,b", "a*", "a'b", 'a"b', "a/b", "a#b", "~a", "+a", "a~+"),
    *("a.b", "%", "\\", "{}", "$1", ";"),
    *("", "x" * NAME_LIMIT, "x" * (NAME_LIMIT + 1), "é" * NAME_LIMIT, "x" * KEY_LIMIT, "x" * (KEY_LIMIT + 1)),
]


@pytest.mark.parametrize("statement", NAMES)
def test_sql_accepts_a_name_exactly_if_python_does(started: Place, statement: str) -> None:
    for name in SAMPLES:
        try:
            NAMES[statement](name)
            is_accepted = True
        except InvalidRequest:
            is_accepted = False
        found = refusal(started, statement, name)
        assert (found is None) == is_accepted, (name, found)


def test_a_refused_character_is_named_and_not_shown(started: Place) -> None:
    found = refusal(started, "select {schema}.emit(%s)", "a\u202eb")

    assert found is not None
    assert "U+202E" in found
    assert "\u202e" not in found


# Instants

INSTANTS = {
    "infinity": False,
    "-infinity": False,
    "9999-12-31T23:59:59.999999Z": True,
    "10000-01-01T00:00:00Z": False,
    "0001-01-01T00:00:00Z": True,
    "0001-12-31T23:59:59Z BC": False,
    "1960-01-01T00:00:00Z": True,
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_an_instant_must_be_in_the_years_that_python_knows(place: Place, instant: str) -> None:
    found = refusal(place, "insert into {schema}.intent (type, run_at) values ('a', %s)", instant)

    assert (found is None) == INSTANTS[instant], found
    assert found is None or "years 1 to 9999" in found


async def test_values_and_instants_that_sql_accepts_are_listed_and_read(place: Place) -> None:
    for number, value in enumerate(READABLE):
        if len(value) < VALUE_LIMIT_BYTES - 2 and value != nested(DEPTH_LIMIT):
            text = f'{{"value": {value}}}'
            place.execute("insert into {schema}.intent (id, type, payload) values (%s, 'shop', %s)", f"r{number}", text)
    for index, instant in enumerate(moment for moment, is_good in INSTANTS.items() if is_good):
        place.execute("insert into {schema}.intent (id, type, run_at) values (%s, 'shop', %s)", f"i{index}", instant)

    async with Holdfast(place.url) as hf:
        listed = [run async for run in hf.list()]

    assert len(listed) == len(place.all("select id from {schema}.runs"))
    assert taken(place) == []


# Damaged rows


def test_a_damaged_row_does_not_hide_the_others_from_the_views(place: Place) -> None:
    place.execute("insert into {schema}.intent (id, type) values ('good', 'shop')")
    place.execute(
        "insert into {schema}.runs (id, type, start_at, payload, result, error, ready_at) "
        "values ('odd', 'a b', 0, 'oops', '{', 'no', 'infinity')"
    )

    select = "select id, payload is null, result is null from {schema}.%s order by id"
    assert place.all(select.replace("%s", "run")) == [("good", False, True), ("odd", True, True)]
    assert place.all(select.replace("%s", "intent")) == [("good", False, True), ("odd", False, True)]
