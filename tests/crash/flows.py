"""Scripts of flows for a crash at every call."""

from __future__ import annotations

import contextlib
from typing import Any

from holdfast import Context, Fatal, Registry, RunFailed
from holdfast.testing.harness import Harness
from tests.crash.rehearsal import Script
from tests.programs.ledger import EffectLedger

CONVERSATION = """
async def note(n):
    return await call("note", n=n)

async def main():
    await sleep(0.3)
    found = [await receive("x"), await receive(["y", "z"])]
    await sleep(3600)
    found.append(await note(1))
    try:
        await receive("never", timeout=60)
    except WaitTimeout:
        found.append("late")
    found += [await receive_batch("x", 3), await wait_event("news"), await wait_event("news")]
    try:
        await wait_event("silence", timeout=0.2)
    except WaitTimeout:
        found.append("silent")
    found.append(await join({"a": note(2), "b": sleep(5)}))
    found.append((await race({"never": receive("never"), "c": note(3)}))[0])
    set_value("done", len(found))
    return found
"""

FAMILY = """
async def main(left=1):
    early = start("leaf", n=1)
    echo = start("echo")
    send(echo, "say", left)
    emit("bell", left)
    found = await map("leaf", [{"n": 10 + i} for i in range(3)], limit=2)
    try:
        await call("hopeless")
    except ChildFailed as e:
        found.append(e["cause"]["message"])
    endless = start("endless")
    await sleep(20)
    cancel(endless)
    found += [await call("inner", n=4), await echo, await early]
    if left:
        return await continue_as_new(left - 1)
    return found
"""

INNER = """
async def main(n):
    return [await call("leaf", n=n), await call("leaf", n=n + 1)]
"""

FRAGILE = """
async def main():
    m = await receive("m")
    a = await call("leaf", n=1)
    b = await call("fragile")
    return [m, a, b]
"""


def talking(app: Registry, ledger: EffectLedger) -> None:
    @app.task("note")
    async def note(n: int) -> int:
        return int(ledger.note(n))


async def talk(h: Harness) -> None:
    await h.flows.register(CONVERSATION, type="main")
    run = await h.start("main", id="main")
    for name, payload in [("x", 1), ("z", 2), ("x", 3), ("x", 4), ("other", 5)]:
        await run.send(name, payload, id=f"{name}{payload}")
    for number in range(2):
        await h.emit("news", number)
    await run.result()


def family(app: Registry, ledger: EffectLedger) -> None:
    @app.task("leaf")
    async def leaf(n: int) -> int:
        return int(ledger.note(n))

    @app.task("hopeless")
    async def hopeless() -> None:
        raise Fatal("hopeless")

    @app.workflow("echo")
    async def echo(ctx: Context) -> Any:
        return await ctx.receive("say")

    @app.workflow("endless")
    async def endless(ctx: Context) -> None:
        await ctx.receive("never")


async def meet(h: Harness) -> None:
    await h.flows.register(INNER, type="inner")
    await h.flows.register(FAMILY, type="main")
    await (await h.start("main", id="main")).result()


class Paper:
    """The paper of a printer, which runs out."""

    is_out = True


_paper = Paper()


def fragile(app: Registry, ledger: EffectLedger) -> None:
    _paper.is_out = True

    @app.task("leaf")
    async def leaf(n: int) -> int:
        return int(ledger.note(n))

    @app.task("fragile")
    async def fragile_() -> str:
        if _paper.is_out:
            raise Fatal("out of paper")
        return "printed"


async def mend(h: Harness) -> None:
    """Recover a flow whose child failed, after the fault is repaired."""
    await h.flows.register(FRAGILE, type="main")
    run = await h.start("main", id="main")
    await run.send("m", 1, id="m1")
    with contextlib.suppress(RunFailed):
        await run.result()
    _paper.is_out = False
    assert await run.recover()
    assert await run.result() == [1, 1, "printed"]


FLOW_SCRIPTS = [
    Script("flow: talking", talking, talk),
    Script("flow: family", family, meet),
    Script("flow: fragile", fragile, mend),
]
