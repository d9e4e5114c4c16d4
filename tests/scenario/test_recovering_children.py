"""Recovering a parent reopens its children and never starts duplicates of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from holdfast import (
    ChildFailed,
    Context,
    Fatal,
    KeyConflict,
    Registry,
    RunBusy,
    RunFailed,
    RunHandle,
    RunState,
    StepFailed,
    step_info,
)
from holdfast.testing.harness import Harness
from tests.stage import Stage


class Printer:
    """Prints labels, unless it is broken."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.is_broken = True
        self.running = self.most_at_once = 0

    def print(self, label: str) -> str:
        if self.is_broken:
            raise Fatal("out of paper")
        self.labels.append(label)
        return label

    async def print_slowly(self, label: str) -> str:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return self.print(label)


@pytest.fixture
def printer() -> Printer:
    return Printer()


async def states(h: Harness, **filters: Any) -> Counter[RunState]:
    return Counter([info.state async for info in h.list(**filters)])


async def failed(run: RunHandle[Any]) -> None:
    with pytest.raises(RunFailed):
        await run.result()


async def the_child(h: Harness, type: str = "parcel") -> RunHandle[Any]:
    (info,) = [info async for info in h.list(type=type)]
    return h.run(info.id)


# In bulk


@pytest.mark.parametrize("order", ["parents first", "children first"])
async def test_a_bulk_recovery_under_a_live_worker_prints_every_label_once(
    stage: Stage, printer: Printer, order: str
) -> None:
    app = Registry()

    @app.workflow
    async def parcel(ctx: Context, number: int) -> str:
        await ctx.sleep(number % 3)
        return await ctx.step("print", printer.print, f"label-{number}")

    @app.workflow
    async def order_(ctx: Context, number: int) -> list[str]:
        return [await ctx.call(parcel, number), *await ctx.map(parcel, [number + 1, number + 2], limit=1)]

    @app.workflow
    async def pair(ctx: Context, number: int) -> list[str]:
        return await ctx.map(parcel, [number, number + 1])

    async with stage.harness(app) as h:
        for turn in range(10):
            printer.is_broken, printer.labels = True, []
            chance = random.Random(f"{order} {turn}")
            runs = [await h.start(order_, 10 * n) for n in range(2)] + [await h.start(pair, 10 * n) for n in (2, 3)]
            await h.advance(10)
            printer.is_broken = False
            failed = [info async for info in h.list(state="failed")]
            assert {info.type for info in failed} == {"order_", "pair", "parcel"}
            chance.shuffle(failed)
            failed.sort(key=lambda info: (info.parent_id is None) is (order == "children first"))
            for info in failed:
                await h.run(info.id).recover()
                if chance.random() < 0.5:
                    await h.advance(chance.choice([0, 1, 2]))
            await h.advance(60)

            assert [len(await run.result()) for run in runs] == [3, 3, 2, 2]
            expected = [10 * n + place for n in range(2) for place in range(3)] + [20, 21, 30, 31]
            assert sorted(printer.labels) == sorted(f"label-{number}" for number in expected)
            assert await states(h, state="failed") == {}


# One by one


async def test_children_of_children_are_reopened_with_their_history(stage: Stage, printer: Printer) -> None:
    app, done = Registry(), list[str]()

    @app.workflow
    async def label(ctx: Context, number: int) -> str:
        await ctx.step("measure", done.append, f"measure {number}")
        return await ctx.step("print", printer.print, f"label-{number}")

    @app.workflow
    async def parcel(ctx: Context, number: int) -> str:
        await ctx.step("pack", done.append, f"pack {number}")
        return await ctx.call(label, number)

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        return list(await asyncio.gather(*(ctx.call(parcel, number) for number in range(3))))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await failed(run)
        before = {info.id async for info in h.list()}
        printer.is_broken = False
        assert await run.recover()

        assert await run.result() == ["label-0", "label-1", "label-2"]
        assert Counter(done).total() == len(done) == len(set(done)) == 6
        assert Counter(printer.labels) == Counter(["label-0", "label-1", "label-2"])
        assert {info.id async for info in h.list()} == before
        assert await states(h) == {RunState.SUCCEEDED: 7}


async def test_a_child_that_a_person_cancelled_fails_its_parent_again(stage: Stage, printer: Printer) -> None:
    app = Registry()

    @app.workflow
    async def parcel(ctx: Context) -> Any:
        return await ctx.receive("go")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.call(parcel)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        child = await the_child(h)
        await child.cancel("its parent ended")
        await failed(run)
        assert await run.recover()
        with pytest.raises(RunFailed, match="ChildFailed"):
            await run.result()
        assert (await child.info()).state is RunState.CANCELLED

        assert await child.recover()
        assert await run.recover()
        await h.settle()
        await child.send("go", 7)
        assert await run.result() == 7


