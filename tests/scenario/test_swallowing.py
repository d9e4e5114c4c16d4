"""Workflow code that swallows every exception: its run continues, and the worker is not harmed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Registry, RunState, SyncContext
from holdfast.app import session_of
from holdfast.core.questions import CountRuns
from holdfast.runner.loop import current_run_loop
from tests.stage import Stage, complaints

LIMIT = 100_000
"""Maximum number of swallowed exceptions before the code gives up, so that a failing test ends."""


class Witness:
    """Counts the exceptions that the code below swallows, and its executed steps."""

    def __init__(self) -> None:
        self.swallowed = 0
        self.bodies = 0
        self.strays = 0
        self.app = Registry()

    def swallow(self) -> bool:
        """Record an exception. Return False when a failing test has to end."""
        self.swallowed += 1
        self.strays += current_run_loop() is None
        return self.swallowed < LIMIT


def bare(witness: Witness) -> Any:
    @witness.app.workflow("stubborn")
    async def stubborn(ctx: Context) -> str:
        while True:
            try:
                return str(await ctx.receive("go"))
            except:  # noqa: E722 - as the worst code does
                if not witness.swallow():
                    raise


def base(witness: Witness) -> Any:
    @witness.app.workflow("stubborn")
    async def stubborn(ctx: Context) -> str:
        while True:
            try:
                return str(await ctx.receive("go"))
            except BaseException:
                if not witness.swallow():
                    raise


def cleaning_up(witness: Witness) -> Any:
    @witness.app.workflow("stubborn")
    async def stubborn(ctx: Context) -> str:
        while True:
            answer = ""
            try:
                answer = str(await ctx.receive("go"))
            finally:
                if not answer and witness.swallow():
                    await ctx.emit("cleaned", 1)
                    await ctx.sleep(1)
                    continue  # noqa: B012 - as the worst code does
            return answer


def calling_steps(witness: Witness) -> Any:
    @witness.app.step
    async def clean() -> None:
        witness.bodies += 1

    @witness.app.workflow("stubborn")
    async def stubborn(ctx: Context) -> str:
        while True:
            try:
                return str(await ctx.receive("go"))
            except BaseException:
                if not witness.swallow():
                    raise
                await clean()


def in_a_group(witness: Witness) -> Any:
    async def branch(ctx: Context) -> str:
        while True:
            try:
                return str(await ctx.receive("go"))
            except BaseException:
                if not witness.swallow():
                    raise

    @witness.app.workflow("stubborn")
    async def stubborn(ctx: Context) -> str:
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(branch(ctx))
                return task.result()
            except BaseException:
                if not witness.swallow():
                    raise


def plain_asyncio(witness: Witness) -> Any:
    @witness.app.workflow("stubborn")
    async def stubborn(ctx: Context) -> str:
        while True:
            try:
                await asyncio.sleep(1)
                return str(await ctx.receive("go"))
            except BaseException:
                if not witness.swallow():
                    raise


def blocking(witness: Witness) -> Any:
    @witness.app.workflow("stubborn")
    def stubborn(ctx: SyncContext) -> str:
        while True:
            try:
                return str(ctx.receive("go"))
            except BaseException:
                if not witness.swallow():
                    raise


def blocking_in_a_join(witness: Witness) -> Any:
    def branch(ctx: SyncContext) -> str:
        while True:
            try:
                return str(ctx.receive("go"))
            except BaseException:
                if not witness.swallow():
                    raise

    @witness.app.workflow("stubborn")
    def stubborn(ctx: SyncContext) -> str:
        while True:
            try:
                return ctx.join("both", {"a": branch})["a"]
            except BaseException:
                if not witness.swallow():
                    raise


def awaiting(make: Callable[[Context], Callable[[], Awaitable[Any]]]) -> Callable[[Witness], Any]:
    """A form whose code awaits the same object repeatedly; `make` prepares it."""

    def form(witness: Witness) -> Any:
        @witness.app.workflow("stubborn")
        async def stubborn(ctx: Context) -> str:
            again = make(ctx)
            while True:
                try:
                    return str(await again())
                except BaseException:
                    if not witness.swallow():
                        raise

    form.__name__ = make.__name__
    return form


def spawned(ctx: Context) -> asyncio.Task[Any]:
    return asyncio.create_task(ctx.receive("go"))


def task(ctx: Context) -> Callable[[], Awaitable[Any]]:
    running = spawned(ctx)
    return lambda: running


def gather(ctx: Context) -> Callable[[], Awaitable[Any]]:
    gathered = asyncio.gather(ctx.receive("go"), asyncio.sleep(1))
    return lambda: _first(gathered)


def future(ctx: Context) -> Callable[[], Awaitable[Any]]:
    fed = asyncio.get_running_loop().create_future()
    spawned(ctx).add_done_callback(_hand_to(fed.set_result))
    return lambda: fed


def plain_future(ctx: Context) -> Callable[[], Awaitable[Any]]:
    fed: asyncio.Future[Any] = asyncio.Future()
    spawned(ctx).add_done_callback(_hand_to(fed.set_result))
    return lambda: fed


def shield(ctx: Context) -> Callable[[], Awaitable[Any]]:
    running = spawned(ctx)
    return lambda: asyncio.shield(running)


def wait(ctx: Context) -> Callable[[], Awaitable[Any]]:
    running = spawned(ctx)
    return lambda: _result(asyncio.wait([running]))


def wait_for(ctx: Context) -> Callable[[], Awaitable[Any]]:
    running = spawned(ctx)
    return lambda: asyncio.wait_for(asyncio.shield(running), 1_000)


def shared_task(ctx: Context) -> Callable[[], Awaitable[Any]]:
    running = spawned(ctx)

    async def other() -> None:
        while not running.done():
            with contextlib.suppress(BaseException):
                await running

    others = asyncio.create_task(other())
    return lambda: _first(asyncio.gather(running, others))


def event(ctx: Context) -> Callable[[], Awaitable[Any]]:
    running, happened = spawned(ctx), asyncio.Event()
    running.add_done_callback(lambda _: happened.set())

    async def until() -> Any:
        await happened.wait()
        return running.result()

    return until


def condition(ctx: Context) -> Callable[[], Awaitable[Any]]:
    running, changed = spawned(ctx), asyncio.Condition()

    async def change() -> None:
        await running
        async with changed:
            changed.notify_all()

    async def until() -> Any:
        async with changed:
            await changed.wait_for(running.done)
        return running.result()

    changing = asyncio.create_task(change())
    return lambda: _first(asyncio.gather(until(), asyncio.shield(changing)))


def queue(ctx: Context) -> Callable[[], Awaitable[Any]]:
    answers: asyncio.Queue[Any] = asyncio.Queue()
    spawned(ctx).add_done_callback(_hand_to(answers.put_nowait))
    return answers.get


def cancelled_future(ctx: Context) -> Callable[[], Awaitable[Any]]:
    fed = asyncio.get_running_loop().create_future()
    spawned(ctx).add_done_callback(_hand_to(fed.set_result))

    async def until() -> Any:
        try:
            return await fed
        except BaseException:
            fed.cancel()
            raise

    return until


def _hand_to(take: Callable[[Any], object]) -> Callable[[asyncio.Task[Any]], None]:
    def hand(done: asyncio.Task[Any]) -> None:
        if not done.cancelled():
            take(done.result())

    return hand


async def _first(gathered: Awaitable[Sequence[Any]]) -> Any:
    return (await gathered)[0]


async def _result(waiting: Awaitable[tuple[set[asyncio.Task[Any]], set[asyncio.Task[Any]]]]) -> Any:
    return next(iter((await waiting)[0])).result()


AWAITING = [
    awaiting(make)
    for make in (
        task,
        gather,
        future,
        plain_future,
        shield,
        wait,
        wait_for,
        shared_task,
        event,
        condition,
        queue,
        cancelled_future,
    )
]
FORMS = [
    bare,
    base,
    cleaning_up,
    calling_steps,
    in_a_group,
    plain_asyncio,
    blocking,
    blocking_in_a_join,
]


@pytest.mark.parametrize("form", FORMS)
async def test_a_run_that_swallows_everything_continues_and_is_logged_once(
    stage: Stage, form: Callable[[Witness], Any], caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness()
    form(witness)
    async with stage.harness(witness.app) as h:
        runs = [await h.start("stubborn") for _ in range(3)]
        await h.advance(1)
        await h.settle()
        gc.collect()
        states = [(await run.info()).state for run in runs]

        for run in runs:
            await run.send("go", "yes")
        results = [await run.result() for run in runs]
        gc.collect()

    assert states == [RunState.SUSPENDED] * 3
    assert results == ["yes"] * 3
    assert witness.swallowed > 0
    assert (witness.bodies, witness.strays) == (0, 0), "its code ran outside of its run"
    logged = complaints(caplog)
    assert len(logged) == len(set(logged))
    assert all("workflow stubborn swallows every exception at test_swallowing.py:" in line for line in logged)
    # An operation requested while an exception is handled ends with the second attempt to close it.
    assert bool(logged) == (form not in (cleaning_up, calling_steps))


@pytest.mark.parametrize("form", AWAITING)
async def test_code_that_awaits_the_same_object_repeatedly_suspends_and_continues(
    stage: Stage, form: Callable[[Witness], Any]
) -> None:
    witness = Witness()
    form(witness)
    async with stage.harness(witness.app) as h:
        run = await h.start("stubborn")
        await h.advance(1)
        state = (await run.info()).state
        await run.send("go", "yes")
        result = await run.result()
        gc.collect()

    assert (state, result) == (RunState.SUSPENDED, "yes")
    assert 0 < witness.swallowed < 1_000
    assert witness.strays == 0, "its code ran outside of its run"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("form", [in_a_group, blocking])
async def test_two_thousand_runs_that_swallow_everything_suspend_and_end(
    kind: str, form: Callable[[Witness], Any], tmp_path: Path
) -> None:
    witness = Witness()
    form(witness)
    async with Stage(kind, tmp_path).harness(witness.app) as h:
        runs = await h.start_many("stubborn", [{} for _ in range(2_000)])
        await h.settle()
        counts = await session_of(h).store.stats(CountRuns())
        for run in runs:
            await run.send("go", "yes")
        await h.settle()
        ended = await session_of(h).store.stats(CountRuns())

    assert counts["stubborn"] == {RunState.SUSPENDED: 2_000}
    assert ended["stubborn"] == {RunState.SUCCEEDED: 2_000}
    assert witness.strays == 0


WORKER = """
import asyncio
from holdfast import Context, Holdfast

