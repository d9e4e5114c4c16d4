"""`hf.check()` reports before a deploy which live runs the new code fits, and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Context, Registry, Retry, RunState
from holdfast.app import session_of
from holdfast.core.questions import Details, Query
from holdfast.testing.harness import Harness
from holdfast.typing import Fit, RunCheck
from tests.stage import Stage

Code = Callable[..., Awaitable[Any]]


def one() -> int:
    return 1


def shop(code: Code, type: str = "shop.v1", *, strict: bool = True) -> Registry:
    app = Registry()
    app.workflow(type, strict=strict)(code)
    return app


async def old(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.step("pack", one)
    await ctx.receive("go")
    return "old"


async def renamed(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.step("wrap", one)
    await ctx.receive("go")
    return "new"


async def shorter(ctx: Context) -> str:
    await ctx.step("charge", one)
    await ctx.receive("go")
    return "new"


async def versioned(ctx: Context) -> str:
    await ctx.step("charge", one)
    if ctx.version("packing", 2) == 1:
        await ctx.step("pack", one)
    await ctx.receive("go")
    return "new"


async def reordered(ctx: Context) -> str:
    await ctx.step("pack", one)
    await ctx.step("charge", one)
    await ctx.receive("go")
    return "new"


async def checked(h: Harness, **options: Any) -> dict[str, RunCheck]:
    return {found.id: found async for found in h.check(**options)}


async def suspended(stage: Stage, code: Code = old, type: str = "shop.v1") -> str:
    async with stage.harness(shop(code, type)) as h:
        run = await h.start(type)
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
    return run.id


@pytest.mark.parametrize(
    ("code", "fit", "fit_if_not_strict"),
    [
        (old, Fit.FITS, Fit.FITS),
        (versioned, Fit.FITS, Fit.FITS),
        (renamed, Fit.DIVERGES, Fit.UNDECIDED),
        (reordered, Fit.DIVERGES, Fit.UNDECIDED),
        (shorter, Fit.DIVERGES, Fit.DIVERGES),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_check_reports_whether_new_code_fits_a_live_run(
    stage: Stage, code: Code, fit: Fit, fit_if_not_strict: Fit
) -> None:
    run_id = await suspended(stage)
    for strict, expected in ((True, fit), (False, fit_if_not_strict)):
        async with stage.harness(shop(code, strict=strict)) as h:
            found = (await checked(h))[run_id]
            assert (found.fit, found.is_good) == (expected, expected is Fit.FITS)
            assert found.state is RunState.SUSPENDED


async def test_a_check_names_the_two_operations_that_differ_and_the_lines_to_paste(stage: Stage) -> None:
    run_id = await suspended(stage)
    async with stage.harness(shop(renamed)) as h:
        found = (await checked(h))[run_id]
        assert (found.recorded, found.requested) == ("pack (step)", "wrap (step)")
        assert [hint.partition("  #")[0] for hint in found.hints] == [
            'if ctx.version("wrap", 2) == 1:',
            'ctx.removed("pack", "step")',
        ]
    async with stage.harness(shop(old)) as h:
        found = (await checked(h))[run_id]
        assert (found.recorded, found.requested, found.hints) == (None, None, ())


async def test_code_with_one_of_the_lines_to_paste_fits(stage: Stage) -> None:
    async def with_version(ctx: Context) -> str:
        await ctx.step("charge", one)
        if ctx.version("wrap", 2) == 1:
            await ctx.step("pack", one)
        else:
            await ctx.step("wrap", one)
        await ctx.receive("go")
        return "new"

    async def with_removed(ctx: Context) -> str:
        await ctx.step("charge", one)
        ctx.removed("pack", "step")
        await ctx.step("wrap", one)
        await ctx.receive("go")
        return "new"

    run_id = await suspended(stage)
    for code in (with_version, with_removed):
        async with stage.harness(shop(code)) as h:
            assert (await checked(h))[run_id].fit is Fit.FITS


@pytest.mark.every_store
async def test_a_check_changes_nothing(stage: Stage) -> None:
    run_id = await suspended(stage)
    async with stage.harness(shop(shorter)) as h:
        run = h.run(run_id)
        before = [await run.info(), await run.history(), await run.audit()]
        assert (await checked(h))[run_id].fit is Fit.DIVERGES
        assert [await run.info(), await run.history(), await run.audit()] == before
        assert h.executed == []


async def test_a_diverging_run_is_reported_with_history_and_code_side_by_side(stage: Stage) -> None:
    run_id = await suspended(stage)
    async with stage.harness(shop(shorter)) as h:
        report = (await checked(h))[run_id].report
        assert "  1  charge  step  done     charge      step" in report
        assert "  2  pack    step  done  ≠  receive:go  message" in report


async def test_runs_that_have_ended_are_not_checked(stage: Stage) -> None:
    run_id = await suspended(stage)
    async with stage.harness(shop(old)) as h:
        await h.run(run_id).cancel()
    async with stage.harness(shop(shorter)) as h:
        assert await checked(h) == {}


async def test_a_run_that_never_started_is_checked_for_its_payload(stage: Stage) -> None:
    async def with_name(ctx: Context, name: str) -> str:
        return name

    async def with_order(ctx: Context, order: int) -> int:
        return order

    async with stage.harness(shop(with_name)) as h:
        run = await h.start("shop.v1", {"name": "ada"}, delay=60)
        await h.settle()
    async with stage.harness(shop(with_order)) as h:
        found = (await checked(h))[run.id]
        assert (found.fit, found.state) == (Fit.REFUSES, RunState.PENDING)
        assert "order" in found.summary


async def test_a_blocked_run_is_checked_too(stage: Stage) -> None:
    run_id = await suspended(stage)
    async with stage.harness(shop(shorter)) as h:
        await h.run(run_id).send("go")
        await h.settle()
        assert (await h.run(run_id).info()).state is RunState.BLOCKED
    async with stage.harness(shop(versioned)) as h:
        found = (await checked(h))[run_id]
        assert (found.fit, found.state) == (Fit.FITS, RunState.BLOCKED)


async def test_a_run_that_rolls_back_is_checked_up_to_the_start_of_its_rollback(stage: Stage) -> None:
    def busy(_: int) -> None:
        raise OSError("busy")

    async def fails(ctx: Context) -> None:
        await ctx.step("charge", one, undo=busy, retry=Retry(max_attempts=9, initial=3600, jitter=0))
        raise ValueError("no stock")

    async def forgets(ctx: Context) -> None:
        raise ValueError("no stock")

    async with stage.harness(shop(fails)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        assert (await run.info()).state is RunState.ROLLING_BACK
        assert (await checked(h))[run.id].fit is Fit.FITS
    async with stage.harness(shop(forgets)) as h:
        assert (await checked(h))[run.id].fit is Fit.DIVERGES


async def test_types_that_are_not_registered_are_unknown(stage: Stage) -> None:
    run_id = await suspended(stage, type="billing.v1")
    async with stage.harness(shop(old)) as h:
        found = (await checked(h))[run_id]
        assert (found.fit, found.is_good) == (Fit.UNKNOWN, True)


async def test_a_check_can_be_limited_to_types_and_to_the_newest(stage: Stage) -> None:
    first = await suspended(stage, type="shop.a.v1")
    second = await suspended(stage, type="shop.b.v1")
    third = await suspended(stage, type="billing.v1")
    async with stage.harness(shop(old, "shop.a.v1")) as h:
        assert set(await checked(h)) == {first, second, third}
        assert set(await checked(h, type="shop.*")) == {first, second}
        assert list(await checked(h, limit=2)) == [third, second]


async def test_more_runs_than_fit_on_a_page_are_all_checked(stage: Stage) -> None:
    async with stage.harness(shop(old)) as h:
        await h.start_many("shop.v1", [{} for _ in range(450)], delay=60)
        assert len(await checked(h)) == 450


async def test_a_run_that_moved_on_between_two_reads_is_read_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await suspended(stage)
    async with stage.harness(shop(old)) as h:
        read = session_of(h).store.list

        async def read_before(query: Query) -> list[Details]:
            found = await read(query)
            return [replace(one, run=replace(one.run, token=0, payload='{"old": 1}')) for one in found]

        monkeypatch.setattr(session_of(h).store, "list", read_before)
        assert (await checked(h))[run_id].fit is Fit.FITS
