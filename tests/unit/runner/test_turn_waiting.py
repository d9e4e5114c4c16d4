"""A turn that waits: when it may suspend, which waits it registers, and its clock (T4, T6 of DESIGN.md)."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from holdfast import Context, Retry, WaitTimeout
from holdfast.core.checkpoint import Block, Finish, Hold, Suspend
from holdfast.core.clock import SECOND, moment
from holdfast.core.model import Entry, EntryKind, EntryState, WaitKind
from tests.unit.runner.turn_rig import START, Rig, child_end, event, evict_turns, message, step

__all__ = ["evict_turns"]
pytestmark = pytest.mark.usefixtures("evict_turns")


def nothing() -> Any:
    """A body; the rig never calls it."""


# Suspending, as T4 has it


def test_t4_a_run_waits_only_when_nothing_of_it_executes_or_could_execute() -> None:
    async def shop(ctx: Context) -> None:
        await asyncio.gather(ctx.step("a", nothing), ctx.receive("x"), ctx.sleep(60))

    rig = Rig(shop).begin()
    assert not rig.standstill().may_suspend  # it has a step to start
    rig.start()
    assert not rig.standstill().may_suspend  # the step executes
    rig.finish("a")
    assert rig.standstill().may_suspend


def test_t4_a_step_that_waits_for_its_next_attempt_does_not_keep_the_run_awake() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.step("a", nothing, retry=Retry(initial=20, jitter=0))

    rig = Rig(shop).begin()
    rig.start()
    rig.fail("a", OSError("busy"))
    assert rig.standstill().may_suspend
    (wait,) = rig.suspend().waits or ()
    assert (wait.location, wait.kind, wait.deadline) == ("a", WaitKind.RETRY, START + 20 * SECOND)
    assert not rig.pass_to(20).standstill().may_suspend


def test_t4_an_abandoned_body_does_not_count() -> None:
    async def shop(ctx: Context) -> None:
        slow = asyncio.create_task(ctx.step("slow", nothing))
        await ctx.step("fast", nothing)
        slow.cancel()
        await ctx.receive("x")

    rig = Rig(shop).begin()
    assert sorted(rig.start()) == ["fast", "slow"]
    rig.finish("fast")
    assert rig.abandoned == ["slow"]
    assert rig.standstill().may_suspend
    rig.finish("slow", "too late")  # its result is ignored
    assert [entry.location for entry in rig.suspend().entries] == ["fast"]


def test_t4_a_held_run_registers_its_named_waits_and_keeps_its_timers_private() -> None:
    async def shop(ctx: Context) -> None:
        await asyncio.gather(ctx.step("a", nothing), ctx.receive("x"), ctx.wait_event("news"), ctx.sleep(60))

    rig = Rig(shop).begin()
    rig.start()
    assert rig.standstill().must_write
    held = rig.commit(Hold())
    assert [(wait.kind.value, wait.names) for wait in held.waits or ()] == [("message", ("x",)), ("event", ("news",))]
    assert not rig.standstill().must_write
    rig.finish("a")
    suspended = rig.commit(Suspend())
    assert [wait.kind.value for wait in suspended.waits or ()] == ["message", "event", "time"]


def test_t4_the_suspending_checkpoint_carries_the_last_known_arrival() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.receive("x")

    rig = Rig(shop, arrivals=(message(4, "other"),)).begin()
    rig.arrive(message(5, "another"))
    assert rig.suspend().seen == 5


def test_t4_a_repeated_arrival_changes_nothing() -> None:
    async def shop(ctx: Context) -> list[Any]:
        return [await ctx.receive("x"), await ctx.receive("x")]

    rig = Rig(shop).begin()
    rig.arrive(message(1, "x", "1"), message(1, "x", "1")).arrive(message(1, "x", "1"))
    assert rig.is_open()
    rig.arrive(message(2, "x", "2"))
    assert rig.result() == "[1,2]"


def test_t4_an_arrival_is_fed_to_the_remaining_waiter_even_if_the_clock_was_set_back() -> None:
    async def workflow(ctx: Context) -> Any:
        first, second = (asyncio.ensure_future(ctx.receive("x")) for _ in range(2))
        await ctx.receive("stop")
        first.cancel()
        return await second

    rig = Rig(workflow).begin().arrive(message(1, "stop", "0", 0), message(2, "x", "2", 500))
    assert rig.result() == "2"


def test_t4_a_standstill_without_a_durable_wait_blocks_the_run() -> None:
    async def shop(ctx: Context) -> None:
        await asyncio.get_running_loop().create_future()

    rig = Rig(shop).begin()
    assert isinstance(rig.turn.outcome, Block)
    assert "test_turn_waiting.py" in rig.turn.outcome.error.message
    assert rig.turn.outcome.retry_at == START + 5 * SECOND


def test_t4_an_event_wait_times_out_only_after_the_store_has_registered_it() -> None:
    """An event may have come before the deadline, and only the store knows."""

    async def shop(ctx: Context) -> Any:
        try:
            return await ctx.wait_event("news", timeout=0)
        except WaitTimeout:
            return "silence"

    rig = Rig(shop).begin()
    assert rig.is_open()
    assert not rig.standstill().may_suspend
    assert [wait.names for wait in rig.commit(Hold()).waits or ()] == [("news",)]
    silent = rig.pass_to(0)
    assert silent.result() == '"silence"'

    rig = Rig(shop).begin()
    rig.commit(Hold())
    rig.arrive(event(1, "news", 1, '"early"', seconds=-5))
    assert rig.result() == '"early"'


def test_t4_two_waits_for_one_topic_take_two_events() -> None:
    async def shop(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.wait_event("news"), ctx.wait_event("news")))

    rig = Rig(shop).begin()
    rig.commit(Hold())
    rig.arrive(event(1, "news", 7, "1"))
    (wait,) = rig.commit(Hold()).waits or ()
    assert (wait.location, wait.after) == ("event:news#2", 7)
    rig.arrive(event(2, "news", 7, "1"))  # received already, whatever its number
    assert rig.is_open()
    rig.arrive(event(3, "news", 8, "2"))
    assert rig.result() == "[1,2]"


def test_t4_the_end_of_a_child_is_fed_to_its_waiter() -> None:
    async def shop(ctx: Context) -> list[Any]:
        first, second = await ctx.start("x.v1"), await ctx.start("x.v1")
        return [await second, await first]

    rig = Rig(shop).begin()
    checkpoint = rig.commit(Hold())
    one, two = checkpoint.children
    assert [entry.state for entry in checkpoint.entries] == [EntryState.STARTED] * 2
    rig.arrive(child_end(1, one.id, "1"))
    assert rig.is_open()
    rig.arrive(child_end(2, two.id, "2"))
    assert rig.result() == "[2,1]"
    assert rig.commit().consumed == (2, 1)


# Time, as T6 has it


async def clock(ctx: Context) -> list[float]:
    times = [ctx.now().timestamp()]
    for name in ("a", "b"):
        await ctx.step(name, nothing)
        times.append(ctx.now().timestamp())
        times.append(asyncio.get_running_loop().time())
    return [time - START / SECOND for time in times]


def test_t6_the_time_is_the_stamp_of_the_last_fact_and_before_the_first_that_of_the_first_claim() -> None:
    rig = Rig(clock).begin(seconds=5)
    for location, seconds in (("a", 10), ("b", 20)):
        rig.commit()
        rig.start()
        rig.seconds = seconds
        rig.finish(location)
    assert rig.result() == "[0.0,10.0,10.0,20.0,20.0]"


def test_t6_the_time_never_goes_back_even_if_the_clock_does() -> None:
    rig = Rig(clock).begin()
    rig.start()
    rig.seconds = 100
    rig.finish("a").commit()
    rig.start()
    rig.seconds = 50
    rig.finish("b").commit()
    assert [entry.finished_at for entry in rig.history] == [START + 100 * SECOND] * 2


def test_t6_on_replay_the_time_is_that_of_the_record() -> None:
    entries = (
        step("a", 1, finished_at=START + 10 * SECOND),
        step("b", 2, finished_at=START + 20 * SECOND),
    )
    rig = Rig(clock, entries=entries, token=2).begin(seconds=5_000)
    assert rig.result() == "[0.0,10.0,10.0,20.0,20.0]"


def test_t6_a_deadline_follows_from_the_time_of_its_call_and_needs_no_record() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.step("a", nothing)
        await ctx.sleep(60)

    recorded = (step("a", 1, finished_at=START + 10 * SECOND),)
    assert Rig(shop, entries=recorded, token=2).begin(seconds=11).standstill().wake_at == START + 70 * SECOND
    rig = Rig(shop, entries=recorded, token=2).begin(seconds=40)
    assert rig.standstill().wake_at == START + 70 * SECOND
    assert rig.is_open()
    rig.pass_to(69.999999)
    assert rig.is_open()
    rig.pass_to(70)
    assert isinstance(rig.turn.outcome, Finish)


def test_t6_a_timer_is_written_when_it_fires_and_one_that_is_cancelled_costs_nothing() -> None:
    async def shop(ctx: Context) -> None:
        async with asyncio.timeout(30):
            await asyncio.sleep(10)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)

    rig = Rig(shop).begin()
    rig.pass_to(10).pass_to(15).commit()
    assert [(entry.location, entry.kind, entry.finished_at) for entry in rig.history] == [
        ("~timer#2", EntryKind.TIMER, START + 10 * SECOND),
        ("~timer#3", EntryKind.TIMER, START + 15 * SECOND),
    ]


def test_t6_timers_of_plain_asyncio_are_counted_in_the_scope_of_their_task() -> None:
    async def branch() -> None:
        await asyncio.sleep(1)
        await asyncio.sleep(1)

    async def shop(ctx: Context) -> None:
        await asyncio.gather(branch(), branch())
        await asyncio.sleep(1)

    rig = Rig(shop).begin()
    for seconds in (1, 2, 3):
        rig.pass_to(seconds)
    rig.commit()
    assert [entry.location for entry in rig.history] == [
        "+1/~timer",
        "+2/~timer",
        "+1/~timer#2",
        "+2/~timer#2",
        "~timer",
    ]


def test_t6_an_instant_in_the_past_is_over_at_once() -> None:
    async def shop(ctx: Context) -> datetime:
        await ctx.sleep(-5)
        await ctx.sleep(0)
        await ctx.sleep_until(moment(START - SECOND))
        return ctx.now()

    rig = Rig(shop).begin(seconds=3)
    assert isinstance(rig.turn.outcome, Finish)
    assert [entry.location for entry in rig.commit().entries] == ["sleep", "sleep#2", "sleep#3"]


def test_t6_a_delay_between_attempts_is_drawn_once_and_kept() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.step("a", nothing, retry=Retry(initial=20, jitter=0.5))

    rig = Rig(shop).begin()
    rig.start()
    rig.fail("a", OSError("busy"))
    (entry,) = rig.suspend().entries
    assert entry.retry_at is not None
    again = Rig(shop, entries=(entry,), token=2).begin(seconds=1)
    assert again.standstill().wake_at == entry.retry_at


def test_t6_an_unsettled_attempt_is_not_a_fact_and_leaves_the_time_alone() -> None:
    async def shop(ctx: Context) -> float:
        await ctx.step("a", nothing, retry=Retry(initial=20, jitter=0))
        return ctx.now().timestamp() - START / SECOND

    retrying = Entry(
        location="a", kind=EntryKind.STEP, state=EntryState.RETRYING, attempts=1, retry_at=START + 20 * SECOND
    )
    rig = Rig(shop, entries=(retrying,), token=2).begin(seconds=25)
    rig.start()
    rig.seconds = 30
    rig.finish("a")
    assert rig.result() == "30.0"


def test_t4_an_arrival_is_fed_even_if_the_clock_was_set_back() -> None:
    async def workflow(ctx: Context) -> list[Any]:
        return [await ctx.receive("x", timeout=60), await ctx.receive("x", timeout=60)]

    rig = Rig(workflow, arrivals=(message(1, "x", "1", 30), message(2, "x", "2", 500))).begin()
    assert rig.result() == "[1,2]"
