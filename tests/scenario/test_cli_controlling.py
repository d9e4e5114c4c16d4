"""Commands that control runs: pause, resume, wake, recover, rewind, fork, and forced cancel."""

from __future__ import annotations

import json

import pytest

from holdfast import Context, Fatal, Holdfast
from holdfast.app import session_of
from holdfast.core.checkpoint import ClaimRequest
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


def a_waiting_order(shop: Shop, **options: object) -> str:
    """Start an order that is paid and waits for its approval."""
    run_id = shop.start("shop.order.v1", {"name": "ann"}, **options)
    shop.work()
    return run_id


def hold(shop: Shop) -> None:
    """Let a worker claim a ready order and hold it."""

    async def claim(hf: Holdfast) -> None:
        await session_of(hf).open()
        request = ClaimRequest(id="c", worker="w", types=("shop.order.v1",), limit=1, lease=60_000_000, python="3")
        assert len((await session_of(hf).store.claim(request)).leases) == 1

    shop.do(claim)


def state_of(shop: Shop, run_id: str) -> str:
    state: str = shop.read("show", run_id)["run"]["state"]
    return state


# Pausing


def test_a_run_is_paused_with_a_reason_and_resumed(shop: Shop) -> None:
    run_id = a_waiting_order(shop, key="k")

    paused = shop.type("pause", "key:k", "--reason", "closed today")
    explained = shop.type("explain", run_id).stdout
    resumed = shop.type("resume", run_id)

    assert (paused.exit_code, paused.stdout) == (0, f"paused {run_id}\n")
    assert "Paused since" in explained
    assert "(closed today)" in explained
    assert (resumed.exit_code, resumed.stdout) == (0, f"resumed {run_id}\n")
    assert state_of(shop, run_id) == "pending"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume"], "is not paused"),
        (["wake"], "is pending, so there is nothing to wake"),
        (["recover"], "is pending; only a failed, cancelled or blocked run can be recovered"),
    ],
)
def test_a_command_that_does_not_fit_the_state_of_a_run_says_so(shop: Shop, words: list[str], message: str) -> None:
    run_id = shop.start("shop.order.v1", {"name": "ann"})

    result = shop.type(*words, run_id, "--json")

    assert result.exit_code == 6
    ((_, is_done),) = [list(one.values()) for one in json.loads(result.stdout)]
    assert is_done is False
    assert message in result.stderr


def test_a_paused_run_is_not_paused_again(shop: Shop) -> None:
    run_id = a_waiting_order(shop)
    shop.type("pause", run_id)

    result = shop.type("pause", run_id)

    assert (result.exit_code, result.stdout) == (6, "")
    assert f"run {run_id} is paused already" in result.stderr


def test_a_filter_chooses_only_the_runs_that_the_command_applies_to(shop: Shop) -> None:
    waiting = {a_waiting_order(shop) for _ in range(3)}
    shop.start("shop.add.v1", {"a": 1, "b": 2})

    paused = shop.read("pause", "--filter", "type:shop.order.v1", "--yes")
    shown = shop.type("resume", "--filter", "type:shop.*", "--dry-run")
    resumed = shop.read("resume", "--filter", "type:shop.*", "--yes")

    assert {one["id"] for one in paused if one["paused"]} == waiting
    assert "3 runs would be resumed; nothing was changed" in shown.stderr
    assert {one["id"] for one in resumed} == waiting
    assert shop.type("resume", "--filter", "type:shop.*", "--yes").stderr == "no paused run matches\n"


def test_a_filter_needs_yes_without_a_terminal(shop: Shop) -> None:
    a_waiting_order(shop)

    result = shop.type("pause", "--filter", "type:shop.*")

    assert result.exit_code == 2
    assert "`pause` cannot ask for confirmation; add --yes" in result.stderr


def test_a_run_that_waits_is_woken(shop: Shop) -> None:
    run_id = a_waiting_order(shop)

    assert shop.read("wake", run_id) == [{"id": run_id, "woken": True}]


# Recovering