async def test_failures_that_the_parent_caught_stay_caught(stage: Stage, printer: Printer) -> None:
    app = Registry()

    @app.workflow
    async def parcel(ctx: Context, number: int) -> str:
        return await ctx.step("print", printer.print, f"label-{number}")

    @app.workflow
    async def shop(ctx: Context) -> str:
        with suppress(ChildFailed):
            await ctx.call(parcel, 1)
        try:
            await ctx.call(parcel, 2)
        except ChildFailed:
            return await ctx.call(parcel, 3)
        return "never"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await failed(run)
        printer.is_broken = False
        assert await run.recover()

        assert await run.result() == "label-3"
        assert printer.labels == ["label-3"]
        assert await states(h, type="parcel") == {RunState.FAILED: 2, RunState.SUCCEEDED: 1}


async def test_a_failure_that_the_parent_raised_again_as_its_own_error_is_not_caught(
    stage: Stage, printer: Printer
) -> None:
    app = Registry()

    @app.workflow
    async def parcel(ctx: Context) -> str:
        return await ctx.step("print", printer.print, "label")

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            return await ctx.call(parcel)
        except ChildFailed:
            raise ValueError("no label") from None

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await failed(run)
        printer.is_broken = False
        assert await run.recover()
        assert (await run.result(), printer.labels) == ("label", ["label"])


async def test_the_handler_of_a_failure_keeps_its_result_if_the_failure_repeats(stage: Stage, printer: Printer) -> None:
    """A child that was started because of a failure is not started twice, nor missed if the failure is gone."""
    app, refunds = Registry(), list[str]()

    @app.workflow
    async def refund(ctx: Context) -> str:
        await ctx.step("refund", refunds.append, "refund")
        return "refunded"

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            return await ctx.step("print", printer.print, "label")
        except StepFailed as error:
            raise ValueError(await ctx.call(refund)) from error

    async with stage.harness(app) as h:
        run = await h.start(shop)
        for _ in range(2):
            with pytest.raises(RunFailed, match="refunded"):
                await run.result()
            await run.recover()
        await failed(run)
        assert refunds == ["refund"]
        printer.is_broken = False
        await run.recover()
        assert await run.result() == "label"
        assert (refunds, await states(h, type="refund")) == (["refund"], {RunState.SUCCEEDED: 1})


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("goes_elsewhere", [False, True])
async def test_children_after_an_undone_step_are_found_again(
    stage: Stage, printer: Printer, strict: bool, goes_elsewhere: bool
) -> None:
    app, bookings, rooms = Registry(), list[str](), iter(["sea", "lake" if goes_elsewhere else "sea"])

    def book() -> str:
        bookings.append(step_info().idempotency_key.split(":", 2)[2])
        return next(rooms)

    @app.workflow
    async def key_card(ctx: Context, room: str) -> str:
        return f"card for {room}"

    @app.workflow
    async def parcel(ctx: Context, room: str) -> str:
        return await ctx.step("print", printer.print, room)

    @app.workflow(strict=strict)
    async def trip(ctx: Context) -> list[str]:
        room = await ctx.step("book", book, undo=lambda _: None)
        card = await ctx.call(key_card, room, name=f"card {room}")
        return [card, await ctx.call(parcel, room, name=f"label {room}")]

    async with stage.harness(app) as h:
        run = await h.start(trip)
        await failed(run)
        printer.is_broken = False
        assert await run.recover()

        room = "lake" if goes_elsewhere else "sea"
        assert await run.result() == [f"card for {room}", room]
        assert bookings == ["book", "book:2"]
        await h.settle()
        assert Counter(printer.labels) == Counter(["sea", "lake"] if goes_elsewhere else ["sea"])
        assert await states(h, type="key_card") == {RunState.SUCCEEDED: 2 if goes_elsewhere else 1}


async def test_a_child_that_was_pruned_is_started_again(stage: Stage, printer: Printer) -> None:
    app = Registry()

    @app.workflow
    async def parcel(ctx: Context) -> str:
        return await ctx.step("print", printer.print, "label")

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        return await ctx.map(parcel, [(), ()])

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await failed(run)
        first = (await anext(h.list(type="parcel"))).id
        await h.run(first).delete()
        printer.is_broken = False
        assert await run.recover()

        assert await run.result() == ["label", "label"]
        again = [info.id async for info in h.list(type="parcel")]
        assert len(again) == 2
        assert first not in again


