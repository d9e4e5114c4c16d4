"""The turn driver: a run in a plain test, step by step, as a worker would drive it."""

from __future__ import annotations

import asyncio
import gc
import random
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    ChildFailed,
    Context,
    HistoryDiverged,
    InvalidRequest,
    Registry,
    Retry,
    RunState,
    SyncContext,
    WaitTimeout,
)
from holdfast.testing import Harness, TurnDriver

app = Registry()


@app.step(retry=Retry(max_attempts=2, initial=10, jitter=0))
async def charge(order: str, cents: int) -> str:
    raise AssertionError("no body is ever called")


async def work(*_: Any) -> Any:
    raise AssertionError("no body is ever called")


@app.workflow
async def checkout(ctx: Context, order: str, cents: int = 100) -> list[Any]:
    paid = await charge(order, cents)
    try:
        approval = await ctx.receive("approve", timeout=3600)
    except WaitTimeout:
        approval = None
    return [paid, approval, await ctx.wait_event("shipped")]


def test_steps_messages_events_and_time_bring_a_run_to_its_end() -> None:
    driver = TurnDriver(checkout, "A-1")
    assert driver.steps == ["charge"]
    assert driver.arguments("charge") == ("A-1", 100)
    assert driver.state.value == "running"

    driver.succeed("charge", "paid")
    assert driver.waits == ["receive:approve"]
    assert driver.state.value == "suspended"
    assert driver.wake_at is not None
    assert driver.wake_at - driver.now == timedelta(hours=1)

    driver.send("approve", {"by": "ada"})
    driver.emit("shipped", 17)
    assert driver.result == ["paid", {"by": "ada"}, 17]
    assert driver.history == ["charge", "receive:approve", "event:shipped"]


def test_an_event_before_the_wait_is_kept() -> None:
    driver = TurnDriver(checkout, "A-1")
    driver.emit("shipped", 1)
    driver.succeed("charge", "paid")
    driver.advance(timedelta(hours=1))

    assert driver.result == ["paid", None, 1]


def test_the_retry_policy_decides_about_a_failed_attempt() -> None:
    driver = TurnDriver(checkout, "A-1")
    driver.fail("charge", OSError("busy"))
    assert (driver.steps, driver.waits) == ([], ["charge"])
    driver.advance(9.9)
    assert driver.steps == []
    driver.advance(0.1)
    assert driver.steps == ["charge"]

    driver.fail("charge", OSError("busy"))
    assert driver.state is RunState.FAILED
    assert "failed after 2 attempts: OSError: busy" in str(driver.error)


def test_a_result_is_checked_as_in_a_worker() -> None:
    driver = TurnDriver(checkout, "A-1")
    driver.succeed("charge", 17)

    assert "is declared as str, but this int does not fit" in str(driver.error)


