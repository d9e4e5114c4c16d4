"""Violations: workflow code that does what only a step may do is blocked, and the error names the call and the line."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, Registry, RunFailed, RunHandle, RunState
from holdfast.testing.harness import Harness
from tests.stage import Stage, facts

Code = Callable[[Context], Awaitable[Any]]


def shop(code: Code) -> Registry:
    app = Registry()

    @app.workflow("shop.v1")
    async def workflow(ctx: Context) -> Any:
        await ctx.step("first", lambda: None)
        await ctx.step("second", lambda: None)
        return await code(ctx)

    return app


async def violated(h: Harness) -> tuple[RunHandle[Any], str]:
    """Execute a run of the shop that gets blocked, and return the text of the violation."""
    run = await h.start("shop.v1")
    await h.settle()
    info = await run.info()
    assert info.state is RunState.BLOCKED
    assert info.error is not None
    assert info.error.type == "WorkflowViolation"
    return run, info.error.message


def line_of(code: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(code)
    (number,) = [first + index for index, line in enumerate(lines) if text in line]
    return f"test_violations.py:{number}"


async def a_socket(ctx: Context) -> None:
    await asyncio.open_connection("localhost", 1)


async def a_thread(ctx: Context) -> None:
    await asyncio.to_thread(print, "hello")


async def an_executor(ctx: Context) -> None:
    await asyncio.get_running_loop().run_in_executor(None, print)


async def a_process(ctx: Context) -> None:
    await asyncio.create_subprocess_exec("true")


async def a_lookup(ctx: Context) -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 1)


async def swallowed(ctx: Context) -> str:
    with contextlib.suppress(BaseException):
        await asyncio.to_thread(print, "hello")
    return "as if nothing had happened"


async def wrapped(ctx: Context) -> str:
    try:
        await asyncio.to_thread(print, "hello")
    except RuntimeError as error:
        raise ConnectionError("the library says it differently") from error
    return "?"


async def in_a_branch(ctx: Context) -> str:
    async def branch() -> None:
        await asyncio.to_thread(print, "hello")

    await asyncio.gather(branch(), return_exceptions=True)
    return "?"


@pytest.mark.parametrize(
    ("code", "call", "text"),
    [
        (a_socket, "loop.create_connection()", "open_connection"),
        (a_thread, "loop.run_in_executor()", "to_thread"),
        (an_executor, "loop.run_in_executor()", "run_in_executor"),
        (a_process, "loop.subprocess_exec()", "create_subprocess_exec"),
        (a_lookup, "loop.getaddrinfo()", "getaddrinfo"),
        (swallowed, "loop.run_in_executor()", "to_thread"),
        (wrapped, "loop.run_in_executor()", "to_thread"),
        (in_a_branch, "loop.run_in_executor()", "to_thread"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_violation_blocks_the_run_names_call_and_line_and_loses_no_result(
    stage: Stage, code: Code, call: str, text: str
) -> None:
    async with stage.harness(shop(code)) as h:
        run, message = await violated(h)
        assert call in message
        assert line_of(code, text) in message
        assert "Move the call into a step: await ctx.step" in message
        assert await facts(run) == ["first step done", "second step done"]


CALLS: dict[str, tuple[Callable[[Holdfast], Any], str, str]] = {
    "start": (lambda hf: hf.start("x"), "hf.start()", "ctx.start"),
    "start_many": (lambda hf: hf.start_many("x", [{}]), "hf.start_many()", "ctx.map"),
    "execute": (lambda hf: hf.execute("x"), "hf.execute()", "ctx.call"),
    "emit": (lambda hf: hf.emit("x"), "hf.emit()", "ctx.emit"),
    "send": (lambda hf: hf.run("x").send("m"), "run.send()", "ctx.send"),
    "result": (lambda hf: hf.run(key="x").result(timeout=5), "run.result()", "ctx.call"),
    "info": (lambda hf: hf.run("x").info(), "run.info()", "ctx.step"),
    "cancel": (lambda hf: hf.run("x").cancel(), "run.cancel()", "ctx.step"),
    "types": (lambda hf: hf.types.set("x", concurrency=1), "hf.types.set()", "ctx.step"),
    "open": (lambda hf: hf.__aenter__(), "`async with` on hf", "ctx.step"),
    "close": (lambda hf: hf.close(), "hf.close()", "ctx.step"),
    "work": (lambda hf: hf.worker().run_until_idle(), "worker.run_until_idle()", "ctx.step"),
    "list": (lambda hf: anext(hf.list()), "hf.list()", "ctx.step"),
}


@pytest.mark.parametrize("use", CALLS)
@pytest.mark.parametrize("whose", ["its own", "another", "a new"])
async def test_a_call_of_holdfast_is_refused_in_workflow_code_and_names_the_alternative(
    stage: Stage, use: str, whose: str
) -> None:
    call, name, instead = CALLS[use]
    another = stage.harness()

    async def trespass(ctx: Context) -> None:
        hf = {"its own": h, "another": another, "a new": Holdfast("memory://")}[whose]
        await call(hf)  # here

    async with stage.harness(shop(trespass)) as h, another:
        run, message = await violated(h)
        # A list is refused where it is requested, which is in the lambda above.
        place = (
            f"{line_of(call, 'hf.list())')} in <lambda>"
            if use == "list"
            else f"{line_of(trespass, '# here')} in trespass"
        )
        assert f"workflow code called {name} at {place}" in message
        assert instead in message
        assert await facts(run) == ["first step done", "second step done"]
        assert [info.id async for info in h.list()] == [run.id]


async def trespass_caught(hf: Holdfast) -> str:
    with contextlib.suppress(Exception):
        await hf.start("x")  # here
    return "as if nothing had happened"


async def trespass_gathered(hf: Holdfast) -> str:
    await asyncio.gather(hf.start("x"), hf.start("x"), return_exceptions=True)  # here
    return "as if nothing had happened"


async def trespass_blocking(hf: Holdfast) -> None:
    hf.sync.start("x")  # here


async def trespass_in_a_transaction(hf: Holdfast) -> None:
    with hf.connection():  # here
        pass


@pytest.mark.parametrize(
    ("code", "instead"),
    [
        (trespass_caught, "ctx.start"),
        (trespass_gathered, "ctx.start"),
        (trespass_blocking, "ctx.start"),
        (trespass_in_a_transaction, "ctx.tx"),
    ],
)
async def test_a_refused_call_of_holdfast_stays_refused_and_names_the_line(
    stage: Stage, code: Any, instead: str
) -> None:
    async with stage.harness(shop(lambda ctx: code(h))) as h:
        _, message = await violated(h)
        assert f"{line_of(code, '# here')} in {code.__name__}" in message
        assert f"or use {instead}" in message


async def test_a_call_of_holdfast_in_an_abandoned_task_is_refused_too(stage: Stage) -> None:
    async def trespass(ctx: Context) -> int:
        asyncio.create_task(h.start("x"))  # noqa: RUF006 - it is what this is about
        return 5

    async with stage.harness(shop(trespass)) as h:
        _, message = await violated(h)
        assert "workflow code called hf.start() at an unknown line" in message


@pytest.mark.every_store
async def test_a_violation_is_healed_by_fixed_code(stage: Stage) -> None:
    async def fixed(ctx: Context) -> str:
        return await ctx.step("print", lambda: "in a step")

    async with stage.harness(shop(a_thread)) as h:
        run = await h.start("shop.v1")
        await h.settle()
    async with stage.harness(shop(fixed)) as h:
        assert await h.run(run.id).result() == "in a step"
        assert h.executed == ["print"]


async def blocked_message(h: Harness) -> str:
    run = await h.start("shop.v1")
    await h.settle()
    info = await run.info()
    assert info.state is RunState.BLOCKED
    assert info.error is not None
    return info.error.message


async def test_awaiting_an_object_of_another_loop_is_a_violation(stage: Stage) -> None:
    outer = asyncio.get_running_loop()
    future: asyncio.Future[None] = outer.create_future()
    queue: asyncio.Queue[int] = asyncio.Queue()
    getter = asyncio.create_task(queue.get())  # binds the queue to the worker's loop
    await asyncio.sleep(0)

    async def a_future(ctx: Context) -> None:
        await future

    async def in_gather(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep(1), future)

    async def a_queue(ctx: Context) -> None:
        await queue.get()

    async def swallows(ctx: Context) -> None:
        try:
            await future
        except RuntimeError:
            await ctx.step("goes on", lambda: None)

    for code, text in [
        (a_future, "await future"),
        (in_gather, "asyncio.gather"),
        (a_queue, "queue.get"),
        (swallows, "await future"),
    ]:
        async with stage.harness(shop(code)) as h:
            message = await blocked_message(h)
            assert "another event loop" in message
            assert line_of(code, text) in message
            assert "goes on" not in h.executed
    getter.cancel()


async def test_a_run_woken_from_outside_is_blocked(stage: Stage) -> None:
    shared = asyncio.Event()

    async def waits(ctx: Context) -> None:
        await asyncio.gather(shared.wait(), ctx.step("slow", slow))

    async def slow() -> None:
        await asyncio.sleep(0)
        shared.set()  # a waiter of the run is called back from the worker's loop

    async with stage.harness(shop(waits)) as h:
        message = await blocked_message(h)
        assert "woken from outside" in message or "another event loop" in message


async def test_a_standstill_without_a_durable_wait_is_blocked_and_names_the_line(stage: Stage) -> None:
    """T4: such a standstill can never end, so the run is blocked."""

    async def deadlock(ctx: Context) -> None:
        lock = asyncio.Lock()
        await lock.acquire()
        await lock.acquire()  # the lock is never released

    async with stage.harness(shop(deadlock)) as h:
        message = await blocked_message(h)
        assert "can never come" in message
        assert line_of(deadlock, "the lock is never released") in message


async def test_a_run_that_spins_is_blocked(stage: Stage) -> None:
    async def spin(ctx: Context) -> None:
        while True:
            await asyncio.sleep(0)

    async with stage.harness(shop(spin)) as h:
        assert "the workflow spins" in await blocked_message(h)


async def test_sys_exit_in_a_workflow_fails_that_run_and_no_other(stage: Stage) -> None:
    async def leave(ctx: Context) -> None:
        sys.exit("bye")

    async def stay(ctx: Context) -> int:
        return 1

    app = shop(leave)

    @app.workflow("other.v1")
    async def other(ctx: Context) -> Any:
        await ctx.sleep(60)
        return await stay(ctx)

    async with stage.harness(app) as h:
        bystander = await h.start(other)
        with pytest.raises(RunFailed, match="SystemExit: bye"):
            await h.execute("shop.v1")
        assert await bystander.result() == 1


async def test_sys_exit_in_a_branch_fails_the_run(stage: Stage) -> None:
    async def leave(ctx: Context) -> None:
        async def branch() -> None:
            await ctx.step("third", lambda: None)
            sys.exit(3)

        await asyncio.gather(branch(), ctx.sleep(60))

    async with stage.harness(shop(leave)) as h:
        with pytest.raises(RunFailed, match="SystemExit: 3"):
            await h.execute("shop.v1")


async def test_one_blocked_run_leaves_the_others_alone(stage: Stage) -> None:
    app = shop(a_thread)

    @app.workflow("healthy.v1")
    async def healthy(ctx: Context, number: int) -> int:
        await ctx.sleep(60)
        return number

    async with stage.harness(app) as h:
        await h.start_many("shop.v1", [{}] * 10)
        runs = await h.start_many(healthy, [(n,) for n in range(10)])
        assert [await run.result() for run in runs] == list(range(10))
