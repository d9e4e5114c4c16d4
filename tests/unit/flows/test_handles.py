"""Handles: durable calls begin at once, an await waits for them, and a loser of a race is withdrawn."""
# ruff: noqa: E501 - a program stands on one line

from __future__ import annotations

import json

from holdfast.core.clock import DAY, SECOND
from holdfast.flows.limits import FlowLimits
from holdfast.flows.requests import (
    CallChild,
    Continued,
    EmitEvent,
    FlowDone,
    FlowFailed,
    FlowRaised,
    FlowReturned,
    MapChildren,
    ReceiveBatch,
    ReceiveMessage,
    SendMessage,
    SetValue,
    SleepUntil,
    WaitEvent,
    Waiting,
    Withdraw,
    WriteLog,
)
from tests.rows import each_row
from tests.unit.flows.actor import START, Actor, body, error_of


def test_every_durable_call_is_a_request_in_order() -> None:
    actor = Actor(
        body("""
start("a.v1", user="bo", options={"priority": 10})
call("b.v1", {"options": 1})
emit("topic", [1])
set_value("progress", 0.5)
log({"a": 1})
send("run-2", "go", {"n": 1})
h = [sleep(2), sleep_until(5), sleep_until("2030-01-01T00:00:00"), receive("m", timeout=days(1)), receive(),
     receive_batch(["a", "b"], 10, 3), wait_event("t", timeout=1)]
await h[0]
""")
    )

    assert actor.run() == Waiting()
    assert [request.line for request in actor.asked[:3]] == [2, 3, 4]
    assert actor.asked == [
        CallChild(
            handle=1, line=2, type="a.v1", payload='{"user":"bo"}', options={"priority": 10}, is_awaited_kind="start"
        ),
        CallChild(handle=2, line=3, type="b.v1", payload='{"options":1}'),
        EmitEvent(handle=0, line=4, topic="topic", payload="[1]"),
        SetValue(handle=0, line=5, name="progress", value="0.5"),
        WriteLog(handle=0, line=6, text="{'a': 1}"),
        SendMessage(handle=0, line=7, run_id="run-2", child=None, name="go", payload='{"n":1}'),
        SleepUntil(handle=3, line=8, deadline=START + 2 * SECOND),
        SleepUntil(handle=4, line=8, deadline=5 * SECOND, is_fixed=True),
        SleepUntil(handle=5, line=8, deadline=1893456000 * SECOND, is_fixed=True),
        ReceiveMessage(handle=6, line=8, names=("m",), deadline=START + DAY),
        ReceiveMessage(handle=7, line=8, names=(), with_name=True),
        ReceiveBatch(handle=8, line=9, names=("a", "b"), count=10, deadline=START + 3 * SECOND, with_name=True),
        WaitEvent(handle=9, line=9, topic="t", deadline=START + SECOND),
    ]
    assert [request.handle for request in actor.machine.open_requests()] == [3, 4, 5, 6, 7, 8, 9]


def test_handle_may_be_awaited_long_after_its_end() -> None:
    actor = Actor(body("h = start('a')\nawait sleep(9)\nreturn [await h, await h]"))
    actor.run()
    actor.done(1, {"n": 1})

    assert actor.done(2) == FlowReturned('[{"n":1},{"n":1}]')


def test_failed_child_is_caught_with_its_fields() -> None:
    actor = Actor(body("try:\n    await call('a')\nexcept ChildFailed as e:\n    return e"))
    actor.run()

    assert actor.failed(1, "ChildFailed", "it broke", kind="failed", run_id="r2") == FlowReturned(
        '{"type":"ChildFailed","message":"it broke","kind":"failed","run_id":"r2"}'
    )


def test_step_timeout_is_a_failed_step() -> None:
    actor = Actor(body("try:\n    await call('a')\nexcept StepFailed:\n    return 'late'"))
    actor.run()

    assert actor.failed(1, "StepTimeout") == FlowReturned('"late"')


