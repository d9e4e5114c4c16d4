"""Pipelines: declared steps, executed in order, each with the result of the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Break, Context, Continue, Registry, Retry, RunFailed, RunState, SyncContext, step_info
from holdfast.engine.explain import PlanProgress, plan_progress
from holdfast.testing.harness import Harness
from holdfast.typing import Fit, RunCheck
from tests.stage import Stage, facts

TYPE = "shop.signup.v1"


def create(name: str, age: int = 7) -> dict[str, Any]:
    return {"name": name, "age": age}


async def welcome(account: dict[str, Any]) -> dict[str, Any]:
    return {**account, "welcomed": True}


async def wait_until_active(ctx: Context, account: dict[str, Any]) -> dict[str, Any]:
    by = await ctx.receive("active")
    await ctx.step("note", str, by)
    return {**account, "by": by}


def report(account: dict[str, Any]) -> str:
    return f"{account['name']}, {account['age']}, by {account['by']}"


def bless(account: dict[str, Any]) -> dict[str, Any]:
    return account


def thank(account: dict[str, Any]) -> dict[str, Any]:
    return account


def signup(*steps: Callable[..., Any], strict: bool = True) -> Registry:
    app = Registry()
    app.pipeline(TYPE, *(steps or (create, welcome, wait_until_active, report)), strict=strict)
    return app


async def waiting(stage: Stage, *steps: Callable[..., Any]) -> str:
    """Start a run that waits in `wait_until_active`, and return its id."""
    async with stage.harness(signup(*steps)) as h:
        run = await h.start(TYPE, {"name": "ada"})
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
    return run.id


async def seen(h: Harness, run_id: str) -> PlanProgress:
    """How far a run has got, as a process without the application sees it."""
    store = h._session.store
    details = await store.get(run_id)
    assert details is not None
    found = await plan_progress(store, details)
    assert found is not None
    return found


def states(progress: PlanProgress) -> list[str]:
    return [f"{step.name} {step.state}" for step in progress.steps]


# Executing


@pytest.mark.every_store
async def test_steps_run_in_order_and_each_gets_the_result_of_the_one_before(stage: Stage) -> None:
    app = signup()
    pipeline = app.definition(TYPE)
    async with stage.harness(app) as h:
        run = await h.start(pipeline.bound(("ada",), {"age": 36}))
        await h.settle()
        assert (await run.explain()).startswith(
            "At step 3 of 4 (wait_until_active). Waiting: for message active since "
        )
        assert states(await seen(h, run.id)) == [
            "create done",
            "welcome done",
            "wait_until_active current",
            "report to_come",
        ]
        await run.send("active", "grace")
        assert await run.result() == "ada, 36, by grace"
        assert await facts(run) == [
            "create step done",
            "welcome step done",
            "wait_until_active/~/receive:active message done",
            "wait_until_active/~/note step done",
            "report step done",
        ]
        assert (await seen(h, run.id)).cursor is None
        (known,) = await h.types.list()
        assert known.plan == ("create", "welcome", "wait_until_active", "report")


async def test_a_run_continues_in_another_process_where_it_was(stage: Stage) -> None:
    run_id = await waiting(stage)
    async with stage.harness(signup()) as h:
        await h.run(run_id).send("active", "grace")
        assert await h.run(run_id).result() == "ada, 7, by grace"
        assert h.executed == ["wait_until_active/~/note", "report"]


async def test_each_step_has_its_own_options(stage: Stage) -> None:
    app = Registry()
    p = app.pipeline("p.v1")
    attempts: list[int] = []
    taken: list[str] = []

    @p.step(undo=taken.remove)
    def take(name: str) -> str:
        taken.append(name)
        return name

    @p.step("again", retry=Retry(max_attempts=3, initial=0.1, jitter=0))
    def flaky(name: str) -> str:
        attempts.append(step_info().attempt)
        raise OSError("busy")

    async with stage.harness(app) as h:
        run = await h.start(p, "ada")
        with pytest.raises(RunFailed, match="busy"):
            await run.result()
        assert (attempts, taken) == ([1, 2, 3], [])
        assert states(await seen(h, run.id)) == ["take undone", "again failed"]
        assert (await run.explain()).startswith("At step 2 of 2 (again). Ended as failed at ")


async def test_decorated_steps_keep_their_options_and_names(stage: Stage) -> None:
    app = Registry()
    tried: list[int] = []

    @app.step("charge", retry=Retry(max_attempts=2, initial=0.1, jitter=0))
    async def charging(cents: int) -> int:
        tried.append(cents)
        if len(tried) < 2:
            raise OSError("busy")
        return cents

    p = app.pipeline("p.v1", charging)
    async with stage.harness(app) as h:
        run = await h.start(p, 5)
        assert await run.result() == 5
        assert (tried, h.executed) == ([5, 5], ["charge", "charge"])


async def test_keyword_only_parameters_of_the_first_step_are_payload_too(stage: Stage) -> None:
    def add(a: int, *, b: int = 1) -> int:
        return a + b

    app = Registry()
    p = app.pipeline("p.v1", add)
    async with stage.harness(app) as h:
        assert await h.execute(p.bind(1, b=5)) == 6
        assert await h.execute("p.v1", {"a": 1}) == 2


async def test_a_step_with_a_context_does_what_workflow_code_does(stage: Stage) -> None:
    app = Registry()

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    inner = app.pipeline("inner.v1", double)

    async def branch(ctx: Context) -> int:
        return await ctx.step("s", int, "1")

    async def body(ctx: Context, number: int) -> Continue[int] | Break[int]:
        number = await double(number)
        return Continue(number) if number < 20 else Break(number)

    async def work(ctx: Context, number: int) -> list[Any]:
        await ctx.sleep(3600)
        both = await ctx.join("both", {"a": branch, "b": branch})
        return [both, await ctx.call(inner, number), await ctx.loop("up", body, number)]

    async def more(ctx: Context, found: list[Any]) -> list[Any]:
        await ctx.sleep(60)
        return [*found, ctx.version("v", 2)]

    p = app.pipeline("p.v1", work, more)
    async with stage.harness(app) as h:
        run = await h.start(p, 3)
        assert await run.result() == [{"a": 1, "b": 1}, 6, 24, 2]
        assert [fact.split()[0] for fact in await facts(run)][:4] == [
            "work/~/sleep",
            "work/~/both/a/s",
            "work/~/both/b/s",
            "work/~/inner.v1",
        ]


async def test_plain_functions_with_a_context_block_without_a_thread(stage: Stage) -> None:
    app = Registry()

    @app.step
    def double(number: int) -> int:
        return 2 * number

    def slowly(ctx: SyncContext, number: int) -> int:
        ctx.sleep(60)
        return double.blocking(number)

    async def lightly(ctx: Context, number: int) -> int:
        return await double(number)

    p = app.pipeline("p.v1", slowly, lightly)
    async with stage.harness(app) as h:
        run = await h.start(p, 3)
        assert await run.result() == 12
        assert h.executed == ["slowly/~/double", "lightly/~/double"]


async def test_a_pipeline_can_begin_again_as_new(stage: Stage) -> None:
    async def count(ctx: Context, number: int) -> int:
        if number < 3:
            await ctx.continue_as_new(number + 1)
        return number

    app = Registry()
    p = app.pipeline("p.v1", count, str)
    async with stage.harness(app) as h:
        run = await h.start(p, 0)
        assert await run.result() == "3"
        assert (await run.info()).generation == 4


async def test_a_pipeline_can_be_scheduled_and_included(stage: Stage) -> None:
    module, app = Registry(), Registry()
    p = module.pipeline("p.v1", create)
    module.schedule(every=60, args=("ada",))(p)
    app.include(module)
    async with stage.harness(app) as h:
        await h.advance(61)
        (info,) = await h.list(type="p.v1")
        assert info.result == {"name": "ada", "age": 7}


# Going back


@pytest.mark.every_store
async def test_a_run_is_rewound_to_a_step_by_its_name(stage: Stage) -> None:
    async with stage.harness(signup()) as h:
        run = await h.start(TYPE, {"name": "ada"})
        await run.send("active", "grace")
        await run.result()

        assert await run.rewind("wait_until_active")
        assert await run.result() == "ada, 7, by grace"
        assert await run.rewind("report")
        assert await run.result() == "ada, 7, by grace"
        assert h.executed[-3:] == ["wait_until_active/~/note", "report", "report"]
        assert h.executed.count("welcome") == 1


async def test_a_rewind_to_a_step_with_a_context_starts_its_children_again(stage: Stage) -> None:
    started: list[str] = []

    async def child(ctx: Context, name: str) -> str:
        await ctx.step("hello", started.append, name)
        return name

    app = Registry()
    kid = app.workflow("kid.v1")(child)

    async def raise_it(ctx: Context, name: str) -> str:
        kept = await ctx.start(kid, name)
        await ctx.step("wait", str, name)
        return await kept

    p = app.pipeline("p.v1", create_name, raise_it)
    async with stage.harness(app) as h:
        run = await h.start(p, "ada")
        assert await run.result() == "ada"
        await run.rewind("raise_it")
        assert await run.result() == "ada"
        assert started == ["ada", "ada"]


def create_name(name: str) -> str:
    return name


async def test_a_failed_step_is_recovered(stage: Stage) -> None:
    is_broken = True

    async def check(ctx: Context, account: dict[str, Any]) -> dict[str, Any]:
        def look() -> int:
            if is_broken:
                raise OSError("down")
            return 1

        try:
            await ctx.step("look", look, retry=Retry(max_attempts=1))
        except Exception:
            await ctx.step("clean", int, "1")
            raise
        return {**account, "by": "ada"}

    app = signup(create, check, report)
    async with stage.harness(app) as h:
        run = await h.start(TYPE, {"name": "ada"})
        with pytest.raises(RunFailed, match="down"):
            await run.result()
        assert states(await seen(h, run.id)) == ["create done", "check failed", "report skipped"]
        is_broken = False
        await run.recover()
        assert await run.result() == "ada, 7, by ada"
        assert (await facts(run))[1:] == ["check/~/look step done", "report step done"]


async def test_a_run_is_forked_at_a_step(stage: Stage) -> None:
    async with stage.harness(signup()) as h:
        run = await h.start(TYPE, {"name": "ada"})
        await run.send("active", "grace")
        await run.result()
        other = await run.fork("wait_until_active", patch={"welcome": {"name": "bob", "age": 1}})
        await other.send("active", "eve")
        assert await other.result() == "bob, 1, by eve"


async def test_a_cancelled_run_shows_where_it_stopped(stage: Stage) -> None:
    async with stage.harness(signup()) as h:
        run = await h.start(TYPE, {"name": "ada"})
        await h.settle()
        await run.cancel("no")
        assert states(await seen(h, run.id))[2:] == ["wait_until_active cancelled", "report skipped"]


# Changing the steps


async def judged(stage: Stage, app: Registry, run_id: str) -> RunCheck:
    async with stage.harness(app) as h:
        (found,) = [one async for one in h.check() if one.id == run_id]
        return found


async def test_a_step_that_is_added_after_the_cursor_fits(stage: Stage) -> None:
    run_id = await waiting(stage)
    app = signup(create, welcome, wait_until_active, bless, report)
    assert (await judged(stage, app, run_id)).fit is Fit.FITS
    async with stage.harness(app) as h:
        await h.run(run_id).send("active", "grace")
        assert await h.run(run_id).result() == "ada, 7, by grace"
        assert h.executed == ["wait_until_active/~/note", "bless", "report"]


@pytest.mark.parametrize(
    ("steps", "recorded", "requested"),
    [
        ((create, thank, welcome, bless, wait_until_active, report), "welcome (step)", "thank (step)"),
        ((create, bless, wait_until_active, report), "welcome (step)", "bless (step)"),
        ((create, bless, welcome, wait_until_active, report), "welcome (step)", "bless (step)"),
        ((create, welcome, wait_until_active), "bless (step)", "wait_until_active/~/receive:active (message)"),
    ],
    ids=["added", "removed", "reordered", "removed before the wait"],
)
async def test_a_change_before_the_cursor_diverges_and_names_the_step(
    stage: Stage, steps: tuple[Callable[..., Any], ...], recorded: str, requested: str
) -> None:
    run_id = await waiting(stage, create, welcome, bless, wait_until_active, report)
    app = signup(*steps)

    found = await judged(stage, app, run_id)
    assert (found.fit, found.recorded, found.requested) == (Fit.DIVERGES, recorded, requested)
    assert found.hints[0].startswith(f'hf.pipeline("{TYPE}", …)  # with its old steps, until its runs have ended')
    assert not any("ctx." in hint for hint in found.hints)

    async with stage.harness(app) as h:
        await h.run(run_id).wake()
        await h.settle()
        info = await h.run(run_id).info()
        assert info.state is RunState.BLOCKED
        assert (await h.run(run_id).explain()).startswith("At step ")


async def test_an_added_step_is_executed_in_old_runs_of_a_pipeline_that_is_not_strict(stage: Stage) -> None:
    run_id = await waiting(stage)
    steps = (create, bless, welcome, wait_until_active, report)
    assert any("strict=False" in hint for hint in (await judged(stage, signup(*steps), run_id)).hints)
    async with stage.harness(signup(*steps, strict=False)) as h:
        await h.run(run_id).send("active", "grace")
        assert await h.run(run_id).result() == "ada, 7, by grace"
        assert h.executed == ["bless", "wait_until_active/~/note", "report"]


async def test_a_change_inside_a_step_with_a_context_gets_the_hints_of_workflow_code(stage: Stage) -> None:
    async def waits(ctx: Context, account: dict[str, Any]) -> dict[str, Any]:
        await ctx.step("extra", int, "1")
        await ctx.receive("active")
        return account

    waits.__name__ = "wait_until_active"

    async def first(ctx: Context, account: dict[str, Any]) -> dict[str, Any]:
        await ctx.step("look", int, "1")
        await ctx.receive("active")
        return account

    first.__name__ = "wait_until_active"
    run_id = await waiting(stage, create, first)
    found = await judged(stage, signup(create, waits), run_id)
    assert found.recorded == "wait_until_active/~/look (step)"
    assert 'if ctx.version("extra", 2) == 1:' in found.hints[0]


async def test_the_plan_is_that_of_the_last_worker(stage: Stage) -> None:
    run_id = await waiting(stage)
    async with stage.harness(signup(create, welcome, wait_until_active, bless, report)) as h:
        found = await seen(h, run_id)
        assert (found.number, len(found.steps)) == (3, 5)
        (known,) = await h.types.list()
        assert known.plan[3:] == ("bless", "report")
