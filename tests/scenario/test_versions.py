"""New code under live runs: `version` keeps old runs on the old path, and strict code accepts no other change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Break, Context, Continue, InvalidRequest, Retry
from tests.scenario.deploy import blocked, deployed, old, one, recorded, shop
from tests.stage import Stage, facts


async def new(ctx: Context) -> str:
    await ctx.step("charge", one)
    if ctx.version("packing", 2) == 1:
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "old"
    await ctx.step("wrap", one)
    await ctx.receive("go")
    return "new"


# Versions


@pytest.mark.every_store
async def test_a_run_that_passed_the_change_keeps_the_old_path(stage: Stage) -> None:
    run_id = await recorded(stage, old)
    assert await deployed(stage, new, run_id) == ("old", [])


async def test_a_run_that_starts_later_takes_the_new_path(stage: Stage) -> None:
    run_id = await recorded(stage, new)
    assert await deployed(stage, new, run_id) == ("new", [])


async def test_a_run_that_had_not_reached_the_change_takes_the_new_path(stage: Stage) -> None:
    async def early(ctx: Context) -> str:
        await ctx.receive("start")
        return await old(ctx)

    async def later(ctx: Context) -> str:
        await ctx.receive("start")
        return await new(ctx)

    run_id = await recorded(stage, early)
    async with stage.harness(shop(later)) as h:
        await h.run(run_id).send("start")
        await h.run(run_id).send("go")
        assert await h.run(run_id).result() == "new"
        assert await facts(h.run(run_id)) == [
            "receive:start message done",
            "charge step done",
            "version:packing version done",
            "wrap step done",
            "receive:go message done",
        ]


async def test_a_failed_attempt_of_a_step_shows_that_the_run_passed_the_change(stage: Stage) -> None:
    def broken() -> None:
        raise OSError("busy")

    async def trying(ctx: Context) -> None:
        await ctx.step("charge", one)
        await ctx.step("pack", broken, retry=Retry(max_attempts=9, initial=3600, jitter=0))

    run_id = await recorded(stage, trying)
    async with stage.harness(shop(new)) as h:
        await h.run(run_id).send("go")
        assert await h.run(run_id).result() == "old"


async def test_the_recorded_version_stays_whatever_code_is_deployed_next(stage: Stage) -> None:
    async def asking(latest: int) -> Any:
        async def code(ctx: Context) -> int:
            found = ctx.version("way", latest)
            await ctx.receive("go")
            return found

        return code

    run_id = await recorded(stage, await asking(2))
    assert await deployed(stage, await asking(3), run_id) == (2, [])


async def test_code_that_does_not_know_the_recorded_version_is_a_divergence(stage: Stage) -> None:
    async def third(ctx: Context) -> int:
        found = ctx.version("way", 3)
        await ctx.receive("go")
        return found

    async def second(ctx: Context) -> int:
        found = ctx.version("way", 2)
        await ctx.receive("go")
        return found

    run_id = await recorded(stage, third)
    async with stage.harness(shop(second)) as h:
        info = await blocked(h, run_id)
        assert "the history has version 3, but the code knows versions 1 to 2" in str(info.error)


async def test_a_version_may_be_awaited(stage: Stage) -> None:
    async def code(ctx: Context) -> Any:
        awaited, plain = await ctx.version("a", 2), ctx.version("b", 3)
        await ctx.receive("go")
        return [awaited, plain, type(awaited).__name__, plain >= 3]

    run_id = await recorded(stage, code)
    assert await deployed(stage, code, run_id) == ([2, 3, "int", True], [])


async def test_each_branch_has_its_own_versions(stage: Stage) -> None:
    async def before(ctx: Context, name: str) -> str:
        await ctx.step("look", one)
        await ctx.receive(name)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "old"

    async def after(ctx: Context, name: str) -> str:
        await ctx.step("look", one)
        await ctx.receive(name)
        way = ctx.version("packing", 2)
        if way == 1:
            await ctx.step("pack", one)
        await ctx.receive("go")
        return f"{name} {way}"

    async def both_before(ctx: Context) -> Any:
        return list(await asyncio.gather(before(ctx, "a"), before(ctx, "b")))

    async def both_after(ctx: Context) -> Any:
        return list(await asyncio.gather(after(ctx, "a"), after(ctx, "b")))

    async with stage.harness(shop(both_before)) as h:
        run = await h.start("shop.v1")
        await run.send("a")
        await h.settle()
        assert "+1/pack step done" in await facts(run)
    async with stage.harness(shop(both_after)) as h:
        await h.run(run.id).send("b")
        await h.run(run.id).send("go")
        await h.run(run.id).send("go")
        assert await h.run(run.id).result() == ["a 1", "b 2"]


async def test_a_second_version_of_one_name_in_a_scope_is_separate(stage: Stage) -> None:
    async def code(ctx: Context) -> Any:
        found = [ctx.version("way", 2) for _ in range(2)]
        await ctx.receive("go")
        return found

    run_id = await recorded(stage, code)
    async with stage.harness(shop(code)) as h:
        assert await facts(h.run(run_id)) == ["version:way version done", "version:way#2 version done"]


async def test_asking_for_a_version_does_not_renumber_a_step_of_its_name(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.version("charge", 2)
        return await old(ctx)

    run_id = await recorded(stage, old)
    assert await deployed(stage, after, run_id) == ("old", [])


async def test_a_value_set_after_a_version_is_not_published_again_on_replay(stage: Stage) -> None:
    async def before(ctx: Context) -> str:
        ctx.set_value("progress", "begun")
        await ctx.step("charge", one)
        ctx.set_value("progress", "charged")
        await ctx.receive("go")
        return "done"

    async def after(ctx: Context) -> str:
        ctx.version("way", 2)
        ctx.set_value("progress", "begun")
        await ctx.step("charge", one)
        ctx.set_value("progress", "charged")
        await ctx.receive("go")
        await ctx.receive("more")
        ctx.set_value("progress", "more")
        await ctx.receive("end")
        return "done"

    run_id = await recorded(stage, before)
    async with stage.harness(shop(after)) as h:
        run = h.run(run_id)
        await run.send("go")
        await h.settle()
        assert await run.value("progress") == "charged"
        await run.send("more")
        await h.settle()
        assert await run.value("progress") == "more"


@pytest.mark.parametrize("latest", [0, -1, True, 1.5, "2", None])
async def test_a_latest_version_that_is_not_a_positive_integer_is_refused(stage: Stage, latest: Any) -> None:
    async def code(ctx: Context) -> str:
        with pytest.raises(InvalidRequest, match="latest must be a whole number of at least 1"):
            ctx.version("way", latest)
        return "refused"

    async with stage.harness(shop(code)) as h:
        assert await h.execute("shop.v1") == "refused"


# Strict


async def test_strict_code_may_not_insert_a_step_before_the_end_of_a_history(stage: Stage) -> None:
    async def more(ctx: Context) -> str:
        await ctx.step("charge", one)
        await ctx.step("check", one)
        await ctx.step("pack", one)
        await ctx.receive("go")
        return "more"

    run_id = await recorded(stage, old)
    async with stage.harness(shop(more)) as h:
        info = await blocked(h, run_id)
        assert "the next recorded result is that of 'pack'" in str(info.error)
        assert h.executed == []


async def test_strict_code_may_not_change_the_order_of_steps(stage: Stage) -> None:
    async def swapped(ctx: Context) -> str:
        await ctx.step("pack", one)
        await ctx.step("charge", one)
        await ctx.receive("go")
        return "swapped"

    run_id = await recorded(stage, old)
    async with stage.harness(shop(swapped)) as h:
        info = await blocked(h, run_id)
        assert "the next recorded result is that of 'charge'" in str(info.error)
    assert await deployed(stage, swapped, run_id, strict=False) == ("swapped", [])


async def test_strict_code_may_not_drop_an_operation_that_was_only_started(stage: Stage) -> None:
    async def before(ctx: Context) -> str:
        ctx.start("other.v1")
        await ctx.receive("go")
        return "old"

    async def after(ctx: Context) -> int:
        return await ctx.step("charge", one)

    run_id = await recorded(stage, before)
    async with stage.harness(shop(after)) as h:
        info = await blocked(h, run_id)
        assert "continues without an operation that the history has begun" in str(info.error)
        assert h.executed == []


async def test_strict_code_may_use_versions_and_removed_operations(stage: Stage) -> None:
    async def after(ctx: Context) -> str:
        ctx.removed("charge", "step")
        if ctx.version("packing", 2) == 1:
            await ctx.step("pack", one)
        await ctx.receive("go")
        return "new"

    run_id = await recorded(stage, old)
    assert await deployed(stage, after, run_id) == ("new", [])


async def test_strict_code_that_fits_continues(stage: Stage) -> None:
    run_id = await recorded(stage, old)
    assert await deployed(stage, old, run_id) == ("old", [])


async def test_strict_code_with_branches_loops_and_children_fits_itself(stage: Stage) -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        ctx.version("way", 2)
        await ctx.step("look", one)
        await ctx.race("race", {"slow": slow, "quick": quick})
        return Break(count) if count == 7 else Continue(count + 1)

    async def slow(ctx: Context) -> None:
        await ctx.sleep(5)

    async def quick(ctx: Context) -> None:
        await asyncio.sleep(1)

    async def loop(ctx: Context) -> int:
        found = await ctx.loop("loop", body, 0, keep=2, every=2)
        assert isinstance(found, int)
        return found

    async def code(ctx: Context) -> Any:
        found = await ctx.join("join", {"loop": loop, "slow": slow, "map": children})
        await ctx.step("pack", one)
        ctx.removed("other", "step")
        await ctx.receive("go")
        return found

    async def children(ctx: Context) -> Any:
        return await ctx.map("quick.v1", [{"number": number} for number in range(3)], name="map")

    async with stage.harness(shop(code)) as h:
        run = await h.start("shop.v1")
        await h.settle()
        await h.advance(30)
        assert "pack step done" in await facts(run), await run.info()
    assert await deployed(stage, code, run.id) == ({"loop": 7, "slow": None, "map": [0, 1, 2]}, [])


# In loops


async def test_each_iteration_of_a_loop_has_its_own_version(stage: Stage) -> None:
    ways: list[int] = []

    async def old_body(ctx: Context, ways: list[int]) -> Continue[list[int]]:
        await ctx.step("charge", one)
        await ctx.receive("go")
        return Continue([*ways, 0])

    async def new_body(ctx: Context, ways: list[int]) -> Continue[list[int]] | Break[list[int]]:
        way = ctx.version("charging", 2)
        await ctx.step("charge" if way == 1 else "bill", one)
        await ctx.receive("go")
        return Break([*ways, way]) if len(ways) == 3 else Continue([*ways, way])

    async def before(ctx: Context) -> Any:
        return await ctx.loop("loop", old_body, ways, every=1)

    async def after(ctx: Context) -> Any:
        return await ctx.loop("loop", new_body, ways, every=1)

    async with stage.harness(shop(before)) as h:
        run = await h.start("shop.v1")
        await run.send("go")
        await h.settle()
        assert "loop/~2/charge step done" in await facts(run)
    async with stage.harness(shop(after)) as h:
        for _ in range(3):
            await h.run(run.id).send("go")
        assert await h.run(run.id).result() == [0, 1, 2, 2]
        assert h.executed == ["loop/~3/bill", "loop/~4/bill"]
