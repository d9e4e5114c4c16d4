"""More scripts for a crash at every call: composed operations such as loops, joins and maps, and rollback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast import (
    Break,
    ChildFailed,
    Context,
    Continue,
    JoinFailed,
    Registry,
    Retry,
    Rollback,
    RunCancelled,
    RunFailed,
    StepFailed,
    step_info,
)
from holdfast.testing.harness import Harness
from tests.crash.rehearsal import Script
from tests.programs.ledger import EffectLedger


def undoing(ledger: EffectLedger, *, fails: int = 0) -> Callable[[Any], None]:
    """An undo function whose first attempts fail."""

    def undo(value: Any) -> None:
        ledger.note(value)
        if step_info().attempt <= fails:
            raise OSError("busy")

    return undo


async def all_ended(h: Harness) -> None:
    """Let time pass until no run is left."""
    while [info async for info in h.list() if not info.state.is_end]:
        await h.settle()
        await h.advance(30)


async def run_main(h: Harness) -> None:
    await (await h.start("main", id="main")).result()
    await all_ended(h)


async def fail_main(h: Harness) -> None:
    try:
        await run_main(h)
    except RunFailed:
        await all_ended(h)
        return
    raise AssertionError("it should have failed")


async def all_suspended(h: Harness, count: int) -> None:
    """Let time pass until this many runs only wait."""
    while sum([info.state.value == "suspended" async for info in h.list()]) < count:
        await h.settle()
        await h.advance(1)


def joins(app: Registry, ledger: EffectLedger) -> None:
    async def good(ctx: Context) -> int:
        await ctx.step("s", ledger.note)
        await ctx.sleep(20)
        return await ctx.step("flaky", ledger.flaky, retry=Retry(max_attempts=9, initial=20, jitter=0))

    async def bad(ctx: Context) -> None:
        await ctx.sleep(40)
        await ctx.step("hopeless", ledger.hopeless)

    async def endless(ctx: Context) -> None:
        await ctx.receive("never")

    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = [await ctx.join("fine", {"a": good, "b": good})]
        broken: dict[str, dict[str, Any]] = {
            "collected": {"a": good, "b": bad, "c": good},
            "fast": {"a": endless, "b": bad},
        }
        for name, branches in broken.items():
            try:
                await ctx.join(name, branches, fail_fast=name == "fast")
            except JoinFailed as failure:
                errors = [error.message for error in failure.errors.values() if isinstance(error, StepFailed)]
                found += [failure.results, list(failure.errors), errors]
        return [*found, await ctx.step("after", ledger.note, 1)]


def races(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("loser")
    async def loser(ctx: Context) -> None:
        await ctx.step("s", ledger.note)
        await ctx.receive("never")

    async def timer(ctx: Context) -> str:
        await ctx.sleep(3600)
        return "rang"

    async def child(ctx: Context) -> None:
        await ctx.call(loser)

    async def broken(ctx: Context) -> None:
        raise LookupError("at once")

    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found = [await ctx.race("who", {"child": child, "timer": timer, "broken": broken})]
        return [*found, await ctx.first_settled("what", {"timer": timer, "child": child})]


def nested_loops(app: Registry, ledger: EffectLedger) -> None:
    async def inner(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
        got = await ctx.receive("x")
        state = [*state, await ctx.step("s", ledger.note, got)]
        return Continue(state) if got % 4 else Break(state)

    async def outer(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[list[int]]:
        state = [*state, sum(await ctx.loop("inner", inner, list[int](), keep=1, every=1))]
        await ctx.sleep(20)
        return Continue(state) if len(state) < 4 else Break(state)

    @app.workflow("main")
    async def main(ctx: Context) -> list[int]:
        total = await ctx.loop("outer", outer, list[int](), keep=1, every=2)
        return [*total, await ctx.receive("x")]


async def send_many(h: Harness) -> None:
    run = await h.start("main", id="main")
    for number in range(1, 18):
        await run.send("x", number, id=f"x{number}")
    assert await run.result() == [10, 26, 42, 58, 17]


def maps(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("leaf")
    async def leaf(ctx: Context, number: int) -> int:
        await ctx.step("s", ledger.note, number)
        await ctx.sleep(number % 3 * 20)
        if number % 5 == 4:
            raise ValueError(f"not {number}")
        return number * number

    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        try:
            await ctx.map(leaf, range(12), limit=3)
        except JoinFailed as failure:
            errors = [error.message for error in failure.errors.values() if isinstance(error, ChildFailed)]
            return [list(failure.results.values()), list(failure.errors), errors, await ctx.map(leaf, [1, 2], limit=1)]
        raise AssertionError("two of them fail")


def saga(app: Registry, ledger: EffectLedger) -> None:
    undo, stubborn = undoing(ledger), undoing(ledger, fails=1)
    patient = Retry(max_attempts=9, initial=20, jitter=0)

    async def branch(ctx: Context) -> None:
        await ctx.step("s", ledger.note, "s", undo=stubborn, retry=patient)
        await ctx.sleep(20)
        await ctx.step("t", ledger.note, "t", undo=undo)

    async def body(ctx: Context, number: int) -> Continue[int] | Break[None]:
        await ctx.step("item", ledger.note, number, undo=undo)
        await ctx.sleep(20)
        return Continue(number + 1) if number < 5 else Break()

    @app.workflow("main")
    async def main(ctx: Context) -> None:
        await ctx.step("first", ledger.note, "first", undo=undo, ephemeral=True)
        await ctx.loop("items", body, 1, keep=1, every=1)
        await ctx.join("both", {"a": branch, "b": branch})
        raise Rollback("enough of it")


def cancelled_saga(app: Registry, ledger: EffectLedger) -> None:
    undo = undoing(ledger)

    @app.workflow("child")
    async def child(ctx: Context, depth: int) -> None:
        await ctx.step("s", ledger.note, depth, undo=undo)
        if depth:
            await ctx.call(child, depth - 1)
        await ctx.receive("never")

    @app.workflow("main")
    async def main(ctx: Context) -> None:
        await ctx.step("a", ledger.note, 1, undo=undo)
        await ctx.start(child, 1, on_close="cancel")
        await ctx.step("b", ledger.note, 2, undo=undo)
        await ctx.map(child, [0, 0])


async def cancel_saga(h: Harness) -> None:
    run = await h.start("main", id="main")
    await all_suspended(h, 5)
    await run.cancel("enough")
    try:
        await run.result()
    except RunCancelled:
        await all_ended(h)
        return
    raise AssertionError("it should have been cancelled")


def generations(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("child")
    async def child(ctx: Context, number: int) -> int:
        await ctx.step("s", ledger.note, number)
        return number

    @app.workflow("main")
    async def main(ctx: Context, got: list[int]) -> Any:
        got = [*got, await ctx.receive("x"), await ctx.wait_event("news")]
        await ctx.step("s", ledger.note, len(got))
        ctx.start(child, len(got), tags={"place": f"child of {len(got)}"})
        await ctx.sleep(20)
        if len(got) < 8:
            return await ctx.continue_as_new(got)
        return got


async def send_over_generations(h: Harness) -> None:
    run = await h.start("main", {"got": []}, id="main")
    for number in range(1, 5):
        if number == 3:  # later than requested, by another generation
            while (await run.info()).generation < 3 or (await run.info()).state.value != "suspended":
                await h.settle()
                await h.advance(1)
        await run.send("x", number, id=f"x{number}")
        await h.emit("news", -number)
    assert await run.result() == [1, -1, 2, -2, 3, -3, 4, -4]
    await all_ended(h)


def limits(app: Registry, ledger: EffectLedger) -> None:
    undo = undoing(ledger)

    @app.workflow("child")
    async def child(ctx: Context) -> None:
        await ctx.step("s", ledger.note, 1, undo=undo)
        await ctx.receive("never")

    @app.workflow("main")
    async def main(ctx: Context) -> None:
        await ctx.step("a", ledger.note, 1, undo=undo)
        await ctx.start(child, on_close="cancel")
        try:
            await ctx.call(child, name="impatient", max_suspend=1800)
        except ChildFailed:
            await ctx.step("b", ledger.note, 2, undo=undo)
        await ctx.receive("never")


async def expire(h: Harness) -> None:
    run = await h.start("main", id="main", max_run=36_000)
    try:
        await run.result()
    except RunCancelled:
        await all_ended(h)
        return
    raise AssertionError("it should have come to its limit")


def loop_of_events(app: Registry, ledger: EffectLedger) -> None:
    async def body(ctx: Context, got: list[int]) -> Continue[list[int]] | Break[list[int]]:
        both = await asyncio.gather(ctx.wait_event("news"), ctx.step("s", ledger.note, len(got)))
        got = [*got, both[0]]
        return Continue(got) if len(got) < 6 else Break(got)

    @app.workflow("main")
    async def main(ctx: Context) -> list[int]:
        await ctx.sleep(20)
        return [*await ctx.loop("news", body, list[int](), keep=1, every=1), await ctx.wait_event("news")]


async def emit_many(h: Harness) -> None:
    run = await h.start("main", id="main")
    for number in range(5):
        await h.emit("news", number)
    while [wait.kind for wait in (await run.info()).waits] != ["event"]:
        await h.settle()
        await h.advance(1)
    for number in range(5, 8):
        await h.emit("news", number)
    assert await run.result() == [0, 1, 2, 3, 4, 5, 6]


COMPOSITIONS = [
    Script("joins", joins, run_main),
    Script("races", races, run_main),
    Script("nested loops", nested_loops, send_many),
    Script("maps", maps, run_main),
    Script("saga", saga, fail_main),
    Script("cancelled saga", cancelled_saga, cancel_saga),
    Script("generations", generations, send_over_generations),
    Script("limits", limits, expire),
    Script("loop of events", loop_of_events, emit_many),
]