def test_uncaught_failure_fails_the_run_with_its_place() -> None:
    actor = Actor(body("x = 1\nawait receive('m', timeout=1)"))
    actor.run()

    progress = actor.failed(1, "WaitTimeout", "nothing came")

    assert isinstance(progress, FlowRaised)
    assert progress.error.message == "nothing came (line 3, column 5: await receive('m', timeout=1))"


def test_race_returns_the_first_success_and_withdraws_the_losers() -> None:
    actor = Actor(body("return await race({'a': call('x'), 'b': sleep(5), 'c': start('y'), 'd': receive('m')})"))
    actor.run()
    actor.asked.clear()

    assert actor.failed(1, "ChildFailed") == Waiting()
    assert actor.done(4, "hi") == FlowReturned('["d","hi"]')
    assert actor.asked == [Withdraw(handle=2, line=2)]


def test_race_fails_when_all_branches_failed() -> None:
    actor = Actor(
        body(
            "try:\n    await race([call('x'), call('y')])\nexcept RaceFailed as e:\n    return e['errors']['1']['type']"
        )
    )
    actor.run()
    actor.failed(2, "ChildFailed")

    assert actor.failed(1, "ChildFailed") == FlowReturned('"ChildFailed"')


def test_first_settled_raises_the_first_error() -> None:
    actor = Actor(body("await first_settled([call('x'), sleep(5)])"))
    actor.run()
    progress = actor.failed(1, "ChildFailed", "broken")

    assert isinstance(progress, FlowRaised)
    assert progress.error.type == "ChildFailed"
    assert actor.asked[-1] == Withdraw(handle=2, line=2)


def test_join_returns_results_by_key_or_in_order() -> None:
    actor = Actor(body("return [await join({'a': call('x'), 'b': call('y')}), await join([]), await join({})]"))
    actor.run()
    actor.done(2, 2)

    assert actor.done(1, 1) == FlowReturned('[{"a":1,"b":2},[],{}]')


def test_join_waits_for_all_and_names_the_failed_ones() -> None:
    actor = Actor(
        body(
            "try:\n    await join({'a': call('x'), 'b': call('y')})\nexcept JoinFailed as e:\n    return [e['results'], list(e['errors'])]"
        )
    )
    actor.run()
    assert actor.failed(1, "ChildFailed") == Waiting()

    assert actor.done(2, 5) == FlowReturned('[{"b":5},["a"]]')


def test_join_with_fail_fast_withdraws_the_others() -> None:
    actor = Actor(body("await join([call('x'), call('y')], fail_fast=True)"))
    actor.run()
    progress = actor.failed(1, "ChildFailed")

    assert isinstance(progress, FlowRaised)
    assert progress.error.type == "JoinFailed"
    assert actor.asked[-1] == Withdraw(handle=2, line=2)


def test_map_settles_each_child_by_index() -> None:
    actor = Actor(body("return await map('x', [{'n': i} for i in range(3)], limit=2)"))
    actor.run()
    assert actor.asked == [
        MapChildren(handle=1, line=2, type="x", payloads=('{"n":0}', '{"n":1}', '{"n":2}'), count=3, limit=2)
    ]
    machine = actor.machine
    assert machine.settle_member(1, 2, FlowDone('"c"'), START)
    assert not machine.settle_member(1, 2, FlowDone('"again"'), START)
    assert not machine.settle_member(1, 3, FlowDone('"none"'), START)
    actor.run()
    assert actor.machine.open_requests()[0].settled == (2,)  # type: ignore[union-attr]
    assert actor.machine.settle_member(1, 0, FlowDone('"a"'), START)
    assert actor.machine.settle_member(1, 1, FlowDone('"b"'), START)

    assert actor.run() == FlowReturned('["a","b","c"]')


def test_map_fails_after_all_children_have_ended() -> None:
    actor = Actor(
        body(
            "try:\n    await map('x', [{}, {}])\nexcept JoinFailed as e:\n    return [e['results'], e['errors']['0']['message']]"
        )
    )
    actor.run()
    assert actor.machine.settle_member(1, 0, FlowFailed("ChildFailed", "no"), START)
    assert actor.run() == Waiting()
    assert actor.machine.settle_member(1, 1, FlowDone("7"), START)

    assert actor.run() == FlowReturned('[{"1":7},"no"]')


