"""A turn: one fact at a time, in one order, replayed in that order (T2, T3 of DESIGN.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Continue, WaitTimeout
from holdfast.core.checkpoint import Block, Finish
from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.core.states import RunState
from tests.unit.runner.turn_rig import START, Rig, event, evict_turns, message, step

__all__ = ["evict_turns"]
pytestmark = pytest.mark.usefixtures("evict_turns")


def nothing() -> Any:
    """A body; the rig never calls it."""


# One fact at a time (T2)


async def two_receivers(ctx: Context) -> None:
    async def receive(name: str) -> None:
        await ctx.receive(name)
        ctx.send("somebody", f"got {name}")

    await asyncio.gather(receive("a"), receive("b"))


def test_t2_facts_are_fed_singly_and_the_code_runs_to_a_standstill_after_each() -> None:
    rig = Rig(two_receivers, arrivals=(message(1, "b"), message(2, "a"))).begin()
    rig.commit()
    assert rig.told == ["1 +2/receive:b", "2 +2/send:got b", "3 +1/receive:a", "4 +1/send:got a"]


def test_t2_facts_fed_while_a_checkpoint_is_in_flight_are_written_by_the_next() -> None:
    async def two_steps(ctx: Context) -> None:
        await asyncio.gather(ctx.step("a", nothing), ctx.step("b", nothing))

    rig = Rig(two_steps).begin()
    assert rig.start() == ["a", "b"]
    first = rig.finish("b").take()
    rig.finish("a")
    rig.turn.mark_committed(rig.now)
    second = rig.commit()
    assert [entry.location for entry in first.entries] == ["b"]
    assert [(entry.location, entry.position) for entry in second.entries] == [("a", 2)]


def test_t2_arrivals_and_due_timers_found_together_are_fed_by_their_instants() -> None:
    order: list[str] = []

    async def wait(ctx: Context) -> None:
        async def note(name: str, waiting: Any) -> None:
            await waiting
            order.append(name)

        await asyncio.gather(
            note("timer 10", ctx.sleep(10)),
            note("message 15", ctx.receive("x")),
            note("timer 5", asyncio.sleep(5)),
            note("message 7", ctx.receive("y")),
        )

    rig = Rig(wait).begin()
    rig.commit()
    rig.seconds = 100
    rig.arrive(message(1, "x", seconds=15), message(2, "y", seconds=7))
    assert order == ["timer 5", "message 7", "timer 10", "message 15"]


def test_t2_at_one_instant_an_arrival_goes_before_a_deadline() -> None:
    async def wait(ctx: Context) -> Any:
        return await ctx.receive("x", timeout=10)

    in_time = Rig(wait).begin()
    in_time.seconds = 60
    in_time.arrive(message(1, "x", '"in time"', seconds=10))
    assert in_time.result() == '"in time"'

    late = Rig(wait).begin()
    late.seconds = 60
    late.arrive(message(1, "x", seconds=10.000001))
    assert isinstance(late.turn.outcome, Finish)
    assert late.turn.outcome.state is RunState.FAILED


def test_t2_two_timers_with_one_deadline_fire_in_the_order_of_their_creation() -> None:
    order: list[int] = []

    async def wait(ctx: Context) -> None:
        async def note(number: int) -> None:
            await asyncio.sleep(10)
            order.append(number)

        await asyncio.gather(*(note(number) for number in range(5)))

    Rig(wait).begin().pass_to(10)
    assert order == [0, 1, 2, 3, 4]


def test_t2_positions_continue_after_the_history() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.step("a", nothing)
        await ctx.step("b", nothing)

    rig = Rig(shop, entries=(step("a", 7),), token=2).begin()
    rig.start()
    rig.finish("b").commit()
    assert rig.told == ["8 b"]


def test_t2_a_message_is_consumed_in_the_checkpoint_that_records_it() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.receive("a")
        await ctx.receive("c")

    rig = Rig(shop, arrivals=(message(1, "b"), message(2, "a", "5"))).begin()
    checkpoint = rig.suspend()
    assert (checkpoint.consumed, checkpoint.seen) == ((2,), 2)
    (entry,) = checkpoint.entries
    assert (entry.location, entry.ref, entry.result) == ("receive:a", "m2", f'[["a",5,{START},"m2",false]]')


# Replay, as T3 has it


async def race(ctx: Context) -> list[str]:
    order: list[str] = []

    async def note(name: str) -> None:
        await ctx.step(name, nothing)
        order.append(name)

    await asyncio.gather(*(note(name) for name in "abc"))
    await ctx.receive("go")
    return order


def test_t3_recorded_facts_are_fed_in_the_order_of_their_positions() -> None:
    entries = (step("+1/a", 3), step("+2/b", 1), step("+3/c", 2))
    rig = Rig(race, entries=entries, token=2).begin().arrive(message(1, "go"))
    assert rig.result() == '["b","c","a"]'


def test_t3_no_unrecorded_step_starts_before_every_requested_recorded_fact_is_fed() -> None:
    started: list[list[str]] = []

    async def shop(ctx: Context) -> None:
        loser = asyncio.create_task(ctx.step("loser", nothing))
        await ctx.step("winner", nothing)
        started.append(["replayed"])
        loser.cancel()
        await ctx.step("next", nothing)

    rig = Rig(shop, entries=(step("winner", 1),), token=2).begin()
    assert rig.startable() == ["next"]


def test_t3_a_step_starts_only_when_all_facts_before_its_request_are_written() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.step("a", nothing)
        await asyncio.gather(ctx.step("b", nothing), ctx.step("c", nothing))
        ctx.send("somebody", "x")
        await ctx.step("d", nothing)

    rig = Rig(shop).begin()
    assert rig.start() == ["a"]
    rig.finish("a")
    assert rig.startable() == []
    rig.commit()
    assert rig.start() == ["b", "c"]
    rig.finish("b").take()
    rig.finish("c")
    rig.turn.mark_committed(rig.now)
    assert rig.startable() == []  # its cause, `c`, is not in the checkpoint that was written
    rig.commit()
    assert rig.startable() == ["d"]


def test_t3_a_result_of_an_ephemeral_step_need_not_be_written_before_the_next_step_starts() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.step("cheap", nothing, ephemeral=True)
        await ctx.step("dear", nothing)

    rig = Rig(shop).begin()
    rig.start()
    rig.finish("cheap")
    assert not rig.standstill().must_write
    assert rig.start() == ["dear"]
    assert [entry.location for entry in rig.finish("dear").commit().entries] == ["cheap", "dear"]


@pytest.mark.parametrize(
    ("names", "requested"),
    [("xb", "x"), ("xab", "x"), ("axb", "x"), ("b", "b"), ("ba", "b"), ("bxa", "b")],
    ids=["renamed", "inserted first", "inserted between", "removed", "swapped", "swapped and inserted"],
)
def test_t3_code_that_does_not_request_the_next_recorded_result_executes_nothing(names: str, requested: str) -> None:
    async def shop(ctx: Context) -> None:
        for name in names:
            await ctx.step(name, nothing)

    rig = Rig(shop, entries=(step("a", 1), step("b", 2)), token=2).begin()
    assert isinstance(rig.turn.outcome, Block)
    assert rig.startable() == []
    assert f"Asked for: {requested}." in rig.turn.outcome.error.message


def test_t3_code_that_continues_without_a_started_operation_executes_nothing() -> None:
    tried = Entry(location="a", kind=EntryKind.STEP, state=EntryState.RETRYING, attempts=1)
    started = Entry(location="child.v1", kind=EntryKind.CHILD, state=EntryState.STARTED, ref="c")

    async def shop(ctx: Context) -> None:
        await ctx.step("x", nothing)

    for begun in (tried, started):
        rig = Rig(shop, entries=(begun,), token=2).begin()
        assert isinstance(rig.turn.outcome, Block)
        assert rig.startable() == []


def test_t3_code_that_cancels_an_operation_with_a_recorded_result_executes_nothing() -> None:
    async def shop(ctx: Context) -> None:
        impatient = asyncio.create_task(ctx.step("b", nothing))
        await ctx.step("a", nothing)
        impatient.cancel()
        await ctx.step("x", nothing)

    rig = Rig(shop, entries=(step("a", 1), step("b", 2)), token=2).begin()
    assert isinstance(rig.turn.outcome, Block)
    assert rig.startable() == []
    lax = Rig(shop, entries=(step("a", 1), step("b", 2)), token=2, strict=False).begin()
    assert lax.startable() == ["x"]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_t3_results_of_concurrent_steps_are_followed_in_the_recorded_order(order: str) -> None:
    async def shop(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.step("a", nothing), ctx.step("b", nothing), ctx.step("c", nothing)))

    entries = tuple(step(name, position, f'"{name}"') for position, name in enumerate(order, start=1))
    rig = Rig(shop, entries=entries, token=2).begin()
    assert rig.start() == ["c"]
    assert rig.finish("c", "c").result() == '["a","b","c"]'


def test_t3_a_loop_that_marks_elsewhere_now_adds_no_mark_before_the_end_of_its_history() -> None:
    async def body(ctx: Context, count: int) -> Continue[int]:
        await ctx.step("s", nothing)
        return Continue(count + 1)

    async def shop(ctx: Context) -> None:
        await ctx.loop("loop", body, 0, every=1)

    rig = Rig(shop, entries=(step("loop/~1/s", 1), step("loop/~2/s", 2)), token=2).begin()
    assert rig.start() == ["loop/~3/s"]
    rig.commit()
    assert rig.told == ["3 loop/~3"]


def test_t3_a_step_inserted_by_code_that_is_not_strict_is_executed_in_place() -> None:
    async def shop(ctx: Context) -> list[Any]:
        return [await ctx.step(name, nothing) for name in ("a", "new", "b")]

    rig = Rig(shop, entries=(step("a", 1, '"A"'), step("b", 2, '"B"')), token=2, strict=False).begin()
    assert rig.start() == ["new"]
    rig.finish("new", "N").commit()
    assert rig.result() == '["A","N","B"]'
    assert rig.told == ["3 new"]

    entries = (step("a", 1, '"A"'), step("b", 2, '"B"'), step("new", 3, '"N"'))
    again = Rig(shop, entries=entries, token=3, strict=False).begin()
    assert again.result() == '["A","N","B"]'


def test_t3_the_presence_of_an_entry_decides_and_never_its_value() -> None:
    async def shop(ctx: Context) -> Any:
        return await ctx.step("a", nothing)

    rig = Rig(shop, entries=(step("a", 1, None),), token=2).begin()
    assert rig.result() == "null"


def test_t3_a_divergence_names_the_python_that_wrote_the_history() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.sleep(5)

    rig = Rig(shop, entries=(step("sleep", 1),), token=2, python="3.8").begin()
    assert isinstance(rig.turn.outcome, Block)
    message_ = rig.turn.outcome.error.message
    assert "at 'sleep' the history has a step, but the code now asks for a timer" in message_
    assert "recorded on Python 3.8" in message_


def test_t3_attempts_continue_after_a_recorded_failed_one() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.step("a", nothing)

    waiting = Entry(
        location="a",
        kind=EntryKind.STEP,
        state=EntryState.RETRYING,
        attempts=2,
        started_at=START,
        retry_at=START + 60_000_000,
    )
    rig = Rig(shop, entries=(waiting,), token=2).begin(seconds=10)
    assert rig.startable() == []
    assert rig.standstill().wake_at == START + 60_000_000
    rig.pass_to(60)
    assert rig.start() == ["a"]
    entries = rig.finish("a").commit().entries
    assert [(entry.attempts, entry.state) for entry in entries] == [(3, EntryState.DONE)]


def test_t3_a_wait_that_timed_out_times_out_on_every_replay() -> None:
    async def shop(ctx: Context) -> str:
        try:
            await ctx.wait_event("news", timeout=5)
        except WaitTimeout as late:
            return str(late)
        return "?"

    timed_out = Entry(location="event:news", kind=EntryKind.EVENT, state=EntryState.TIMED_OUT, position=1)
    rig = Rig(shop, entries=(timed_out,), arrivals=(event(1, "news", 1),), token=2).begin()
    assert isinstance(rig.turn.outcome, Finish)
    assert rig.turn.outcome.result is not None
    assert "no event news came in time" in rig.turn.outcome.result
