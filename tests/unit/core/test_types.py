"""Types: their settings, and refusals that name the given value."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET

from holdfast.core.clock import SECOND
from holdfast.core.errors import InvalidRequest
from holdfast.core.limits import checked_change, first_line
from holdfast.core.model import Rate, TypeChange
from tests.rows import each_row


def test_a_setting_that_is_not_given_is_not_changed() -> None:
    assert checked_change("shop.v1") == TypeChange(name="shop.v1")
    assert checked_change("shop.v1", concurrency=5).rate is UNSET


def test_every_setting_can_be_given() -> None:
    change = checked_change(
        "shop.v1",
        enabled=False,
        concurrency=5,
        per_key={"tenant": 2},
        rate=(100, timedelta(minutes=1)),
        retention=60,
        description="Sells.",
        runtime="go",
    )

    assert change == TypeChange(
        name="shop.v1",
        is_enabled=False,
        concurrency=5,
        per_key={"tenant": 2},
        rate=Rate(count=100, period=60 * SECOND),
        retention=60 * SECOND,
        description="Sells.",
        runtime="go",
    )


def test_none_lifts_a_limit() -> None:
    change = checked_change("shop.v1", concurrency=None, per_key=None, rate=None, retention=None)

    assert (change.concurrency, change.per_key, change.rate, change.retention) == (None, {}, None, None)


@each_row(
    ("said", "words"),
    [
        ({"name": "shop *"}, "type name"),
        ({"name": ""}, "type name"),
        ({"enabled": 1}, "enabled=1"),
        ({"enabled": None}, "enabled=None"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": True}, "concurrency=True"),
        ({"concurrency": 2.0}, "concurrency=2.0"),
        ({"concurrency": 2**31}, "concurrency=2147483648"),
        ({"per_key": ["tenant"]}, "per_key="),
        ({"per_key": {"tenant": 0}}, "per_key['tenant']=0"),
        ({"per_key": {"": 1}}, "tag's name"),
        ({"per_key": {str(number): 1 for number in range(11)}}, "11 tags"),
        ({"rate": 100}, "rate=100"),
        ({"rate": (100,)}, "rate=(100,)"),
        ({"rate": (0, 60)}, "count=0"),
        ({"rate": (1, 0)}, "longer than 0"),
        ({"rate": (1, -1)}, "longer than 0"),
        ({"rate": (1, "60s")}, "'60s'"),
        ({"rate": (1, True)}, "True"),
        ({"retention": 0}, "retention=0"),
        ({"description": "x" * 501}, "description"),
        ({"description": "a\0b"}, "description"),
        ({"runtime": "x" * 51}, "runtime"),
        ({"runtime": None}, "runtime"),
    ],
)
def test_invalid_settings_are_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked_change(**{"name": "shop.v1", **said})

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [(None, ""), ("", ""), ("  Sells.\n\n    More.", "Sells."), ("a\tb", "ab"), ("x" * 600, "x" * 500)],
)
def test_the_summary_is_the_first_line_of_a_docstring(text: str | None, line: str) -> None:
    assert first_line(text) == line
