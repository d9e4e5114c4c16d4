"""Filters: the choice of runs for a command."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.exits import Refusal
from holdfast.cli.filters import chosen_filter, parse_filter
from holdfast.core.states import RunState


def test_every_condition_has_its_word() -> None:
    chosen = parse_filter(
        [
            "state:failed,blocked",
            "type:billing.*",
            "tag.shop:x",
            "tag.a.b:c:d",
            "key:k:1",
            "since:2h",
            "parent:p",
            "until:2030-01-31T00:00Z",
        ]
    )

    assert chosen == {
        "state": {RunState.FAILED, RunState.BLOCKED},
        "type": "billing.*",
        "key": "k:1",
        "tags": {"shop": "x", "a.b": "c:d"},
        "parent_id": "p",
        "since": timedelta(hours=2),
        "until": datetime(2030, 1, 31, tzinfo=UTC),
    }


def test_several_states_are_combined() -> None:
    assert parse_filter(["state:failed", "state:blocked"])["state"] == {RunState.FAILED, RunState.BLOCKED}


def test_no_words_choose_every_run() -> None:
    assert parse_filter([]) == parse_filter(["type:*"]) == {}


def test_options_and_words_have_the_same_effect() -> None:
    options = {"states": ("failed",), "tags": ("shop=x",), "type": "a.*", "key": None, "parent": None}

    chosen = chosen_filter([], {**options, "since": "2h", "until": None, "deleted": True})

    assert chosen == parse_filter(["state:failed", "tag.shop:x", "type:a.*", "since:2h", "deleted:true"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("failed", "'failed' is not a filter; did you mean state:failed"),
        ("billing.invoice", "did you mean type:billing.invoice"),
        ("nonsense", "use state: type:"),
        ("deleted:yes", "deleted:yes: expected true or false"),
        ("state:faild", r"no state 'faild' \(did you mean failed\?\); the states are pending"),
        ("color:red", "there is no filter 'color'"),
        ("tag.:x", "there is no filter 'tag.'"),
        ("type:", "has no value"),
        ("type:a*b", "a star is allowed only at the end"),
        ("since:soon", "since:soon: 'soon' is not a length of time"),
        ("until:2h", "until:2h: '2h' is not a valid moment"),
    ],
)
def test_an_invalid_condition_is_refused_with_a_suggestion(word: str, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        parse_filter([word])


def test_a_condition_cannot_be_given_twice() -> None:
    with pytest.raises(Refusal, match="the filter type: is given twice"):
        parse_filter(["type:a", "type:b"])
