"""A standstill has all that a driver needs: what to start, drop and write, and when to come back."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Context, Retry
from holdfast.core.checkpoint import Block, Finish
from holdfast.core.clock import SECOND
from holdfast.core.states import RunState
from holdfast.runner.operation import Raised, Returned
from tests.unit.runner.turn_rig import START, Rig, evict_turns

__all__ = ["evict_turns"]
pytestmark = pytest.mark.usefixtures("evict_turns")

LATER = Retry(max_attempts=3, delay=lambda attempt: 60.0, jitter=0)


def nothing() -> None: ...


async def one_step(ctx: Context) -> str:
    return await ctx.step("pay", str, retry=LATER)


def test_a_step_starts_at_once_and_its_successors_only_after_the_commit() -> None:
    async def two_steps(ctx: Context) -> None:
        await ctx.step("a", nothing)
        await ctx.step("b", nothing)

    rig = Rig(two_steps)
    first = rig.turn.begin(START)
    assert [call.location for call in first.start] == ["a"]
    assert (first.must_write, first.may_suspend) == (False, False)
    rig.start()

    fed = rig.turn.feed(rig.executing.pop("a"), Returned(None), START)
    assert (list(fed.start), fed.must_write, fed.may_suspend) == ([], True, False)

    rig.take()
    committed = rig.turn.mark_committed(START)
    assert [call.location for call in committed.start] == ["b"]
    assert not committed.must_write


def test_a_step_that_waits_for_its_next_attempt_may_suspend_and_names_its_wake_time() -> None:
    rig = Rig(one_step).begin()
    rig.start()
    standstill = rig.turn.feed(rig.executing.pop("pay"), Raised(OSError("down")), START)

    assert (list(standstill.start), standstill.may_suspend, standstill.must_write) == ([], True, True)
    assert standstill.wake_at == START + 60 * SECOND
    rig.commit()
    due = rig.turn.settle(START + 60 * SECOND)
    assert ([call.location for call in due.start], due.may_suspend, due.wake_at) == (["pay"], False, None)


def test_after_the_end_of_the_code_only_the_end_is_left_to_write() -> None:
    rig = Rig(one_step).begin()
    rig.start()
    standstill = rig.turn.feed(rig.executing.pop("pay"), Returned("done"), START)

    assert standstill.end == Finish(state=RunState.SUCCEEDED, result='"done"')
    assert (list(standstill.start), standstill.may_suspend, standstill.wake_at) == ([], False, None)


def test_code_that_can_never_continue_ends_its_turn_with_a_block() -> None:
    async def stuck(ctx: Context) -> None:
        await asyncio.Event().wait()

    assert isinstance(Rig(stuck).turn.begin(START).end, Block)


def test_an_abandoned_body_is_named_once() -> None:
    async def gives_up(ctx: Context) -> None:
        slow = asyncio.create_task(ctx.step("slow", nothing))
        await ctx.step("fast", nothing)
        slow.cancel()
        await ctx.receive("x")

    rig = Rig(gives_up).begin()
    rig.start()
    assert list(rig.turn.feed(rig.executing.pop("fast"), Returned(None), START).abandon) == ["slow"]
    assert list(rig.standstill().abandon) == []


def test_a_standstill_cannot_be_changed() -> None:
    standstill = Rig(one_step).turn.begin(START)
    with pytest.raises(AttributeError):
        standstill.must_write = True  # type: ignore[misc]
