"""Flows under control: pause, cancel, recover, rewind, delete, limits of time, and snapshots that cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Fatal, Registry, RunFailed, RunHandle, RunState
from holdfast.core.errors import InvalidRequest, RunCancelled
from holdfast.testing.harness import Harness
from tests.scenario.test_flows import register
from tests.stage import Stage


class Press:
    """Prints labels, unless it is broken."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.is_broken = True

    async def print(self, label: str) -> str:
        if self.is_broken:
            raise Fatal("out of paper")
        self.labels.append(label)
        return label


@pytest.fixture
def press() -> Press:
    return Press()


@pytest.fixture
def app(press: Press) -> Registry:
    app = Registry()

    @app.task("print")
    async def print_label(label: str) -> str:
        return await press.print(label)

    @app.workflow
    async def endless(ctx: Context) -> None:
        await ctx.receive("never")

    @app.workflow
    async def quick(ctx: Context, n: int = 0) -> int:
        return n

    return app


async def failed(run: RunHandle[Any]) -> str:
    with pytest.raises(RunFailed) as caught:
        await run.result()
    return str(caught.value)


async def count(h: Harness, **filters: Any) -> int:
    return len([info async for info in h.list(**filters)])


# Pause and cancel


async def test_paused_flow_continues_with_what_arrived_meanwhile(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "return [await receive('a'), await receive('b')]")
        run = await h.start("flow")
        await h.settle()
        await run.pause()
        await run.send("a", 1)
        await run.send("b", 2)
        await h.advance(100)
        assert (await run.info()).state is RunState.PAUSED
        await run.resume()

        assert await run.result() == [1, 2]


