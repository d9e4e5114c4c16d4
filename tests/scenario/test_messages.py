"""Messages: addressed to one run, kept, in order, consumed once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, HoldfastError, InvalidRequest, Registry, RunNotFound, RunState, WaitTimeout
from tests.stage import Stage, facts

app = Registry()


@dataclass
class Approval:
    """The decision of an approver."""

    by: str
    ok: bool


@app.workflow
async def take(ctx: Context, names: list[str]) -> list[Any]:
    return [await ctx.receive(name) for name in names]


@app.workflow
async def take_any(ctx: Context, count: int) -> list[Any]:
    return [await ctx.receive() for _ in range(count)]


@app.workflow
async def take_of(ctx: Context, names: list[str], count: int) -> list[Any]:
    return [await ctx.receive(names) for _ in range(count)]


@app.workflow
async def patient(ctx: Context, seconds: float) -> list[Any]:
    try:
        first = await ctx.receive("x", timeout=seconds)
    except WaitTimeout as late:
        first = f"{type(late).__name__}: {late}"
    return [first, await ctx.receive("x")]


@app.workflow
async def approve(ctx: Context) -> str:
    answer = await ctx.receive("approve", type=Approval)
    return f"{answer.by} {answer.ok}"


@pytest.mark.every_store
async def test_messages_of_one_name_are_received_in_the_order_they_were_sent(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(take, ["x", "x", "y", "x"])
        for name, payload in [("x", 1), ("y", "Y"), ("x", 2), ("x", 3)]:
            await run.send(name, payload)
        assert await run.result() == [1, 2, "Y", 3]


async def test_messages_sent_before_the_run_started_or_waited_are_kept(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(take, ["x", "y"], delay=60)
        await run.send("y", "early")
        await run.send("x", "first")
        assert (await run.info()).state is RunState.PENDING
        assert await run.result() == ["first", "early"]


async def test_a_message_does_not_start_a_delayed_run_before_its_time(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(take, ["x"], delay=60)
        await run.send("x", 1)
        await h.advance(59)
        assert (await run.info()).state is RunState.PENDING


async def test_receive_without_a_name_takes_any_message_and_returns_its_name(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(take_any, 2)
        await run.send("b", 1)
        await run.send("a", 2)
        assert await run.result() == [["b", 1], ["a", 2]]


async def test_receive_of_several_names_takes_whichever_comes_first(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(take_of, ["yes", "no"], 2)
        await run.send("maybe", 0)
        await run.send("no", 1)
        await run.send("yes", 2)
        assert await run.result() == [["no", 1], ["yes", 2]]


async def test_a_repeated_message_id_is_not_a_second_message(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(take, ["x", "x"])
        await run.send("x", "once", id="m-1")
        await run.send("x", "once", id="m-1")
        await h.settle()
        await run.send("x", "once more", id="m-1")  # it is consumed by now, and its id still known
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        await run.send("x", "two", id="m-2")
        assert await run.result() == ["once", "two"]


async def test_a_consumed_id_is_remembered_for_a_day(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(take, ["x", "x"])
        await run.send("x", "once", id="m-1")
        await h.advance(timedelta(hours=23))
        await run.send("x", "again", id="m-1")
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        await h.advance(timedelta(hours=2))
        await run.send("x", "after a day", id="m-1")
        assert await run.result() == ["once", "after a day"]


async def test_a_wait_that_times_out_raises_and_takes_no_later_message(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(patient, 10.0)
        await h.advance(11)
        await run.send("x", "late")
        first, second = await run.result()
        assert first.startswith("WaitTimeout: no message x came in time")
        assert second == "late"
        assert await facts(run) == ["receive:x message timed_out", "receive:x#2 message done"]


async def test_a_message_before_the_deadline_wins_even_if_it_is_noticed_later(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(patient, 10.0)
        await h.settle()
        await h.crash_worker()
        await h.advance(9)
        await run.send("x", "in time")
        await h.advance(100)
        await h.start_worker()
        await run.send("x", "second")
        assert await run.result() == ["in time", "second"]


async def test_a_deadline_before_the_message_wins_even_if_it_is_noticed_later(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(patient, 10.0)
        await h.settle()
        await h.crash_worker()
        await h.advance(11)
        await run.send("x", "late")
        await h.start_worker()
        first, second = await run.result()
        assert first.startswith("WaitTimeout")
        assert second == "late"


async def test_a_waiting_message_is_received_even_with_a_timeout_of_zero(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(patient, 0.0, delay=1)
        await run.send("x", "there")
        await run.send("x", "next")
        assert await run.result() == ["there", "next"]
        nothing = await h.start(patient, 0.0)
        await h.settle()
        await nothing.send("x", 1)
        assert (await nothing.result())[1] == 1


async def test_a_timeout_is_not_confused_with_a_payload_of_none(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(patient, 10.0)
        await run.send("x", None)
        await run.send("x")
        assert await run.result() == [None, None]


async def test_a_payload_comes_back_as_the_type_that_was_asked_for(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(approve)
        await run.send("approve", Approval(by="Ada", ok=True))
        assert await run.result() == "Ada True"
        wrong = await h.start(approve)
        await wrong.send("approve", {"by": 3})
        with pytest.raises(HoldfastError, match=r"Blocked by InvalidRequest: .*approve"):
            await wrong.result()


async def test_two_branches_that_wait_for_one_name_each_get_one_message_in_order(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def both(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.receive("x"), ctx.receive("x"), ctx.receive("y")))

    async with stage.harness(local) as h:
        run = await h.start(both)
        await h.settle()
        await run.send("x", 1)
        await run.send("y", 3)
        await run.send("x", 2)
        assert await run.result() == [1, 2, 3]


async def test_a_branch_that_stops_waiting_leaves_the_message_to_the_other(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def give_way(ctx: Context) -> Any:
        impatient = asyncio.create_task(ctx.receive("x", timeout=5))
        patient = asyncio.create_task(ctx.receive("x"))
        await asyncio.wait([impatient])
        assert isinstance(impatient.exception(), WaitTimeout)
        return await patient

    async with stage.harness(local) as h:
        run = await h.start(give_way)
        await h.advance(6)
        await run.send("x", "for the patient")
        assert await run.result() == "for the patient"


async def test_a_workflow_sends_to_another_run_once_with_its_checkpoint(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def sender(ctx: Context, to: str) -> None:
        ctx.send(to, "x", {"n": 1})
        await ctx.sleep(60)
        await ctx.send(to, "x", {"n": 2})
        await ctx.step("after", lambda: None)

    local.include(app)
    async with stage.harness(local) as h:
        receiver = await h.start(take, ["x", "x"])
        run = await h.start(sender, receiver.id)
        assert await receiver.result() == [{"n": 1}, {"n": 2}]
        await run.result()
        assert "send:x send done" in await facts(run)


async def test_a_message_to_a_run_that_ended_is_dropped_and_audited(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def sender(ctx: Context, to: str) -> str:
        ctx.send(to, "x", 1)
        ctx.send("nobody", "x", 1)
        return "sent"

    @local.workflow
    async def short(ctx: Context) -> None: ...

    async with stage.harness(local) as h:
        gone = await h.start(short)
        await gone.result()
        run = await h.start(sender, gone.id)
        assert await run.result() == "sent"
        dropped = [fact.data for fact in await run.audit() if fact.event == "dropped"]
        assert {(fact["to"], fact["why"]) for fact in dropped} == {(gone.id, "finished"), ("nobody", "unknown")}


async def test_illegal_names_are_refused_where_they_are_given(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(take, ["x"])
        for name in ("", "a/b", "a#1", "~x", "+x", "x" * 201):
            with pytest.raises(InvalidRequest, match="message name"):
                await run.send(name)
        bad = await h.start(take, ["a/b"])
        with pytest.raises(HoldfastError, match=r"Blocked by InvalidRequest: .*message name"):
            await bad.result()
        empty = await h.start(take_of, [], 1)
        with pytest.raises(HoldfastError, match=r"Blocked by InvalidRequest: .*could never return"):
            await empty.result()


@pytest.mark.every_store
async def test_unread_messages_are_listed_and_dropped_by_hand(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        await ctx.wait_event("open")
        return [await ctx.receive("item"), await ctx.receive("item")]

    async with stage.harness(app) as h:
        run = await h.start(order)
        await h.settle()
        for number in (1, 2, 3):
            await run.send("item", {"number": number}, id=f"m{number}")
        assert [(one.id, one.name, one.payload) for one in await run.messages()] == [
            ("m1", "item", {"number": 1}),
            ("m2", "item", {"number": 2}),
            ("m3", "item", {"number": 3}),
        ]

        assert await run.drop_message("m2", by="ada")
        assert not await run.drop_message("m2")
        assert not await run.drop_message("m9")
        await run.send("item", {"number": 2}, id="m2")  # a client that repeats its request

        await h.emit("open")
        assert await run.result() == [{"number": 1}, {"number": 3}]
        assert [(fact.event, fact.by) for fact in await run.audit() if fact.event == "message_dropped"] == [
            ("message_dropped", "ada")
        ]
        assert await run.messages() == []


async def test_listing_messages_of_an_unknown_run_raises(stage: Stage) -> None:
    async with stage.harness() as h:
        wrong: Any = 5
        with pytest.raises(RunNotFound, match="nowhere"):
            await h.run("nowhere").messages()
        with pytest.raises(RunNotFound, match="nowhere"):
            await h.run("nowhere").drop_message("m1")
        with pytest.raises(InvalidRequest, match="id=5"):
            await h.run("nowhere").drop_message(wrong)
