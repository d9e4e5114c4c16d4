"""Slips: an error that is most likely a mistake in workflow code blocks the run, undoes nothing, and a fix heals it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, Fatal, InvalidRequest, Registry, RunFailed, RunInfo, RunState
from tests.stage import Stage

Code = Callable[[Context], Awaitable[Any]]


class Effects:
    """What the steps of a test have done and undone."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def charge(self, cents: int) -> str:
        self.done.append(f"charge {cents}")
        return "paid"

    def refund(self, _: str) -> None:
        self.done.append("refund")


def shop(code: Code, effects: Effects, **options: Any) -> Registry:
    """An application with one workflow, which charges a card and continues with this code."""
    app = Registry()

    @app.workflow("shop.v1", **options)
    async def workflow(ctx: Context) -> Any:
        await ctx.step("charge", effects.charge, 5, undo=effects.refund)
        return await code(ctx)

    return app


async def after(stage: Stage, app: Registry) -> RunInfo:
    """Return a run of an application after it has gone as far as it can."""
    async with stage.harness(app) as h:
        run = await h.start("shop.v1")
        await h.settle()
        return await run.info()


async def typo(_: Context) -> None:
    recieved  # type: ignore[name-defined]  # noqa: B018, F821


async def wrong_type(_: Context) -> Any:
    return "5" + 5  # type: ignore[operator]


async def no_such_attribute(ctx: Context) -> Any:
    return ctx.recieve("go")  # type: ignore[attr-defined]


async def no_such_module(_: Context) -> Any:
    import no_such_module_of_the_shop  # type: ignore[import-not-found]

    return no_such_module_of_the_shop


async def wrong_call_of_the_context(ctx: Context) -> None:
    await ctx.step("a/b", len, "x")


async def in_a_branch(ctx: Context) -> Any:
    return await ctx.join("both", {"bad": typo, "good": lambda _: asyncio.sleep(0)})


async def in_a_race(ctx: Context) -> Any:
    return await ctx.race("first", {"bad": typo})


async def in_a_task_group(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(typo(ctx))


async def sum_of(first, second):  # type: ignore[no-untyped-def]
    raise AssertionError("a wrong call must not execute the step")


async def wrong_call_of_a_step(ctx: Context) -> None:
    await ctx.step("sum", sum_of, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (typo, "NameError: name 'recieved' is not defined"),
        (wrong_type, "TypeError: can only concatenate str"),
        (no_such_attribute, "AttributeError: 'Context' object has no attribute 'recieve'"),
        (no_such_module, "ModuleNotFoundError: No module named 'no_such_module_of_the_shop'"),
        (wrong_call_of_the_context, "InvalidRequest: "),
        (in_a_branch, "JoinFailed: 1 of 2 branches of 'both' failed: bad: NameError"),
        (in_a_race, "RaceFailed: all 1 branches of 'first' failed: bad: NameError"),
        (in_a_task_group, "ExceptionGroup: "),
        (wrong_call_of_a_step, "TypeError: sum(first, second): missing a required argument: 'second'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_slip_blocks_the_run_and_undoes_nothing(stage: Stage, code: Code, error: str) -> None:
    effects = Effects()
    info = await after(stage, shop(code, effects))
    assert info.state is RunState.BLOCKED
    assert str(info.error).startswith(error)
    assert effects.done == ["charge 5"]


async def test_the_fixed_code_continues_a_blocked_run_and_repeats_nothing(stage: Stage) -> None:
    effects = Effects()
    info = await after(stage, shop(typo, effects))

    async def fixed(_: Context) -> str:
        return "received"

    async with stage.harness(shop(fixed, effects)) as h:
        await h.advance(10)
        assert await h.run(info.id).result() == "received"
    assert effects.done == ["charge 5"]


async def test_a_slip_that_the_code_catches_changes_nothing(stage: Stage) -> None:
    async def careful(ctx: Context) -> str:
        try:
            await typo(ctx)
        except NameError:
            return "caught"
        return "?"

    assert (await after(stage, shop(careful, Effects()))).result == "caught"


async def test_a_slip_in_a_step_is_a_failure_of_the_step(stage: Stage) -> None:
    def broken() -> None:
        raise Fatal("no") from TypeError("a slip of the step")

    async def careless(ctx: Context) -> None:
        await ctx.step("broken", broken)

    effects = Effects()
    info = await after(stage, shop(careless, effects))
    assert info.state is RunState.FAILED
    assert effects.done == ["charge 5", "refund"]


async def test_a_value_that_cannot_be_stored_is_no_slip(stage: Stage) -> None:
    async def odd(ctx: Context) -> None:
        await ctx.start("child.v1", {"share": math.nan})

    info = await after(stage, shop(odd, Effects()))
    assert info.state is RunState.FAILED
    assert str(info.error).startswith("NotSerializable: ")


async def test_an_error_that_is_raised_because_of_a_slip_is_no_slip(stage: Stage) -> None:
    async def translated(_: Context) -> None:
        raise ValueError("the order is odd") from KeyError("item")

    assert (await after(stage, shop(translated, Effects()))).state is RunState.FAILED


@pytest.mark.parametrize(
    ("block_on", "code", "state"),
    [((), typo, RunState.FAILED), ((KeyError,), typo, RunState.FAILED), (NameError, typo, RunState.BLOCKED)],
)
async def test_a_workflow_chooses_what_blocks_it(stage: Stage, block_on: Any, code: Code, state: RunState) -> None:
    effects = Effects()
    assert (await after(stage, shop(code, effects, block_on=block_on))).state is state
    assert effects.done == ["charge 5", *["refund"] * (state is RunState.FAILED)]


def test_block_on_takes_only_exception_classes() -> None:
    async def workflow(ctx: Context) -> None: ...

    with pytest.raises(InvalidRequest, match=r"block_on=.*'NameError' is not an exception class"):
        Registry().workflow("shop.v1", block_on=("NameError",))(workflow)  # type: ignore[arg-type]


async def test_a_person_gives_a_blocked_run_up_and_its_steps_are_undone(stage: Stage) -> None:
    effects = Effects()
    async with stage.harness(shop(typo, effects)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        assert await run.recover(fail=True, by="ann")
        await h.settle()
        with pytest.raises(RunFailed, match="NameError: name 'recieved' is not defined"):
            await run.result()
        assert not await run.recover(fail=True)
        (asked,) = [fact for fact in await run.audit() if fact.data.get("by") == "ann"]
        assert asked.event == "rolling_back"
    assert effects.done == ["charge 5", "refund"]


async def test_explain_says_what_to_do_about_a_slip(stage: Stage) -> None:
    async with stage.harness(shop(typo, Effects())) as h:
        run = await h.start("shop.v1")
        await h.settle()
        assert f"`holdfast recover --fail {run.id}` lets it fail" in await run.explain()
