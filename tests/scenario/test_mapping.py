"""Maps: many children of one type, created in bulk and awaited as one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, InvalidRequest, JoinFailed, Registry, RunHandle, RunState
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from holdfast.testing.patience import guarded
from tests.duration import lasting
from tests.stage import Stage, facts

app = Registry()


@app.task("map.double.v1")
def double(n: int) -> int:
    return 2 * n


@app.workflow("map.add.v1")
async def add(ctx: Context, a: int, b: int) -> int:
    await ctx.sleep(a)
    return a + b


@app.workflow("map.odd.v1")
async def odd(ctx: Context, n: int) -> int:
    await ctx.sleep(n)
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n


@app.workflow("map.wait.v1")
async def wait(ctx: Context, n: int) -> Any:
    return [n, await ctx.receive("go")]


def parent_of(**options: Any) -> Registry:
    """An application whose workflow `parent` maps over its items."""
    local = Registry()
    local.include(app)

    @local.workflow("parent")
    async def parent(ctx: Context, type: str, payloads: list[Any]) -> Any:
        try:
            return await ctx.map(type, payloads, **options)
        except JoinFailed as failure:
            errors = {str(index): str(error) for index, error in failure.errors.items()}
            return [{str(index): result for index, result in failure.results.items()}, errors]

    return local


@pytest.fixture
def three_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the children that one checkpoint creates to three."""
    monkeypatch.setattr("holdfast.runner.pending_checkpoint.CHILDREN_AT_ONCE", 3)


@pytest.mark.every_store
async def test_a_map_returns_the_results_in_the_order_of_its_items(stage: Stage) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def parent(ctx: Context) -> Any:
        return [
            await ctx.map(double, [3, 1, 2]),
            await ctx.map(add, [(3, 1), (1, 1)], name="sums"),
            await ctx.map(double, []),
        ]

    async with stage.harness(local) as h:
        run = await h.start(parent)
        assert await run.result() == [[6, 2, 4], [4, 2], []]
        assert sorted(await facts(run)) == [
            "map.double.v1/0 child done",
            "map.double.v1/1 child done",
            "map.double.v1/2 child done",
            "sums/0 child done",
            "sums/1 child done",
        ]


async def test_a_map_collects_failures_by_index(stage: Stage) -> None:
    async with stage.harness(parent_of()) as h:
        payloads = [{"n": n} for n in range(4)]
        results, errors = await h.execute("parent", {"type": "map.odd.v1", "payloads": payloads})
        assert results == {"0": 0, "2": 2}
        assert errors.keys() == {"1", "3"}
        assert "1 is odd" in errors["1"]


async def test_the_parent_of_many_children_is_woken_once(stage: Stage) -> None:
    async with stage.harness(parent_of()) as h:
        payloads = [{"a": n % 7 + 1, "b": 1} for n in range(300)]
        run = await h.start("parent", {"type": "map.add.v1", "payloads": payloads})
        assert await run.result() == [n % 7 + 2 for n in range(300)]
        assert [fact.event for fact in await run.audit()].count("woken") == 1


@pytest.mark.long
async def test_children_are_created_a_thousand_at_a_time(stage: Stage) -> None:
    created: list[int] = []

    class Counting(FaultyStore):
        def checkpoint(self, checkpoints: Any) -> Any:
            created.extend(len(one.children) for one in checkpoints if one.children)
            return super().checkpoint(checkpoints)

    async with stage.harness(parent_of(), wrap=Counting) as h:
        payloads = [{"n": n} for n in range(2_500)]
        assert await h.execute("parent", {"type": "map.double.v1", "payloads": payloads}) == [
            2 * n for n in range(2_500)
        ]
        assert created == [1_000, 1_000, 500]


async def test_with_a_limit_at_most_that_number_of_children_run_at_once_and_in_order(stage: Stage) -> None:
    async with stage.harness(parent_of(limit=2)) as h:
        run = await h.start("parent", {"type": "map.wait.v1", "payloads": [{"n": n} for n in range(5)]})
        await h.settle()
        for n in range(5):
            children = {info.payload["n"]: info async for info in h.list(parent_id=run.id)}
            begun = [number for number, info in children.items() if info.state is not RunState.PENDING]
            assert sorted(begun) == list(range(min(5, n + 2)))
            if n < 3:
                waiting = children[n + 2]
                assert [wait.kind.value for wait in waiting.waits] == ["slot"]
                assert "because of the limit of the map" in await h.run(waiting.id).explain()
            await h.run(children[n].id).send("go", n * 10)
            await h.settle()
        assert await run.result() == [[n, n * 10] for n in range(5)]


async def test_a_child_that_waits_for_its_slot_can_be_cancelled_and_takes_no_slot(stage: Stage) -> None:
    async with stage.harness(parent_of(limit=1)) as h:
        run = await h.start("parent", {"type": "map.wait.v1", "payloads": [{"n": n} for n in range(3)]})
        await h.settle()
        children = {info.payload["n"]: info.id async for info in h.list(parent_id=run.id)}
        await h.run(children[1]).cancel("not needed")
        await h.settle()
        assert (await h.run(children[2]).info()).state is RunState.PENDING
        await h.run(children[0]).send("go", 1)
        await h.settle()
        await h.run(children[2]).send("go", 2)
        results, errors = await run.result()
        assert results == {"0": [0, 1], "2": [2, 2]}
        assert "not needed" in errors["1"]


