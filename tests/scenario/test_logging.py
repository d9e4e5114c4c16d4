"""Logs: each record about a run names it, and none contains a user's value."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast import Context, Fatal, Registry, Retry, Rollback, RunFailed, Signal
from tests.stage import Stage, is_of_slowness

SECRET = "hunter2"  # noqa: S105 - what must not appear anywhere


def app() -> Registry:
    found = Registry()

    def refuse(value: str) -> None:
        raise ConnectionError(f"{value} is refused")

    @found.workflow("fails.v1")
    async def fails(ctx: Context, value: str) -> None:
        await ctx.step("charge", refuse, value, retry=Retry(max_attempts=2, initial=0.01))

    @found.workflow("undoes.v1")
    async def undoes(ctx: Context, value: str) -> None:
        await ctx.step("book", lambda: value, undo=lambda value: None)
        raise Rollback(value)

    @found.workflow("violates.v1")
    async def violates(ctx: Context, value: str) -> None:
        await asyncio.open_connection(value, 1)

    @found.workflow("forgets.v1")
    async def forgets(ctx: Context, value: str) -> str:
        async def fail() -> None:
            raise Fatal(value)

        task = asyncio.create_task(fail())
        await ctx.sleep(1)
        del task
        return value

    @found.workflow("talks.v1")
    async def talks(ctx: Context, value: str) -> Any:
        ctx.set_value("progress", value)
        answer = await ctx.receive("answer")
        await ctx.emit("told", {"value": value})
        return await ctx.call("fine.v1", {"value": answer})

    @found.workflow("fine.v1")
    async def fine(ctx: Context, value: str) -> str:
        ctx.logger.info("before")
        await ctx.step("look", lambda: value)
        ctx.logger.warning("after", extra={"mine": 1})
        await ctx.join("both", {"left": _branch})
        return value

    async def _branch(ctx: Context) -> None:
        ctx.logger.info("inside")

    return found


async def test_no_user_value_is_ever_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, "holdfast")
    async with stage.harness(app()) as h:

        @h.on("run.*")
        async def hook(signal: Signal) -> None:
            raise Fatal(SECRET)

        for type in ("fails.v1", "undoes.v1", "violates.v1", "forgets.v1"):
            await h.start(type, {"value": SECRET}, key=f"{type}-{SECRET}", tags={"tag": SECRET})
        talk = await h.start("talks.v1", {"value": SECRET})
        await h.settle()
        await talk.send("answer", SECRET)
        await h.emit("topic", SECRET)
        await h.advance(5)
        assert await talk.result() == SECRET
        with pytest.raises(RunFailed, match=SECRET):
            await h.run(key=f"fails.v1-{SECRET}").result()
        await h.settle()

    texts = [f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name != "asyncio"]
    assert len(texts) > 15
    assert [text for text in texts if SECRET in text] == []


async def test_a_failing_run_is_logged_with_its_type_and_location(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.worker")
    async with stage.harness(app()) as h:
        run = await h.start("fails.v1", {"value": SECRET})
        with pytest.raises(RunFailed):
            await run.result()

    told = [one for one in caplog.records if getattr(one, "run_id", None) == run.id and not is_of_slowness(one)]
    assert [(record.levelname, record.getMessage()) for record in told] == [
        ("INFO", f"attempt 1 at charge of run {run.id} failed: ConnectionError"),
        ("INFO", f"attempt 2 at charge of run {run.id} failed: ConnectionError"),
        ("WARNING", f"run {run.id} of fails.v1 failed: StepFailed"),
    ]
    for record in told:
        about = vars(record)
        assert (about["type"], about["location"]) == ("fails.v1", "charge")
        assert about["worker"]
        assert about["error"] in ("ConnectionError", "StepFailed")


async def test_log_lines_of_a_workflow_name_its_run_and_its_branch(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.workflow")
    async with stage.harness(app()) as h:
        run = await h.start("fine.v1", {"value": "x"})
        await run.result()

    told = [vars(record) for record in caplog.records if record.name == "holdfast.workflow"]
    told = [about for about in told if about["run_id"] == run.id]  # not of other tests
    assert [(one["msg"], one["location"]) for one in told] == [
        ("before", None),
        ("after", None),
        ("inside", "both/left"),
    ]
    assert {one["type"] for one in told} == {"fine.v1"}
    assert told[1]["mine"] == 1
