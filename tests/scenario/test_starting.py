"""Starting runs: ids, keys, many at once, delays, priorities, tags, names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Context,
    Holdfast,
    InvalidRequest,
    KeyConflict,
    Registry,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunState,
)
from tests.stage import Stage

app = Registry()


@app.workflow("shop.order.v1")
async def order(ctx: Context, number: int, note: str = "none") -> str:
    return f"{number}:{note}"


@app.workflow("shop.fragile.v1")
async def fragile(ctx: Context, fails: bool) -> str:
    if fails:
        raise ValueError("out of stock")
    return "sold"


@app.workflow("shop.waiting.v1")
async def waiting(ctx: Context) -> Any:
    return await ctx.receive("go")


@pytest.mark.every_store
async def test_a_start_returns_a_run_that_ends_with_the_workflows_result(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(order, 7)
        assert run.created
        assert await run.result() == "7:none"
        assert await h.execute(order, 8, "gift") == "8:gift"


async def test_a_run_may_be_started_by_name_with_a_payload_of_parameters_by_name(stage: Stage) -> None:
    async with stage.harness(app) as h:
        assert await h.execute("shop.order.v1", {"number": 3, "note": "by name"}) == "3:by name"


async def test_accepted_means_durable_even_if_no_process_knows_the_type(stage: Stage) -> None:
    async with stage.harness() as h:
        run = await h.start("elsewhere.job.v1", {"x": 1})
        assert (await run.info()).state is RunState.PENDING
    async with stage.harness() as again:
        info = await again.run(run.id).info()
        assert (info.type, info.payload, info.state) == ("elsewhere.job.v1", {"x": 1}, RunState.PENDING)


async def test_an_id_given_by_the_caller_names_the_run_and_a_second_start_never_touches_it(stage: Stage) -> None:
    async with stage.harness(app) as h:
        first = await h.start(order, 1, id="my-run")
        again = await h.start(order, 2, id="my-run")
        assert (first.id, first.created, again.id, again.created) == ("my-run", True, "my-run", False)
        assert await again.result() == "1:none"


async def test_the_same_key_and_payload_is_the_same_run_also_after_its_end(stage: Stage) -> None:
    async with stage.harness(app) as h:
        first = await h.start(order, 1, key="order-1")
        twin = await h.start(order, 1, key="order-1")
        await first.result()
        late = await h.start(order, 1, key="order-1")
        assert {first.id, twin.id, late.id} == {first.id}
        assert [first.created, twin.created, late.created] == [True, False, False]


async def test_the_same_key_with_another_payload_is_a_conflict_that_names_the_run(stage: Stage) -> None:
    async with stage.harness(app) as h:
        first = await h.start(order, 1, key="order-1")
        with pytest.raises(KeyConflict, match="order-1") as conflict:
            await h.start(order, 2, key="order-1")
        assert conflict.value.run_id == first.id
        with pytest.raises(KeyConflict):
            await h.start(fragile, False, key="order-1")  # noqa: FBT003 - the workflow's own argument


async def test_a_key_is_free_again_after_a_failure_only_if_the_caller_says_so(stage: Stage) -> None:
    async with stage.harness(app) as h:
        failed = await h.start("shop.fragile.v1", {"fails": True}, key="k")
        with pytest.raises(RunFailed):
            await failed.result()
        assert not (await h.start("shop.fragile.v1", {"fails": True}, key="k")).created
        second = await h.start("shop.fragile.v1", {"fails": False}, key="k", reuse="after_failure")
        assert second.created
        assert await second.result() == "sold"
        kept = await h.start("shop.fragile.v1", {"fails": False}, key="k", reuse="after_failure")
        assert (kept.id, kept.created) == (second.id, False)
        third = await h.start("shop.fragile.v1", {"fails": False}, key="k", reuse="after_end")
        assert third.created
        assert (await h.run(key="k").info()).id == third.id


async def test_a_cancelled_run_counts_as_a_failure_for_the_reuse_of_its_key(stage: Stage) -> None:
    async with stage.harness(app) as h:
        first = await h.start(waiting, key="k")
        await first.cancel("not needed")
        with pytest.raises(RunCancelled):
            await first.result()
        assert (await h.start(waiting, key="k", reuse="after_failure")).created


async def test_a_live_run_keeps_its_key_whatever_the_reuse(stage: Stage) -> None:
    async with stage.harness(app) as h:
        first = await h.start(waiting, key="k")
        again = await h.start(waiting, key="k", reuse="after_end")
        assert (again.id, again.created) == (first.id, False)


async def test_start_many_starts_all_runs_in_one_call(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await h.start_many(order, [(n, "many") for n in range(50)])
        assert [await run.result() for run in runs] == [f"{n}:many" for n in range(50)]
        named = await h.start_many("shop.order.v1", [{"number": 1}, {"number": 2}])
        assert [await run.result() for run in named] == ["1:none", "2:none"]


async def test_start_many_takes_one_key_for_each_and_the_same_key_twice_is_one_run(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await h.start_many(order, [(1, "x"), (2, "x"), (1, "x")], keys=["a", "b", "a"])
        assert [run.created for run in runs] == [True, True, False]
        assert runs[0].id == runs[2].id
        with pytest.raises(InvalidRequest, match="2 sets of arguments, but 1 keys"):
            await h.start_many(order, [(1, "x"), (2, "x")], keys=["a"])


async def test_start_many_creates_nothing_if_one_key_conflicts_and_names_its_index(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.start(order, 9, key="taken")
        with pytest.raises(KeyConflict) as conflict:
            await h.start_many(order, [(1, "x"), (2, "x"), (3, "x")], keys=["a", "taken", "c"])
        assert conflict.value.index == 1
        for key in ("a", "c"):
            with pytest.raises(RunNotFound, match=key):
                await h.run(key=key).info()


async def test_a_delayed_run_starts_at_its_time_and_not_before(stage: Stage) -> None:
    async with stage.harness(app) as h:
        begun = h.now
        run = await h.start(order, 1, delay=timedelta(hours=1))
        at = await h.start(order, 2, ready_at=begun + timedelta(hours=2))
        await h.advance(3599)
        assert (await run.info()).state is RunState.PENDING
        await h.advance(1)
        assert (await run.info()).state is RunState.SUCCEEDED
        assert (await at.info()).state is RunState.PENDING
        assert await at.result() == "2:none"
        assert h.now - begun == timedelta(hours=2)


async def test_runs_are_claimed_by_priority_lower_first_then_by_age(stage: Stage) -> None:
    begun: list[str] = []
    local = Registry()

    @local.workflow
    async def job(ctx: Context, name: str) -> None:
        await ctx.step("note", begun.append, name)

    async with stage.harness(local) as h:
        await h.stop_worker()
        for name, priority in [("late", 200), ("first", 100), ("urgent", 0), ("second", 100)]:
            await h.start(job, name, priority=priority)
            await h.advance(1)
        worker = h._local_workers.make(clock=h.clock, poll=None, has_heart=False, concurrency=1)
        await worker.run_until_idle()
    assert begun == ["urgent", "first", "second", "late"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": 256}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"key": ""}, "key"),
        ({"key": "x" * 501}, "key"),
        ({"key": "nul\0"}, "key"),
        ({"delay": -1}, "delay"),
        ({"delay": float("nan")}, "length of time"),
        ({"tags": {"a": 1}}, "tag"),
        ({"reuse": "sometimes"}, "reuse"),
        ({"colour": "red"}, "colour"),
        ({"id": ""}, "run id"),
    ],
)
async def test_an_impossible_start_is_refused_before_anything_is_stored(options: Any, words: str) -> None:
    stage = Stage("memory", None)  # type: ignore[arg-type]  # no file is made
    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match=words):
            await h.start(order, 1, **options)
        assert [info async for info in h.list()] == []


async def test_a_payload_that_does_not_fit_the_function_is_refused_at_the_start(stage: Stage) -> None:
    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match="number"):
            await h.start("shop.order.v1", {"number": "seven"})
        with pytest.raises(InvalidRequest, match="colour"):
            await h.start("shop.order.v1", {"number": 7, "colour": "red"})
        with pytest.raises(InvalidRequest, match="is missing arguments: number"):
            await h.start(order)  # type: ignore[call-arg, arg-type]
        with pytest.raises(InvalidRequest, match="is not a workflow"):
            await h.start(print, "x")  # type: ignore[call-overload]


async def test_a_payload_that_no_longer_fits_the_function_fails_the_run_with_the_reason(stage: Stage) -> None:
    async with stage.harness() as producer:  # it does not know the workflow, so it cannot check
        run = await producer.start("shop.order.v1", {"number": "seven"})
    async with stage.harness(app) as h:
        with pytest.raises(RunFailed, match="number") as failure:
            await h.run(run.id).result()
        assert failure.value.type == "InvalidRequest"


async def test_a_result_that_does_not_come_in_time_says_why() -> None:
    async with Holdfast("memory://") as hf:
        run = await hf.start("elsewhere.v1", {})

        with pytest.raises(TimeoutError, match=rf"run {run.id} has not ended after 0.01 s. Ready since "):
            await run.result(timeout=0.01)


async def test_a_key_in_place_of_an_id_is_recognised() -> None:
    async with Holdfast("memory://") as hf:
        with pytest.raises(RunNotFound, match=r"there is no run key:a; did you mean hf.run\(key='a'\)\?"):
            await hf.run("key:a").info()
