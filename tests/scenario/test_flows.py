"""Flows: every durable call of a flow, as its callers see it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import ChildFailed, Context, Fatal, Registry, RunFailed, RunState
from holdfast.flows.limits import DEFAULT_FLOW_LIMITS
from holdfast.runner.flow_turn import FlowTurn
from holdfast.testing.harness import Harness
from tests.stage import Stage

DEADLOCK = """
async def itself(box):
    await box[0]

async def main():
    await receive("m")
    box = []
    handle = itself(box)
    box.append(handle)
    await handle
"""


def program(body: str, parameters: str = "") -> str:
    """Return the text of a flow whose main has this body."""
    lines = body.strip("\n").split("\n")
    return f"async def main({parameters}):\n" + "\n".join(f"    {line}" for line in lines) + "\n"


async def register(h: Harness, body: str, parameters: str = "", *, type: str = "flow") -> None:
    await h.flows.register(program(body, parameters), type=type)


@pytest.fixture
def app() -> Registry:
    """Workflows and tasks that flows call."""
    app = Registry()

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def broken(n: int = 0) -> int:
        raise Fatal(f"broken {n}")

    @app.workflow
    async def slow(ctx: Context, n: int = 1) -> int:
        await ctx.sleep(60 * n)
        return n

    @app.workflow
    async def echo(ctx: Context) -> Any:
        return await ctx.receive("say")

    @app.workflow
    async def endless(ctx: Context) -> None:
        await ctx.receive("never")

    return app


# Children


@pytest.mark.every_store
async def test_flow_calls_tasks_workflows_and_flows(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(h, "return [n, await call('double', n=n)]", "n", type="inner")
        await register(
            h,
            """
first = start("slow", n=2)
a = await call("double", n=3)
b = await call("inner", {"n": 4})
return [a, b, await first, await first]
""",
        )

        assert await h.execute("flow") == [6, [4, 8], 2, 2]


async def test_failed_child_is_caught_and_names_its_run(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(
            h,
            """
found = []
for n in [1, 2]:
    try:
        await call("broken", n=n)
    except ChildFailed as e:
        found.append([e["kind"], e["cause"]["message"], e["run_id"]])
return found
""",
        )

        found = await h.execute("flow")

        children = [info.id async for info in h.list(type="broken")]
        assert [one[:2] for one in found] == [["failed", "broken 1"], ["failed", "broken 2"]]
        assert {one[2] for one in found} == set(children)


async def test_child_that_a_person_cancels_raises_in_its_flow(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(h, "try:\n    await call('endless')\nexcept ChildFailed as e:\n    return e['kind']")
        run = await h.start("flow")
        await h.settle()
        (child,) = [info async for info in h.list(type="endless")]
        await h.run(child.id).cancel()

        assert await run.result() == "cancelled"


async def test_flow_is_a_child_of_a_workflow(stage: Stage, app: Registry) -> None:
    @app.workflow
    async def parent(ctx: Context) -> list[Any]:
        handle = await ctx.start("flow", {"n": 1})
        found: list[Any] = [await ctx.call("flow", {"n": 5}), await ctx.map("flow", [{"n": 6}, {"n": 7}])]
        try:
            await ctx.call("flow", {"n": -1})
        except ChildFailed as error:
            found.append([error.cause.type, error.kind])
        return [*found, await handle]

    async with stage.harness(app) as h:
        await register(h, "if n < 0:\n    raise Error('negative', 'no')\nreturn await call('double', n=n)", "n")

        assert await h.execute("parent") == [10, [12, 14], ["Error", "failed"], 2]


@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_map_returns_results_in_order(stage: Stage, app: Registry, limit: int | None) -> None:
    async with stage.harness(app) as h:
        await register(h, "return await map('double', [{'n': i} for i in range(7)], limit=limit)", "limit")

        assert await h.execute("flow", {"limit": limit}) == [2 * i for i in range(7)]


@pytest.fixture
def few_children_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a checkpoint of a flow start ten children, not hundreds, so that few need several checkpoints."""
    few = replace(DEFAULT_FLOW_LIMITS, requests_per_checkpoint=10)
    defaults: dict[str, Any] = FlowTurn.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "limits", few)


@pytest.mark.usefixtures("few_children_at_once")
@pytest.mark.parametrize("limit", [None, 4])
async def test_map_of_more_than_a_checkpoint_starts_every_child_once(stage: Stage, app: Registry, limit: int) -> None:
    async with stage.harness(app) as h:
        await register(h, "return sum(await map('double', [{'n': i} for i in range(33)], limit=limit))", "limit")

        assert await h.execute("flow", {"limit": limit}) == 2 * sum(range(33))
        assert len([info async for info in h.list(type="double")]) == 33