def test_timers_fire_in_order_and_at_their_times() -> None:
    @Registry().workflow
    async def alarms(ctx: Context) -> list[float]:
        began = ctx.now()

        async def ring(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return (ctx.now() - began).total_seconds()

        return [await one for one in asyncio.as_completed([ring(30), ring(10), ring(20)])]

    driver = TurnDriver(alarms)
    driver.advance(3600)

    assert driver.result == [10.0, 20.0, 30.0]


def test_children_end_as_the_test_says() -> None:
    @Registry().workflow
    async def parent(ctx: Context) -> list[Any]:
        many = await ctx.map("shop.pack.v1", [{"item": 1}, {"item": 2}])
        try:
            await ctx.call("shop.ship.v1", {})
        except ChildFailed as error:
            return [*many, str(error.cause)]
        return []

    driver = TurnDriver(parent)
    assert list(driver.children) == ["shop.pack.v1/0", "shop.pack.v1/1"]
    driver.end_child("shop.pack.v1/1", "b")
    driver.end_child("shop.pack.v1/0", "a")
    driver.end_child("shop.ship.v1", error=ValueError("no ship"))

    assert driver.result == ["a", "b", "ValueError: no ship"]


def test_a_child_that_the_code_cancels_has_ended() -> None:
    @Registry().workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.start("shop.ship.v1", {})
        await ctx.receive("stop")
        child.cancel()
        try:
            await child
        except ChildFailed as error:
            return str(error)
        return ""

    driver = TurnDriver(parent)
    driver.send("stop")

    assert driver.children == {}
    assert "was cancelled" in driver.result


def test_a_rollback_undoes_steps_one_by_one() -> None:
    @Registry().workflow
    async def saga(ctx: Context) -> None:
        await ctx.step("book", work, undo=work)
        await ctx.step("pay", work, retry=Retry(max_attempts=1))

    driver = TurnDriver(saga)
    driver.succeed("book", "seat 3")
    driver.fail("pay", ValueError("no money"))
    assert driver.state.value == "rolling_back"
    assert driver.arguments("~undo/book") == ("seat 3",)

    driver.replay()
    driver.succeed("~undo/book")
    driver.replay()
    assert driver.state.value == "failed"
    assert "no money" in str(driver.error)


def test_a_run_that_continues_as_new_has_an_empty_history() -> None:
    @Registry().workflow
    async def counting(ctx: Context, total: int = 0) -> int:
        number = await ctx.receive("number")
        return await ctx.continue_as_new(total + number) if number else total

    driver = TurnDriver(counting)
    for number in (1, 2):
        driver.send("number", number)
        assert driver.history == []
    driver.replay()
    driver.send("number", 0)

    assert driver.result == 3


def test_tasks_transactions_and_sync_workflows_are_driven_alike() -> None:
    @Registry().task
    def double(number: int) -> int:
        return 2 * number

    driver = TurnDriver(double, 3)
    driver.succeed("double", 7)
    assert driver.result == 7

    @Registry().workflow
    def transfer(ctx: SyncContext) -> int:
        rows: int = ctx.tx("move", lambda _: 0)
        return rows

    driver = TurnDriver(transfer)
    driver.succeed("move", 2)
    driver.replay()
    assert driver.result == 2


def test_a_replay_at_every_standstill_changes_nothing() -> None:
    driver = TurnDriver(checkout, "A-1")
    driver.replay()
    driver.fail("charge", OSError("busy"))
    driver.replay()
    driver.advance(10)
    driver.replay()
    driver.succeed("charge", "paid")
    driver.send("approve")
    driver.replay()
    driver.emit("shipped")
    driver.replay()

    assert driver.result == ["paid", None, None]


def test_a_replay_detects_code_that_is_not_deterministic() -> None:
    @Registry().workflow
    async def other_step(ctx: Context) -> None:
        await ctx.step(f"step{random.random()}", work)
        await ctx.receive("never")

    driver = TurnDriver(other_step)
    driver.succeed(driver.steps[0])
    with pytest.raises(HistoryDiverged, match=r"stopped at .* waiting for receive:never; its replay stopped at Block"):
        driver.replay()
    assert driver.state is RunState.BLOCKED

    @Registry().workflow
    async def other_result(ctx: Context) -> float:
        return random.random()

    with pytest.raises(HistoryDiverged, match="stopped at succeeded"):
        TurnDriver(other_result).replay()


async def test_the_history_equals_that_of_a_worker() -> None:
    driver = TurnDriver(checkout, "A-1")
    driver.fail("charge", OSError("busy"))
    driver.advance(10)
    driver.succeed("charge", "paid")
    driver.send("approve", "yes")
    driver.emit("shipped", 17)

    async with Harness(app) as harness:
        attempts = iter([OSError("busy"), None])

        def body(*_: Any) -> str:
            if (error := next(attempts)) is not None:
                raise error
            return "paid"

        harness.stub("charge", body)
        run = await harness.start(checkout, "A-1")
        await harness.advance(10)
        await run.send("approve", "yes")
        await harness.settle()
        await harness.emit("shipped", 17)

        assert await run.result() == driver.result
        assert [entry.location for entry in await run.history()] == driver.history


def test_wrong_use_is_refused_with_advice() -> None:
    driver = TurnDriver(checkout, "A-1")
    with pytest.raises(InvalidRequest, match="there is no open step 'charg'; open steps: charge; the run is running"):
        driver.succeed("charg")
    with pytest.raises(InvalidRequest, match="there is no open child 'ship'; open children: nothing"):
        driver.end_child("ship")
    with pytest.raises(InvalidRequest, match="there is no result; open steps: charge"):
        _ = driver.result
    with pytest.raises(InvalidRequest, match=r"advance\(-1\): time does not go back"):
        driver.advance(-1)
    driver.fail("charge", ValueError("no"))
    with pytest.raises(InvalidRequest, match="the run is suspended and waits for charge"):
        driver.succeed("charge")
    with pytest.raises(InvalidRequest, match="'checkout' is only the name of a type"):
        TurnDriver("checkout")
    with pytest.raises(InvalidRequest, match="is not a workflow or task"):
        TurnDriver(work)


def test_nothing_reaches_a_finished_run() -> None:
    @Registry().workflow
    async def brief(ctx: Context) -> None: ...

    driver = TurnDriver(brief)
    driver.advance(60)
    with pytest.raises(
        InvalidRequest, match="the run no longer takes arrivals; open steps: nothing; the run is succeeded"
    ):
        driver.send("hello")


def test_a_dropped_driver_leaves_no_task_behind() -> None:
    TurnDriver(checkout, "A-1")
    gc.collect()  # a pending task that is destroyed would cause a warning, and so an error