def test_a_failed_run_is_recovered(shop: Shop) -> None:
    run_id = shop.start("shop.broken.v1")
    shop.work()
    assert state_of(shop, run_id) == "failed"

    recovered = shop.read("recover", "--filter", "state:failed", "--yes")

    assert recovered == [{"id": run_id, "recovered": True}]
    assert state_of(shop, run_id) == "pending"
    assert shop.read("history", run_id) == []


def test_parents_and_children_are_recovered_in_any_order(shop: Shop) -> None:
    parent = shop.start("shop.parent.v1")
    shop.work()
    (child,) = [run["id"] for run in shop.read("ls", "type:shop.broken.v1")]
    assert (state_of(shop, parent), state_of(shop, child)) == ("failed", "failed")

    both = shop.type("recover", parent, child, "--json")

    assert both.exit_code == 0
    assert json.loads(both.stdout) == [{"id": parent, "recovered": True}, {"id": child, "recovered": False}]
    assert f"run {child} is pending; only a failed, cancelled or blocked run" in both.stderr
    assert (state_of(shop, parent), state_of(shop, child)) == ("pending", "pending")
    assert shop.type("recover", child).exit_code == 6


def test_a_run_whose_key_belongs_to_another_run_is_not_recovered(shop: Shop) -> None:
    run_id = shop.start("shop.broken.v1", key="k")
    shop.work()
    other = shop.start("shop.broken.v1", key="k", reuse="after_failure")

    result = shop.type("recover", run_id)

    assert result.exit_code == 6
    assert f"its key 'k' now belongs to run {other}" in result.stderr


# Forced cancel


def test_a_run_that_rolls_back_is_cancelled_by_force(shop: Shop) -> None:
    run_id = shop.start("shop.undo.v1")

    async def work(hf: Holdfast) -> None:
        @hf.workflow("shop.undo.v1")
        async def undo(ctx: Context) -> None:
            await ctx.step("reserve", lambda: 1, undo=_hopeless)
            await ctx.receive("never")

        await hf.worker().run_until_idle()

    shop.do(work)
    shop.type("cancel", run_id, "--yes")
    assert state_of(shop, run_id) == "rolling_back"
    again = shop.type("cancel", run_id, "--yes")
    forced = shop.type("cancel", run_id, "--yes", "--force")

    assert again.exit_code == 6
    assert "rolls back already; force ends it without a rollback" in again.stderr
    assert forced.stdout == f"cancelled {run_id}\n"
    assert state_of(shop, run_id) == "cancelled"


def _hopeless(_: int) -> None:
    raise Fatal("never")


# Rewinding


def test_a_rewind_first_shows_the_entries_it_would_drop(shop: Shop) -> None:
    run_id = a_waiting_order(shop)
    shop.type("send", run_id, "approve", "by=bob", "--id", "m1")
    shop.work()

    shown = shop.type("rewind", run_id, "receive:approve", "--dry-run")
    plan = shop.read("rewind", run_id, "charge", "--dry-run")

    assert "receive:approve  message  done" in shown.stdout
    assert shown.stderr == "1 dropped, 1 unread again; nothing was changed\n"
    assert [entry["location"] for entry in plan["dropped"]] == ["charge", "receive:approve"]
    assert plan["unread"] == [{"kind": "message", "name": "approve", "id": "m1"}]
    assert state_of(shop, run_id) == "succeeded"


def test_a_rewound_run_continues_from_the_location(shop: Shop) -> None:
    run_id = a_waiting_order(shop)
    shop.type("send", run_id, "approve", "by=bob")
    shop.work()

    result = shop.type("rewind", run_id, "charge", "--yes")

    assert (result.exit_code, result.stdout) == (0, f"rewound {run_id} to charge\n")
    assert shop.read("history", run_id) == []
    shop.work()
    assert shop.read("result", run_id)["result"] == {"paid": "paid for ann", "approval": {"by": "bob"}}


def test_an_unknown_location_is_reported_with_those_that_exist(shop: Shop) -> None:
    run_id = a_waiting_order(shop)

    for command in ("rewind", "fork"):
        result = shop.type(command, run_id, "ship", "--yes")
        assert result.exit_code == 2
        assert "no entry at 'ship'; it has 'charge'" in result.stderr