async def test_map_collects_the_failures_of_its_children(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(
            h,
            """
try:
    await map("broken", [{"n": 1}, {"n": 2}])
except JoinFailed as e:
    return [e["errors"][k]["cause"]["message"] for k in e["errors"]]
""",
        )

        assert sorted(await h.execute("flow")) == ["broken 1", "broken 2"]


@pytest.mark.usefixtures("few_children_at_once")
async def test_many_starts_in_one_turn_span_checkpoints(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(
            h,
            """
handles = [start("double", n=i) for i in range(32)]
first = receive("go")
return [await handles[31], await handles[0], await first]
""",
        )
        run = await h.start("flow")
        await run.send("go", 1)

        assert await run.result() == [62, 0, 1]
        assert len([info async for info in h.list(type="double")]) == 32


async def test_fire_and_forget_outlives_its_flow(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(h, "start('slow', n=3)\ncall('endless')\nreturn 'gone'")
        run = await h.start("flow")

        assert await run.result() == "gone"
        states = {info.type: info.state async for info in h.list(parent_id=run.id)}
        await h.advance(600)
        (slow,) = [info async for info in h.list(type="slow")]
        assert states["endless"] is RunState.CANCELLED
        assert slow.state is RunState.SUCCEEDED


async def test_cancel_of_a_handle_cancels_the_child_and_withdraws_the_wait(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(
            h,
            """
child, message, late = start("endless"), receive("m"), map("endless", [{}, {}])
await sleep(5)
cancel(child)
cancel(message)
cancel(late)
return await receive("m")
""",
        )
        run = await h.start("flow")
        await h.advance(10)
        states = {info.state async for info in h.list(type="endless")}
        await run.send("m", "kept")

        assert await run.result() == "kept"
        assert states == {RunState.CANCELLED}


async def test_children_take_options(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(
            h,
            """
options = {"priority": 7, "tags": {"shop": "x"}, "delay": 30, "name": "label"}
h = start("double", n=1, options=options)
x = start("endless", options={"max_run": 100})
y = start("endless", options={"max_suspend": 50})
kinds = []
for one in [y, x]:
    try:
        await one
    except ChildFailed as e:
        kinds.append(e["kind"])
return [await h, kinds]
""",
        )
        run = await h.start("flow")

        assert await run.result() == [2, ["cancelled", "cancelled"]]
        (child,) = [info async for info in h.list(type="double")]
        assert (child.priority, child.tags) == (7, {"shop": "x"})


# Time


async def test_sleep_and_sleep_until_end_on_time(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(
            h,
            """
begun = now()
await sleep(90)
a = now() - begun
await sleep_until(begun + 200)
b = now() - begun
await sleep_until(begun)
return [a, b, now() - begun]
""",
        )

        a, b, c = await h.execute("flow")

        assert (round(a), round(b), round(c)) == (90, 200, 200)


# Messages and events


@pytest.mark.every_store
async def test_messages_before_the_flow_begins_are_received_in_order(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(
            h,
            """
found = [await receive("b"), await receive(), await receive(["c", "a"])]
try:
    await receive("a", timeout=60)
except WaitTimeout:
    found.append("late")
return found
""",
        )
        run = await h.start("flow", delay=10)
        for name, payload in [("a", 1), ("b", 2), ("c", 3)]:
            await run.send(name, payload)

        assert await run.result() == [2, ["a", 1], ["c", 3], "late"]


async def test_receive_batch_takes_what_is_there(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(
            h,
            """
found = []
while True:
    batch = await receive_batch(["x", "y"], 2, 60)
    if not batch:
        return found
    found.append(batch)
""",
        )
        run = await h.start("flow", delay=1)
        for number in range(3):
            await run.send("xy"[number % 2], number)

        assert await run.result() == [[["x", 0], ["y", 1]], [["x", 2]]]


async def test_fan_out_events_reach_every_flow_once(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(
            h,
            """
found = [await wait_event("news"), await wait_event("news")]
try:
    await wait_event("silence", timeout=5)
except WaitTimeout:
    found.append("silent")
return found
""",
        )
        runs = [await h.start("flow") for _ in range(2)]
        await h.settle()
        for number in range(2):
            await h.emit("news", number)

        assert [await run.result() for run in runs] == [[0, 1, "silent"]] * 2


async def test_queue_events_go_to_one_flow_each_and_a_withdrawn_wait_passes_its_event_on(stage: Stage) -> None:
    async with stage.harness() as h:
        await h.topics.set("jobs", mode="queue")
        await register(h, "return await wait_event('jobs')", type="consumer")
        await register(h, "key, _ = await race({'job': wait_event('jobs'), 'stop': receive('stop')})\nreturn key")
        loser = await h.start("flow")
        await h.settle()
        await loser.send("stop")
        consumers = [await h.start("consumer") for _ in range(2)]
        await h.settle()
        assert await loser.result() == "stop"
        for number in range(2):
            await h.emit("jobs", number)

        assert sorted([await run.result() for run in consumers]) == [0, 1]


async def test_flow_sends_to_runs_and_children_and_emits(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(h, "return [await receive('say'), await wait_event('bell')]", type="listener")
        await register(
            h,
            """
child = start("echo")
send(child, "say", {"n": 1})
send(other, "say", [2])
emit("bell", "ding")
await send(other, "say", "extra")
return await child
""",
            "other",
        )
        listener = await h.start("listener")
        await h.settle()

        assert await h.execute("flow", {"other": listener.id}) == {"n": 1}
        assert await listener.result() == [[2], "ding"]


async def test_flow_publishes_values_and_logs(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.workflow")
    async with stage.harness() as h:
        await register(h, "set_value('progress', {'done': 1})\nlog(f'n is {n}')\nreturn await receive('go')", "n")
        run = await h.start("flow", {"n": 5})
        await h.settle()
        progress = await run.value("progress")
        await run.send("go")
        await run.result()

    assert progress == {"done": 1}
    assert [record.getMessage() for record in caplog.records if record.name == "holdfast.workflow"] == ["n is 5"]


# Groups


async def test_a_message_to_a_child_is_sent_even_if_the_next_checkpoint_carries_it(stage: Stage, app: Registry) -> None:
    """The program has forgotten the child by then."""
    room = DEFAULT_FLOW_LIMITS.requests_per_checkpoint - 1
    async with stage.harness(app) as h:
        await register(
            h,
            f"""
for number in range({room}):
    log("so that the first checkpoint carries out the start of a child as its last request")
for number in range(2):
    child = start("echo")
    send(child, "say", number)
await sleep(1)
""",
        )

        await h.execute("flow")
        await h.settle()

        assert len([info async for info in h.list(type="echo", state="succeeded")]) == 2


async def test_join_race_and_first_settled(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await h.flows.register(
            """
async def twice(n):
    a = await call("double", n=n)
    return await call("double", n=a)

async def main():
    a = await join({"x": call("double", n=1), "y": twice(2), "z": sleep(5)})
    b = await race({"bad": call("broken"), "good": call("slow", n=1), "never": receive("never")})
    c = await first_settled([call("slow", n=5), sleep(30)])
    try:
        await join([call("broken", n=1), call("double", n=2)])
    except JoinFailed as e:
        d = [e["results"], [k for k in e["errors"]]]
    return [a, b, c, d]
""",
            type="flow",
        )

        assert await h.execute("flow") == [
            {"x": 2, "y": 8, "z": None},
            ["good", 1],
            [1, None],
            [{"1": 4}, ["0"]],
        ]
        (loser,) = [info async for info in h.list(type="slow", state="cancelled")]
        assert loser.state is RunState.CANCELLED


@pytest.mark.every_store
async def test_continue_as_new_keeps_unread_messages_and_begins_again(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(
            h,
            """
total += await receive("add")
if total > 5:
    return total
start("endless", options={"on_close": "cancel"})
return await continue_as_new(total)
""",
            "total=0",
        )
        run = await h.start("flow")
        for number in (1, 2, 3):
            await run.send("add", number)

        assert await run.result() == 6
        info = await run.info()
        assert info.generation == 3
        assert {info.state async for info in h.list(type="endless")} == {RunState.CANCELLED}


# Ends


async def test_raised_error_fails_the_run_with_its_line(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "x = await receive('m')\nraise Error('no_stock', f'none of {x}')")
        run = await h.start("flow")
        await run.send("m", "pens")

        with pytest.raises(RunFailed, match=r"none of pens \(line 3, column 5: raise Error") as caught:
            await run.result()

        assert caught.value.type == "Error"


async def test_payload_that_does_not_fit_fails_the_run_and_names_the_parameter(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "return n", "n: int, text='x'")
        payloads: list[tuple[dict[str, Any], str]] = [({}, "n"), ({"n": 1, "wrong": 2}, "wrong"), ({"n": "x"}, "n")]
        for payload, word in payloads:
            run = await h.start("flow", payload)

            with pytest.raises(RunFailed, match=rf"\b{word}\b"):
                await run.result()


async def test_flow_that_can_never_continue_is_blocked_and_keeps_its_arrivals(stage: Stage) -> None:
    async with stage.harness() as h:
        await h.flows.register(DEADLOCK, type="flow")
        run = await h.start("flow")
        await h.settle()
        await run.send("m")
        await h.settle()
        blocked = await run.info()
        await h.advance(60)
        again = await run.info()

        assert blocked.state is again.state is RunState.BLOCKED
        assert "can never come" in str(blocked.error)
        assert "can never come" in str(again.error)
