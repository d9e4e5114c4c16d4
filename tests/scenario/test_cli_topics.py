"""Commands for topics and dead letters, requests from the command line, and pruning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Holdfast
from tests.scenario.test_cli_acting import a_worker
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


def bury(shop: Shop, *topics: str) -> None:
    """Turn one event of each topic into a dead letter."""
    shop.type("topics", "set", "*", "--mode", "queue", "--retention", "1ms")
    for number, topic in enumerate(topics):
        shop.type("emit", topic, f'{{"job": {number}}}')

    async def pass_a_moment(hf: Holdfast) -> None:
        import asyncio

        await asyncio.sleep(0.005)

    shop.do(pass_a_moment)
    shop.type("prune")


def numbers(shop: Shop, *words: str) -> list[int]:
    letters: list[dict[str, Any]] = shop.read("topics", "dead-letters", *words)
    return [letter["number"] for letter in letters]


# Topics


def test_rules_are_set_one_by_one_and_listed(shop: Shop) -> None:
    first = shop.type("topics", "set", "jobs", "--mode", "queue", "--retention", "12h")
    shop.type("topics", "set", "jobs", "--max-pending", "5")
    shop.type("topics", "set", "a*", "--mode", "fanout")

    assert first.stdout == "jobs: queue, kept for 12 h, at most 10000\n"
    assert shop.read("topics", "ls") == [
        {"name": "a*", "mode": "fanout", "retention_seconds": 604_800.0, "max_pending": 10_000},
        {"name": "jobs", "mode": "queue", "retention_seconds": 43_200.0, "max_pending": 5},
    ]
    assert shop.type("topics", "ls").stdout.splitlines() == [
        "NAME  MODE    RETENTION  MAX PENDING",
        "a*    fanout  7 d              10000",
        "jobs  queue   12 h                 5",
    ]


def test_an_empty_list_of_topics_says_so(shop: Shop) -> None:
    shop.type("migrate")

    assert "no topic has rules" in shop.type("topics", "ls").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topics", "set", "jobs"], "nothing to set; give"),
        (["topics", "set", "jobs", "--mode", "stack"], "'stack' is not one of"),
        (["topics", "set", "jobs", "--max-pending", "0"], "max_pending=0"),
        (["topics", "set", "", "--mode", "queue"], "a topic is a string"),
        (["topics", "lst"], "did you mean `holdfast topics ls`?"),
        (["topics", "xyzzy"], "it has ls, set, dead-letters, replay, purge"),
        (["topics", "replay"], "name the dead letters to replay"),
        (["topics", "purge", "1", "--topic", "x", "--yes"], "name the dead letters to purge"),
        (["topics", "purge", "1"], "add --yes"),
        (["topics", "purge", "one", "--yes"], "'one' is not a valid integer"),
        (["send", "x", "y", "--timeout", "1s"], "add --wait"),
    ],
)
def test_a_usage_error_is_reported_and_changes_nothing(shop: Shop, words: list[str], message: str) -> None:
    result = shop.type(*words)

    assert result.exit_code == 2
    assert message in result.stderr
    assert not shop.path.exists()


# Dead letters


def test_dead_letters_are_shown(shop: Shop) -> None:
    bury(shop, "jobs", "orders.1")

    (letter,) = shop.read("topics", "dead-letters", "orders.*")
    table = shop.type("topics", "dead-letters").stdout.splitlines()

    assert {**letter, "id": None, "at": None} == {
        "number": 2,
        "id": None,
        "topic": "orders.1",
        "run_id": None,
        "name": None,
        "payload": {"job": 1},
        "at": None,
        "reason": "expired",
        "unreadable": None,
    }
    assert table[0].split() == ["NUMBER", "KIND", "OF", "REASON", "GIVEN", "UP", "PAYLOAD"]
    assert table[1].split()[:4] == ["1", "event", "jobs", "expired"]


def test_messages_that_were_never_received_are_among_them(shop: Shop) -> None:
    run_id = shop.start("shop.add.v1", {"a": 1, "b": 2}, undelivered="dead_letter")
    shop.type("send", run_id, "hello", "1")
    shop.work()

    (letter,) = shop.read("topics", "dead-letters")
    replayed = shop.type("topics", "replay", "1", "--yes")

    assert (letter["run_id"], letter["name"], letter["reason"]) == (run_id, "hello", "undelivered")
    assert (replayed.exit_code, replayed.stdout) == (6, "replayed 0 dead letters\n")


def test_a_replayed_letter_reaches_a_run(shop: Shop) -> None:
    bury(shop, "jobs")
    shop.type("topics", "set", "*", "--retention", "7d")
    shop.start("shop.event.v1", {"topic": "jobs"}, key="waits")
    shop.work()

    assert shop.type("topics", "replay", "1", "--yes").stdout == "replayed 1 dead letter\n"

    shop.work()
    assert shop.read("result", "key:waits")["result"] == {"job": 0}
    assert numbers(shop) == []


def test_letters_of_a_topic_are_purged_after_a_preview(shop: Shop) -> None:
    bury(shop, "jobs", "orders.1", "jobs")

    preview = shop.type("topics", "purge", "--topic", "jobs", "--dry-run")
    kept = numbers(shop)
    purged = shop.read("topics", "purge", "--topic", "jobs", "--yes")

    assert "2 dead letters would be purged; nothing was changed" in preview.stderr
    assert (kept, purged, numbers(shop)) == ([1, 2, 3], {"purged": 2}, [2])


def test_an_unknown_letter_is_a_conflict(shop: Shop) -> None:
    shop.type("migrate")

    assert shop.type("topics", "purge", "9", "--yes").exit_code == 6


# Requests


def test_a_message_that_waits_prints_the_reply(shop: Shop) -> None:
    shop.start("shop.desk.v1", key="desk")

    with a_worker(shop):
        result = shop.type("send", "key:desk", "question", "6", "--wait", "--id", "q")
    again = shop.read("send", "key:desk", "question", "--wait", "--id", "q")

    assert (result.exit_code, json.loads(result.stdout)) == (0, {"answer": 6})
    assert (again["id"], again["reply"]) == ("q", {"answer": 6})


def test_a_reply_that_does_not_come_in_time_can_be_awaited_again(shop: Shop) -> None:
    shop.start("shop.desk.v1", key="desk")

    result = shop.type("send", "key:desk", "question", "--wait", "--timeout", "50ms", "--id", "q")

    assert result.exit_code == 12
    assert "--id q" in result.stderr


def test_a_run_that_ends_without_a_reply_is_a_conflict(shop: Shop) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")

    with a_worker(shop):
        result = shop.type("send", "key:sum", "question", "--wait")

    assert result.exit_code == 6


# Pruning


def test_pruning_reports_what_it_deleted(shop: Shop) -> None:
    shop.type("topics", "set", "few", "--max-pending", "1")
    for _ in range(3):
        shop.type("emit", "few")

    before = shop.type("prune", "--dry-run")
    done = shop.read("prune")
    after = shop.type("prune")

    assert (before.stdout, before.stderr) == ("        2  expired or surplus events\n", "nothing was changed\n")
    assert done == {
        "runs": {},
        "events": 2,
        "dead_letters": 0,
        "taken": 0,
        "flows": 0,
        "receipts": 0,
        "replies": 0,
        "has_more": False,
    }
    assert (after.stdout, after.stderr) == ("", "there is nothing to prune\n")
