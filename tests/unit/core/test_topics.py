"""Topics: which rules apply, and which are invalid."""

from __future__ import annotations

import pytest

from holdfast.core.model import Topic
from holdfast.core.topics import covers, topic_of

KNOWN = {name: Topic(name=name) for name in ("a", "a*", "a.b*", "a.b.c", "*")}


@pytest.mark.parametrize(
    ("name", "found"),
    [("a", "a"), ("ab", "a*"), ("a.", "a*"), ("a.b", "a.b*"), ("a.b.c", "a.b.c"), ("a.b.cd", "a.b*"), ("b", "*")],
)
def test_the_exact_name_wins_and_otherwise_the_longest_prefix(name: str, found: str) -> None:
    assert topic_of(name, KNOWN).name == found


def test_a_topic_without_rules_has_the_defaults() -> None:
    assert topic_of("x", {"y*": Topic(name="y*", mode="queue")}) == Topic(name="x")
    assert topic_of("x", {}) == Topic(name="x", mode="fanout", retention=7 * 86_400_000_000, max_pending=10_000)


def test_a_star_has_a_meaning_only_at_the_end() -> None:
    assert covers("a*", "abc")
    assert covers("*", "")
    assert not covers("a*c", "abc")
    assert covers("a*c", "a*c")
