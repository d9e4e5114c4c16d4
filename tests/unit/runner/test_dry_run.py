"""A dry run checks whether code fits a history, and touches nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Context, Registry
from holdfast.core.clock import SECOND
from holdfast.core.model import Entry, EntryKind, EntryState, Run
from holdfast.core.states import RunState
from holdfast.runner.dry_run import DryRun, Fit, dry_run
from holdfast.runner.operation import StepCall
from holdfast.runner.turn import Turn
from tests.unit.runner.turn_rig import START, step

RUN = Run(
    id="dry-run",
    type="shop.v1",
    state=RunState.SUSPENDED,
    payload="{}",
    created_at=START,
    start_at=START,
    updated_at=START,
    token=3,
    first_claimed_at=START,
)


def refused() -> None:
    raise AssertionError("a dry run executes no step")


def replayed(code: Callable[..., Any], *entries: Entry, run: Run = RUN, strict: bool = True, **options: Any) -> DryRun:
    return dry_run(Registry().workflow("shop.v1", strict=strict)(code), run, entries, **options)


async def two_steps(ctx: Context) -> str:
    await ctx.step("charge", refused)
    await ctx.step("pack", refused)
    await ctx.receive("go")
    return "done"


def test_code_that_reaches_the_end_of_its_history_fits() -> None:
    found = replayed(two_steps, step("charge", 1), step("pack", 2))
    assert (found.fit, found.summary) == (Fit.FITS, "")


def test_the_step_at_the_frontier_is_not_executed() -> None:
    assert replayed(two_steps, step("charge", 1)).fit is Fit.FITS


def test_a_run_that_was_never_claimed_fits() -> None:
    assert replayed(two_steps, run=replace(RUN, state=RunState.PENDING, token=0, first_claimed_at=None)).fit is Fit.FITS


def test_code_that_lost_a_step_diverges_and_the_report_names_it() -> None:
    async def code(ctx: Context) -> None:
        await ctx.step("charge", refused)
        await ctx.receive("go")

    found = replayed(code, step("charge", 1), step("pack", 2))
    assert found.fit is Fit.DIVERGES
    assert "pack" in found.summary
    assert "pack" in found.report
    assert "\n" not in found.summary


def test_due_timers_and_arrivals_are_not_fed() -> None:
    async def code(ctx: Context) -> None:
        await ctx.sleep(1)
        raise AssertionError("time stands still in a dry run")

    assert replayed(code, now=START + 60 * SECOND).fit is Fit.FITS


async def with_a_check(ctx: Context) -> None:
    await ctx.step("check", refused)
    await two_steps(ctx)


@pytest.mark.parametrize(("strict", "fit"), [(True, Fit.DIVERGES), (False, Fit.UNDECIDED)])
def test_a_new_step_before_the_rest_of_the_history_diverges_and_is_undecided_where_code_is_not_strict(
    strict: bool, fit: Fit
) -> None:
    found = replayed(with_a_check, step("charge", 1), step("pack", 2), strict=strict)
    assert found.fit is fit
    assert found.misfit is not None
    assert (found.misfit.recorded, found.misfit.requested) == ("charge (step)", "check (step)")
    if not strict:
        assert found.summary == "new operations before the rest of the history: check"


async def swapped(ctx: Context) -> None:
    await ctx.step("pack", refused)
    await ctx.step("charge", refused)
    await ctx.receive("go")


@pytest.mark.parametrize(("strict", "fit"), [(True, Fit.DIVERGES), (False, Fit.UNDECIDED)])
def test_steps_that_changed_their_order_do_not_pass(strict: bool, fit: Fit) -> None:
    found = replayed(swapped, step("charge", 1), step("pack", 2, since=1), strict=strict)
    assert found.fit is fit
    assert found.misfit is not None
    assert (found.misfit.recorded, found.misfit.requested) == ("charge (step)", "pack (step)")


def test_a_step_that_was_adopted_in_place_fits() -> None:
    entries = (step("charge", 1), step("pack", 2, since=1), step("check", 3))
    assert replayed(with_a_check, *entries, strict=False).fit is Fit.FITS


@pytest.mark.parametrize(("seconds", "fit"), [(59, Fit.DIVERGES), (60, Fit.UNDECIDED)])
def test_a_new_wait_diverges_unless_it_is_already_over(seconds: int, fit: Fit) -> None:
    async def code(ctx: Context) -> None:
        await ctx.sleep(60)
        await two_steps(ctx)

    assert replayed(code, step("charge", 1), now=START + seconds * SECOND, strict=False).fit is fit
    assert replayed(code, step("charge", 1), now=START + seconds * SECOND).fit is Fit.DIVERGES


def test_code_that_raises_before_anything_new_happens_fails() -> None:
    async def code(ctx: Context) -> None:
        await ctx.step("charge", refused)
        raise LookupError("a mistake")

    found = replayed(code, step("charge", 1))
    assert (found.fit, found.summary) == (Fit.FAILS, "the code raises LookupError: a mistake")


def test_code_that_returns_before_anything_new_happens_fits_and_says_so() -> None:
    async def code(ctx: Context) -> None:
        await ctx.step("charge", refused)

    found = replayed(code, step("charge", 1))
    assert (found.fit, found.summary) == (Fit.FITS, "the run ends as succeeded when it is claimed")


def test_code_with_a_forbidden_call_is_a_violation() -> None:
    async def code(ctx: Context) -> None:
        await ctx.step("charge", refused)
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)

    found = replayed(code, step("charge", 1))
    assert found.fit is Fit.VIOLATES
    assert "getaddrinfo" in found.summary


def test_a_payload_that_does_not_fit_the_function_is_refused() -> None:
    async def code(ctx: Context, order: int) -> None:
        raise AssertionError(order)

    found = replayed(code, run=replace(RUN, payload='{"order": "seven"}'))
    assert found.fit is Fit.REFUSES
    assert "order" in found.summary


def test_an_unregistered_type_is_unknown() -> None:
    assert dry_run(None, RUN, ()).fit is Fit.UNKNOWN


def test_a_dry_run_of_a_run_that_rolls_back_ends_at_the_start_of_its_rollback() -> None:
    async def code(ctx: Context) -> None:
        await ctx.step("charge", refused)
        raise ValueError("no stock")

    entries = [
        step("charge", 1, has_undo=True),
        Entry(location="~rollback", kind=EntryKind.ROLLBACK, state=EntryState.DONE, position=2, since=1),
        Entry(location="~undo/charge", kind=EntryKind.UNDO, state=EntryState.RETRYING, since=2),
        Entry(location="~undo/pack", kind=EntryKind.UNDO, state=EntryState.DONE, position=3, since=2),
    ]
    run = replace(RUN, state=RunState.ROLLING_BACK, rollback=RunState.FAILED)
    assert replayed(code, *entries, run=run).fit is Fit.FITS


def test_fed_operations_are_known_with_their_functions() -> None:
    found = replayed(two_steps, step("charge", 1))
    assert list(found.fed) == ["charge"]
    call = found.fed["charge"]
    assert isinstance(call, StepCall)
    assert call.function is refused


def test_operations_requested_but_not_fed_before_a_divergence_are_not_known() -> None:
    assert list(replayed(swapped, step("charge", 1), step("pack", 2, since=1)).fed) == []


def test_a_turn_can_be_inspected_before_it_leaves_memory() -> None:
    seen: list[int] = []

    def inspect(turn: Turn) -> None:
        seen.append(turn.unfinished)

    replayed(two_steps, step("charge", 1), inspect=inspect)
    assert seen == [1]


def test_a_dry_run_logs_nothing_and_closes_what_the_code_opened(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    async def code(ctx: Context) -> None:
        ctx.logger.warning("begun")
        task = asyncio.create_task(two_steps(ctx))
        try:
            await ctx.step("charge", refused)
            ctx.logger.warning("charged")
            await task
        finally:
            closed.append("closed")

    assert replayed(code, step("charge", 1)).fit is Fit.FITS
    assert closed == ["closed"]
    assert caplog.records == []


async def test_a_dry_run_may_run_inside_a_task() -> None:
    assert replayed(two_steps, step("charge", 1), step("pack", 2)).fit is Fit.FITS
    await asyncio.sleep(0)
