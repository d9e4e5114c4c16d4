"""Scripts of bad deploys, played with a crash at every call: a run is blocked, and continues under correct code."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Context, Registry
from holdfast.testing.harness import Harness
from tests.crash.rehearsal import Script
from tests.programs.ledger import EffectLedger


class Violating:
    """Code that does I/O after its last step, until it is fixed."""

    def __init__(self) -> None:
        self._is_broken = True

    def build(self, app: Registry, ledger: EffectLedger) -> None:
        self._is_broken = True

        @app.workflow("main")
        async def main(ctx: Context) -> list[Any]:
            found: list[Any] = [await ctx.receive("x")]
            ctx.set_value("progress", "begun")
            found += await asyncio.gather(*(ctx.step(name, ledger.note, name) for name in "abc"))
            await ctx.sleep(20)
            found += [await ctx.receive("x"), await ctx.step("last", ledger.note, 3)]
            ctx.set_value("progress", "done")
            if self._is_broken:
                ctx.start("other")
                await asyncio.to_thread(print)
            return found

        @app.workflow("other")
        async def other(ctx: Context) -> None: ...

    async def act(self, h: Harness) -> None:
        run = await h.start("main", id="main")
        for number in range(2):
            await run.send("x", number, id=f"x{number}")
        while (await run.info()).state.value != "blocked":
            await h.settle()
            await h.advance(1)
        await h.advance(100)
        self._is_broken = False
        assert await run.result() == [0, "a", "b", "c", 1, 3]

    def script(self) -> Script:
        return Script("violating", self.build, self.act)


class Changed:
    """Code whose first steps are renamed, inserted, removed or swapped for a while, after all runs executed them."""

    def __init__(self, change: str, names: str) -> None:
        self._change = change
        self._changed = names
        self._names = "ab"

    def build(self, app: Registry, ledger: EffectLedger) -> None:
        self._names = "ab"

        @app.workflow("main")
        async def main(ctx: Context) -> list[Any]:
            found: list[Any] = [await ctx.step(name, ledger.note, name) for name in self._names]
            found.append(await ctx.receive("x"))
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.sleep(20))
                last = group.create_task(ctx.step("last", ledger.note, "last"))
            ctx.set_value("progress", "done")
            return [*found, last.result()]

    async def act(self, h: Harness) -> None:
        runs = [await h.start("main", id=f"main-{number}") for number in range(2)]
        for run in runs:
            while (await run.info()).state.value != "suspended":
                await h.settle()
                await h.advance(1)
        self._names = self._changed
        for run in runs:
            await run.send("x", 1, id="x")
            while (await run.info()).state.value != "blocked":
                await h.settle()
                await h.advance(1)
        await h.advance(100)
        self._names = "ab"
        for run in runs:
            assert await run.result() == ["a", "b", 1, "last"]

    def script(self) -> Script:
        return Script(self._change, self.build, self.act)


DEPLOYS = [
    Violating().script(),
    Changed("renamed", "cb").script(),
    Changed("inserted", "cab").script(),
    Changed("removed", "b").script(),
    Changed("swapped", "ba").script(),
]
