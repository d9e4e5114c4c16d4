"""The runs of a golden store: `fill` makes them, `finish` ends all that are alive and checks their results."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, RunState
from holdfast.app import session_of
from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.testing.patience import GUARD_SECONDS
from tests.golden import app

STATES = {
    "done": RunState.SUCCEEDED,
    "failed": RunState.FAILED,
    "cancelled": RunState.CANCELLED,
    "pending": RunState.PENDING,
    "timer": RunState.SUSPENDED,
    "message": RunState.SUSPENDED,
    "unread": RunState.PAUSED,
    "event": RunState.SUSPENDED,
    "parent": RunState.SUSPENDED,
    "retrying": RunState.SUSPENDED,
    "flow": RunState.SUSPENDED,
    "blocked": RunState.BLOCKED,
    "paused": RunState.PAUSED,
    "held": RunState.RUNNING,
    "parked": RunState.PENDING,
}
"""The keys of the runs with their states in a new golden store. The parent waits for a child without a key."""

RESULTS: dict[str, Any] = {
    "done": 5,
    "pending": 7,
    "timer": "golden slept and woke",
    "message": {"name": "m", "answer": {"by": "ada"}},
    "unread": {"name": "u", "answer": {"by": "early"}},
    "event": {"news": 1},
    "parent": {"child": {"name": "c", "answer": {"by": "bob"}}},
    "retrying": "attempt 2",
    "flow": {"total": 42},
    "blocked": "first done",
    "paused": {"name": "p", "answer": {"by": "cleo"}},
    "held": 20,
    "parked": 22,
}
"""The results that all runs have in the end, except those that failed or were cancelled."""


async def fill(url: str) -> None:
    """Make runs in every state, and everything else that a store keeps."""
    async with Holdfast(url) as hf:
        hf.include(app.registry)
        await hf.topics.set("golden.queue", mode="queue", retention=app.FOREVER)
        await hf.topics.set("golden.news", retention=app.FOREVER)
        await hf.types.set("golden.limited.v1", concurrency=1, description="one at a time")
        await hf.schedules.put("golden-nightly", app.add, 1, 2, cron="0 3 * * *", zone="Europe/Paris")
        await hf.schedules.pause("golden-nightly")
        await hf.flows.register(app.FLOW_TEXT, type=app.FLOW, by="ada")
        await hf.emit("golden.queue", {"job": 1})

        async def start(key: str, workflow: Any, *arguments: Any) -> Any:
            return await hf.start(workflow, *arguments, key=key, tags={"golden": key}, retention=app.FOREVER)

        await start("done", app.add, 2, 3)
        await start("failed", app.failed)
        cancelled = await start("cancelled", app.message, "x")
        await start("timer", app.timer, "golden")
        await start("message", app.message, "m")
        unread = await start("unread", app.message, "u")
        await start("event", app.event, "golden.news")
        await start("parent", app.parent, "c")
        await start("retrying", app.retrying)
        await start("flow", app.FLOW, {"base": 40})
        blocked = await start("blocked", app.changed)
        paused = await start("paused", app.message, "p")
        await hf.worker(name="golden").run_until_idle()
        await cancelled.cancel("not needed", by="ada")
        await paused.pause("later", by="ada")
        await unread.pause("later", by="ada")
        await unread.send("go", {"by": "early"}, by="ada")
        app.is_code_changed = True
        try:
            await blocked.send("go")
            await hf.worker(name="changed").run_until_idle()
        finally:
            app.is_code_changed = False
        await start("pending", app.add, 3, 4)
        await start("held", app.limited, 10)
        await start("parked", app.limited, 11)
        # A worker that took a run and was never heard of again. Its type has a limit, so the other run is parked.
        asked = ClaimRequest(
            id="c1", worker="lost", types=("golden.limited.v1",), limit=2, lease=30 * SECOND, python="3.11"
        )
        await session_of(hf).store.claim(asked)
        await check_states(hf)


async def check_states(hf: Holdfast) -> None:
    """Check that each run is in the state in which it was kept."""
    found = {key: (await hf.run(key=key).info()).state for key in STATES}
    # A server that is another one than that of the golden store ends all leases.
    assert found in (STATES, {**STATES, "held": RunState.PENDING}), found


async def finish(hf: Holdfast) -> None:
    """Give each live run what it waits for, let a worker end all of them, and check every result."""
    hf.include(app.registry)
    info = await hf.run(key="message").info()
    assert (info.tags, await hf.run(key="message").value("stage")) == ({"golden": "message"}, "waiting")
    await hf.run(key="message").send("go", {"by": "ada"})
    (child,) = [run async for run in hf.list(parent_id=(await hf.run(key="parent").info()).id)]
    await hf.run(child.id).send("go", {"by": "bob"})
    await hf.emit("golden.news", {"news": 1})
    await hf.run(key="flow").send("go", {"b": 2})
    await hf.run(key="paused").send("go", {"by": "cleo"})
    for key in ("paused", "unread"):
        assert await hf.run(key=key).resume()
    assert await hf.run(key="blocked").recover()
    async with hf.worker(name="finisher", lease_seconds=5):
        found = {key: await hf.run(key=key).result(timeout=GUARD_SECONDS) for key in RESULTS}
    assert found == RESULTS
    assert (await hf.run(key="failed").info()).state is RunState.FAILED
    assert (await hf.run(key="cancelled").info()).state is RunState.CANCELLED
    (schedule,) = [one async for one in hf.schedules.list()]
    assert (schedule.name, schedule.is_paused) == ("golden-nightly", True)