hf = Holdfast()

async def main():
    async with hf, asyncio.TaskGroup() as group:
        run = await hf.start(stubborn)
        group.create_task(watch(run))
        await hf.worker().run()

async def watch(run):
    while (await run.info()).state != "suspended":
        await asyncio.sleep(0.01)
    print("suspended", flush=True)

@hf.workflow
{code}

asyncio.run(main())
print("ended", flush=True)
"""

ASYNC_CODE = """
async def stubborn(ctx: Context):
    coroutines.append(asyncio.current_task().get_coro())
    while True:
        try:
            await asyncio.sleep(60)
        except:
            pass
coroutines = []
"""

TASK_CODE = """
async def stubborn(ctx: Context):
    task = asyncio.create_task(ctx.receive("go"))
    while True:
        try:
            return await task
        except BaseException:
            pass
"""

SYNC_CODE = """
def stubborn(ctx):
    while True:
        try:
            ctx.sleep(60)
        except:
            pass
"""


@pytest.mark.parametrize("code", [ASYNC_CODE, TASK_CODE, SYNC_CODE], ids=["async", "task", "sync"])
def test_a_worker_with_swallowing_runs_and_its_process_end_on_sigterm(code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORKER.format(code=code.strip()))
    with subprocess.Popen([sys.executable, script], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "suspended\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.stdout.read() == "ended\n"
            assert worker.wait() == 0
        finally:
            worker.kill()