async def test_cancelled_flow_cancels_its_awaited_children(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(h, "start('endless')\nmap('endless', [{}, {}])\nawait call('endless')")
        run = await h.start("flow")
        await h.settle()
        await run.cancel()
        await h.settle()

        assert (await run.info()).state is RunState.CANCELLED
        assert await count(h, type="endless", state="cancelled") == 3
        assert await count(h, type="endless", state="suspended") == 1


@pytest.mark.parametrize("option", ["max_run", "max_suspend"])
async def test_time_limits_end_a_flow(stage: Stage, option: str) -> None:
    async with stage.harness() as h:
        await register(h, "await receive('never')")
        options: dict[str, Any] = {option: 60}
        run = await h.start("flow", **options)

        with pytest.raises(RunCancelled, match=option):
            await run.result()


async def test_max_run_ends_a_flow_that_never_waits(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "while True:\n    await sleep(10)")
        run = await h.start("flow", max_run=300)

        with pytest.raises(RunCancelled, match="max_run"):
            await run.result()


async def test_key_and_tags_of_a_flow(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "return n", "n")
        first = await h.start("flow", {"n": 1}, key="k", tags={"a": "b"}, priority=3)
        again = await h.start("flow", {"n": 1}, key="k")

        assert first.id == again.id
        assert not again.created
        assert await first.result() == 1
        assert [info.id async for info in h.list(tags={"a": "b"})] == [first.id]


# Recover


@pytest.mark.every_store
async def test_recover_reopens_the_failed_child_and_starts_no_twin(stage: Stage, app: Registry, press: Press) -> None:
    async with stage.harness(app) as h:
        await register(h, "a = await call('quick', n=1)\nb = await call('print', label='x')\nreturn [a, b]")
        run = await h.start("flow")
        await failed(run)
        press.is_broken = False
        assert await run.recover()

        assert await run.result() == [1, "x"]
        assert press.labels == ["x"]
        assert (await count(h, type="print"), await count(h, type="quick")) == (1, 1)


async def test_recover_reopens_the_failed_children_of_a_map(stage: Stage, app: Registry, press: Press) -> None:
    async with stage.harness(app) as h:
        await register(h, "return await map('print', [{'label': str(i)} for i in range(5)], limit=2)")
        run = await h.start("flow")
        await failed(run)
        press.is_broken = False
        await run.recover()

        assert await run.result() == ["0", "1", "2", "3", "4"]
        assert sorted(press.labels) == ["0", "1", "2", "3", "4"]
        assert await count(h, type="print") == 5


@pytest.mark.every_store
async def test_recover_after_a_raise_makes_the_arrivals_of_that_turn_unread(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(
            h,
            """
m = await receive("m")
e = await wait_event("news")
c = await call("quick", n=3)
ok = await call("quick", n=4)
v = await receive("v")
if v == "bad":
    raise Error("bad", "bad value")
return [m, e, c, ok, v]
""",
        )
        run = await h.start("flow")
        await run.send("m", 1)
        await h.settle()
        await h.emit("news", 2)
        await h.settle()
        await run.send("v", "bad")
        await failed(run)
        await run.recover()
        assert "bad value" in await failed(run)
        assert await count(h, type="quick") == 2


async def test_recover_feeds_an_event_of_the_failed_turn_again(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "e = await wait_event('news')\nreturn 10 / e")
        run = await h.start("flow")
        await h.settle()
        await h.emit("news", 0)
        await failed(run)
        await run.recover()

        assert "division" in await failed(run)


async def test_recover_takes_a_child_again_that_the_failed_turn_started(stage: Stage, app: Registry) -> None:
    """The child ends before the recovery, while the program still waits for something else."""
    async with stage.harness(app) as h:
        await register(
            h,
            """
first = await receive("m")
child = start("quick", n=first)
if first == 1:
    raise Error("no", "not yet")
return await child
""",
        )
        run = await h.start("flow")
        await h.settle()
        await run.send("m", 1)
        await failed(run)
        await h.settle()
        (child,) = [info async for info in h.list(type="quick")]
        assert child.state is RunState.SUCCEEDED
        await run.recover()
        await failed(run)

        assert [info.id async for info in h.list(type="quick")] == [child.id]


async def test_recovered_flow_awaits_a_child_that_ended_before_it_came_back_to_it(
    stage: Stage, app: Registry, press: Press
) -> None:
    """The failed turn started a child that has ended. The program waits for something else before it takes it again."""
    async with stage.harness(app) as h:
        await register(
            h,
            """
m = await receive("m")
label = start("print", label="x", options={"delay": 60})
child = start("quick", n=7)
first = await label
return [m, await child, first]
""",
        )
        run = await h.start("flow")
        await run.send("m", 1)
        await failed(run)
        press.is_broken = False
        assert await run.recover()

        assert await run.result() == [1, 7, "x"]
        assert (await count(h, type="quick"), await count(h, type="print")) == (1, 1)


async def test_failed_turn_with_a_child_that_ends_at_once_waits_for_it_after_recovery(
    stage: Stage, app: Registry
) -> None:
    """Other facts come first after the recovery, because the turn that failed had taken in two."""
    async with stage.harness(app) as h:
        await register(
            h,
            """
a = await receive("a")
child = start("quick", n=7)
b = await receive("b")
if b == "bad" and await call("verdict") == "fail":
    raise Error("no", "not yet")
return [a, b, await child]
""",
        )
        verdicts = ["fail", "pass"]

        @h.task("verdict")
        async def verdict() -> str:
            return verdicts.pop(0)

        run = await h.start("flow")
        await h.settle()
        await run.send("a", 1)
        await run.send("b", "bad")
        await failed(run)
        assert await run.recover()
        await failed(run)
        assert await count(h, type="quick") == 1


@pytest.mark.every_store
async def test_recovered_flow_takes_a_child_that_the_failed_turn_started_and_that_has_ended(
    stage: Stage, app: Registry, press: Press
) -> None:
    """The end of that child comes while the program waits for something else, before it asks for the child again."""
    async with stage.harness(app) as h:
        await register(
            h,
            """
try:
    x = await call("print", label="x")
finally:
    child = start("quick", n=7)
return [x, await child]
""",
        )
        run = await h.start("flow")
        await failed(run)
        await h.settle()
        assert await count(h, type="quick", state="succeeded") == 1
        press.is_broken = False
        assert await run.recover()

        assert await run.result() == ["x", 7]
        assert (await count(h, type="quick"), await count(h, type="print")) == (1, 1)


async def run_with_an_early_failure(h: Harness) -> RunHandle[Any]:
    """Return a failed run. Its child failed in an earlier turn than the one that awaits it."""
    await register(h, "h = start('print', label='x')\nm = await receive('m')\nreturn [m, await h]")
    run: RunHandle[Any] = await h.start("flow")
    await h.settle()
    await run.send("m", 1)
    await failed(run)
    return run


@pytest.mark.every_store
async def test_recover_reopens_a_child_whose_failure_came_in_an_earlier_turn(
    stage: Stage, app: Registry, press: Press
) -> None:
    async with stage.harness(app) as h:
        run = await run_with_an_early_failure(h)
        await run.recover()
        await failed(run)
        press.is_broken = False
        assert await run.recover()

        assert await run.result() == [1, "x"]
        assert press.labels == ["x"]
        assert await count(h, type="print") == 1


@pytest.mark.parametrize("target", ["@turn/", "receive"])
async def test_rewind_after_a_recovery_does_not_bring_back_a_failure_that_is_over(
    stage: Stage, app: Registry, press: Press, target: str
) -> None:
    """The snapshot has the child as failed, but it has run again since. Its new end arrives again, as in a workflow."""
    async with stage.harness(app) as h:
        run = await run_with_an_early_failure(h)
        before = [entry.location for entry in await run.history() if target in entry.location][-1]
        press.is_broken = False
        await run.recover()
        assert await run.result() == [1, "x"]

        await run.rewind(before)

        assert await run.result() == [1, "x"]
        assert press.labels == ["x"]


EARLIER_FAILURES = {
    "branch of an open join": "return await join([receive('m'), start('print', label='x')])",
    "join": "j = join([start('print', label='x')])\nreturn [await receive('m'), (await j)[0]]",
    "join of a join": "j = join([join([start('print', label='x')])])\nreturn [await receive('m'), (await j)[0][0]]",
    "open race": """
late = call("print", label="x", options={"delay": 600})
both = race([start("print", label="x"), late])
return [await receive("m"), (await both)[1]]
""",
    "race": "r = race([start('print', label='x')])\nreturn [await receive('m'), (await r)[1]]",
    "first settled": "r = first_settled([start('print', label='x')])\nreturn [await receive('m'), (await r)[1]]",
    "map": "j = map('print', [{'label': 'x'}])\nreturn [await receive('m'), (await j)[0]]",
    "join of a map": "j = join([map('print', [{'label': 'x'}])])\nreturn [await receive('m'), (await j)[0][0]]",
    "raised as another error": """
h = start("print", label="x")
m = await receive("m")
try:
    return [m, await h]
except ChildFailed as e:
    raise Error("no", e["message"])
""",
}


@pytest.mark.parametrize("program", EARLIER_FAILURES.values(), ids=EARLIER_FAILURES)
async def test_recover_reopens_what_failed_in_an_earlier_turn(
    stage: Stage, app: Registry, press: Press, program: str
) -> None:
    async with stage.harness(app) as h:
        await register(h, program)
        run = await h.start("flow")
        await h.settle()
        await run.send("m", 1)
        await failed(run)
        press.is_broken = False
        assert await run.recover()

        assert await run.result() == [1, "x"]
        assert set(press.labels) == {"x"}


async def test_recover_reopens_children_of_a_map_that_failed_in_different_turns(stage: Stage, app: Registry) -> None:
    broken = {"a", "c"}

    @app.workflow
    async def guarded(ctx: Context, label: str) -> str:
        await ctx.receive("go")
        if label in broken:
            raise Fatal("out of paper")
        return label

    async with stage.harness(app) as h:
        await register(h, "return await map('guarded', [{'label': x} for x in ['a', 'b', 'c']])")
        run = await h.start("flow")
        await h.settle()
        for info in [info async for info in h.list(type="guarded")]:
            await h.run(info.id).send("go")
            await h.settle()
        await failed(run)
        broken.clear()
        await run.recover()

        assert await run.result() == ["a", "b", "c"]
        assert await count(h, type="guarded") == 3


async def test_recover_reopens_a_child_whose_failure_the_history_no_longer_has(
    stage: Stage, app: Registry, press: Press
) -> None:
    async with stage.harness(app) as h:
        await register(h, "h = start('print', label='x')\nfor i in range(50):\n    await sleep(1)\nreturn await h")
        run = await h.start("flow")
        assert "out of paper" in await failed(run)
        press.is_broken = False
        assert await run.recover()

        assert await run.result() == "x"
        assert await count(h, type="print") == 1


async def test_recover_takes_a_failed_child_as_it_is_if_a_person_cancelled_it(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(h, "h = start('endless')\nm = await receive('m')\nreturn [m, await h]")
        run = await h.start("flow")
        await h.settle()
        (child,) = [info async for info in h.list(type="endless")]
        await h.run(child.id).cancel()
        await h.settle()
        await run.send("m", 1)
        await failed(run)
        await run.recover()

        assert "cancelled" in await failed(run)
        assert (await h.run(child.id).info()).state is RunState.CANCELLED


# Rewind


@pytest.mark.every_store
async def test_rewind_to_a_fact_reads_its_message_again(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(
            h,
            """
a = await receive("a")
await call("quick", n=1)
b = await receive("b")
return [a, b]
""",
        )
        run = await h.start("flow")
        await run.send("a", 1)
        await h.settle()
        await run.send("b", 2)
        assert await run.result() == [1, 2]
        history = await run.history()
        (fact,) = [entry.location for entry in history if "receive:a" in entry.location]
        await run.rewind(fact)
        await h.settle()
        again = await run.result()

        assert again == [1, 2]
        states = sorted([info.state.value async for info in h.list(type="quick")])
        assert states == ["succeeded", "succeeded"]


async def test_rewind_to_a_kept_snapshot_continues_from_there(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "found = []\nfor i in range(4):\n    found.append(await receive('m'))\nreturn found")
        run = await h.start("flow")
        for number in range(4):
            await h.settle()
            await run.send("m", number)
        assert await run.result() == [0, 1, 2, 3]
        turns = [entry.location for entry in await run.history() if entry.location.startswith("@turn/")]
        assert len(turns) >= 3
        await run.rewind(turns[2])

        assert await run.result() == [0, 1, 2, 3]


async def test_rewind_of_a_live_flow_cancels_children_of_the_dropped_part(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        await register(h, "await receive('m')\nawait call('endless')")
        run = await h.start("flow")
        await h.settle()
        await run.send("m")
        await h.settle()
        (old,) = [info async for info in h.list(type="endless")]
        (fact,) = [entry.location for entry in await run.history() if "receive:m" in entry.location]
        await run.rewind(fact)
        await h.settle()
        states = {info.id: info.state async for info in h.list(type="endless")}

        assert states.pop(old.id) is RunState.CANCELLED
        assert list(states.values()) == [RunState.SUSPENDED]


async def test_rewound_sleep_has_the_time_that_it_had_left(stage: Stage) -> None:
    """The snapshot is of the beginning, so the whole sleep is left."""
    async with stage.harness() as h:
        await register(h, "t = sleep(100)\nawait receive('m')\nawait t\nreturn now()")
        run = await h.start("flow")
        await h.advance(40)
        await run.send("m")
        await h.advance(20)
        (fact,) = [entry.location for entry in await run.history() if "receive:m" in entry.location]
        rewound_at = h.now.timestamp()
        await run.rewind(fact)

        assert await run.result() == pytest.approx(rewound_at + 100, abs=0.01)


async def test_old_snapshots_are_removed_and_a_rewind_to_them_is_refused(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "for i in range(60):\n    await receive('m')\nreturn 'done'")
        run = await h.start("flow")
        for number in range(60):
            await run.send("m", number)
            await h.settle()
        assert await run.result() == "done"
        history = await run.history()
        turns = [entry.location for entry in history if entry.location.startswith("@turn/")]

        assert 10 <= len(turns) <= 21
        with pytest.raises(InvalidRequest, match="@turn/1'"):
            await run.rewind("@turn/1")


async def test_deleted_flow_is_not_executed(stage: Stage) -> None:
    async with stage.harness() as h:
        await register(h, "return await receive('m')")
        run = await h.start("flow")
        await h.settle()
        await run.cancel()
        await run.delete()

        assert await count(h) == 0


# Workers


async def test_two_workers_share_a_flow(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as one, stage.harness(app) as two:
        await register(one, "n = 0\nfor i in range(6):\n    n += await call('quick', n=i)\nreturn n")
        runs = [await (one if i % 2 else two).start("flow") for i in range(4)]
        for _ in range(10):
            await asyncio.gather(one.settle(), two.settle())

        assert [await run.result() for run in runs] == [15] * 4
