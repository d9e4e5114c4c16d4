"""Plain asyncio inside workflows: it works, and every replay has the same outcome."""

from __future__ import annotations

import asyncio
import contextvars
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Registry, RunFailed, RunState
from tests.stage import Stage, facts


def gate() -> tuple[asyncio.Event, Any]:
    """Return an event, and a step body that returns only when the event is set."""
    event = asyncio.Event()

    async def body(value: Any = None) -> Any:
        await event.wait()
        return value

    return event, body


@pytest.mark.every_store
async def test_gather_runs_steps_at_once_and_gives_results_in_order(stage: Stage) -> None:
    app = Registry()
    opened, body = gate()

    async def open_it() -> str:
        opened.set()
        return "opened"

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.step("a", body, 1), ctx.step("b", open_it), ctx.step("c", body, 3)))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == [1, "opened", 3]
        assert sorted(h.executed) == ["a", "b", "c"]
        assert (await facts(run))[0] == "b step done"


async def test_branches_of_a_task_group_have_their_own_scopes(stage: Stage) -> None:
    app = Registry()

    async def branch(ctx: Context, name: str) -> str:
        await ctx.step("first", lambda: None)
        await asyncio.sleep(60)
        return await ctx.step("first", lambda: name)

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(ctx, name)) for name in "ab"]
        return [task.result() for task in tasks]

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == ["a", "b"]
        assert sorted(fact.split()[0] for fact in await facts(run)) == [
            "+1/first",
            "+1/first#2",
            "+1/~timer",
            "+2/first",
            "+2/first#2",
            "+2/~timer",
        ]


async def test_a_failing_branch_of_a_task_group_cancels_the_others(stage: Stage) -> None:
    app = Registry()
    cancelled: list[str] = []

    async def fail() -> None:
        raise ValueError("no")

    @app.workflow
    async def shop(ctx: Context) -> str:
        async def wait(name: str) -> None:
            try:
                await ctx.sleep(3600)
            except asyncio.CancelledError:
                await ctx.step("clean up", cancelled.append, name)
                raise

        try:
            async with asyncio.TaskGroup() as group:
                for name in ("x", "y", "z"):
                    group.create_task(wait(name))
                group.create_task(fail())
        except ExceptionGroup as errors:
            return f"{len(errors.exceptions)} failed"
        return "?"

    async with stage.harness(app) as h:
        begun = h.now
        assert await h.execute(shop) == "1 failed"
        assert h.now == begun
    assert sorted(cancelled) == ["x", "y", "z"]


async def test_the_sets_of_asyncio_wait_iterate_in_the_same_order_on_every_replay(stage: Stage) -> None:
    """T2, T3: the iteration order of such a set is the same on every replay."""
    app = Registry()

    async def branch(ctx: Context, number: int) -> int:
        await ctx.sleep(60)
        return number

    @app.workflow
    async def shop(ctx: Context) -> list[int]:
        pending = {asyncio.create_task(branch(ctx, number), name=str(number)) for number in range(20)}
        order: list[int] = []
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in [*done, *pending]:
                seen = await ctx.step("look", int, task.get_name())
                assert seen == int(task.get_name()), "the set was in another order before"
                order.append(seen)
            if len(order) > 60:
                break
        await ctx.sleep(3600)
        return order

    async with stage.harness(app) as h:
        run = await h.start(shop)
        result = await run.result()
        recorded = [entry.result for entry in await run.history() if entry.kind.value == "step"]
        assert recorded == result


