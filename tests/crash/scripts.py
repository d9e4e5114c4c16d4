"""The scripts for a crash at every call: together they use every operation."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from holdfast import (
    Break,
    ChildFailed,
    Context,
    Continue,
    Registry,
    Retry,
    RunFailed,
    StepFailed,
    SyncContext,
    TaskContext,
    WaitTimeout,
    step_info,
)
from holdfast.app import session_of
from holdfast.testing.harness import Harness
from tests.crash.flows import FLOW_SCRIPTS
from tests.crash.rehearsal import Script
from tests.programs.ledger import EffectLedger


def steps(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = [await ctx.step("a", ledger.note, 1)]
        found.append(await ctx.step("cheap", ledger.note, 2, ephemeral=True))
        found.append(await ctx.step("flaky", ledger.flaky, retry=Retry(max_attempts=6, initial=0.1, jitter=0)))
        found.append(
            await ctx.step("rarely", ledger.flaky, retry=Retry(max_attempts=6, initial=20, max_delay=60, jitter=0))
        )
        try:
            await ctx.step("hopeless", ledger.hopeless)
        except StepFailed as failure:
            found.append(failure.message)
        found.append(await ctx.step("a", ledger.note, 3))
        return found


async def run_main(h: Harness) -> None:
    await (await h.start("main", id="main")).result()


def versions(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = [ctx.version("first", 2)]
        ctx.removed("gone", "step")
        found.append(await ctx.step("a", ledger.note, 1))
        found.append(await ctx.version("first", 3))
        await ctx.sleep(3600)
        ctx.removed("sleep", "sleep")
        found.append(await ctx.step("b", ledger.note, ctx.version("second", 4)))
        return found


def waits(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        await ctx.sleep(0.3)
        found: list[Any] = [await ctx.receive("x"), await ctx.receive(["y", "z"])]
        await ctx.sleep(3600)
        found.append(await ctx.step("a", ledger.note, 1))
        try:
            await ctx.receive("never", timeout=60)
        except WaitTimeout:
            found.append("late")
        found += [await ctx.receive("x"), await ctx.wait_event("news"), await ctx.wait_event("news")]
        try:
            await ctx.wait_event("silence", timeout=0.2)
        except WaitTimeout:
            found.append("silent")
        return found


def queues(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("consumer")
    async def consumer(ctx: Context) -> int:
        found: int = await ctx.wait_event("jobs")
        await ctx.step("work", ledger.note)
        return found

    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        """Withdraw a wait for a job, which may have been delivered already, and wait for another one later."""
        job = asyncio.create_task(ctx.wait_event("jobs"))
        found: list[Any] = [await ctx.receive("stop")]
        job.cancel()
        await ctx.step("think", ledger.note)
        await ctx.sleep(3600)
        try:
            async with asyncio.timeout(60):
                await ctx.wait_event("jobless")
        except TimeoutError:
            found.append("jobless")
        return [*found, await ctx.wait_event("jobs")]


async def work_off(h: Harness) -> None:
    await h.topics.set("jo*", mode="queue")
    run = await h.start("main", id="main")
    await h.settle()
    await run.send("stop", "stopped", id="stop")
    await h.emit("jobs", 1)
    assert await (await h.start("consumer", id="consumer")).result() == 1
    await h.emit("jobs", 2)
    assert await run.result() == ["stopped", "jobless", 2]


def conversation(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = [await ctx.receive_message("first")]
        first = found.pop()
        first.reply([await ctx.step("answer", ledger.note, first.payload), first.id])
        while batch := await ctx.receive_batch(["x", "y"], 2, 60):
            found.append(batch)
            await ctx.step("work", ledger.note)
        second = await ctx.receive_message()
        await second.reply(len(found))
        return found


async def converse(h: Harness) -> None:
    run = await h.start("main", id="main", undelivered="dead_letter", delay=1)
    for number in range(5):
        await run.send("xy"[number % 2], number, id=f"m{number}")
    assert await run.request("first", 17, id="first") == [17, "first"]
    assert await run.request("second", id="second") == 3
    assert await run.request("first", 18, id="first") == [17, "first"]
    await run.result()
    assert [letter.name async for letter in h.dead_letters.list()] == []


async def send_everything(h: Harness) -> None:
    run = await h.start("main", id="main")
    for name, payload in [("x", 1), ("z", 2), ("x", 3), ("other", 4)]:
        await run.send(name, payload, id=f"{name}{payload}")
        await run.send(name, payload, id=f"{name}{payload}")
    for number in range(3):
        await h.emit("news", number)
    await run.result()


def branches(app: Registry, ledger: EffectLedger) -> None:
    async def branch(ctx: Context, number: int) -> int:
        await ctx.step("s", ledger.note)
        await asyncio.sleep(number)
        got: int = await ctx.step("s", ledger.note, number * 10)
        return got

    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = list(await asyncio.gather(*(branch(ctx, number) for number in range(4))))
        pending = {asyncio.create_task(ctx.sleep(seconds), name=str(seconds)) for seconds in (5, 50, 500)}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            found += sorted(task.get_name() for task in done)
            for task in done:
                await ctx.step("seen", ledger.note, task.get_name())
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(ctx.receive("never"), ctx.step("beside", ledger.note))
        except TimeoutError:
            found.append("timeout")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step("t", ledger.note, number)) for number in range(3)]
        return [*found, *(task.result() for task in tasks)]


def children(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("leaf")
    async def leaf(ctx: Context, number: int) -> int:
        await ctx.step("leaf", ledger.note)
        if number == 3:
            raise ValueError("three")
        await ctx.sleep(number)
        return number

    @app.workflow("ear")
    async def ear(ctx: Context) -> Any:
        return [await ctx.receive("hello"), await ctx.wait_event("bell")]

    @app.workflow("sleeper")
    async def sleeper(ctx: Context) -> None:
        await ctx.receive("never")

    @app.workflow("middle")
    async def middle(ctx: Context) -> int:
        found: list[int] = list(await asyncio.gather(ctx.call(leaf, 1), ctx.call(leaf, 2)))
        return sum(found)

    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        listening = await ctx.start(ear)
        listening.send("hello", 5)
        found: list[Any] = [await ctx.call(middle)]
        try:
            await ctx.call(leaf, 3)
        except ChildFailed as failure:
            found.append([failure.kind, failure.message])
        ctx.start(sleeper, name="forgotten")
        ctx.start(sleeper, name="follower", on_close="cancel")
        doomed = await ctx.start(sleeper, name="doomed")
        doomed.cancel()
        try:
            await doomed
        except ChildFailed as failure:
            found.append(failure.kind)
        try:
            async with asyncio.timeout(60):
                await ctx.call(sleeper, name="impatient")
        except TimeoutError:
            found.append("too long")
        ctx.emit("bell", 6)
        found.append(await listening)
        return found


def failing(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("main")
    async def main(ctx: Context) -> None:
        ctx.set_value("progress", 1)
        await ctx.step("a", ledger.note)
        ctx.set_value("progress", 2)
        await ctx.sleep(60)
        ctx.set_value("progress", 3)
        await ctx.step("b", ledger.note)
        raise LookupError("at the end")


async def fail_main(h: Harness) -> None:
    try:
        await run_main(h)
    except RunFailed:
        return
    raise AssertionError("it should have failed")


def talkers(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("ping")
    async def ping(ctx: Context, rounds: int) -> list[int]:
        got = []
        for number in range(rounds):
            ctx.send("pong", "ball", number)
            got.append(await ctx.receive("ball"))
        ctx.send("nobody", "ball")
        return got

    @app.workflow("pong")
    async def pong(ctx: Context, rounds: int) -> int:
        total = 0
        for _ in range(rounds):
            total += await ctx.receive("ball")
            await ctx.step("hit", ledger.note)
            await ctx.send("ping", "ball", total)
        return total


async def play_ball(h: Harness) -> None:
    one = await h.start("pong", {"rounds": 4}, id="pong")
    other = await h.start("ping", {"rounds": 4}, id="ping")
    await asyncio.gather(one.result(), other.result())


def cancels(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("child")
    async def child(ctx: Context) -> None:
        await ctx.step("s", ledger.note)
        await ctx.receive("never")

    @app.workflow("main")
    async def main(ctx: Context) -> None:
        await ctx.start(child, on_close="cancel")
        await ctx.step("s", ledger.note)
        await ctx.call(child)


async def cancel_in_the_end(h: Harness) -> None:
    run = await h.start("main", id="main")
    while (
        len(await session_of(h).store.history("main")) < 3
        or sum([info.state.value == "suspended" async for info in h.list()]) < 3
    ):
        await h.settle()
        await h.advance(1)
    await run.cancel("enough")


def taken_back(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = [await ctx.step("a", ledger.note, 1), await ctx.receive("x")]
        found += [await ctx.step("b", ledger.note, 2), await ctx.receive("x"), await ctx.wait_event("news", timeout=60)]
        return [*found, await ctx.step("c", ledger.note, 3)]


async def take_back(h: Harness) -> None:
    run = await h.start("main", id="main")
    for number in (1, 2):
        await run.send("x", number, id=f"x{number}")
    await h.emit("news", "first")
    await run.result()
    await run.rewind("receive:x")
    await run.result()
    fork = await run.fork("c", patch={"receive:x": 7}, id="fork")
    await fork.result()


def recovered(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("child")
    async def child(ctx: Context) -> int:
        await ctx.step("c", ledger.note)
        await ctx.sleep(3600)
        return 5

    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = [await ctx.step("a", ledger.note, 1)]
        return [*found, await ctx.call(child)]


async def cancel_and_recover(h: Harness) -> None:
    async def waiting() -> list[str]:
        return [info.id async for info in h.list(state="suspended")]

    async def until_both_wait() -> None:
        while len(await waiting()) < 2:
            await h.settle()
            await h.advance(1)

    run = await h.start("main", id="main")
    await until_both_wait()
    await run.cancel("by mistake")
    await run.recover()
    await until_both_wait()
    await run.result()


def paused(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = []
        for number in range(3):
            found.append(await ctx.step("s", ledger.note, number))
            await ctx.sleep(20)
        return found


async def pause_and_resume(h: Harness) -> None:
    run = await h.start("main", id="main")
    for _ in range(2):
        await run.pause("a while")
        while (await run.info()).state.value != "paused":
            await h.settle()
            await h.advance(1)
        await run.resume()
        await h.settle()
    await run.result()


def crowd(app: Registry, ledger: EffectLedger) -> None:
    @app.workflow("member")
    async def member(ctx: Context, number: int) -> int:
        first = await ctx.step("first", ledger.note, number)
        await ctx.sleep(number % 3)
        second = await ctx.step("second", ledger.note, number)
        return int(first + second)

    @app.task("errand")
    def errand(number: int) -> int:
        ledger.note()
        return number


def reporting(app: Registry, ledger: EffectLedger) -> None:
    patient = Retry(max_attempts=9, delay=lambda attempt: 60.0 * attempt, jitter=0)

    @app.task("export", retry=patient)
    async def export(ctx: TaskContext, number: int) -> int:
        ledger.note()
        for done in range(3):
            ctx.progress([number, done])
            ctx.heartbeat()
            for _ in range(20):  # so that its progress is written while it continues
                await asyncio.sleep(0)
        if ctx.attempt < 3:
            raise OSError("busy")
        return number

    @app.task("notify", retry=patient)
    def notify(ctx: TaskContext, number: int) -> int:
        ledger.note()
        for done in range(100):
            ctx.progress(done)
        return number


async def export_everything(h: Harness) -> None:
    runs = [await h.start("export", {"number": n}, id=f"export-{n}", delay=n * 60) for n in range(3)]
    runs += [await h.start("notify", {"number": n}, id=f"notify-{n}") for n in range(2)]
    for run in runs:
        await run.result()


async def come_together(h: Harness) -> None:
    runs = [await h.start("member", {"number": n}, id=f"member-{n}", key=f"m{n}") for n in range(8)]
    runs += [await h.start("errand", {"number": n}, id=f"errand-{n}", delay=n) for n in range(4)]
    for run in runs:
        await run.result()


def blocking(app: Registry, ledger: EffectLedger) -> None:
    def flaky() -> int:
        ledger.note()
        if step_info().attempt < 2:
            raise OSError("busy")
        return 7

    @app.workflow("ear")
    def ear(ctx: SyncContext) -> Any:
        return [ctx.receive("hello"), ctx.wait_event("bell")]

    @app.workflow("main")
    def main(ctx: SyncContext) -> list[Any]:
        found: list[Any] = [ctx.step("a", ledger.note, 1)]
        found.append(ctx.step("rarely", flaky, retry=Retry(max_attempts=6, initial=20, jitter=0)))
        child = ctx.start(ear)
        child.send("hello", 5)
        found += [ctx.receive("x"), ctx.receive(["y", "z"])]
        ctx.sleep(3600)
        try:
            ctx.wait_event("silence", timeout=60)
        except WaitTimeout:
            found.append("silent")
        ctx.emit("bell", 6)
        found.append(child.result())
        return [*found, sorted([1, 2, 3], key=lambda number: ctx.step("weigh", ledger.note, -number)), ctx.receive("x")]


def blocking_branches(app: Registry, ledger: EffectLedger) -> None:
    def branch(number: int, ctx: SyncContext) -> int:
        ctx.step("s", ledger.note)
        ctx.sleep(number * 20)
        return int(ctx.step("s", ledger.note, number))

    def body(ctx: SyncContext, left: int) -> Continue[int] | Break[str]:
        ctx.step("s", ledger.note, left)
        ctx.sleep(20)
        return Continue(left - 1) if left else Break("over")

    def never(ctx: SyncContext) -> Any:
        return ctx.receive("never")

    @app.workflow("leaf")
    def leaf(ctx: SyncContext, number: int) -> int:
        return int(ctx.step("leaf", ledger.note, number))

    @app.workflow("main")
    def main(ctx: SyncContext) -> list[Any]:
        found: list[Any] = [ctx.join("all", {str(number): partial(branch, number) for number in range(3)})]
        found.append(ctx.race("who", {"never": never, "one": partial(branch, 1)}))
        found.append(ctx.loop("count", body, 4, keep=2, every=2))
        return [*found, ctx.map(leaf, range(3), limit=2)]


def pipelines(app: Registry, ledger: EffectLedger) -> None:
    async def child(ctx: Context, number: int) -> int:
        return int(await ctx.step("leaf", ledger.note, number))

    leaf = app.workflow("leaf")(child)

    async def think(ctx: Context, number: int) -> list[Any]:
        found: list[Any] = [number, await ctx.receive("x"), await ctx.receive(["y", "z"])]
        await ctx.sleep(3600)
        found.append(await ctx.call(leaf, number))
        return [*found, await ctx.step("a", ledger.note, 3)]

    def block(ctx: SyncContext, found: list[Any]) -> list[Any]:
        ctx.emit("bell", 6)
        return [*found, ctx.step("a", ledger.note, 4), ctx.receive("x")]

    p = app.pipeline("main")
    p.step("a")(lambda: ledger.note(1))
    p.step("rarely", retry=Retry(max_attempts=6, initial=20, jitter=0))(lambda _: ledger.flaky())
    p.step("cheap", ephemeral=True)(lambda _: ledger.note(2))
    p.step(think)
    p.step(block)
    p.step("last")(lambda found: [*found, ledger.note(5)])


SCRIPTS = [
    Script("steps", steps, run_main),
    Script("versions", versions, run_main),
    Script("waits", waits, send_everything),
    Script("queues", queues, work_off),
    Script("conversation", conversation, converse),
    Script("branches", branches, run_main),
    Script("children", children, run_main),
    Script("failing", failing, fail_main),
    Script("talkers", talkers, play_ball),
    Script("cancels", cancels, cancel_in_the_end),
    Script("taken_back", taken_back, take_back),
    Script("recovered", recovered, cancel_and_recover),
    Script("paused", paused, pause_and_resume),
    Script("crowd", crowd, come_together),
    Script("reporting", reporting, export_everything),
    Script("blocking", blocking, send_everything),
    Script("blocking branches", blocking_branches, run_main),
    *FLOW_SCRIPTS,
    Script("pipelines", pipelines, send_everything),
]
