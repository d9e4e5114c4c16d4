"""Selections: many runs changed together, with a report of the changed and skipped ones and the reasons."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Fatal, Holdfast, InvalidRequest, Registry, RunHandle, RunState, StoreUnavailable
from holdfast.app import session_of
from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.testing.harness import Harness
from tests.stage import Stage

VERBS = ["cancel", "pause", "resume", "wake", "recover", "rewind", "delete"]

app = Registry()
broken = {"is_broken": True}


@app.step
async def charge(order: int) -> int:
    return order


@app.workflow("shop.order.v1")
async def order(ctx: Context, number: int) -> Any:
    await charge(number)
    return await ctx.receive("approve")


@app.workflow("shop.sum.v1")
async def add(ctx: Context, number: int) -> int:
    return number


@app.workflow("shop.broken.v1")
async def fail(ctx: Context, number: int) -> int:
    if broken["is_broken"]:
        raise Fatal("it is broken")
    return number


@pytest.fixture(autouse=True)
def _broken() -> None:
    broken["is_broken"] = True


async def three_orders(h: Harness) -> list[RunHandle[Any]]:
    """Start orders that wait for their approval."""
    runs = await h.start_many(order, [(1,), (2,), (3,)], tags={"shop": "x"})
    await h.settle()
    return runs


async def states(runs: list[RunHandle[Any]]) -> list[str]:
    return [(await run.info()).state.value for run in runs]


@pytest.mark.every_store
async def test_every_matching_run_is_changed_and_its_audit_names_the_actor(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await three_orders(h)
        other = await h.start(order, 4)
        await h.settle()
        steps: list[tuple[int, int]] = []

        report = await h.runs(type="shop.order.v1", tags={"shop": "x"}).pause(
            "closed", by="ada", progress=lambda done, total: steps.append((done, total))
        )

        assert (report.changed, report.skipped, report.reasons, report.is_dry_run) == (3, 0, {}, False)
        assert [run.id for run in report.runs] == [run.id for run in reversed(runs)]  # newest first
        assert {run.state for run in report.runs} == {RunState.SUSPENDED}  # their state before the change
        assert steps == [(1, 3), (2, 3), (3, 3)]
        assert await states(runs) == ["paused"] * 3
        assert (await other.info()).state is RunState.SUSPENDED
        assert [(fact.event, fact.by) for fact in await runs[0].audit()][-1] == ("paused", "ada")
        assert (await h.runs(state="paused").resume(by="ada")).changed == 3


@pytest.mark.every_store
async def test_runs_that_cannot_be_changed_are_counted_by_reason(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await three_orders(h)
        done = await h.start(add, 1)
        await done.result()
        await runs[0].pause()

        report = await h.runs(type="shop.*").pause()

        assert (report.changed, report.skipped) == (2, 2)
        assert report.reasons == {"had ended already": 1, "is paused already, or about to be": 1}
        assert {run.id: run.why for run in report.runs if run.why} == {
            done.id: f"run {done.id} had ended already",
            runs[0].id: f"run {runs[0].id} is paused already, or about to be",
        }
        assert not any(run.is_refused for run in report.runs)


@pytest.mark.every_store
@pytest.mark.parametrize("verb", VERBS)
async def test_a_dry_run_reports_the_same_and_changes_nothing(stage: Stage, verb: str) -> None:
    async with stage.harness(app) as h:
        runs: list[RunHandle[Any]] = await three_orders(h)
        failed = await h.start(fail, 1)
        ended = await h.start(add, 1)
        await h.settle()
        await runs[0].pause()
        before = {run.id: (await run.info(), len(await run.audit())) for run in (*runs, failed, ended)}
        words = ["charge"] if verb == "rewind" else []

        planned = await getattr(h.runs(type="shop.*"), verb)(*words, dry_run=True)
        after = {run.id: (await run.info(), len(await run.audit())) for run in (*runs, failed, ended)}
        done = await getattr(h.runs(type="shop.*"), verb)(*words)

        assert after == before
        assert planned.is_dry_run
        assert planned.changed > 0
        assert (planned.changed, planned.skipped, planned.reasons) == (done.changed, done.skipped, done.reasons)
        assert [(run.id, run.why) for run in planned.runs] == [(run.id, run.why) for run in done.runs]


@pytest.mark.every_store
async def test_a_rewind_skips_runs_without_the_location(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await three_orders(h)
        other = await h.start(add, 1)
        await other.result()

        report = await h.runs(since=timedelta(days=1)).rewind("charge", by="ada")

        assert (report.changed, report.skipped) == (3, 1)
        (skipped,) = [run for run in report.runs if run.why]
        assert (skipped.id, skipped.is_refused) == (other.id, True)
        assert "charge" in skipped.why
        await h.settle()
        assert h.executed.count("charge") == 6
        assert {fact.event for fact in await runs[0].audit()} >= {"rewound"}


@pytest.mark.every_store
async def test_a_run_that_a_worker_holds_is_skipped_unless_forced(stage: Stage) -> None:
    async with stage.harness() as h:
        run = await h.start("elsewhere.v1", {})
        claim = ClaimRequest(id="c", worker="w", types=("elsewhere.v1",), limit=1, lease=60 * SECOND, python="3.11")
        assert len((await session_of(h).store.claim(claim)).leases) == 1

        refused = await h.runs(type="elsewhere.v1").delete()
        forced = await h.runs(type="elsewhere.v1").delete(force=True)

        assert (refused.changed, refused.skipped) == (0, 1)
        assert f"worker w holds run {run.id}" in refused.runs[0].why
        assert refused.runs[0].is_refused
        assert (forced.changed, forced.skipped) == (1, 0)
        assert await h.list() == []


@pytest.mark.every_store
async def test_failed_runs_are_recovered_together(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await h.start_many(fail, [(1,), (2,)])
        await h.settle()
        broken["is_broken"] = False

        report = await h.runs(state="failed", type="shop.broken.*").recover(by="ada")

        assert (report.changed, report.skipped) == (2, 0)
        assert [await run.result() for run in runs] == [1, 2]


async def test_a_dry_run_sees_that_a_key_belongs_to_another_run(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.start(fail, 1, key="k")
        await h.settle()
        other = await h.start(fail, 2, key="k", reuse="after_failure")
        await h.settle()

        planned = await h.runs(state="failed").recover(dry_run=True)
        done = await h.runs(state="failed").recover()

        assert (planned.changed, planned.skipped) == (done.changed, done.skipped) == (1, 1)
        assert [run.why for run in planned.runs] == [run.why for run in done.runs]
        assert f"its key 'k' now belongs to run {other.id}" in planned.runs[1].why


async def test_parents_and_children_are_recovered_in_any_order(stage: Stage) -> None:
    nest = Registry()

    @nest.workflow
    async def parent(ctx: Context) -> int:
        return await ctx.call(child)

    @nest.workflow
    async def child(ctx: Context) -> int:
        if broken["is_broken"]:
            raise Fatal("it is broken")
        return 5

    async with stage.harness(nest) as h:
        run = await h.start(parent)
        await h.settle()
        broken["is_broken"] = False
        ids = [info.id async for info in h.list(state="failed")]
        assert len(ids) == 2

        report = await h.runs(ids=sorted(ids, key=lambda one: one != run.id)).recover()

        # The child was reopened with its parent, so there is nothing left to do for it.
        assert (report.changed, report.skipped) == (1, 1)
        assert "only a failed, cancelled or blocked run can be recovered" in report.runs[1].why
        assert await run.result() == 5


async def test_ids_choose_runs_and_an_unknown_one_is_reported(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await three_orders(h)

        report = await h.runs(ids=[runs[0].id, "nowhere", runs[0].id]).cancel("twice")

        assert (report.changed, report.skipped) == (1, 1)
        assert report.reasons == {"there is no run …": 1}
        assert await states(runs) == ["cancelled", "suspended", "suspended"]


async def test_a_selection_without_a_filter_needs_everything(stage: Stage) -> None:
    async with stage.harness(app) as h:
        runs = await three_orders(h)
        nothing: dict[str, Any] = {"state": None, "type": None, "tags": {}}
        for selection in (h.runs(), h.runs(**nothing)):
            with pytest.raises(
                InvalidRequest, match=r"would cancel every run in the store; .*hf.runs\(everything=True\)"
            ):
                await selection.cancel()
        assert await states(runs) == ["suspended"] * 3

        assert (await h.runs().cancel(dry_run=True)).changed == 3
        assert (await h.runs(everything=True).cancel()).changed == 3


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"stat": "failed"}, r"unknown filter stat of runs; did you mean state\?"),
        ({"colour": "red"}, "unknown filter colour of runs; the filters of runs are state, type, key, tags"),
        ({"deleted": True}, "deleted runs cannot be changed"),
        ({"ids": "01a1"}, "a list of ids"),
        ({"ids": [5]}, "ids=5: expected a string"),
        ({"ids": ["a"], "state": "failed"}, "takes ids=.* or filters, not both"),
    ],
)
def test_an_impossible_selection_is_refused_at_once(conditions: dict[str, Any], words: str) -> None:
    hf = Holdfast("memory://")
    with pytest.raises(InvalidRequest, match=words):
        hf.runs(**conditions)


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"state": "faild"}, r"unknown state faild; did you mean failed\? the states are pending, running"),
        ({"state": ["failed", "x"]}, "unknown state x; the states are pending, running"),
        ({"state": 5}, "state=5: expected a state or a list of them; the states are pending"),
        ({"state": []}, r"state=\[\] names no state"),
        ({"type": 5}, "type=5: expected a string"),
        ({"since": "yesterday"}, "since='yesterday'"),
    ],
)
async def test_an_invalid_filter_changes_nothing(stage: Stage, conditions: dict[str, Any], words: str) -> None:
    async with stage.harness(app) as h:
        runs = await three_orders(h)
        with pytest.raises(InvalidRequest, match=words):
            await h.runs(**conditions).delete()
        with pytest.raises(InvalidRequest, match=words):
            await h.list(**conditions)
        assert await states(runs) == ["suspended"] * 3


@pytest.mark.parametrize(
    ("verb", "options", "words"),
    [
        ("cancel", {"reason": 5}, "reason=5"),
        ("pause", {"by": 5}, "by=5"),
        ("rewind", {"location": 5}, "location=5"),
    ],
)
async def test_a_wrong_argument_changes_nothing(stage: Stage, verb: str, options: dict[str, Any], words: str) -> None:
    async with stage.harness(app) as h:
        runs = await three_orders(h)
        with pytest.raises(InvalidRequest, match=words):
            await getattr(h.runs(type="shop.*"), verb)(**options)
        assert await states(runs) == ["suspended"] * 3


async def test_an_outage_in_the_middle_reports_the_progress_and_a_repeat_does_the_rest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.harness(app) as h:
        runs = await three_orders(h)

        async def unplugged(_command: object) -> None:
            raise StoreUnavailable("unplugged")

        def unplug(done: int, _total: int) -> None:
            if done == 2:
                monkeypatch.setattr(session_of(h).store, "apply", unplugged)

        with pytest.raises(StoreUnavailable) as caught:
            await h.runs(type="shop.*").pause(progress=unplug)
        monkeypatch.undo()
        again = await h.runs(type="shop.*").pause()

        assert caught.value.__notes__ == ["2 of 3 runs were done before this error; repeat pause() for the others"]
        assert (again.changed, again.skipped) == (1, 2)
        assert await states(runs) == ["paused"] * 3
