"""A rig for tests of the command line: an application, its own database, and commands typed at it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from holdfast import Context, Fatal, Holdfast, Registry, RunHandle, TaskContext
from holdfast.cli.main import cli

registry = Registry()


@registry.task("shop.add.v1")
def add(a: int, b: int) -> int:
    return a + b


@registry.task("shop.export.v1")
def export(ctx: TaskContext, rows: int) -> int:
    ctx.progress({"rows": rows})
    return rows


@registry.workflow("shop.order.v1")
async def order(ctx: Context, name: str) -> dict[str, Any]:
    paid = await ctx.step("charge", lambda: f"paid for {name}")
    ctx.set_value("stage", "approval")
    approval = await ctx.receive("approve", timeout=timedelta(hours=1))
    return {"paid": paid, "approval": approval}


@registry.workflow("shop.broken.v1")
async def broken(ctx: Context) -> None:
    def refuse() -> None:
        raise Fatal("the card [bold]was\x1b[31m refused")

    await ctx.step("charge", refuse)


@registry.workflow("shop.parent.v1")
async def parent(ctx: Context) -> None:
    await ctx.call(broken)


@registry.workflow("shop.event.v1")
async def event(ctx: Context, topic: str) -> Any:
    return await ctx.wait_event(topic)


@registry.workflow("shop.desk.v1")
async def desk(ctx: Context) -> None:
    question = await ctx.receive_message("question")
    question.reply({"answer": question.payload})


class Shop:
    """A database in its own directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "shop.db"
        self.url = f"sqlite:///{self.path}"

    def type(self, *arguments: str, stdin: str | None = None, **environment: str) -> Result:
        """Run a command as a script would: its output is not a terminal."""
        variables = {"HOLDFAST_URL": self.url, "NO_COLOR": None, "HOLDFAST_OUTPUT": None, **environment}
        return CliRunner(env=variables).invoke(cli, arguments, input=stdin, prog_name="holdfast")

    def read(self, *arguments: str) -> Any:
        """Return the JSON that a successful command writes."""
        result = self.type(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def do(self, work: Callable[[Holdfast], Awaitable[Any]]) -> Any:
        """Call the engine without the command line."""

        async def session() -> Any:
            async with Holdfast(self.url) as hf:
                hf.include(registry)
                return await work(hf)

        return asyncio.run(session())

    def start(self, type: str, payload: dict[str, Any] | None = None, **options: Any) -> str:
        """Start a run without executing it."""

        async def work(hf: Holdfast) -> str:
            run: RunHandle[Any] = await hf.start(type, payload or {}, **options)
            return run.id

        run_id: str = self.do(work)
        return run_id

    def work(self) -> None:
        """Execute all runs that are ready."""

        async def work(hf: Holdfast) -> None:
            await hf.worker(name="tester").run_until_idle()

        self.do(work)