@pytest.mark.parametrize("command", ["rewind", "fork"])
def test_a_rewind_needs_yes_without_a_terminal(shop: Shop, command: str) -> None:
    run_id = a_waiting_order(shop)

    result = shop.type(command, run_id, "charge")

    assert result.exit_code == 2
    assert f"`{command}` cannot ask for confirmation; add --yes" in result.stderr


def test_a_run_that_a_worker_holds_is_busy(shop: Shop) -> None:
    run_id = a_waiting_order(shop)

    shop.type("wake", run_id)
    hold(shop)

    for command in ("rewind", "fork"):
        result = shop.type(command, run_id, "charge", "--yes")
        assert result.exit_code == 6
        assert "worker w holds run" in result.stderr
    assert shop.type("rewind", run_id, "charge", "--yes", "--force").exit_code == 0


def test_a_filter_chooses_the_runs_to_rewind(shop: Shop) -> None:
    waiting = {a_waiting_order(shop) for _ in range(2)}
    other = shop.start("shop.add.v1", {"a": 1, "b": 2})
    shop.work()

    shown = shop.type("rewind", "--filter", "type:shop.*", "charge", "--dry-run")
    rewound = shop.read("rewind", "--filter", "type:shop.*", "charge", "--yes")

    assert "2 runs would be rewound; nothing was changed" in shown.stderr
    assert "1 would be skipped: " in shown.stderr
    assert {one["id"] for one in rewound if one["rewound"]} == waiting
    assert [one["id"] for one in rewound if not one["rewound"]] == [other]
    assert {len(shop.read("history", run_id)) for run_id in waiting} == {0}
    assert "cli:" in json.dumps(shop.read("audit", waiting.pop()))


def test_several_runs_are_rewound_by_name(shop: Shop) -> None:
    first, second = a_waiting_order(shop, key="a"), a_waiting_order(shop, key="b")
    other = shop.start("shop.add.v1", {"a": 1, "b": 2})
    shop.work()

    both = shop.type("rewind", "key:a", second, "charge", "--yes")
    refused = shop.type("rewind", other, first, "ship", "--yes")

    assert (both.exit_code, both.stdout) == (0, f"rewound {first}\nrewound {second}\n")
    assert (refused.exit_code, refused.stdout) == (6, "")
    assert f"run {other}: the run has no entry at 'ship'; it has 'shop.add.v1'" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["charge"], "'charge' is taken as LOCATION, but no RUN is given"),
        (["--filter", "type:shop.*"], "Missing argument"),
        (["--filter", "type:shop.*", "x", "charge"], "name the runs to rewind, or select them with --filter"),
        (["--filter", "", "charge", "--yes"], "an empty filter would rewind every run"),
        (["--filter", "type:shop.*", "charge"], "`rewind` cannot ask for confirmation; add --yes"),
    ],
)
def test_an_ambiguous_rewind_is_refused(shop: Shop, words: list[str], message: str) -> None:
    run_id = a_waiting_order(shop)

    result = shop.type("rewind", *words)

    assert result.exit_code == 2
    assert message in result.stderr
    assert len(shop.read("history", run_id)) == 1


# Forking


def test_a_fork_with_a_patch_is_another_run(shop: Shop) -> None:
    run_id = a_waiting_order(shop)
    shop.type("send", run_id, "approve", "by=bob")
    shop.work()
    words = ("receive:approve", "--patch", 'charge="paid by hand"')

    shown = shop.type("fork", run_id, *words, "--dry-run")
    forked = shop.read("fork", run_id, *words, "--yes", "--id", "copy")
    again = shop.type("fork", run_id, *words, "--yes", "--id", "copy")

    assert "charge" in shown.stdout
    assert shown.stderr == "the new run begins with 1 of 2 entries, 1 of them patched; nothing was created\n"
    assert forked == {"id": "copy", "created": True, "of": run_id}
    assert (again.exit_code, again.stdout) == (6, "copy\n")
    shop.type("send", "copy", "approve", "by=eve")
    shop.work()
    assert shop.read("result", "copy")["result"] == {"paid": "paid by hand", "approval": {"by": "eve"}}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("charge", "write it as LOCATION=JSON"),
        ("charge=paid", "the patch of 'charge' is not JSON"),
        ("ship=1", "there is nothing to patch at 'ship'"),
    ],
)
def test_an_invalid_patch_is_reported(shop: Shop, patch: str, message: str) -> None:
    run_id = a_waiting_order(shop)

    result = shop.type("fork", run_id, "charge", "--patch", patch, "--yes")

    assert result.exit_code == 2
    assert message in result.stderr


