"""A turn that leaves memory, and one that starts after a worker died (T7 of DESIGN.md; crashes)."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Retry, StepFailed
from holdfast.core.checkpoint import Block, Finish, Hold, Release, StartRollback
from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.core.rules import ROLLBACK_LOCATION
from holdfast.core.states import RunState
from tests.unit.runner.turn_rig import Rig, evict_turns, forget, step

__all__ = ["evict_turns"]
pytestmark = pytest.mark.usefixtures("evict_turns")


def nothing() -> Any:
    """A body; the rig never calls it."""


# Leaving memory (T7)


def test_t7_finally_blocks_run_and_their_requests_never_complete() -> None:
    ran: list[str] = []

    async def shop(ctx: Context) -> None:
        try:
            await ctx.receive("x")
        finally:
            ran.append("finally")
            ctx.send("somebody", "x")
            ctx.emit("news")
            ctx.set_value("v", 1)
            ctx.start("child.v1")
            await ctx.step("clean up", nothing)
            ran.append("never")

    rig = Rig(shop).begin()
    rig.suspend()
    rig.turn.evict()
    assert ran == ["finally"]
    checkpoint = rig.turn.take_checkpoint(Hold(), rig.now)
    assert (checkpoint.entries, checkpoint.messages, checkpoint.events) == ((), (), ())
    assert (checkpoint.children, checkpoint.values) == ((), {})


def test_t7_tasks_are_closed_newest_first() -> None:
    closed: list[int] = []

    async def shop(ctx: Context) -> None:
        async def branch(number: int) -> None:
            try:
                await ctx.receive("x")
            finally:
                closed.append(number)

        await asyncio.gather(*(branch(number) for number in range(4)))

    rig = Rig(shop).begin()
    rig.turn.evict()
    assert closed == [3, 2, 1, 0]


def test_t7_handlers_for_cancellation_do_not_run_because_nothing_was_cancelled() -> None:
    ran: list[str] = []

    async def shop(ctx: Context) -> None:
        try:
            await ctx.receive("x")
        except asyncio.CancelledError:
            ran.append("cancelled")
        except Exception:  # noqa: BLE001 - that is the point
            ran.append("exception")

    Rig(shop).begin().turn.evict()
    assert ran == []


def test_t7_nothing_is_logged_however_badly_cleanup_goes(caplog: pytest.LogCaptureFixture) -> None:
    async def shop(ctx: Context) -> None:
        async def bad() -> None:
            try:
                await ctx.sleep(60)
            finally:
                raise ValueError("in a finally")

        async with asyncio.TaskGroup() as group:
            group.create_task(bad())
            group.create_task(bad())
            await ctx.receive("x")

    with caplog.at_level(logging.DEBUG):
        rig = Rig(shop).begin()
        rig.turn.evict()
        del rig
        gc.collect()
    assert caplog.records == []


OPERATIONS: dict[str, Callable[[Context], Any]] = {
    "step": lambda ctx: ctx.step("clean up", nothing),
    "sleep": lambda ctx: ctx.sleep(1),
    "receive": lambda ctx: ctx.receive("x"),
    "wait_event": lambda ctx: ctx.wait_event("x"),
    "send": lambda ctx: ctx.send("somebody", "x"),
    "emit": lambda ctx: ctx.emit("news"),
    "set_value": lambda ctx: ctx.set_value("v", 1),
    "start": lambda ctx: ctx.start("child.v1"),
    "call": lambda ctx: ctx.call("child.v1"),
    "map": lambda ctx: ctx.map("child.v1", [{}]),
    "removed": lambda ctx: ctx.removed("gone", "step"),
    "continue_as_new": lambda ctx: ctx.continue_as_new(),
}


@pytest.mark.parametrize("when", ["while it leaves", "afterwards"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_t7_an_operation_of_an_evicted_context_neither_returns_nor_raises(name: str, when: str) -> None:
    outcomes: list[str] = []
    contexts: list[Context] = []

    async def ask(ctx: Context) -> None:
        try:
            await OPERATIONS[name](ctx)
        except Exception as error:  # noqa: BLE001 - any exception is wrong here
            outcomes.append(repr(error))
        else:
            outcomes.append("returned")

    async def shop(ctx: Context) -> None:
        contexts.append(ctx)
        try:
            await ctx.receive("x")
        finally:
            if when == "while it leaves":
                await ask(ctx)

    rig = Rig(shop).begin()
    rig.suspend()
    rig.turn.evict()
    if when == "afterwards":  # as a coroutine does that the collector closes
        asking = ask(contexts[0])
        asking.send(None)
        asking.close()

    assert outcomes == []


def test_t7_leaving_twice_is_the_same_as_leaving_once() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.receive("x")

    rig = Rig(shop).begin()
    rig.turn.evict()
    rig.turn.evict()


def test_t7_a_finished_run_leaves_nothing_for_the_collector() -> None:
    async def shop(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("a", nothing))
            group.create_task(ctx.step("b", nothing))

    rig = Rig(shop).begin().play()
    rig.result()
    rig.turn.evict()
    turn = forget(rig.turn)
    gc.collect()
    gc.disable()
    try:
        del rig
        assert turn() is None, gc.get_referrers(turn())
    finally:
        gc.enable()


def test_t7_a_released_run_loses_no_recorded_fact() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.step("a", nothing)
        await ctx.step("b", nothing)

    rig = Rig(shop).begin()
    rig.start()
    checkpoint = rig.finish("a").commit(Release())
    assert [entry.location for entry in checkpoint.entries] == ["a"]
    assert checkpoint.waits is None


# Payloads that do not fit


def test_a_payload_that_does_not_fit_fails_a_run_that_never_started() -> None:
    async def shop(ctx: Context, number: int) -> None: ...

    rig = Rig(shop, payload='{"number":"x"}').begin()
    assert isinstance(rig.turn.outcome, Finish)
    assert rig.turn.outcome.state is RunState.FAILED


# Crashes


async def two_steps(ctx: Context) -> str:
    try:
        await asyncio.gather(ctx.step("frail", nothing, retry=Retry(max_attempts=2)), ctx.step("robust", nothing))
    except StepFailed as failure:
        return f"{failure.location} {failure.type} {failure.attempts}"
    return "done"


def test_a_crash_is_charged_to_the_steps_at_the_frontier_with_the_next_checkpoint() -> None:
    rig = Rig(two_steps, token=2, crashes=1).begin()
    rig.start()
    assert not rig.standstill().must_write  # it costs no separate write
    checkpoint = rig.finish("frail").commit()
    assert checkpoint.charged
    attempts = {entry.location: (entry.state.value, entry.attempts) for entry in checkpoint.entries}
    assert attempts == {"frail": ("done", 2), "robust": ("retrying", 1)}
    assert not rig.finish("robust").commit().charged


def test_a_crash_is_charged_once_however_often_the_run_is_released() -> None:
    rig = Rig(two_steps, token=2, crashes=1).begin()
    rig.start()
    given_back = rig.commit(Release())
    assert given_back.charged
    assert {entry.location: entry.attempts for entry in given_back.entries} == {"frail": 1, "robust": 1}
    rig = Rig(two_steps, entries=given_back.entries, token=3).begin()
    assert rig.start() == ["frail", "robust"]
    assert rig.commit(Release()).entries == ()


async def only_code(ctx: Context) -> None:
    await ctx.sleep(1)


def test_releasing_a_run_keeps_a_crash_that_was_not_charged_yet() -> None:
    assert not Rig(only_code, token=2, crashes=1).begin().commit(Release()).charged


def test_a_step_whose_attempts_were_used_up_by_crashes_fails_without_running_again() -> None:
    rig = Rig(two_steps, token=3, crashes=2).begin()
    assert rig.result() == '"frail WorkerLost 2"'
    assert rig.startable() == []


def test_attempts_and_crashes_add_up() -> None:
    tried = Entry(location="frail", kind=EntryKind.STEP, state=EntryState.RETRYING, attempts=1)
    rig = Rig(two_steps, entries=(tried,), token=2, crashes=1).begin()
    assert rig.result() == '"frail WorkerLost 2"'


def test_a_crash_is_not_charged_to_a_step_that_is_recorded() -> None:
    rig = Rig(two_steps, entries=(step("frail", 1), step("robust", 2)), token=2, crashes=1).begin()
    assert rig.result() == '"done"'


def test_three_crashes_without_progress_block_the_run_for_good() -> None:
    rig = Rig(two_steps, token=4, crashes=3).begin()
    assert isinstance(rig.turn.outcome, Block)
    assert rig.turn.outcome.error.type == "CrashLoop"
    assert rig.turn.outcome.retry_at is None
    assert rig.startable() == []
    assert EntryState.DONE not in [entry.state for entry in rig.commit().entries]


# Too many children for one checkpoint


def test_a_run_rolls_back_only_when_its_last_children_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runner.pending_checkpoint.CHILDREN_AT_ONCE", 3)

    async def shop(ctx: Context) -> None:
        await ctx.step("charge", nothing, undo=lambda _: None)
        for _ in range(5):
            ctx.start("child.v1")
        ctx.emit("news")
        raise ValueError("no")

    rig = Rig(shop).begin()
    rig.start()
    rig.finish("charge")
    first, last = rig.commit(), rig.commit()
    assert (type(first.next), len(first.children), len(first.events)) == (Hold, 3, 0)
    assert (type(last.next), len(last.children), len(last.events)) == (StartRollback, 2, 1)
    assert ROLLBACK_LOCATION not in {entry.location for entry in first.entries}
    assert ROLLBACK_LOCATION in {entry.location for entry in last.entries}
    assert "charge" in {entry.location for entry in first.entries}
