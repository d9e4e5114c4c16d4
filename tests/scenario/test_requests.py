"""Messages as a conversation: batches, whole messages, requests and replies, and unreceived messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from holdfast import Context, InvalidRequest, Registry, RunFinished, RunNotFound, RunState, SyncContext
from holdfast.testing import Harness
from holdfast.testing.patience import GUARD_SECONDS
from holdfast.typing import Message
from tests.stage import Stage, facts

app = Registry()


@dataclass(frozen=True)
class Order:
    item: str


@app.workflow
async def batches(ctx: Context, names: Any, count: int, timeout: float | None) -> list[Any]:
    """Receives batches until none comes in time."""
    got = []
    while batch := await ctx.receive_batch(names, count, timeout):
        got.append(batch)
    return got


@app.workflow
async def typed_batch(ctx: Context) -> list[Order]:
    return await ctx.receive_batch("order", 10, type=Order)


@app.workflow
async def counter(ctx: Context) -> int:
    """Adds the numbers it receives, and replies with the sum on request."""
    total = 0
    while True:
        message: Message[Any] = await ctx.receive_message(["add", "sum", "stop"])
        match message.name:
            case "add":
                total += message.payload
            case "sum":
                await message.reply({"sum": total})
            case _:
                return total


@app.workflow
async def twice(ctx: Context) -> str:
    message = await ctx.receive_message()
    message.reply(1)
    try:
        message.reply(2)
    except InvalidRequest as refused:
        return str(refused)
    return "both"


@app.workflow
async def inspect(ctx: Context) -> list[Any]:
    message = await ctx.receive_message("order", type=Order, timeout=60)
    return [message.id, message.name, message.payload.item, message.sent_at.isoformat(), repr(message)]


@app.workflow
def blocking_desk(ctx: SyncContext) -> list[Any]:
    question = ctx.receive_message("question")
    question.reply([question.payload, ctx.receive_batch(["a", "b"], 5)])
    return ctx.receive_batch("a", 5, 60)


@app.workflow
async def deaf(ctx: Context) -> None:
    await ctx.receive("end")


@app.workflow
async def parent(ctx: Context) -> None:
    child = await ctx.start(deaf, undelivered="dead_letter")
    child.send("never", 1)
    child.send("end")
    await child


# Batches


@pytest.mark.every_store
async def test_a_batch_has_the_waiting_messages_in_order_and_is_one_record(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(batches, "x", 3, 60.0, delay=1)
        for number in range(7):
            await run.send("x", number)
            await run.send("other", number)

        assert await run.result() == [[0, 1, 2], [3, 4, 5], [6]]
        assert await facts(run) == [
            "receive:x message done",
            "receive:x#2 message done",
            "receive:x#3 message done",
            "receive:x#4 message timed_out",
        ]
        assert [entry.result for entry in await run.history()][:2] == [[0, 1, 2], [3, 4, 5]]


async def test_a_batch_returns_as_soon_as_there_is_one_message(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(batches, "x", 10, 60.0)
        for number in range(2):
            await h.advance(1)
            await run.send("x", number)
            await h.settle()

        assert await run.result() == [[0], [1]]


async def test_a_batch_of_several_names_returns_the_names(stage: Stage) -> None:
    async with stage.harness(app) as h:
        for names in (["x", "y"], None):
            run = await h.start(batches, names, 5, 60.0, delay=1)
            await run.send("y", 1)
            await run.send("x", 2)

            assert await run.result() == [[["y", 1], ["x", 2]]]


async def test_a_batch_is_decoded_to_the_declared_type(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(typed_batch, delay=1)
        await run.send("order", Order("cup"))
        await run.send("order", {"item": "pot"})

        assert await run.result() == [Order("cup"), Order("pot")]


@pytest.mark.parametrize(("names", "count"), [([], 1), ("x", 0), ("x", 1_001), ("x/y", 1), (["x", ""], 1)])
async def test_an_invalid_batch_is_refused_at_the_call(stage: Stage, names: Any, count: int) -> None:
    local = Registry()

    @local.workflow("main")
    async def main(ctx: Context) -> str:
        try:
            await ctx.receive_batch(names, count)
        except InvalidRequest as refused:
            return str(refused)
        return "accepted"

    async with stage.harness(local) as h:
        assert await h.execute("main") != "accepted"


async def test_waiting_for_no_name_is_refused_at_the_call(stage: Stage) -> None:
    local = Registry()

    @local.workflow("main")
    async def main(ctx: Context) -> list[str]:
        found = []
        for ask in (ctx.receive, ctx.receive_message):
            try:
                await ask([])
            except InvalidRequest as refused:
                found.append(str(refused))
        return found

    async with stage.harness(local) as h:
        assert await h.execute("main") == [
            f"{name}([]) could never return; pass one name, several, or None for any message"
            for name in ("receive", "receive_message")
        ]


# Whole messages


async def test_a_message_has_its_id_its_name_and_its_send_time(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(inspect, delay=30)
        await h.advance(10)
        await run.send("order", Order("cup"), id="webhook-7")
        sent = datetime(2030, 1, 1, 0, 0, 10, tzinfo=UTC).isoformat()

        assert await run.result() == ["webhook-7", "order", "cup", sent, "<message order webhook-7>"]


# Requests


async def test_a_request_gets_the_reply_of_the_run(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(counter)
        await run.send("add", 2)

        assert await run.request("sum") == {"sum": 2}

        await run.send("add", 3)
        assert await h.run(run.id).request("sum", timeout=GUARD_SECONDS) == {"sum": 5}
        await run.send("stop")
        assert await run.result() == 5
        assert "reply:sum#2 reply done" in await facts(run)


async def test_a_request_may_be_addressed_by_key_and_before_the_run_starts(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.start(counter, key="c", delay=3600)

        assert await h.run(key="c").request("sum") == {"sum": 0}


async def test_a_repeated_request_gets_the_same_reply_even_if_the_state_changed(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(counter)
        first = await run.request("sum", id="r1")
        await run.send("add", 3)
        again = await run.request("sum", id="r1")
        await run.send("stop")
        await run.result()

        after_the_end = await run.request("sum", id="r1")

        assert first == again == after_the_end == {"sum": 0}


async def test_a_request_without_a_reply_ends_with_the_run(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(deaf)
        asking = asyncio.create_task(run.request("question"))
        await asyncio.sleep(0.01)
        await run.send("end")

        with pytest.raises(RunFinished, match="has ended without a reply to 'question'"):
            await asking
        with pytest.raises(RunFinished, match="takes no more messages"):
            await run.request("question")


async def test_a_request_to_an_unknown_run_is_refused(stage: Stage) -> None:
    async with stage.harness(app) as h:
        with pytest.raises(RunNotFound):
            await h.run("nobody").request("question")
        with pytest.raises(RunNotFound):
            await h.run(key="nobody").request("question")


async def test_a_request_that_times_out_changes_nothing(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.stop_worker()
        run = await h.start(counter)
        with pytest.raises(TimeoutError):
            await run.request("sum", id="r1", timeout=0.02)
        await h.start_worker()

        assert await run.request("sum", id="r1") == {"sum": 0}
        assert (await run.info()).state is RunState.SUSPENDED


async def test_a_def_workflow_receives_and_replies_alike(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(blocking_desk, delay=1)
        for name in ("a", "b"):
            await run.send(name, name)

        assert await run.request("question", 1) == [1, [["a", "a"], ["b", "b"]]]
        assert await run.result() == []


async def test_a_message_has_one_reply(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(twice)

        assert await run.request("question", id="q") == 1
        assert (await run.result()).startswith("message 'question' (q) already has a reply")


async def test_a_reply_that_cannot_be_stored_is_refused_at_the_call(stage: Stage) -> None:
    local = Registry()

    @local.workflow("main")
    async def main(ctx: Context) -> None:
        message = await ctx.receive_message("question")
        try:
            message.reply(object())
        except Exception as refused:  # noqa: BLE001 - the test checks the text of any error
            message.reply(type(refused).__name__)

    async with stage.harness(local) as h:
        assert await (await h.start("main")).request("question") == "NotSerializable"


# Messages that are never received


async def unread(h: Harness) -> list[Any]:
    return [(letter.run_id, letter.name, letter.payload, letter.reason) async for letter in h.dead_letters.list()]


async def test_messages_that_were_never_received_are_discarded_or_kept_as_the_start_requested(stage: Stage) -> None:
    async with stage.harness(app) as h:
        forgetful = await h.start(deaf)
        careful = await h.start(deaf, undelivered="dead_letter")
        for run in (forgetful, careful):
            await run.send("never", {"a": 1})
            await run.send("end")
            await run.result()

        assert await unread(h) == [(careful.id, "never", {"a": 1}, "undelivered")]
        assert await h.dead_letters.replay([1]) == 0
        assert len(await unread(h)) == 1


async def test_a_child_can_be_started_with_the_same_option(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.execute(parent)

        assert [(name, reason) for _, name, _, reason in await unread(h)] == [("never", "undelivered")]


async def test_an_unknown_option_for_undelivered_messages_is_refused(stage: Stage) -> None:
    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match="undelivered='burn': expected 'discard' or 'dead_letter'"):
            await h.start(deaf, **cast("Any", {"undelivered": "burn"}))
