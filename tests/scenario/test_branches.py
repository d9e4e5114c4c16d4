"""Branches: `join`, `race` and `first_settled`, and the fate of the losing branches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import (
    Context,
    HoldfastError,
    InvalidRequest,
    JoinFailed,
    RaceFailed,
    Registry,
    Retry,
    RunState,
    StepFailed,
    step_info,
)
from tests.stage import Stage, facts


async def sleeper(ctx: Context, seconds: float, value: Any = None) -> Any:
    await ctx.sleep(seconds)
    return value


def fails(message: str) -> Any:
    raise LookupError(message)


once = Retry(max_attempts=1)


@pytest.mark.every_store
async def test_a_join_gives_the_results_by_key_in_the_order_of_its_branches(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def both(ctx: Context) -> Any:
        async def slow(ctx: Context) -> str:
            await ctx.sleep(60)
            return await ctx.step("say", lambda: "slow")

        async def quick(ctx: Context) -> str:
            return await ctx.step("say", lambda: "quick")

        return await ctx.join("say", {"slow": slow, "quick": quick})

    async with stage.harness(app) as h:
        run = await h.start(both)
        result = await run.result()
        assert (result, list(result)) == ({"slow": "slow", "quick": "quick"}, ["slow", "quick"])
        assert await facts(run) == [
            "say/quick/say step done",
            "say/slow/sleep timer done",
            "say/slow/say step done",
        ]


async def test_a_second_join_of_one_name_gets_a_number(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def twice(ctx: Context) -> Any:
        async def one(ctx: Context) -> int:
            return await ctx.step("one", lambda: 1)

        return [await ctx.join("j", {"a": one}), await ctx.join("j", {"a": one})]

    async with stage.harness(app) as h:
        run = await h.start(twice)
        assert await run.result() == [{"a": 1}, {"a": 1}]
        assert await facts(run) == ["j/a/one step done", "j#2/a/one step done"]


async def test_a_join_without_branches_ends_at_once(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def none(ctx: Context) -> Any:
        return await ctx.join("none", {})

    async with stage.harness(app) as h:
        assert await h.execute(none) == {}


async def test_a_join_waits_for_all_and_collects_what_failed(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def some(ctx: Context) -> Any:
        try:
            await ctx.join(
                "work",
                {
                    "bad": lambda ctx: ctx.step("bad", fails, "no", retry=once),
                    "late": lambda ctx: sleeper(ctx, 60, "late"),
                    "good": lambda ctx: ctx.step("good", lambda: 1),
                },
            )
        except JoinFailed as failure:
            (error,) = failure.errors.values()
            assert isinstance(error, StepFailed)
            return [failure.results, list(failure.errors), error.message, ctx.now().minute]

    async with stage.harness(app) as h:
        assert await h.execute(some) == [{"late": "late", "good": 1}, ["bad"], "no", 1]


async def test_a_join_that_fails_fast_cancels_the_remaining_branches_wherever_they_are(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def hasty(ctx: Context) -> Any:
        seen: list[str] = []

        async def patient(ctx: Context) -> None:
            try:
                await ctx.sleep(1000)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def broken(ctx: Context) -> None:
            await ctx.sleep(5)
            raise ValueError("now")

        try:
            await ctx.join(
                "j",
                {"first": patient, "middle": broken, "last": patient, "done": lambda ctx: sleeper(ctx, 1, 7)},
                fail_fast=True,
            )
        except JoinFailed as failure:
            await ctx.step("after", lambda: None)
            return [failure.results, {key: str(error) for key, error in failure.errors.items()}, seen]

    async with stage.harness(app) as h:
        assert await h.execute(hasty) == [{"done": 7}, {"middle": "now"}, ["cancelled", "cancelled"]]
        assert h.now.second == 5


async def test_the_first_success_wins_a_race_and_failures_before_it_do_not(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def race(ctx: Context) -> Any:
        winner = await ctx.race(
            "r",
            {
                "broken": lambda ctx: ctx.step("broken", fails, "no", retry=once),
                "slow": lambda ctx: sleeper(ctx, 50),
                "quick": lambda ctx: sleeper(ctx, 20, "won"),
            },
        )
        return [*winner, ctx.now().second]

    async with stage.harness(app) as h:
        run = await h.start(race)
        assert await run.result() == ["quick", "won", 20]
        assert await facts(run) == ["r/broken/broken step failed", "r/quick/sleep timer done"]


async def test_a_race_that_all_lose_fails_with_all_their_errors(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def race(ctx: Context) -> Any:
        async def broken(ctx: Context, text: str) -> None:
            raise ValueError(text)

        try:
            await ctx.race("r", {"a": lambda ctx: broken(ctx, "1"), "b": lambda ctx: broken(ctx, "2")})
        except RaceFailed as failure:
            return {key: str(error) for key, error in failure.errors.items()}

    async with stage.harness(app) as h:
        assert await h.execute(race) == {"a": "1", "b": "2"}


async def test_the_first_to_settle_wins_also_by_failing(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def first(ctx: Context) -> Any:
        async def broken(ctx: Context) -> None:
            await ctx.sleep(1)
            raise ValueError("first")

        key, value = await ctx.first_settled(
            "a", {"x": lambda ctx: sleeper(ctx, 2, 1), "y": lambda ctx: sleeper(ctx, 3)}
        )
        try:
            await ctx.first_settled("b", {"x": lambda ctx: sleeper(ctx, 2, 1), "y": broken})
        except ValueError as error:
            return [key, value, str(error)]

    async with stage.harness(app) as h:
        assert await h.execute(first) == ["x", 1, "first"]


async def test_a_timer_beats_a_step_that_runs(stage: Stage) -> None:
    app = Registry()
    begun = 0

    @app.workflow
    async def race(ctx: Context) -> Any:
        async def endless() -> None:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()

        key, _ = await ctx.race(
            "r", {"work": lambda ctx: ctx.step("work", endless), "limit": lambda ctx: sleeper(ctx, 30)}
        )
        await ctx.step("after", lambda: None)
        return key

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(race)
        assert await run.result() == "limit"
        assert await facts(run) == ["r/limit/sleep timer done", "after step done"]
        assert begun == 1


async def test_a_loser_that_ignores_its_cancellation_delays_nothing(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def race(ctx: Context) -> Any:
        async def stubborn(ctx: Context) -> None:
            while True:
                try:
                    await ctx.sleep(10_000)
                except asyncio.CancelledError:
                    continue

        key, _ = await ctx.race("r", {"stubborn": stubborn, "quick": lambda ctx: sleeper(ctx, 1)})
        await ctx.sleep(1)
        return [key, ctx.now().second]

    async with stage.harness(app) as h:
        assert await h.execute(race) == ["quick", 2]


async def test_the_waits_of_losing_branches_are_withdrawn_and_take_nothing_later(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def race(ctx: Context) -> Any:
        await ctx.race("r", {"message": lambda ctx: ctx.receive("go"), "limit": lambda ctx: sleeper(ctx, 5)})
        ctx.set_value("raced", value=True)
        return await ctx.receive("go")

    async with stage.harness(app) as h:
        run = await h.start(race)
        await h.advance(10)
        assert [wait.location for wait in (await run.info()).waits] == ["receive:go"]
        await run.send("go", 17)
        assert await run.result() == 17


async def test_branches_nest_in_each_other_with_retries_and_sleeps(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def nested(ctx: Context) -> Any:
        def flaky() -> str:
            if step_info().attempt < 3:
                raise OSError("busy")
            return "worked"

        async def inner(ctx: Context) -> Any:
            return await ctx.race(
                "inner",
                {
                    "step": lambda ctx: ctx.step("flaky", flaky, retry=Retry(initial=20, jitter=0)),
                    "limit": lambda ctx: sleeper(ctx, 600, "too late"),
                },
            )

        async def outer(ctx: Context) -> Any:
            await ctx.sleep(5)
            return await ctx.join("outer", {"a": inner, "b": inner})

        return await ctx.first_settled("all", {"nested": outer, "limit": lambda ctx: sleeper(ctx, 6000)})

    async with stage.harness(app) as h:
        key, found = await h.execute(nested)
        assert key == "nested"
        assert {winner for winner, _ in found.values()} == {"step"}


async def test_a_child_that_lost_is_cancelled(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.receive("never")

    @app.workflow
    async def race(ctx: Context) -> str:
        key, _ = await ctx.race("r", {"child": lambda ctx: ctx.call(child), "limit": lambda ctx: sleeper(ctx, 5)})
        await ctx.sleep(1)
        return key

    async with stage.harness(app) as h:
        run = await h.start(race)
        assert await run.result() == "limit"
        (info,) = [one async for one in h.list(parent_id=run.id)]
        assert info.state is RunState.CANCELLED


@pytest.mark.parametrize("kind", ["join", "race", "first_settled"])
async def test_branches_that_are_not_functions_are_refused_at_the_call(stage: Stage, kind: str) -> None:
    app = Registry()

    @app.workflow
    async def wrong(ctx: Context) -> Any:
        refusals = []
        for branches in ({"a": ctx.sleep(1)}, {"a/b": sleeper}, {"a": 5}, [sleeper]):
            try:
                await getattr(ctx, kind)("j", branches)
            except InvalidRequest as error:
                refusals.append(str(error))
        return refusals

    async with stage.harness(app) as h:
        run = await h.start(wrong)
        called, named, number, listed = await run.result()
        assert "pass the function itself, do not call it" in called
        assert "key of a branch" in named
        assert "not int" in number
        assert "expected a dict of functions by key" in listed
        assert await facts(run) == []


@pytest.mark.parametrize("kind", ["race", "first_settled"])
async def test_a_race_without_branches_is_refused(stage: Stage, kind: str) -> None:
    app = Registry()

    @app.workflow
    async def nobody(ctx: Context) -> Any:
        return await getattr(ctx, kind)("r", {})

    async with stage.harness(app) as h:
        with pytest.raises(HoldfastError, match=r"Blocked by InvalidRequest: .*no branches"):
            await h.execute(nobody)
