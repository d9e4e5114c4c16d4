"""Deploys: a run started by old code continues under new code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Context, Registry, RunInfo, RunState
from holdfast.testing.harness import Harness
from tests.stage import Stage

Code = Callable[[Context], Awaitable[Any]]


def one() -> int:
    return 1


def shop(code: Code, *, strict: bool = True) -> Registry:
    """An application with one workflow, which has this code."""
    app = Registry()

    @app.workflow("shop.v1", strict=strict)
    async def workflow(ctx: Context) -> Any:
        return await code(ctx)

    @app.workflow("quick.v1")
    async def quick(ctx: Context, number: int) -> int:
        await ctx.sleep(number)
        return number

    @app.workflow("other.v1")
    async def other(ctx: Context) -> str:
        await ctx.receive("end")
        return "other"

    return app


async def recorded(stage: Stage, code: Code) -> str:
    """Start a run with this code, let it go as far as it can, and return its id."""
    async with stage.harness(shop(code)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        info = await run.info()
        assert info.state is RunState.SUSPENDED, info.error
    return run.id


async def deployed(stage: Stage, code: Code, run_id: str, *, strict: bool = True) -> tuple[Any, list[str]]:
    """Send a run its message under new code. Return its result and the steps that were executed for it."""
    async with stage.harness(shop(code, strict=strict)) as h:
        await h.run(run_id).send("go")
        return await h.run(run_id).result(), h.executed


async def blocked(h: Harness, run_id: str) -> RunInfo:
    await h.run(run_id).send("go")
    await h.settle()
    info = await h.run(run_id).info()
    assert info.state is RunState.BLOCKED, info
    return info


async def old(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.step("pack", one)
    await ctx.receive("go")
    return "old"
