"""Commands that change something: start, send, emit, cancel."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import Holdfast
from holdfast.testing.patience import wait_for
from tests.rows import each_row
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


@contextmanager
def a_worker(shop: Shop) -> Iterator[None]:
    """Run a worker in a thread while a command executes."""
    is_started, is_over = threading.Event(), threading.Event()

    async def work(hf: Holdfast) -> None:
        import asyncio

        async with hf.worker(name="tester"):
            is_started.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=shop.do, args=(work,))
    thread.start()
    wait_for("the worker has started", is_started)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# Start


def test_a_start_prints_the_id_and_creates_the_database(shop: Shop) -> None:
    result = shop.type("start", "shop.add.v1", "a:=1", "b:=2")

    assert result.exit_code == 0
    assert shop.read("ls")[0]["id"] == result.stdout.strip()
    assert "no worker for shop.add.v1 is running yet" in result.stderr


def test_a_start_of_an_unknown_type_suggests_the_type_with_a_similar_name(shop: Shop) -> None:
    shop.type("types", "set", "shop.add.v1", "--concurrency", "5")
    result = shop.type("start", "shop.ad.v1", "a:=1", "b:=2")

    assert result.exit_code == 0
    assert "no worker for shop.ad.v1 is running yet; the run waits for one; did you mean shop.add.v1?" in result.stderr


def test_a_start_stores_all_options_of_the_run(shop: Shop) -> None:
    payload, options = ("a:=1", "b:=2"), ("--key", "k", "--priority", "5", "--delay", "1h")

    started = shop.read("start", "shop.add.v1", *payload, *options, "--tag", "shop=x", "--tag", "size=m")

    assert started == {"id": shop.read("ls")[0]["id"], "created": True}
    (run,) = shop.read("ls")
    assert (run["key"], run["priority"], run["tags"]) == ("k", 5, {"shop": "x", "size": "m"})
    assert run["payload"] == {"a": 1, "b": 2}
    assert run["ready_at"] > run["created_at"]
    listed = shop.type("ls").stdout
    assert "starts in 59 min" in listed or "starts in 1 h" in listed


def test_a_start_can_be_delayed_until_an_instant(shop: Shop) -> None:
    result = shop.type("start", "shop.add.v1", "--at", "2999-01-31T09:00Z")

    assert "starts at 2999-01-31 09:00:00 UTC" in result.stderr
    assert shop.read("ls")[0]["ready_at"] == "2999-01-31T09:00:00.000000Z"


def test_the_payload_may_come_from_stdin(shop: Shop) -> None:
    shop.type("start", "shop.add.v1", "-", stdin='{"a": 1, "b": 2}')

    assert shop.read("ls")[0]["payload"] == {"a": 1, "b": 2}


def test_the_same_key_is_the_same_run(shop: Shop) -> None:
    first = shop.read("start", "shop.add.v1", "a:=1", "b:=2", "--key", "k")
    second = shop.type("start", "shop.add.v1", "a:=1", "b:=2", "--key", "k", "--json")

    assert json.loads(second.stdout) == {"id": first["id"], "created": False}
    assert "a run with this key already exists" in second.stderr


def test_the_same_key_with_another_payload_is_a_conflict(shop: Shop) -> None:
    first = shop.read("start", "shop.add.v1", "a:=1", "b:=2", "--key", "k")

    result = shop.type("start", "shop.add.v1", "a:=1", "b:=3", "--key", "k")

    assert result.exit_code == 6
    assert first["id"] in result.stderr


def test_a_start_that_waits_prints_the_result(shop: Shop) -> None:
    with a_worker(shop):
        plain = shop.type("start", "shop.add.v1", "a:=1", "b:=2", "--wait")
        whole = shop.read("start", "shop.add.v1", "a:=1", "b:=2", "--wait")
        failed = shop.type("start", "shop.broken.v1", "--wait")

    assert (plain.exit_code, plain.stdout) == (0, "3\n")
    assert (whole["state"], whole["result"], whole["created"]) == ("succeeded", 3, True)
    assert failed.exit_code == 10
    assert "the card [bold]was\\x1b[31m refused" in failed.stderr


def test_a_start_that_waits_until_its_timeout_leaves_the_run_alone(shop: Shop) -> None:
    result = shop.type("start", "shop.add.v1", "a:=1", "b:=2", "--wait", "--timeout", "50ms")

    assert result.exit_code == 12
    assert shop.read("ls")[0]["state"] == "pending"


@each_row(
    ("words", "message"),
    [
        (["start", "x", "--delay", "1s", "--at", "2030-01-01"], "--delay and --at contradict each other"),
        (["start", "x", "--timeout", "1s"], "add --wait"),
        (["start", "x", "--tag", "shop"], "--tag 'shop': write it as name=value"),
        (["start", "x", "--priority", "300"], "a priority is a whole number from 0"),
        (["start", "x", "--delay", "soon"], "'soon' is not a length of time"),
        (["start", "x", "--at", "soon"], "'soon' is not a valid moment"),
        (["start", "x", "[1]"], "not an array"),
        (["start", "x", "{"], "the payload is not JSON"),
        (["start", "x", "@missing.json"], "there is no file 'missing.json'"),
        (["start", "bad type"], "a type name must not contain spaces"),
        (["start"], "Missing argument 'TYPE'"),
        (["emit", "x", "{"], "the payload is not JSON"),
        (["emit", ""], "a topic is a string of 1 to"),
        (["cancel"], "name the runs to cancel, or select them with --filter"),
        (["cancel", "x", "--filter", "state:failed", "--yes"], "or select them with --filter"),
        (["cancel", "x"], "add --yes"),
        (["cancel", "--filter", " ", "--yes"], "an empty filter would cancel every run"),
        (["cancel", "--filter", "failed", "--yes"], "did you mean state:failed"),
        (["workers", "rm"], "'rm' is not 'ls'"),
        (["demo", "--url", "sqlite:///x.db"], "the demo creates its own database"),
    ],
)
def test_a_usage_error_is_reported_and_changes_nothing(shop: Shop, words: list[str], message: str) -> None:
    result = shop.type(*words)

    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert not shop.path.exists()


# Send and emit


def test_a_message_reaches_its_run(shop: Shop) -> None:
    shop.start("shop.order.v1", {"name": "ann"}, key="order-17")

    sent = shop.type("send", "key:order-17", "approve", "by=bob")
    shop.work()

    assert sent.stdout.startswith("sent approve to ")
    assert json.loads(shop.type("result", "key:order-17").stdout) == {"paid": "paid for ann", "approval": {"by": "bob"}}


def test_the_same_message_id_twice_is_one_message(shop: Shop) -> None:
    run_id = shop.start("shop.order.v1", {"name": "ann"})

    sent = [shop.read("send", run_id, "approve", "--id", "m1") for _ in range(2)]

    assert sent == [{"run_id": run_id, "name": "approve", "id": "m1"}] * 2


def test_a_message_to_an_unknown_run_is_not_found(shop: Shop) -> None:
    shop.type("migrate")

    assert shop.type("send", "nope", "approve").exit_code == 3


def test_a_message_to_a_run_that_has_ended_is_a_conflict(shop: Shop) -> None:
    run_id = shop.start("shop.add.v1", {"a": 1, "b": 2})
    shop.work()

    result = shop.type("send", run_id, "approve")

    assert result.exit_code == 6
    assert "has ended and takes no more messages" in result.stderr


def test_an_event_reaches_the_runs_that_wait_for_it(shop: Shop) -> None:
    shop.start("shop.event.v1", {"topic": "paid"}, key="waits")
    shop.work()

    assert shop.type("emit", "paid", '{"cents": 1}').stdout == "reached 1 waiting run\n"
    assert shop.read("emit", "nobody") == {"topic": "nobody", "reached": 0}
    shop.work()
    assert shop.read("result", "key:waits")["result"] == {"cents": 1}


# Cancel


def test_a_run_is_cancelled_with_a_reason(shop: Shop) -> None:
    run_id = shop.start("shop.order.v1", {"name": "ann"})

    result = shop.type("cancel", run_id, "--yes", "--reason", "ordered twice")

    assert (result.exit_code, result.stdout) == (0, f"cancelled {run_id}\n")
    assert shop.type("result", run_id).exit_code == 11
    assert "was cancelled: ordered twice" in shop.type("result", run_id).stderr
    assert shop.type("watch", run_id).exit_code == 11


def test_a_finished_run_cannot_be_cancelled(shop: Shop) -> None:
    ended, live = (shop.start("shop.order.v1", {"name": name}) for name in ("ann", "bob"))
    shop.type("cancel", ended, "--yes")

    result = shop.type("cancel", ended, live, "--yes", "--json")

    assert result.exit_code == 6
    assert json.loads(result.stdout) == [{"id": ended, "cancelled": False}, {"id": live, "cancelled": True}]
    assert f"run {ended} had ended already" in result.stderr


def test_a_run_that_is_named_twice_is_cancelled_once(shop: Shop) -> None:
    run_id = shop.start("shop.order.v1", {"name": "ann"}, key="k")

    assert shop.type("cancel", run_id, "key:k", "--yes").stdout == f"cancelled {run_id}\n"


def test_one_unknown_run_among_several_cancels_nothing(shop: Shop) -> None:
    run_id = shop.start("shop.order.v1", {"name": "ann"})

    assert shop.type("cancel", run_id, "nope", "--yes").exit_code == 3
    assert shop.read("show", run_id)["run"]["state"] == "pending"


def test_a_filter_cancels_all_live_runs_that_match_and_no_others(shop: Shop) -> None:
    done = shop.start("shop.add.v1", {"a": 1, "b": 2}, tags={"shop": "x"})
    shop.work()
    wanted = {shop.start("shop.order.v1", {"name": str(number)}, tags={"shop": "x"}) for number in range(25)}
    other = shop.start("shop.order.v1", {"name": "other"})

    shown = shop.type("cancel", "--filter", "tag.shop:x", "--dry-run")
    result = shop.type("cancel", "--filter", "tag.shop:x type:shop.*", "--yes")

    assert "25 runs would be cancelled; nothing was changed" in shown.stderr
    assert {line.split()[1] for line in result.stdout.splitlines()} == wanted
    states = {run["id"]: run["state"] for run in shop.read("ls")}
    assert (states[done], states[other]) == ("succeeded", "pending")


def test_a_filter_that_matches_only_ended_runs_cancels_nothing(shop: Shop) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2})
    shop.work()

    result = shop.type("cancel", "--filter", "state:succeeded", "--yes")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no live run matches\n")
    assert shop.read("cancel", "--filter", "state:succeeded", "--dry-run") == []
