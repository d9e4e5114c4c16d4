"""Durable loops, and runs that continue as new."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from holdfast import Break, ChildFailed, Context, Continue, HoldfastError, InvalidRequest, Registry, RunState
from holdfast.app import session_of
from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.core.model import WaitKind
from tests.stage import Stage, facts

nothing: list[int] = []


@pytest.mark.every_store
async def test_a_loop_continues_with_its_state_until_it_breaks(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def count(ctx: Context, until: int) -> int:
        async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
            done = await ctx.step("add", lambda: state + 1)
            return Break(done) if done == until else Continue(done)

        return await ctx.loop("count", body, 0)

    async with stage.harness(app) as h:
        run = await h.start(count, 3)
        assert await run.result() == 3
        assert await facts(run) == [
            "count/~1/add step done",
            "count/~2/add step done",
            "count/~3/add step done",
            "count loop done",
        ]


async def test_a_loop_inside_a_loop_is_pruned_with_it(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def nested(ctx: Context) -> int:
        async def inner(ctx: Context, n: int) -> Continue[int] | Break[int]:
            n = await ctx.step("add", lambda: n + 1)
            return Break(n) if n % 7 == 0 else Continue(n)

        async def outer(ctx: Context, n: int) -> Continue[int] | Break[int]:
            n = await ctx.loop("inner", inner, n, keep=1, every=2)
            return Break(n) if n == 35 else Continue(n)

        return await ctx.loop("outer", outer, 0, keep=1, every=2)

    async with stage.harness(app) as h:
        run = await h.start(nested)
        assert await run.result() == 35
        assert not any(fact.startswith("outer/~1/") for fact in await facts(run))


async def test_ends_of_children_that_are_not_awaited_are_pruned_with_their_iterations(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(100)

    @app.workflow
    async def parent(ctx: Context) -> int:
        handle = await ctx.start(child, name="first")

        async def body(ctx: Context, n: int) -> Continue[int] | Break[None]:
            await ctx.start(child)
            await ctx.sleep(10)
            return Break() if n == 59 else Continue(n + 1)

        await ctx.loop("l", body, 0, keep=2, every=2)
        await ctx.receive("end")
        await handle
        return 1

    async with stage.harness(app) as h:
        run = await h.start(parent)
        await h.advance(600)
        await h.stop_worker()
        await run.send("end")
        request = ClaimRequest(id="c", worker="w", types=(parent.type,), limit=1, lease=SECOND, python="3")
        (lease,) = (await session_of(h).store.claim(request)).leases
        ends = [arrival.name for arrival in lease.arrivals if arrival.kind is WaitKind.CHILD]
        assert len(ends) < 10

        await h.advance(60)
        await h.start_worker()
        assert await run.result() == 1


async def test_a_loop_does_not_keep_the_random_generator_of_every_iteration(stage: Stage) -> None:
    app = Registry()
    seen: list[weakref.ref[Random]] = []
    alive: list[int] = []

    @app.workflow
    async def draw(ctx: Context) -> None:
        async def body(ctx: Context, n: int) -> Continue[int] | Break[None]:
            seen.append(weakref.ref(ctx.random))
            alive.append(sum(one() is not None for one in seen))
            await ctx.step("s", ctx.random.random)
            return Break() if n == 50 else Continue(n + 1)

        await ctx.loop("l", body, 0)

    async with stage.harness(app) as h:
        await h.execute(draw)
        assert max(alive) < 10


async def test_a_task_left_running_by_an_iteration_is_cancelled_with_it(stage: Stage) -> None:
    app = Registry()
    fates: set[str] = set()

    @app.workflow
    async def leave(ctx: Context) -> int:
        async def background(ctx: Context) -> None:
            try:
                await ctx.sleep(30)
                fates.add("done")
            except asyncio.CancelledError:
                fates.add("cancelled")
                raise

        async def body(ctx: Context, n: int) -> Continue[int] | Break[int]:
            left = asyncio.create_task(background(ctx))
            await ctx.sleep(5)
            assert not left.done()
            return Break(n) if n == 25 else Continue(n + 1)

        last = await ctx.loop("l", body, 0, keep=2, every=2)
        await ctx.sleep(100)
        return last

    async with stage.harness(app) as h:
        assert await h.execute(leave) == 25
        assert fates == {"cancelled"}


async def test_a_state_and_a_value_have_the_types_that_the_body_declares(stage: Stage) -> None:
    app = Registry()

    @dataclass
    class State:
        seen: list[int]

    @app.workflow
    async def typed(ctx: Context) -> int:
        async def body(ctx: Context, state: State) -> Continue[State] | Break[State]:
            assert isinstance(state, State)
            await ctx.sleep(60)
            seen = [*state.seen, len(state.seen)]
            return Break(State(seen)) if len(seen) == 25 else Continue(State(seen))

        end = await ctx.loop("l", body, State([]), keep=2, every=3)
        await ctx.sleep(60)
        assert isinstance(end, State)
        return sum(end.seen)

    async with stage.harness(app) as h:
        assert await h.execute(typed) == sum(range(25))


async def test_the_history_of_a_long_loop_stays_small_and_the_loop_resumes_in_the_middle(stage: Stage) -> None:
    app = Registry()
    begun: list[int] = []

    @app.workflow
    async def long(ctx: Context) -> int:
        async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
            begun.append(state)
            await ctx.step("work", lambda: state)
            if state % 50 == 49:
                await ctx.receive("go")
            return Break(state) if state == 199 else Continue(state + 1)

        return await ctx.loop("l", body, 0, keep=5, every=5)

    async with stage.harness(app) as h:
        run = await h.start(long)
        for _ in range(3):
            await h.advance(1)
            assert len(await run.history()) < 30
            begun.clear()
            await run.send("go")
        await h.advance(1)
        if stage.kind != "replay":
            assert min(begun) >= 139 - 11
        await run.send("go")
        assert await run.result() == 199
        assert len(await run.history()) < 30


async def test_loops_nest_and_contain_branches(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def nested(ctx: Context) -> Any:
        async def inner(ctx: Context, state: int) -> Continue[int] | Break[int]:
            found = await ctx.join(
                "pair",
                {"a": lambda ctx: ctx.step("a", lambda: 1), "b": lambda ctx: ctx.step("b", lambda: 2)},
            )
            await ctx.sleep(1)
            total = state + sum(found.values())
            return Break(total) if total >= 9 else Continue(total)

        async def outer(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
            state = [*state, await ctx.loop("inner", inner, 0, keep=1, every=1)]
            return Break(state) if len(state) == 4 else Continue(state)

        return await ctx.loop("outer", outer, nothing, keep=1, every=2)

    async with stage.harness(app) as h:
        run = await h.start(nested)
        assert await run.result() == [9, 9, 9, 9]
        assert "outer/~4/inner/~3/pair/a/a step done" in await facts(run)


async def test_random_values_and_sets_of_tasks_are_the_same_when_a_loop_is_resumed(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def chancy(ctx: Context) -> int:
        import asyncio

        async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
            tasks = {asyncio.create_task(ctx.sleep(seconds)) for seconds in range(1, 7)}
            order = [task.get_name() for task in tasks]
            seen = [ctx.random.random(), str(ctx.uuid()), order]
            await asyncio.wait(tasks)
            recorded = await ctx.step("seen", lambda: seen)
            assert recorded == seen
            return Break(state) if state == 30 else Continue(state + 1)

        return await ctx.loop("l", body, 0, keep=2, every=3)

    async with stage.harness(app) as h:
        assert await h.execute(chancy) == 30


async def test_a_run_gets_each_event_once_even_if_the_iterations_that_took_them_are_pruned(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def collect(ctx: Context) -> list[int]:
        async def body(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
            state = [*state, await ctx.wait_event("news")]
            return Break(state) if len(state) == 12 else Continue(state)

        return await ctx.loop("l", body, nothing, keep=1, every=2)

    async with stage.harness(app) as h:
        run = await h.start(collect)
        await h.settle()
        for number in range(12):
            await h.emit("news", number)
            await h.settle()
        assert await run.result() == list(range(12))


async def test_a_loop_without_waits_leaves_the_worker_time_for_other_runs(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def busy(ctx: Context) -> int:
        async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
            return Break(state) if state == 500 else Continue(state + 1)

        return await ctx.loop("l", body, 0)

    @app.workflow
    async def other(ctx: Context) -> str:
        return await ctx.step("s", lambda: "done")

    async with stage.harness(app) as h:
        run = await h.start(busy)
        assert await h.execute(other) == "done"
        assert await run.result() == 500
        assert len(await run.history()) <= 4


@pytest.mark.parametrize("wrong", [None, 5, "Break"])
async def test_a_body_that_returns_neither_continue_nor_break_blocks_the_run_and_names_the_value(
    stage: Stage, wrong: Any
) -> None:
    app = Registry()

    @app.workflow
    async def odd(ctx: Context) -> Any:
        async def body(ctx: Context, state: int) -> Any:
            return wrong

        return await ctx.loop("l", body, 0)

    async with stage.harness(app) as h:
        with pytest.raises(HoldfastError, match=rf"returned {wrong!r}; it must return Continue\(state\) or Break"):
            await h.execute(odd)


async def test_an_invalid_loop_is_refused_at_the_call(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def odd(ctx: Context) -> list[str]:
        async def body(ctx: Context, state: int) -> Break[int]:
            return Break(state)

        refusals = []
        for options in ({"body": 5}, {"keep": 0}, {"every": True}, {"state": object()}):
            try:
                await ctx.loop("l", **{"body": body, "state": 0, **options})  # type: ignore[arg-type]
            except InvalidRequest as error:
                refusals.append(str(error))
        return refusals

    async with stage.harness(app) as h:
        body, keep, every, state = await h.execute(odd)
        assert "needs a body" in body or "expected a body" in body
        assert "keep must be a number of iterations" in keep
        assert "every must be a number of iterations" in every
        assert "object" in state


# Generations


async def test_a_run_that_continues_as_new_is_the_same_run_without_its_history(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def bill(ctx: Context, month: int, paid: int = 0) -> Any:
        paid += await ctx.step("charge", lambda: 10)
        await ctx.sleep(30 * 86400)
        if month < 12:
            return await ctx.continue_as_new(month + 1, paid)
        return paid

    async with stage.harness(app) as h:
        run = await h.start(bill, 1, key="customer-1")
        assert await run.result() == 120
        info = await run.info()
        assert (info.generation, info.payload, info.state) == (12, {"month": 12, "paid": 110}, RunState.SUCCEEDED)
        assert await facts(run) == ["charge step done", "sleep timer done"]
        generations = [fact.data["generation"] for fact in await run.audit() if fact.event == "continued"]
        assert generations == list(range(2, 13))
        again = await h.start(bill, 1, key="customer-1")
        assert (again.id, again.created) == (run.id, False)


async def test_unread_messages_survive_a_generation_and_read_ones_do_not(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def inbox(ctx: Context, seen: list[str]) -> Any:
        seen = [*seen, await ctx.receive("m")]
        if len(seen) < 4:
            return await ctx.continue_as_new(seen)
        return seen

    async with stage.harness(app) as h:
        run = await h.start(inbox, [])
        for text in "abcd":
            await run.send("m", text)
        assert await run.result() == ["a", "b", "c", "d"]


async def test_open_operations_end_with_the_generation(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.receive("never")

    @app.workflow
    async def parent(ctx: Context, generation: int) -> Any:
        if generation == 1:
            await ctx.start(child, on_close="cancel", name="closed")
            await ctx.start(child, name="left")
            return await ctx.continue_as_new(2)
        try:
            return await ctx.receive("m", timeout=60)
        except TimeoutError:
            return "nothing"

    async with stage.harness(app) as h:
        run = await h.start(parent, 1)
        assert await run.result() == "nothing"
        states = sorted([info.state.value async for info in h.list(parent_id=run.id)])
        assert states == ["cancelled", "suspended"]


async def test_an_event_is_not_delivered_again_to_the_next_generation(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def listen(ctx: Context, seen: list[int]) -> Any:
        seen = [*seen, await ctx.wait_event("news")]
        return await ctx.continue_as_new(seen) if len(seen) < 3 else seen

    async with stage.harness(app) as h:
        run = await h.start(listen, [])
        await h.settle()
        for number in range(3):
            await h.emit("news", number)
        assert await run.result() == [0, 1, 2]


async def test_continuing_as_new_from_a_branch_or_with_wrong_arguments_is_refused(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def odd(ctx: Context, n: int) -> Any:
        async def branch(ctx: Context) -> Any:
            return await ctx.continue_as_new(5)

        async def too_many(ctx: Context) -> Any:
            return await ctx.continue_as_new(1, 2)

        refusals = []
        for call in (lambda: ctx.first_settled("b", {"b": branch}), lambda: too_many(ctx)):
            try:
                await call()
            except InvalidRequest as error:
                refusals.append(str(error))
        return refusals

    async with stage.harness(app) as h:
        branch, arguments = await h.execute(odd, 1)
        assert "the workflow function itself" in branch
        assert "takes 1 arguments" in arguments


# Limits


async def test_a_run_that_takes_longer_than_its_max_run_is_cancelled(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def slow(ctx: Context) -> None:
        while True:
            await ctx.sleep(40)

    async with stage.harness(app) as h:
        run = await h.start(slow, max_run=100)
        await h.advance(99)
        assert (await run.info()).state is RunState.SUSPENDED
        await h.advance(2)
        info = await run.info()
        assert info.state is RunState.CANCELLED
        assert info.error is not None
        assert info.error.message == "it ran longer than its max_run of 100 s"


async def test_a_suspension_longer_than_max_suspend_cancels_and_a_shorter_one_does_not(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def waits(ctx: Context) -> None:
        while True:
            await ctx.receive("go")

    async with stage.harness(app) as h:
        run = await h.start(waits, max_suspend=60)
        for _ in range(5):
            await h.advance(50)
            await run.send("go")
        await h.advance(59)
        assert (await run.info()).state is RunState.SUSPENDED
        await h.advance(2)
        info = await run.info()
        assert info.state is RunState.CANCELLED
        assert info.error is not None
        assert info.error.message == "it was suspended longer than its max_suspend of 60 s"


async def test_waking_a_suspended_run_without_a_reason_does_not_restart_its_max_suspend(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def waits(ctx: Context) -> None:
        await ctx.receive("go")

    async with stage.harness(app) as h:
        run = await h.start(waits, max_suspend=60)
        for _ in range(2):
            await h.advance(29)
            await run.wake()
            await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        await h.advance(3)
        assert (await run.info()).state is RunState.CANCELLED


async def test_a_child_has_its_own_limits(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.receive("never")

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(child, max_run=30)
        except ChildFailed as failure:
            return f"{failure.kind} after {ctx.now().second} s"
        return "?"

    async with stage.harness(app) as h:
        assert await h.execute(parent) == "cancelled after 30 s"


@pytest.mark.parametrize("options", [{"max_run": 0}, {"max_suspend": -1}])
async def test_an_invalid_limit_is_refused(stage: Stage, options: Any) -> None:
    app = Registry()

    @app.workflow
    async def nothing(ctx: Context) -> None: ...

    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match="greater than zero"):
            await h.start(nothing, **options)


# Other code


def looping_to_sixty(body_step: str = "work", **options: int) -> Registry:
    """Deploy a loop that executes one step per iteration, and waits for a message in some of them."""
    app = Registry()

    @app.workflow("sixty")
    async def sixty(ctx: Context) -> int:
        async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
            await ctx.step(body_step, lambda: state)
            if state == 34:
                await ctx.receive("go")
            return Break(state) if state == 60 else Continue(state + 1)

        return await ctx.loop("l", body, 1, **options)

    return app


@pytest.mark.parametrize("before", [(10, 10), (1, 1), (3, 2)])
@pytest.mark.parametrize("after", [(7, 7), (1, 1), (20, 5), (5, 20), (10, 3)])
async def test_keep_and_every_of_a_loop_may_change_while_it_runs(
    stage: Stage, before: tuple[int, int], after: tuple[int, int]
) -> None:
    async with stage.harness(looping_to_sixty(keep=before[0], every=before[1])) as h:
        run_id = (await h.start("sixty")).id
        await h.settle()
    async with stage.harness(looping_to_sixty(keep=after[0], every=after[1])) as h:
        await h.run(run_id).send("go")
        assert await h.run(run_id).result() == 60


async def test_an_operation_that_new_code_skips_in_a_loop_is_noticed_before_it_is_pruned(stage: Stage) -> None:
    async with stage.harness(looping_to_sixty(keep=2, every=2)) as h:
        run_id = (await h.start("sixty")).id
        await h.settle()
        kept = await facts(h.run(run_id))
    async with stage.harness(looping_to_sixty("other work", keep=2, every=2)) as h:
        await h.run(run_id).send("go")
        await h.settle()
        info = await h.run(run_id).info()
        assert info.state is RunState.BLOCKED
        assert info.error is not None
        assert "never reached: l/~" in info.error.message
        assert set(kept) <= set(await facts(h.run(run_id)))


async def test_the_history_of_a_loop_over_events_can_be_read(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def listener(ctx: Context) -> list[int]:
        async def body(ctx: Context, got: list[int]) -> Continue[list[int]] | Break[list[int]]:
            got = [*got, await ctx.wait_event("news")]
            return Continue(got) if len(got) < 4 else Break(got)

        return await ctx.loop("heard", body, list[int](), keep=1, every=1)

    async with stage.harness(app) as h:
        run = await h.start(listener)
        for number in range(4):
            await h.emit("news", number)
        assert await run.result() == [0, 1, 2, 3]
        results = {entry.location: entry.result for entry in await run.history()}
        assert results["heard/~4/event:news"] == 3
        assert results["heard"] == [0, 1, 2, 3]
