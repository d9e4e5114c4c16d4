"""Times as people write and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.option import parse_moment, parse_since
from holdfast.cli.output import ago, spoken
from holdfast.core.length import parse_length

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 ms"),
        (0.0004, "0 ms"),
        (0.012, "12 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (1.23, "1.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (180, "3 min"),
        (1234, "20 min"),
        (7500, "2 h 5 min"),
        (86_400, "1 d"),
        (93_600, "1 d 2 h"),
        (3, "3 s"),
        (-1.5, "-1.5 s"),
    ],
)
def test_a_duration_is_formatted_as_briefly_as_possible(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("30s", 30),
        ("5m", 300),
        ("5 min", 300),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("500ms", 0.5),
    ],
)
def test_a_duration_may_be_written_in_several_ways(text: str, seconds: float) -> None:
    assert parse_length(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5x", "-3", "1h soon", "9999999d", "nan", "inf"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_length(text)


def test_an_instant_without_a_zone_is_local_time() -> None:
    assert parse_moment("2030-01-31T12:00Z") == NOW
    assert parse_moment("2030-01-31T12:00").replace(tzinfo=None) == NOW.replace(tzinfo=None)


def test_an_invalid_instant_is_refused() -> None:
    with pytest.raises(ValueError, match="'tomorrow' is not a valid moment"):
        parse_moment("tomorrow")


def test_since_takes_an_instant_or_an_age() -> None:
    assert parse_since("2h") == timedelta(hours=2)
    assert parse_since("2030-01-31T12:00Z") == NOW


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.3, "now"), (5.2, "5 s ago"), (-61, "in 1 min 1 s"), (90_000, "1 d 1 h ago")]
)
def test_an_instant_is_shown_by_its_distance_in_whole_seconds(seconds: float, words: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == words
