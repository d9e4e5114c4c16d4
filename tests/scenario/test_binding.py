"""Bound calls: arguments by name, for everything that starts a run or executes a step."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    Call,
    Context,
    Holdfast,
    HoldfastError,
    InvalidRequest,
    Registry,
    SyncContext,
    TaskContext,
)
from tests.stage import Stage

app = Registry()


@app.step
async def charge(card: str, cents: int = 5) -> str:
    return f"{card} {cents}"


@app.workflow("shop.checkout.v1")
async def checkout(ctx: Context, order: str, cents: int = 5, *, express: bool = False) -> list[Any]:
    return [order, cents, express]


@app.workflow("shop.strict.v1")
async def strict(ctx: Context, order: str, *, cents: int) -> list[Any]:
    return [order, cents]


@app.workflow("shop.plain.v1")
def plain(ctx: SyncContext, order: str, note: str = "") -> list[Any]:
    return [order, note, ctx.step("charge", charge.bind(card="visa")), ctx.call(checkout.bind(order="B", cents=3))]


@app.task("shop.mail.v1")
def mail(ctx: TaskContext, to: str, copies: int = 1) -> str:
    return to * copies


@app.workflow("shop.parent.v1")
async def parent(ctx: Context) -> list[Any]:
    child = await ctx.start(mail.bind(to="ada", copies=2), name="letter")
    return [
        await ctx.step("visa", charge.bind(card="visa", cents=7)),
        await ctx.step("default", charge.bind("amex")),
        await ctx.step("task", charge.bind(cents=1, card="visa")),
        await ctx.call(checkout.bind(order="A-1", express=True)),
        await child,
    ]


async def test_arguments_are_passed_by_name_wherever_a_run_is_started(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(checkout.bind(order="A-1", express=True), key="order-17")
        assert await run.result() == ["A-1", 5, True]
        assert (await run.info()).payload == {"order": "A-1", "express": True}
        assert (await h.start(checkout, "A-1", key="other")).created
        assert not (await h.start(checkout.bind(express=True, order="A-1"), key="order-17")).created

        assert await h.execute(strict.bind("A-1", cents=3)) == ["A-1", 3]
        assert await h.execute(plain.bind(order="A-1", note="n")) == ["A-1", "n", "visa 5", ["B", 3, False]]
        assert await h.execute(mail.bind(copies=2, to="x")) == "xx"
        assert await h.execute(parent.bind()) == ["visa 7", "amex 5", "visa 1", ["A-1", 5, True], "adaada"]


async def test_many_bound_calls_are_started_at_once(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await h.start_many([checkout.bind(order="A"), mail.bind(to="b")], keys=["a", "b"], tags={"shop": "x"})

        assert [await run.result() for run in runs] == [["A", 5, False], "b"]
        assert [(await run.info()).tags for run in runs] == [{"shop": "x"}] * 2
        assert [run.created for run in await h.start_many([checkout.bind("A"), mail.bind("b")], keys=["a", "b"])] == [
            False,
            False,
        ]


async def test_a_schedule_takes_a_bound_call(stage: Stage) -> None:
    async with stage.harness(app) as h:
        schedule = await h.schedules.put("nightly", checkout.bind(order="A-1", cents=3), every=60)

        assert schedule.payload == {"order": "A-1", "cents": 3}
        assert await (await h.schedules.trigger("nightly")).result() == ["A-1", 3, False]


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (
            (),
            {"oder": "A-1"},
            r"parameter oder of checkout; did you mean order\? the parameters of checkout are",
        ),
        ((), {}, "checkout is missing arguments: order"),
        (("A-1",), {"order": "A-2"}, "checkout gets order twice: by position and by name"),
        (("A-1", 5, True), {}, r"checkout takes 2 arguments \(order, cents\), but 3 were given; pass express by name"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_when_they_are_bound(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        checkout.bind(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"cart": "visa"}, r"unknown parameter cart of charge; did you mean card\?"),
        ((), {}, "charge.*missing a required argument: 'card'"),
        (("visa", 5, 6), {}, "charge.*too many positional arguments"),
    ],
)
def test_arguments_of_a_step_that_do_not_fit_are_refused_too(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        charge.bind(*args, **kwargs)


async def test_a_bound_call_takes_no_further_arguments(stage: Stage) -> None:
    call: Any = checkout.bind(order="A-1")
    words = r"<call of <workflow shop.checkout.v1> with \(order='A-1'\)> has its arguments already, but 5 was given too"
    async with stage.harness(app) as h:
        for refused in (h.start(call, 5), h.execute(call, 5)):
            with pytest.raises(InvalidRequest, match=words):
                await refused
        with pytest.raises(InvalidRequest, match="is not a list of arguments"):
            await h.start_many(call, 5)  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest, match="only a list of bound calls"):
            await h.start_many(call)
        with pytest.raises(InvalidRequest, match="5 is not a bound call, such as"):
            await h.start_many([call, 5])  # type: ignore[list-item]
        assert await h.list() == []


async def test_a_bound_call_takes_no_further_arguments_in_workflow_code_either(stage: Stage) -> None:
    wrong = Registry()

    @wrong.workflow
    async def step(ctx: Context) -> Any:
        call: Any = charge.bind("visa")
        return await ctx.step("charge", call, 5)

    @wrong.workflow
    async def child(ctx: Context) -> Any:
        call: Any = checkout.bind("A-1")
        return await ctx.call(call, 5)

    async with stage.harness(wrong) as h:
        for workflow in (step, child):
            with pytest.raises(HoldfastError, match=r"Blocked by .* has its arguments already, but 5 was given too"):
                await h.execute(workflow)


async def test_an_argument_by_name_is_refused_with_a_hint_at_bind(stage: Stage) -> None:
    async with stage.harness(app) as h:
        start: Any = h.start
        with pytest.raises(
            InvalidRequest,
            match=r"unknown option order of a run; keywords are options, and order is a parameter of checkout: "
            r"pass it by position, or by name as checkout.bind\(order=…\)",
        ):
            await start(checkout, order="A-1")
        with pytest.raises(InvalidRequest, match=r"unknown option kee of a run; did you mean key\?"):
            await start(checkout, "A-1", kee="k")
        with pytest.raises(InvalidRequest, match="colour of a run; arguments of the function are positional"):
            await start(checkout, "A-1", colour="red")
        with pytest.raises(InvalidRequest, match=r"unknown option kee of a run; did you mean key\?"):
            await start("shop.checkout.v1", {"order": "A-1"}, kee="k")
        assert await h.list() == []


def test_only_a_workflow_or_task_can_be_started_bound_or_not() -> None:
    hf = Holdfast("memory://")
    with pytest.raises(InvalidRequest, match="<step charge> is not a workflow or task"):
        hf.sync.start(charge.bind("visa"))
    hf.sync.close()


def test_a_bound_call_is_itself_startable() -> None:
    call = mail.bind("ada", copies=2)

    assert isinstance(call, Call)
    assert call.bind() is call
    assert repr(call) == "<call of <task shop.mail.v1> with ('ada', copies=2)>"