async def test_children_are_cancelled_with_the_map_that_waits_for_them(stage: Stage) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def parent(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await ctx.map(wait, [1, 2, 3], limit=2)
        except TimeoutError:
            await ctx.sleep(1)
        return "timed out"

    async with stage.harness(local) as h:
        run = await h.start(parent)
        assert await run.result() == "timed out"
        assert {info.state async for info in h.list(parent_id=run.id)} == {RunState.CANCELLED}


@pytest.mark.usefixtures("three_at_once")
async def test_a_map_that_is_cancelled_before_all_its_children_exist_leaves_none_behind(stage: Stage) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def parent(ctx: Context) -> None:
        async def many(ctx: Context) -> list[Any]:
            return await ctx.map(wait, list(range(8)))

        async def none(ctx: Context) -> None:
            return

        await ctx.race("either", {"many": many, "none": none})
        await ctx.receive("end")

    async with stage.harness(local) as h:
        run = await h.start(parent)
        await h.settle()
        assert [info.state async for info in h.list(parent_id=run.id)] == 8 * [RunState.CANCELLED]


@pytest.mark.usefixtures("three_at_once")
async def test_children_of_the_next_checkpoint_get_messages_sent_to_them(stage: Stage) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def parent(ctx: Context) -> list[Any]:
        children = [await ctx.start(wait, n, name=f"child {n}") for n in range(8)]
        for n, child in enumerate(children):
            await child.send("go", n * 10)
        return [await child for child in children]

    async with stage.harness(local) as h:
        run = await h.start(parent)
        await h.settle()
        assert await run.result() == [[n, n * 10] for n in range(8)]


@pytest.mark.usefixtures("three_at_once")
@pytest.mark.parametrize("number", range(2, 6))
async def test_slots_are_handed_on_even_if_the_parent_crashed_while_it_created_children(
    stage: Stage, number: int
) -> None:
    stores: list[FaultyStore] = []

    def faulty(store: Any) -> FaultyStore:
        stores.append(FaultyStore(store))
        stores[0].crash(number, when="after")
        return stores[0]

    async with stage.harness(parent_of(limit=2), wrap=faulty) as h:
        run = await h.start("parent", {"type": "map.double.v1", "payloads": [{"n": n} for n in range(8)]})
        await guarded("the worker is cut off", stores[0].crashed.wait())
        await h.crash_worker()
        stores[0].revive()
        await h.start_worker()
        await h.advance(3600)
        assert (await run.info()).state is RunState.SUCCEEDED


async def open_children(h: Harness, run: RunHandle[Any]) -> dict[int, bool]:
    """Return the children that have not ended, and whether each has its slot."""
    infos = [info async for info in h.list(parent_id=run.id) if not info.state.is_end]
    return {info.payload["n"]: not any(wait.kind == "slot" for wait in info.waits) for info in infos}


async def tell(h: Harness, run: RunHandle[Any], *numbers: int) -> None:
    """Let children end."""
    async for info in h.list(parent_id=run.id):
        if not info.state.is_end and info.payload["n"] in numbers:
            await h.run(info.id).send("go", "on")
    await h.settle()


@pytest.mark.parametrize("how", ["cancelled", "too long"])
async def test_a_map_with_a_limit_continues_after_its_run_was_recovered(stage: Stage, how: str) -> None:
    async with stage.harness(parent_of(limit=2)) as h:
        limits: dict[str, Any] = {"max_run": 3600} if how == "too long" else {}
        run = await h.start("parent", {"type": "map.wait.v1", "payloads": [{"n": n} for n in range(5)]}, **limits)
        await h.settle()
        await tell(h, run, 0)
        await tell(h, run, 1, 2)
        if how == "cancelled":
            await run.cancel()
        else:
            await h.advance(3700)
        assert (await run.info()).state is RunState.CANCELLED

        await run.recover()
        await h.settle()

        assert await open_children(h, run) == {3: True, 4: True}
        await tell(h, run, 3, 4)
        assert await run.result() == [[n, "on"] for n in range(5)]


@pytest.mark.parametrize(("limit", "location"), [(1, "map.wait.v1/0"), (2, "map.wait.v1/1"), (2, "map.wait.v1/0")])
async def test_a_map_keeps_its_limit_after_its_run_was_rewound(stage: Stage, limit: int, location: str) -> None:
    async with stage.harness(parent_of(limit=limit)) as h:
        run = await h.start("parent", {"type": "map.wait.v1", "payloads": [{"n": n} for n in range(4)]})
        await h.settle()
        for number in range(limit):
            await tell(h, run, number)
        await run.wake()
        await h.settle()

        await run.rewind(location)
        await h.settle()

        assert sum((await open_children(h, run)).values()) == limit
        while children := await open_children(h, run):
            await tell(h, run, *(number for number, has_slot in children.items() if has_slot))
            assert sum((await open_children(h, run)).values()) <= limit
        assert await run.result() == [[n, "on"] for n in range(4)]


async def test_an_invalid_map_is_refused_at_the_call(stage: Stage) -> None:
    local = Registry()
    local.include(app)

    @local.workflow
    async def parent(ctx: Context) -> Any:
        refusals = []
        calls: list[tuple[Any, list[Any], dict[str, Any]]] = [
            (double, [1], {"limit": 0}),
            (double, [(1, 2)], {}),
            (double, [1], {"key": "k"}),
            (double, [1], {"on_close": "maybe"}),
            (len, [1], {}),
        ]
        for workflow, items, options in calls:
            try:
                await ctx.map(workflow, items, **options)
            except InvalidRequest as error:
                refusals.append(str(error))
        return refusals

    async with stage.harness(local) as h:
        run = await h.start(parent)
        limit, arguments, option, policy, function = await run.result()
        assert "limit=0" in limit
        assert "takes 1 arguments" in arguments
        assert "unknown option key" in option
        assert "on_close='maybe'" in policy
        assert "not a workflow or task" in function
        assert await facts(run) == []


pytestmark = lasting(10)
