"""Retention and deletion: ended runs are pruned in due time, and deleted runs are hidden at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from holdfast import (
    ChildFailed,
    Context,
    Fatal,
    InvalidRequest,
    JoinFailed,
    Registry,
    RunBusy,
    RunCancelled,
    RunFailed,
    RunHandle,
    RunNotFound,
    RunState,
)
from holdfast.app import session_of
from holdfast.core.ports import Pruned
from tests.rows import each_row
from tests.stage import Stage

pytestmark = pytest.mark.every_store

MANY = 1_000
DAY_SECONDS = 86_400


def an_app() -> Registry:
    app = Registry()

    @app.task("add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.workflow("wait")
    async def wait(ctx: Context) -> str:
        answer: str = await ctx.receive("go")
        return answer

    @app.workflow("family")
    async def family(ctx: Context, is_waiting: bool) -> int:
        total = await ctx.call("add", {"a": 1, "b": 2}, retention=60)
        await ctx.start("add", {"a": 3, "b": 4}, retention=timedelta(minutes=1))
        await ctx.map("add", [{"a": 5, "b": 6}], retention=60)
        if is_waiting:
            await ctx.receive("go")
        return int(total)

    return app


async def test_a_run_is_kept_for_its_retention_and_its_key_with_it(stage: Stage) -> None:
    async with stage.harness(an_app()) as h:
        run = await h.start("add", {"a": 1, "b": 2}, key="k", retention=timedelta(hours=1))
        usual = await h.start("add", {"a": 1, "b": 2})
        assert await run.result() == 3
        await h.settle()
        await h.advance(3599)
        assert await session_of(h).store.prune(MANY) == Pruned()
        assert not (await h.start("add", {"a": 1, "b": 2}, key="k")).created
        await h.advance(1)
        assert await session_of(h).store.prune(MANY) == Pruned(runs={"add": 1})

        with pytest.raises(RunNotFound):
            await h.run(run.id).result()
        with pytest.raises(RunNotFound):
            await run.recover()
        assert await usual.result() == 3
        again = await h.start("add", {"a": 3, "b": 4}, key="k")
        assert again.created


async def test_many_runs_started_at_once_are_kept_for_their_retention(stage: Stage) -> None:
    async with stage.harness(an_app()) as h:
        runs = await h.start_many("add", [{"a": 1, "b": number} for number in range(5)], retention=60)
        assert [await run.result() for run in runs] == [1, 2, 3, 4, 5]
        await h.advance(60)

        assert await session_of(h).store.prune(MANY) == Pruned(runs={"add": 5})


@each_row("retention", [0, -1, timedelta(0)])
async def test_a_retention_must_be_positive(stage: Stage, retention: float) -> None:
    async with stage.harness(an_app()) as h:
        with pytest.raises(InvalidRequest, match="retention="):
            await h.start("add", {"a": 1, "b": 2}, retention=retention)
        with pytest.raises(InvalidRequest, match="retention="):
            h.worker(retention=retention)


async def test_children_have_their_own_retention(stage: Stage) -> None:
    async with stage.harness(an_app()) as h:
        parent = await h.start("family", {"is_waiting": True})
        await h.settle()
        await h.advance(60)
        assert (await session_of(h).store.prune(MANY)).runs == {"add": 3}
        assert next(entry.location for entry in await parent.history()) == "add"
        await parent.send("go")
        assert await parent.result() == 3


async def test_an_awaited_child_that_did_not_succeed_stays_as_long_as_its_parent(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.sleep(1)
        raise Fatal("no luck")

    @app.workflow
    async def family(ctx: Context) -> None:
        await ctx.start(child, name="forgotten", retention=60)
        started = await ctx.start(child, name="started", retention=60)
        with suppress(ChildFailed):
            await ctx.call(child, name="called", retention=60)
        with suppress(JoinFailed):
            await ctx.map(child, [()], name="mapped", retention=60)
        await started

    async with stage.harness(app) as h:
        parent = await h.start(family, retention=7 * DAY_SECONDS)
        with pytest.raises(RunFailed):
            await parent.result()
        await h.advance(60)
        assert (await session_of(h).store.prune(MANY)).runs == {"child": 1}
        await h.advance(6 * DAY_SECONDS)
        assert (await session_of(h).store.prune(MANY)).runs == {}
        await h.advance(DAY_SECONDS)
        assert (await session_of(h).store.prune(MANY)).runs == {"family": 1}
        await h.advance(DAY_SECONDS)
        assert (await session_of(h).store.prune(MANY)).runs == {"child": 3}


async def test_a_rewound_parent_continues_without_its_pruned_children(stage: Stage) -> None:
    async with stage.harness(an_app()) as h:
        parent = await h.start("family", {"is_waiting": False})
        assert await parent.result() == 3
        await h.advance(60)
        assert await session_of(h).store.prune(MANY) == Pruned(runs={"add": 3})

        assert await parent.rewind("add")
        assert await parent.result() == 3


async def test_a_deleted_run_is_hidden(stage: Stage) -> None:
    async with stage.harness(an_app()) as h:
        run = await h.start("wait", key="k")
        other = await h.start("wait")
        await h.settle()
        by_key: RunHandle[str] = h.run(key="k")

        assert await run.delete()

        run = h.run(run.id)
        for look in (run.info, run.history, run.audit, run.explain, run.result, run.recover, run.delete, by_key.info):
            with pytest.raises(RunNotFound):
                await look()
        with pytest.raises(RunNotFound):
            await run.send("go", 1)
        assert [info.id async for info in h.list()] == [other.id]
        (info,) = [info async for info in h.list(deleted=True)]
        assert (info.id, info.state, info.deleted_at) == (run.id, RunState.CANCELLED, h.now)
        assert (await h.start("wait", key="k")).created
        assert not (await h.start("wait", id=run.id)).created


async def test_callers_that_wait_for_the_result_of_a_deleted_run_get_an_error(stage: Stage) -> None:
    async with stage.harness(an_app()) as h:
        run = await h.start("wait")
        await h.settle()
        waiting = asyncio.ensure_future(run.result())
        await h.settle()

        await run.delete()

        with pytest.raises(RunCancelled, match="deleted"):
            await waiting


async def test_a_held_run_is_deleted_only_by_force_and_writes_nothing_more(stage: Stage) -> None:
    app, began, may_end = Registry(), asyncio.Event(), asyncio.Event()

    @app.workflow
    async def shop(ctx: Context) -> None:
        async def work() -> None:
            began.set()
            await may_end.wait()

        await ctx.step("work", work)

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await began.wait()
        with pytest.raises(RunBusy):
            await run.delete()
        assert await run.delete(force=True)
        may_end.set()
        await h.settle()

        assert [info.state async for info in h.list(deleted=True)] == [RunState.CANCELLED]
        assert await session_of(h).store.history(run.id) in ((), [])


async def test_deleting_a_run_undoes_nothing(stage: Stage) -> None:
    app = Registry()
    undone: list[int] = []

    def charge() -> int:
        return 17

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("charge", charge, undo=undone.append)
        await ctx.receive("go")

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        assert await run.delete()
        await h.settle()

        assert undone == []
        assert [info.state async for info in h.list(deleted=True)] == [RunState.CANCELLED]
        await h.advance(DAY_SECONDS)
        assert await session_of(h).store.prune(MANY) == Pruned(runs={shop.type: 1})


async def test_a_parent_gets_an_error_for_a_child_that_was_deleted(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.receive("go")

    @app.workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(child)
        except Exception as error:  # noqa: BLE001 - the test checks the text of any error
            return str(error)
        raise Fatal("it went on as if nothing had happened")

    async with stage.harness(app) as h:
        run = await h.start(parent)
        await h.settle()
        (info,) = [info async for info in h.list(parent_id=run.id)]

        await h.run(info.id).delete()

        assert "deleted" in await run.result()
