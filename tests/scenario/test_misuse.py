"""Misuse: a context used outside its workflow's own code is refused, and leaves no trace in the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, HoldfastError, Registry, Retry, StepFailed
from tests.rows import each_row
from tests.stage import Stage, facts

ONCE = Retry(max_attempts=1)

USES: dict[str, Callable[[Context], Any]] = {
    "step": lambda ctx: ctx.step("inner", lambda: 1),
    "sleep": lambda ctx: ctx.sleep(1),
    "receive": lambda ctx: ctx.receive("x"),
    "wait_event": lambda ctx: ctx.wait_event("x"),
    "call": lambda ctx: ctx.call("child.v1"),
    "start": lambda ctx: ctx.start("child.v1"),
    "send": lambda ctx: ctx.send("somebody", "x"),
    "emit": lambda ctx: ctx.emit("x"),
    "set_value": lambda ctx: ctx.set_value("x", 1),
    "uuid": lambda ctx: ctx.uuid(),
}


@each_row("use", USES)
@each_row("kind", ["async", "sync"])
async def test_a_context_used_inside_a_step_body_is_refused(stage: Stage, use: str, kind: str) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        async def asynchronous() -> Any:
            await USES[use](ctx)

        def synchronous() -> Any:
            return USES[use](ctx)

        try:
            await ctx.step("outer", asynchronous if kind == "async" else synchronous, retry=ONCE)
        except StepFailed as failure:
            await ctx.sleep(3600)
            return failure.message
        return "nothing was said"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert "outside of its workflow code" in await run.result()
        assert await facts(run) == ["outer step failed", "sleep timer done"]
        assert [info async for info in h.list(parent_id=run.id)] == []
        assert await run.value("x") is None


async def test_a_handle_on_a_child_used_inside_a_step_body_is_refused(stage: Stage) -> None:
    app = Registry()

    @app.workflow("child.v1")
    async def child(ctx: Context) -> Any:
        return await ctx.receive("go")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        started = await ctx.start(child)

        async def body() -> Any:
            return await started

        for misuse in (started.cancel, lambda: started.send("go"), body):
            with pytest.raises(StepFailed, match="outside of its workflow code"):
                await ctx.step("misuse", misuse, retry=ONCE)
        started.send("go", 5)
        return await started

    async with stage.harness(app) as h:
        assert await h.execute(shop) == 5


async def test_the_context_of_one_run_is_refused_in_another(stage: Stage) -> None:
    app = Registry()
    kept: list[Context] = []

    @app.workflow
    async def first(ctx: Context) -> None:
        kept.append(ctx)
        await ctx.receive("go")

    @app.workflow
    async def second(ctx: Context) -> None:
        await kept[0].step("stolen", lambda: 1)

    async with stage.harness(app) as h:
        run = await h.start(first)
        await h.settle()
        with pytest.raises(HoldfastError, match="outside of its workflow code"):
            await h.execute(second)
        assert await facts(run) == []


async def test_an_operation_made_by_the_workflow_but_awaited_in_a_body_fails_the_step_and_not_the_run(
    stage: Stage,
) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        sleeping = ctx.sleep(5)

        async def body() -> None:
            await sleeping

        try:
            await ctx.step("body", body, retry=ONCE)
        except StepFailed as failure:
            sleeping.close()
            await asyncio.sleep(60)
            return failure.message
        return "nothing was said"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert "outside of its workflow code" in await run.result()
        assert await facts(run) == ["body step failed", "~timer timer done"]
