"""Explaining: one sentence for each state of a run, and the audit trail of a whole life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, Registry, Retry, RunState
from holdfast.app import session_of
from holdfast.core.clock import SECOND
from holdfast.core.model import Backlog
from holdfast.engine.explain import unhandled
from tests.stage import Stage

app = Registry()


def fail() -> None:
    raise OSError("busy")


@app.workflow("child.v1")
async def child(ctx: Context) -> None:
    await ctx.sleep(3600)


WAITS: dict[str, Callable[[Context], Awaitable[Any]]] = {
    "sleep": lambda ctx: ctx.sleep(3600),
    "message": lambda ctx: ctx.receive("approve", timeout=60),
    "messages": lambda ctx: ctx.receive(["yes", "no"]),
    "any": lambda ctx: ctx.receive(),
    "event": lambda ctx: ctx.wait_event("paid:17"),
    "child": lambda ctx: ctx.call(child),
    "retry": lambda ctx: ctx.step("charge", fail, retry=Retry(initial=30, jitter=0)),
    "two": lambda ctx: asyncio.gather(ctx.sleep(60), ctx.receive("x")),
    "deadlock": lambda ctx: asyncio.Event().wait(),
    "step": lambda ctx: ctx.step("slow", asyncio.Event().wait),
}


@app.workflow("shop.v1")
async def shop(ctx: Context, wait: str) -> None:
    if wait == "error":
        raise ValueError("no stock")
    if wait in WAITS:
        await WAITS[wait](ctx)


NOW = "2030-01-01 00:00:00 UTC"


@pytest.mark.parametrize(
    ("wait", "sentence"),
    [
        ("sleep", "Waiting: sleeping until 2030-01-01 01:00:00 UTC (sleep)."),
        (
            "message",
            f"Waiting: for message approve since {NOW}, at most until 2030-01-01 00:01:00 UTC (receive:approve).",
        ),
        ("messages", f"Waiting: for message yes or no since {NOW} (receive:yes|no)."),
        ("any", f"Waiting: for any message since {NOW} (receive)."),
        ("event", f"Waiting: for event paid:17 since {NOW} (event:paid:17)."),
        ("retry", "Waiting: step charge is tried again at 2030-01-01 00:00:30 UTC."),
        (
            "two",
            f"Waiting: sleeping until 2030-01-01 00:01:00 UTC (sleep); for message x since {NOW} (receive:x).",
        ),
        ("error", f"Ended as failed at {NOW}: ValueError: no stock."),
        ("nothing", f"Ended as succeeded at {NOW}."),
    ],
)
async def test_a_run_explains_itself_in_one_sentence(stage: Stage, wait: str, sentence: str) -> None:
    async with stage.harness(app) as h:
        run = await h.start(shop, wait)
        await h.settle()
        assert await run.explain() == sentence


async def test_an_unread_message_with_a_similar_name_is_mentioned(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(shop, "message")
        await h.settle()
        await run.send("other", 1)
        assert "similar" not in await run.explain()
        await run.send("aprove", 1)
        assert (await run.explain()).endswith(" An unread message has the similar name 'aprove'; was 'approve' meant?")


async def test_a_run_of_an_unknown_type_mentions_the_type_with_a_similar_name(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.settle()
        run, foreign = await h.start("shp.v1"), await h.start("something.else")
        assert (await run.explain()).endswith(" A type with a similar name is known; was 'shop.v1' meant?")
        assert "similar" not in await foreign.explain()


@pytest.mark.every_store
async def test_a_run_that_waits_for_a_child_names_it(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(shop, "child")
        await h.settle()
        (info,) = [info async for info in h.list(parent_id=run.id)]
        assert await run.explain() == f"Waiting: for child run {info.id} since {NOW} (child.v1)."


async def test_a_blocked_run_says_why_and_when_it_is_tried_again(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(shop, "deadlock")
        await h.settle()
        sentence = await run.explain()
        assert sentence.startswith("Blocked by WorkflowViolation: the workflow waits for something that can never come")
        assert sentence.endswith("; it is tried again at 2030-01-01 00:00:05 UTC.")


async def test_a_cancelled_run_gives_the_reason(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(shop, "sleep")
        await run.cancel("ordered twice")
        assert await run.explain() == f"Ended as cancelled at {NOW}: ordered twice."


async def test_a_run_without_a_worker_says_what_is_missing(stage: Stage) -> None:
    async with stage.harness(app) as h:
        unknown = await h.start("elsewhere.v1")
        delayed = await h.start(shop, "sleep", delay=60)
        why = "but the one worker that is running does not handle type elsewhere.v1; start one that does."
        assert await unknown.explain() == f"Ready since {NOW}, {why}"
        assert await delayed.explain() == "Starts at 2030-01-01 00:01:00 UTC."
        await h.stop_worker()
        assert "but no worker is running; start one with `holdfast worker MODULE:ATTR`" in await unknown.explain()


async def test_a_run_whose_workers_died_says_when_they_were_last_alive(stage: Stage) -> None:
    async with stage.harness(app) as h:
        worker = h._worker
        assert worker is not None
        await h.crash_worker()
        h.clock.pass_to(h.clock.now() + 61 * SECOND)
        run = await h.start(shop, "sleep")
        heard = f"(the last worker for this type, {worker.name}, sent its last heartbeat at {NOW})"

        assert await run.explain() == (
            f"Ready since 2030-01-01 00:01:01 UTC, but no worker is running {heard}; "
            "start one with `holdfast worker MODULE:ATTR`."
        )
        assert await unhandled(session_of(h).store, h.clock.now()) == [
            Backlog(type="shop.v1", count=1, since=h.clock.now())
        ]


async def test_unhandled_types_are_those_with_due_runs_and_no_living_worker(stage: Stage) -> None:
    async with stage.harness(app) as h:
        begun = h.clock.now()
        await h.start("elsewhere.v1")
        await h.start("elsewhere.v1", delay=60)
        await h.start("later.v1", delay=60)
        await h.start(shop, "sleep")
        await h.settle()

        assert await unhandled(session_of(h).store, h.clock.now()) == [
            Backlog(type="elsewhere.v1", count=1, since=begun)
        ]
        await h.stop_worker()
        h.clock.pass_to(begun + 60 * SECOND)
        assert await unhandled(session_of(h).store, h.clock.now()) == [
            Backlog(type="elsewhere.v1", count=2, since=begun),
            Backlog(type="later.v1", count=1, since=begun + 60 * SECOND),
        ]


async def test_a_running_run_names_its_worker_and_an_overdue_lease(stage: Stage) -> None:
    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop, "step")
        await h.settle()
        worker = h._worker
        assert worker is not None
        assert await run.explain() == f"Running on worker {worker.name}."
        h.clock.pass_to(h.clock.now() + 31 * SECOND)
        assert "whose lease has expired, so another worker takes over" in await run.explain()
        h.clock.pass_to(h.clock.now() + 30 * SECOND)
        assert "whose lease has expired, and no other worker is running that could take over" in await run.explain()
        await run.cancel()


async def test_the_audit_records_a_life_from_beginning_to_end(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def life(ctx: Context) -> Any:
        await ctx.step("a", lambda: 1)
        await ctx.sleep(60)
        return await ctx.receive("go")

    async with stage.harness(local) as h:
        run = await h.start(life, key="k")
        await h.advance(60)
        await run.send("go")
        await run.result()
        facts = list(await run.audit())
        told = [(fact.event, (fact.at - facts[0].at).total_seconds()) for fact in facts]
        assert told == [
            ("created", 0),
            ("claimed", 0),
            ("suspended", 0),
            ("claimed", 60),
            ("suspended", 60),
            ("woken", 60),
            ("claimed", 60),
            ("succeeded", 60),
        ]
        assert facts[0].data == {"type": "life", "key": "k"}
        assert facts[5].data == {"cause": "message", "name": "go"}
        assert [fact.data["token"] for fact in facts if fact.event == "claimed"] == [1, 2, 3]


async def test_the_audit_records_a_worker_that_died(stage: Stage) -> None:
    local = Registry()
    opened = asyncio.Event()

    @local.workflow
    async def slow(ctx: Context) -> None:
        await ctx.step("slow", opened.wait)

    async with stage.harness(local, has_endless_bodies=True) as h:
        run = await h.start(slow)
        await h.settle()
        worker = h._worker
        assert worker is not None
        await h.crash_worker()
        opened.set()
        await h.start_worker()
        await run.result()
        claims = [fact.data for fact in await run.audit() if fact.event == "claimed"]
        assert claims[1]["lost"] == worker.id
        assert claims[1]["crashes"] == 1
        info = await run.info()
        assert (info.state, info.attempt) == (RunState.SUCCEEDED, 2)


async def test_the_audit_keeps_the_last_hundred_claims_suspensions_and_wakes(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def often(ctx: Context) -> None:
        for _ in range(60):
            await ctx.sleep(60)

    async with stage.harness(local) as h:
        run = await h.start(often)
        await run.result()
        events = [fact.event for fact in await run.audit()]
        assert events[0] == "created"
        assert events[-1] == "succeeded"
        assert len(events) == 102


async def test_a_run_that_rolls_back_says_why_and_which_undo_is_tried_again(stage: Stage) -> None:
    local = Registry()

    def unpack(_: Any) -> None:
        raise OSError("busy")

    @local.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("pack", lambda: 1, undo=unpack, retry=Retry(initial=30, jitter=0))
        raise ValueError("no stock")

    async with stage.harness(local) as h:
        run = await h.start(order)
        await h.settle()
        assert await run.explain() == (
            "Rolling back because of ValueError: no stock, to end as failed. "
            "Waiting: the undo of step pack is tried again at 2030-01-01 00:00:30 UTC."
        )
        await run.cancel(force=True)


async def test_a_run_with_a_time_limit_names_its_deadline(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(shop, "any", max_run=60)
        await h.settle()
        assert await run.explain() == (
            f"Waiting: for any message since {NOW} (receive); it is cancelled (max_run) at 2030-01-01 00:01:00 UTC."
        )


async def test_a_child_without_a_slot_says_so(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def member(ctx: Context, number: int) -> None:
        await ctx.sleep(60)

    @local.workflow
    async def club(ctx: Context) -> None:
        await ctx.map(member, [1, 2], limit=1)

    async with stage.harness(local) as h:
        await h.start(club)
        await h.settle()
        (parked,) = [info.id async for info in h.list(type="member", state="pending")]
        said = await h.run(parked).explain()
        assert said.startswith("Waiting: for one of its siblings to end, because of the limit of the map, since")


@pytest.mark.parametrize("control", ["recover", "rewind", "fork"])
async def test_a_run_that_was_made_ready_by_hand_says_so(stage: Stage, control: str) -> None:
    local = Registry()

    @local.workflow("order.v1")
    async def order(ctx: Context) -> None:
        await ctx.step("a", lambda: 1)
        raise ValueError("no stock")

    async with stage.harness(local) as h:
        run = await h.start(order)
        await h.settle()
        await h.stop_worker()
        match control:
            case "recover":
                await run.recover()
            case "rewind":
                await run.rewind("a")
            case _:
                run = await run.fork("a")
        how = {"recover": "recovered", "rewind": "rewound to a", "fork": "forked from run "}[control]
        assert (await run.explain()).startswith(f"Ready since {NOW}, {how}")


async def test_a_run_that_is_paused_while_it_rolls_back_says_so(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("pack", lambda: 1, undo=lambda _: None)
        await ctx.receive("never")

    async with stage.harness(local) as h:
        run = await h.start(order)
        await h.settle()
        await h.stop_worker()
        await run.cancel("ordered twice")
        await run.pause()
        said = f"Paused since {NOW} while it was rolling back; `holdfast resume {run.id}` lets it continue."
        assert await run.explain() == said


async def test_a_run_in_a_crash_loop_says_how_to_continue(stage: Stage) -> None:
    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop, "step")
        for _ in range(3):
            await h.settle()
            await h.crash_worker()
            await h.start_worker()
            await h.advance(31)
        said = await run.explain()
        assert said.startswith("Blocked by CrashLoop: 3 workers in a row died with this run")
        assert said.endswith(f"once the cause is fixed, `holdfast recover {run.id}` continues it.")
