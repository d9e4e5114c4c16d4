"""Every kind of run in namespaces of its own: pipelines, tasks, `def` workflows, generations, events and versions.

A process that dies at any call changes nothing, and they end as on the memory store.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, Rollback, SyncContext, isolated, step_info
from holdfast.testing import Harness
from tests.isolated.faulty_namespace import When
from tests.isolated.world import World
from tests.plugin.tiers import amount

PAYLOADS: dict[str, dict[str, Any]] = {
    "signup": {"email": "ada"},
    "refund": {"order": "A-17"},
    "square": {"number": 7},
    "plain": {"number": 3},
    "count": {"number": 0},
    "watch": {},
}


def application() -> Holdfast:  # noqa: C901 - one small workflow of each kind
    hf = Holdfast("memory://")

    async def confirm(ctx: Context, email: str) -> str:
        await ctx.sleep(5)
        return f"{email} {await ctx.receive('confirmed', timeout=60)}"

    def create(email: str) -> str:
        return email

    hf.pipeline("signup", create, confirm, len)
    refund = hf.pipeline("refund")

    @refund.step(undo=lambda payment: None)
    def pay_back(order: str) -> str:
        return f"payment for {order}"

    @refund.step
    def tell(payment: str) -> str:
        raise Rollback("no mail server")  # not an error that is retried: a crash uses up an attempt

    @hf.task("square", retry=Retry(max_attempts=3, initial=2, jitter=0))
    async def square(number: int) -> int:
        if step_info().attempt < 2:
            raise OSError("busy")
        return number * number

    @hf.workflow("plain")
    def plain(ctx: SyncContext, number: int) -> int:
        ctx.sleep(1)
        return ctx.step("add", lambda: number + 1) + ctx.call(square, number)

    @hf.workflow("count")
    async def count(ctx: Context, number: int) -> int:
        ctx.removed("old", "step")
        number += await ctx.step("one", lambda: 1) * ctx.version("size", 2)
        if number < 6:
            await ctx.continue_as_new(number)
        ctx.emit("counted", number)
        return number

    @hf.workflow("watch")
    async def watch(ctx: Context) -> Any:
        ctx.set_value("phase", "waiting")
        return await ctx.wait_event("counted", timeout=600)

    return hf


async def in_a_namespace(world: World) -> dict[str, Any]:
    """Play one run of each kind. Return how they ended."""
    for name in reversed(PAYLOADS):  # the watcher first, because on the memory store it also exists before the event
        world.start(name, name, PAYLOADS[name])
    await world.mail("signup", isolated.message("1", "confirmed", "yes", at=world.now))
    await world.play()
    return {
        name: (end.state, end.result, end.error and end.error.message)
        for name, end in world.ends.items()
        if name in PAYLOADS
    }


async def in_memory() -> dict[str, Any]:
    """Return how the same runs end on the memory store."""
    async with Harness(application()) as h:
        runs = {name: await h.start(name, PAYLOADS[name], id=name) for name in reversed(PAYLOADS)}
        await runs["signup"].send("confirmed", "yes")
        while [info async for info in h.list() if not info.state.is_end]:
            await h.settle()
            await h.skip()
        found = {}
        for name, run in runs.items():
            info = await run.info()
            result = await run.result() if info.error is None else None
            found[name] = (info.state, result, info.error and info.error.message)
        return found


async def test_every_kind_of_run_ends_as_on_the_memory_store() -> None:
    assert await in_a_namespace(World(application())) == await in_memory()


@pytest.mark.both_tiers
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_that_dies_at_any_call_changes_nothing_for_any_kind(when: When) -> None:
    undisturbed = World(application())
    expected = await in_a_namespace(undisturbed)
    for number in range(1, len(undisturbed.counter.names) + 1, amount(short=9, long=1)):
        world = World(application(), crashes={number: when})
        assert await in_a_namespace(world) == expected, f"the process died {when} call {number}"