def test_async_helpers_run_side_by_side() -> None:
    source = "async def part(n):\n    x = await call('x', n=n)\n    await sleep(x)\n    return x\n\n" + body(
        "return await join([part(1), part(2)])"
    )
    actor = Actor(source)
    actor.run()
    assert [mark.function for mark in actor.machine.marks()] == ["main", "part", "part"]
    actor.done(4, 10)
    actor.done(5, 20)
    actor.done(7)

    assert actor.done(6) == FlowReturned("[10,20]")


def test_cancelled_helper_runs_its_finally_blocks_and_withdraws_what_it_awaits() -> None:
    source = "async def part():\n    try:\n        await sleep(100)\n    finally:\n        emit('ended')\n\n" + body(
        "h = part()\nawait sleep(1)\ncancel(h)\ntry:\n    await h\nexcept Error as e:\n    return e['code']"
    )
    actor = Actor(source)
    actor.run()

    assert actor.done(2) == FlowReturned('"cancelled"')
    assert [type(request).__name__ for request in actor.asked[2:]] == ["Withdraw", "EmitEvent"]


def test_child_that_nothing_can_await_is_forgotten() -> None:
    actor = Actor(body("for i in range(30):\n    start('x', n=i)\n    await sleep(1)"), FlowLimits(open_handles=5))
    progress = actor.run()
    for turn in range(29):
        assert progress == Waiting()
        progress = actor.done(2 * turn + 2)

    assert len(actor.machine.open_requests()) == 1
    assert not actor.machine.settle(1, FlowDone("1"), START)


def test_now_is_the_time_of_the_last_fact_and_chance_repeats() -> None:
    source = body("a = [now(), random(), uuid()]\nawait sleep(5)\nreturn [a, now(), random(), uuid()]")
    first, second = Actor(source), Actor(source)
    for actor in (first, second):
        actor.run()

    end = first.done(1, after=5 * SECOND)
    assert end == second.done(1, after=5 * SECOND)
    assert isinstance(end, FlowReturned)
    (before, chance, name), after, other_chance, other_name = json.loads(end.result)
    assert (before, after) == (START / SECOND, START / SECOND + 5)
    assert 0 <= chance < 1
    assert (chance, name) != (other_chance, other_name)


def test_continue_as_new_ends_the_generation() -> None:
    assert Actor(body("continue_as_new(n + 1, b='x')\nreturn 1", "n: int, b=None"), n=1).run() == Continued(
        '{"n":2,"b":"x"}'
    )


def test_continue_as_new_checks_its_arguments() -> None:
    assert error_of(body("await continue_as_new('x')", "n: int"), n=1)[0] == "TypeError"


@each_row(
    ("text", "message"),
    [
        ("await call('a b')", "type name"),
        ("await call('x', options={'priority': 999})", "priority"),
        ("await start('x', options=d)", "did you mean priority"),
        ("await receive([])", "could never return"),
        ("await receive_batch('x', 0)", "whole number"),
        ("await sleep('x')", "expected seconds"),
        ("await sleep(10 ** 30)", "1,000 years"),
        ("await sleep_until('tomorrow')", "ISO text"),
        ("await race([])", "at least one"),
        ("await race([1])", "a branch is a handle"),
        ("await join([send('x', 'y')])", "takes time"),
        ("await map('x', 5)", "list of dicts"),
        ("await map('x', [1])", "item 0"),
        ("await map('x', [{}], limit=0)", "at least 1"),
        ("cancel(5)", "cancel takes a handle"),
        ("send(sleep(1), 'x')", "run id"),
        ("call('x', p=start('y'))", "no JSON form"),
        ("emit('')", "topic"),
        ("call(5)", "type name"),
    ],
)
def test_wrong_arguments_are_errors_of_the_program(text: str, message: str) -> None:
    kind, text_of_error = error_of(body(f"d = {{'prioriti': 1}}\n{text}"))

    assert kind in ("ValueError", "TypeError")
    assert message in text_of_error