async def test_a_child_awaited_only_by_its_handle_is_reopened_and_one_that_is_not_awaited_is_not(
    stage: Stage, printer: Printer
) -> None:
    app = Registry()

    @app.workflow
    async def parcel(ctx: Context, label: str) -> str:
        await ctx.sleep(1)
        return await ctx.step("print", printer.print, label)

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        await ctx.start(parcel, "forgotten", name="forgotten")
        handles = [await ctx.start(parcel, label, name=label) for label in ("a", "b")]
        await ctx.step("weigh", lambda: None)
        return list(await asyncio.gather(*handles))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await failed(run)
        await h.settle()
        assert await states(h, type="parcel") == {RunState.FAILED: 3}
        printer.is_broken = False
        assert await run.recover()

        assert await run.result() == ["a", "b"]
        assert sorted(printer.labels) == ["a", "b"]
        assert await states(h, type="parcel") == {RunState.SUCCEEDED: 2, RunState.FAILED: 1}


async def test_a_parent_waits_until_a_child_has_finished_its_rollback(stage: Stage) -> None:
    app, log, is_open = Registry(), list[str](), [False]

    async def unpack(_result: Any) -> None:
        if not is_open[0]:
            raise ConnectionError("not yet")
        log.append("unpack")

    @app.workflow
    async def parcel(ctx: Context) -> Any:
        await ctx.step("pack", log.append, "pack", undo=unpack)
        return await ctx.receive("go")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.call(parcel)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await run.cancel("by mistake")
        await h.settle()
        with pytest.raises(RunBusy, match="still undoes its steps"):
            await run.recover()
        is_open[0] = True
        await h.advance(60)
        assert await run.recover()
        await h.settle()
        await (await the_child(h)).send("go", 7)
        assert await run.result() == 7
        assert log == ["pack", "unpack", "pack"]


async def test_reopened_children_of_a_map_respect_its_limit(stage: Stage, printer: Printer) -> None:
    app = Registry()

    @app.workflow
    async def parcel(ctx: Context, number: int) -> str:
        return await ctx.step("print", printer.print_slowly, f"label-{number}")

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        return await ctx.map(parcel, range(6), limit=2)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await failed(run)
        printer.is_broken = False
        printer.most_at_once = 0
        assert await run.recover()
        assert len(await run.result()) == 6
        assert printer.most_at_once <= 2
        assert Counter(printer.labels).most_common(1)[0][1] == 1


async def test_a_run_whose_key_was_reused_is_not_recovered(stage: Stage, printer: Printer) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step("print", printer.print, "label")

    async with stage.harness(app) as h:
        run = await h.start(shop, key="order-17")
        await failed(run)
        printer.is_broken = False
        other = await h.start(shop, key="order-17", reuse="after_failure")
        with pytest.raises(KeyConflict) as refused:
            await run.recover()
        assert refused.value.run_id == other.id
        await other.result()
        await other.delete()
        assert await run.recover()
        assert await run.result() == "label"
        assert (await run.info()).key == "order-17"


async def test_a_child_cancelled_by_its_time_limit_is_reopened(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def parcel(ctx: Context) -> Any:
        return await ctx.receive("go")

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.call(parcel, max_run=60)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.advance(120)
        await failed(run)
        assert await run.recover()
        await h.settle()
        await (await the_child(h)).send("go", 7)
        assert await run.result() == 7


@pytest.mark.every_store
async def test_a_child_that_is_not_awaited_does_not_move_the_time_of_its_parent(stage: Stage, printer: Printer) -> None:
    """The child was recovered alone before. A finished sleep is never shorter than it was."""
    app = Registry()

    @app.workflow
    async def label(ctx: Context) -> str:
        return await ctx.step("print", printer.print, "label")

    @app.workflow
    async def order(ctx: Context) -> float:
        ctx.start(label, on_close="abandon")
        began = ctx.now()
        await ctx.sleep(60)
        slept = (ctx.now() - began).total_seconds()
        await ctx.step("pack", printer.print, "parcel")
        return slept

    async with stage.harness(app) as h:
        run = await h.start(order)
        await h.advance(60)
        assert await states(h) == {RunState.FAILED: 2}
        await h.advance(3600)
        printer.is_broken = False
        (child,) = [info async for info in h.list(type="label")]
        await h.run(child.id).recover()
        await h.settle()

        await run.recover()

        assert await run.result() >= 60
