"""The workflows of the golden stores. Their runs are in kept files, so never change what a run of them records."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast import Context, Fatal, Registry, Retry, step_info

registry = Registry()

FOREVER = timedelta(days=36_500)
"""Retention of ended runs: no pruner removes them from a golden store."""

SHORT = timedelta(seconds=30)
"""Length of timers and of the pause before a retry. They are over when a kept store is used."""

FLOW = "golden.flow.v1"
FLOW_TEXT = '''
"""Wait for an answer, and add to it."""

async def main(base: int):
    answer = await receive("go")
    total = await call("golden.add.v1", a=base, b=answer["b"])
    return {"total": total}
'''

is_code_changed = False
"""True while the code of `golden.changed.v1` does not fit its runs."""


@registry.task("golden.add.v1")
def add(a: int, b: int) -> int:
    return a + b


@registry.workflow("golden.timer.v1")
async def timer(ctx: Context, name: str) -> str:
    first = await ctx.step("before", lambda: f"{name} slept")
    await ctx.sleep(SHORT)
    return await ctx.step("after", lambda: f"{first} and woke")


@registry.workflow("golden.message.v1")
async def message(ctx: Context, name: str) -> dict[str, Any]:
    ctx.set_value("stage", "waiting")
    answer = await ctx.receive("go")
    return {"name": name, "answer": answer}


@registry.workflow("golden.event.v1")
async def event(ctx: Context, topic: str) -> Any:
    return await ctx.wait_event(topic)


@registry.workflow("golden.parent.v1")
async def parent(ctx: Context, name: str) -> dict[str, Any]:
    return {"child": await ctx.call(message, name)}


@registry.workflow("golden.changed.v1")
async def changed(ctx: Context) -> str:
    name = "second" if is_code_changed else "first"
    done = await ctx.step(name, lambda: f"{name} done")
    await ctx.receive("go")
    return done


@registry.step(retry=Retry(max_attempts=3, initial=SHORT, jitter=0))
def flaky() -> str:
    attempt = step_info().attempt
    if attempt == 1:
        raise RuntimeError("the first attempt fails")
    return f"attempt {attempt}"


@registry.workflow("golden.retry.v1")
async def retrying(ctx: Context) -> str:
    return await flaky()


@registry.workflow("golden.limited.v1")
async def limited(ctx: Context, number: int) -> int:
    return await ctx.step("double", lambda: 2 * number)


@registry.workflow("golden.failed.v1")
async def failed(ctx: Context) -> None:
    def refuse() -> None:
        raise Fatal("the card was refused")

    await ctx.step("charge", refuse)