# Deleting


def test_a_deleted_run_is_hidden_unless_deleted_runs_are_requested(shop: Shop) -> None:
    run_id = a_waiting_order(shop, key="k")

    result = shop.type("delete", "key:k", "--yes")

    assert (result.exit_code, result.stdout) == (0, f"deleted {run_id}\n")
    assert shop.type("show", run_id).exit_code == 3
    assert shop.read("ls") == []
    (listed,) = shop.read("ls", "deleted:true")
    assert (listed["id"], listed["state"], listed["key"]) == (run_id, "cancelled", None)
    assert listed["deleted_at"] is not None
    assert shop.read("ls", "--deleted") == [listed]


def test_deleting_asks_first_and_shows_the_runs_it_would_delete(shop: Shop) -> None:
    kept = shop.start("shop.order.v1", {"name": "ann"}, tags={"shop": "x"})
    other = shop.start("shop.order.v1", {"name": "bob"})

    unasked = shop.type("delete", kept)
    preview = shop.read("delete", "--filter", "tag.shop:x", "--dry-run")

    assert unasked.exit_code == 2
    assert "add --yes" in unasked.stderr
    assert [run["id"] for run in preview] == [kept]
    assert {run["id"] for run in shop.read("ls")} == {kept, other}


def test_a_run_that_a_worker_holds_is_deleted_only_by_force(shop: Shop) -> None:
    run_id = shop.start("shop.order.v1", {"name": "ann"})
    hold(shop)

    refused = shop.type("delete", run_id, "--yes", "--json")
    forced = shop.type("delete", run_id, "--yes", "--force")

    assert refused.exit_code == 6
    assert json.loads(refused.stdout) == [{"id": run_id, "deleted": False}]
    assert "holds run" in refused.stderr
    assert (forced.exit_code, forced.stdout) == (0, f"deleted {run_id}\n")


def test_a_run_that_was_deleted_cannot_be_deleted_again(shop: Shop) -> None:
    run_id = shop.start("shop.order.v1", {"name": "ann"})
    shop.type("delete", run_id, "--yes")

    assert shop.type("delete", run_id, "--yes").exit_code == 3


# Unread messages


def test_unread_messages_are_listed_and_dropped(shop: Shop) -> None:
    run_id = a_waiting_order(shop, key="k")
    shop.type("send", run_id, "later", "by=bob", "--id", "m1")

    shown = shop.type("messages", "key:k").stdout
    listed = shop.read("messages", "key:k")
    dropped = shop.type("messages", "key:k", "drop", "m1")
    again = shop.type("messages", "key:k", "drop", "m1", "--json")

    assert "m1" in shown
    assert '{"by": "bob"}' in shown
    assert [(one["id"], one["name"], one["payload"]) for one in listed] == [("m1", "later", {"by": "bob"})]
    assert (dropped.exit_code, dropped.stdout) == (0, "dropped m1\n")
    assert again.exit_code == 6
    assert json.loads(again.stdout) == {"id": run_id, "message": "m1", "dropped": False}
    assert f"run {run_id} has no unread message 'm1'" in again.stderr
    assert shop.type("messages", "key:k").stderr == "no unread messages\n"


def test_a_message_to_drop_has_to_be_named(shop: Shop) -> None:
    run_id = a_waiting_order(shop)

    result = shop.type("messages", run_id, "drop")

    assert result.exit_code == 2
    assert "name the message to drop: holdfast messages RUN drop ID" in result.stderr