async def test_wait_for_the_first_leaves_the_others_running(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        slow = asyncio.create_task(ctx.sleep(60))
        fast = asyncio.create_task(ctx.step("fast", lambda: 1))
        done, pending = await asyncio.wait([slow, fast], return_when=asyncio.FIRST_COMPLETED)
        first = [task is fast for task in done] + [task is slow for task in pending]
        await slow
        return first

    async with stage.harness(app) as h:
        begun = h.now
        assert await h.execute(shop) == [True, True]
        assert h.now - begun == timedelta(seconds=60)


async def test_a_timer_beats_a_running_step_and_the_abandoned_body_delays_nothing(stage: Stage) -> None:
    app = Registry()
    ended: list[str] = []

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "never"

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            async with asyncio.timeout(10):
                return await ctx.step("slow", stubborn)
        except TimeoutError:
            return await ctx.step("instead", lambda: "on time")

    async with stage.harness(app, has_endless_bodies=True) as h:
        begun = h.now
        run = await h.start(shop)
        assert await run.result() == "on time"
        assert h.now - begun == timedelta(seconds=10)
        assert ended == ["cancelled"]
        assert h.executed == ["slow", "instead"]
        assert await facts(run) == ["~timer timer done", "instead step done"]


async def test_an_abandoned_body_that_ignores_its_cancellation_does_not_keep_the_run_from_suspending(
    stage: Stage,
) -> None:
    """T4: an abandoned body does not keep a run from suspending."""
    app = Registry()
    release = asyncio.Event()

    async def deaf() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "ignored"

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            async with asyncio.timeout(10):
                return await ctx.step("deaf", deaf)
        except TimeoutError:
            await ctx.sleep(3600)
            return "went on"

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.advance(11)
        assert (await run.info()).state is RunState.SUSPENDED
        release.set()
        await h.settle()
        assert await run.result() == "went on"
        assert await facts(run) == ["~timer timer done", "sleep timer done"]


async def test_a_step_that_lost_a_race_is_not_started_again_after_a_crash(stage: Stage) -> None:
    """T3: a race loser's unfinished step is not started again."""
    app = Registry()
    _, body = gate()

    @app.workflow
    async def shop(ctx: Context) -> str:
        loser = asyncio.create_task(ctx.step("loser", body))
        await ctx.step("winner", lambda: None)
        loser.cancel()
        await ctx.receive("go")
        return "done"

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        await h.crash_worker()
        await h.start_worker()
        await run.send("go")
        assert await run.result() == "done"
        assert sorted(h.executed) == ["loser", "winner"]


async def test_asyncio_sleep_is_durable_and_a_cancelled_timer_costs_nothing(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        async with asyncio.timeout(60):
            await ctx.step("quick", lambda: 1)
        await asyncio.sleep(86400 * 30)
        await asyncio.sleep(0)
        return int(asyncio.get_running_loop().time() - ctx.run.created_at.timestamp())

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == 86400 * 30
        assert await facts(run) == ["quick step done", "~timer#2 timer done"]


async def test_events_locks_conditions_queues_and_semaphores_work_between_the_branches_of_a_run(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        lock, ready, narrow = asyncio.Lock(), asyncio.Event(), asyncio.Semaphore(1)
        log: list[Any] = []

        async def produce() -> None:
            for number in range(3):
                async with lock:
                    await queue.put(await ctx.step("make", lambda n: n * 10, number))
            await ready.wait()
            log.append("told")

        async def consume() -> None:
            for _ in range(3):
                async with narrow:
                    log.append(await queue.get())
                    await ctx.sleep(60)
            ready.set()

        await asyncio.gather(produce(), consume())
        return log

    async with stage.harness(app) as h:
        assert await h.execute(shop) == [0, 10, 20, "told"]


async def test_as_completed_shield_and_wait_for_work(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        found = [
            await one for one in asyncio.as_completed([ctx.step(name, lambda n=name: n) for name in ("a", "b", "c")])
        ]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ctx.receive("never"), 5)
        inner = asyncio.create_task(ctx.step("kept", lambda: "kept"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.shield(inner)
        return [sorted(found), await inner]

    async with stage.harness(app) as h:
        assert await h.execute(shop) == [["a", "b", "c"], "kept"]


async def test_nested_timeouts_with_one_deadline_end_the_outer_one(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            async with asyncio.timeout(10):
                try:
                    async with asyncio.timeout(10):
                        await ctx.receive("never")
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"
        return "?"

    async with stage.harness(app) as h:
        assert await h.execute(shop) == "outer"


async def test_a_task_that_is_not_awaited_is_dropped_when_the_run_ends(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    app = Registry()
    _, body = gate()

    @app.workflow
    async def shop(ctx: Context) -> str:
        ctx_task = asyncio.create_task(ctx.step("left behind", body))
        await ctx.step("only", lambda: None)
        return str(ctx_task.done())

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == "False"
        assert await facts(run) == ["only step done"]
    assert "ended while 1 of its tasks had not" in caplog.text


async def test_context_variables_of_the_worker_do_not_leak_into_a_run(stage: Stage) -> None:
    app = Registry()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        seen = [variable.get()]
        variable.set("mine")
        await ctx.sleep(60)
        seen.append(variable.get())
        return seen

    async with stage.harness(app) as h:
        variable.set("leaked")
        assert await h.execute(shop) == ["clean", "mine"]


async def test_a_workflow_that_cancels_itself_fails(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await ctx.sleep(1)

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="CancelledError"):
            await h.execute(shop)


async def test_a_run_that_holds_a_body_while_it_waits_for_a_message_comes_to_rest(stage: Stage) -> None:
    """T4: the run stays held with its waits registered until no body executes, and nothing spins."""
    app = Registry()
    opened, body = gate()

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        ctx.set_value("progress", 1)
        ctx.set_value("progress", 2)
        return list(await asyncio.gather(ctx.step("slow", body, 1), ctx.receive("go"), ctx.wait_event("news")))

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        info = await run.info()
        assert info.state is RunState.RUNNING
        assert {wait.kind.value for wait in info.waits} == {"message", "event"}
        assert await run.value("progress") == 2
        await run.send("go", 2)
        assert await h.emit("news", 3) == 1
        await h.settle()
        opened.set()
        assert await run.result() == [1, 2, 3]
