"""Payloads as typed on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.payloads import parse_object, parse_pair, parse_payload


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], None),
        (['{"a": 1}'], {"a": 1}),
        (["[1, 2]"], [1, 2]),
        (['"text"'], "text"),
        (["17"], 17),
        (["null"], None),
        (["name=ann", "count:=3"], {"name": "ann", "count": 3}),
        (["name="], {"name": ""}),
        (["url=http://x/?a=b"], {"url": "http://x/?a=b"}),
        (['list:=["a=b"]'], {"list": ["a=b"]}),
        (['{"a=b": 1}'], {"a=b": 1}),
        (["text=line\nline"], {"text": "line\nline"}),
    ],
)
def test_a_payload_is_json_or_pairs(words: list[str], value: Any) -> None:
    assert parse_payload(words) == value


def test_a_payload_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"name": "änn"}', encoding="utf-8")

    assert parse_payload([f"@{file}"]) == {"name": "änn"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (['{"a": 1 2}'], "the payload is not JSON: .* at line 1, column 9"),
        (['{"a": 1,}'], "the payload is not JSON: .* at line 1, column "),  # Python 3.13 counts to the comma
        (["hello"], "the payload is not JSON.*a payload is JSON, @file"),
        (["a=1", "b"], "'b' is not a pair"),
        (["a=1", "a=2"], "'a' is given twice"),
        (["a:=x"], "the value of 'a' is not JSON.*for a string write a=…"),
        (["a:=NaN"], "NaN is not a JSON value"),
        (["@missing.json"], "there is no file 'missing.json'"),
        (["@."], "cannot read the payload from '.'"),
        (["[" * 100_000], "nested too deeply"),
    ],
)
def test_an_invalid_payload_is_refused_with_the_reason(words: list[str], message: str) -> None:
    with pytest.raises(Refusal, match=message) as refusal:
        parse_payload(words)

    assert refusal.value.code is ExitCode.USAGE


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_bytes(b"\xff\xfe")

    with pytest.raises(Refusal, match="not UTF-8 text"):
        parse_payload([f"@{file}"])


def test_parameters_of_a_workflow_are_an_object() -> None:
    assert parse_object([]) == {}
    assert parse_object(["a:=1"]) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "kind"),
    [("[1]", "an array"), ("3", "a number"), ('"x"', "a string"), ("null", "null"), ("true", "a boolean")],
)
def test_parameters_that_are_not_an_object_are_refused(text: str, kind: str) -> None:
    with pytest.raises(Refusal, match=f"not {kind}"):
        parse_object([text])


def test_a_pair_needs_a_name_and_a_value() -> None:
    assert parse_pair("shop=a=b", "--tag") == ("shop", "a=b")
    for text in ("shop", "shop=", "=x"):
        with pytest.raises(Refusal, match=f"--tag '{text}': write it as name=value"):
            parse_pair(text, "--tag")
