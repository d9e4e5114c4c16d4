"""Workflow code that swallows every exception hurts nobody: its run goes on, and its worker does too."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Registry, RunState, SyncContext
from holdfast.runner.loop import current_run_loop
from tests.stage import Stage, complaints

LIMIT = 100_000
"""How often the code below goes on before it gives up by itself, so that a test that fails ends."""


class Witness:
    """Counts what the code below swallows and what it executes."""

    def __init__(self) -> None:
        self.swallowed = 0
        self.bodies = 0
        self.strays = 0
        self.app = Registry()

    def swallow(self) -> bool:
        """Note an exception; False when it is time to end a test that has failed."""
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


FORMS = [bare, base, cleaning_up, calling_steps, in_a_group, plain_asyncio, blocking]


@pytest.mark.every_store
@pytest.mark.parametrize("form", FORMS)
async def test_a_run_that_swallows_everything_goes_on_and_is_logged_once(
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
    # What is asked for while an exception is handled ends with the second attempt to close it.
    assert bool(logged) == (form not in (cleaning_up, calling_steps))


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
        counts = await h.store.counts()
        for run in runs:
            await run.send("go", "yes")
        await h.settle()
        ended = await h.store.counts()

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

SYNC_CODE = """
def stubborn(ctx):
    while True:
        try:
            ctx.sleep(60)
        except:
            pass
"""


@pytest.mark.parametrize("code", [ASYNC_CODE, SYNC_CODE], ids=["async", "sync"])
def test_a_worker_with_such_runs_ends_on_sigterm_and_its_process_too(code: str, tmp_path: Path) -> None:
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
