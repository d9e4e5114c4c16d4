"""Lineage: a run that was started under the id of another run is listed there, and the two have no other effect."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Fatal, Registry, RunState
from holdfast.app import session_of
from holdfast.testing.harness import Harness
from tests.stage import Stage

pytestmark = pytest.mark.every_store

DAY_SECONDS = 86_400


@pytest.fixture
def app() -> Registry:
    app = Registry()
    calls: list[None] = []

    @app.workflow("wait")
    async def wait(ctx: Context) -> Any:
        return await ctx.receive("go")

    @app.task("fail")
    def fail() -> None:
        raise Fatal("no")

    @app.workflow("twice")
    async def twice(ctx: Context) -> int:
        def count() -> int:
            calls.append(None)
            if len(calls) == 1:
                raise Fatal("not yet")
            return len(calls)

        return await ctx.step("count", count)

    @app.workflow("again")
    async def again(ctx: Context, round: int) -> int:
        await ctx.receive("go")
        if round == 1:
            await ctx.continue_as_new(2)
        await ctx.step("after", lambda: None)
        return round

    return app


async def under(h: Harness, parent_id: str) -> list[str]:
    return [info.id async for info in h.list(parent_id=parent_id)]


async def test_a_run_is_listed_under_a_parent_that_never_existed(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        run = await h.start("wait", parent_id="of another system")
        await h.settle()

        assert await under(h, "of another system") == [run.id]
        assert (await run.info()).parent_id == "of another system"


async def test_the_end_of_a_run_is_no_arrival_at_its_parent(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        parent = await h.start("wait")
        run = await h.start("fail", parent_id=parent.id)
        await h.settle()

        assert (await run.info()).state is RunState.FAILED
        details = await session_of(h).store.get(parent.id)
        assert details is not None
        assert (details.run.state, details.run.arrivals) == (RunState.SUSPENDED, 0)
        await parent.send("go", 1)
        assert await parent.result() == 1


@pytest.mark.parametrize("end", ["succeed", "cancel", "force", "delete"])
async def test_the_end_of_a_parent_leaves_the_run_alone(stage: Stage, app: Registry, end: str) -> None:
    async with stage.harness(app) as h:
        parent = await h.start("wait")
        run = await h.start("wait", parent_id=parent.id)
        late = await h.start("wait", parent_id=parent.id, delay=60)
        await h.settle()
        if end == "succeed":
            await parent.send("go")
        else:
            await parent.cancel(force=end == "force")
        await h.settle()
        assert (await parent.info()).state.is_end
        if end == "delete":
            await parent.delete()
        await h.advance(61)

        assert [(await one.info()).state for one in (run, late)] == [RunState.SUSPENDED] * 2
        await run.send("go", 3)
        assert await run.result() == 3
        assert sorted(await under(h, parent.id)) == sorted([run.id, late.id])


async def test_a_recovered_parent_leaves_its_failed_run_alone(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        parent = await h.start("twice")
        await h.settle()
        run = await h.start("fail", parent_id=parent.id)
        await h.settle()
        await parent.recover()
        await h.settle()

        assert [(await one.info()).state for one in (parent, run)] == [RunState.SUCCEEDED, RunState.FAILED]
        assert [fact.event for fact in await run.audit()].count("recovered") == 0


async def test_a_recovered_run_does_not_concern_its_parent(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        parent = await h.start("wait")
        run = await h.start("twice", parent_id=parent.id)
        await h.settle()
        await run.recover()
        await h.settle()

        assert await run.result() == 2
        assert (await parent.info()).state is RunState.SUSPENDED
        assert await under(h, parent.id) == [run.id]


async def test_a_rewound_or_continued_parent_leaves_the_run_alone(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        parent = await h.start("again", {"round": 1})
        run = await h.start("wait", parent_id=parent.id)
        await h.settle()
        await parent.send("go")
        await h.settle()
        await parent.send("go")
        assert await parent.result() == 2
        await parent.rewind("after")
        await h.settle()

        assert (await run.info()).state is RunState.SUSPENDED
        assert await under(h, parent.id) == [run.id]


async def test_a_fork_has_no_parent(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        run = await h.start("again", {"round": 2}, parent_id="p")
        await h.settle()
        await run.send("go")
        await run.result()
        fork = await run.fork("after")

        assert (await fork.info()).parent_id is None
        assert await under(h, "p") == [run.id]


async def test_a_failed_run_is_pruned_before_its_parent_and_after_it(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        parent = await h.start("wait")
        await h.start("fail", parent_id=parent.id, retention=DAY_SECONDS)
        late = await h.start("wait", parent_id=parent.id)
        await h.settle()
        await h.advance(2 * DAY_SECONDS)
        await session_of(h).store.prune(100)
        assert await under(h, parent.id) == [late.id]

        await parent.send("go")
        await h.settle()
        await h.advance(40 * DAY_SECONDS)
        await session_of(h).store.prune(100)

        assert await under(h, parent.id) == [late.id]
        await late.send("go", 5)
        assert await late.result() == 5


async def test_runs_may_name_themselves_and_each_other(stage: Stage, app: Registry) -> None:
    async with stage.harness(app) as h:
        itself = await h.start("wait", id="a", parent_id="a")
        one = await h.start("wait", id="b", parent_id="c")
        other = await h.start("wait", id="c", parent_id="b")
        await h.settle()
        exported = [line async for line in h.export()]
        for run in (itself, one, other):
            await run.cancel()
        await h.settle()

        assert len(exported) > 3
        assert [(await run.info()).state for run in (itself, one, other)] == [RunState.CANCELLED] * 3
