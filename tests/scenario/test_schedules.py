"""Schedules: one run for each slot, created over time by any living worker."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import Context, InvalidRequest, Registry, RunState, ScheduleNotFound, StoreUnavailable
from holdfast.core.ports import Store
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from tests.rows import each_row
from tests.stage import Stage

pytestmark = pytest.mark.every_store

HOUR = 3600
ROME = ZoneInfo("Europe/Rome")

app = Registry()


@app.workflow("report.v1")
async def report(ctx: Context, shop: str = "all") -> str:
    return f"{shop} at {ctx.run.tags.get('slot')}"


@app.workflow("long.v1")
async def long(ctx: Context) -> None:
    await ctx.receive("go on")


@app.task("count.v1")
def count(shop: str) -> int:
    return len(shop)


async def slots(h: Harness, name: str = "hourly") -> list[str]:
    """Return the slots of all runs of a schedule, oldest first."""
    return sorted([info.tags.get("slot", "by hand") async for info in h.list(tags={"schedule": name})])


async def test_a_schedule_starts_a_run_at_each_of_its_slots(stage: Stage) -> None:
    async with stage.harness(app) as h:
        info = await h.schedules.put("hourly", report, "north", cron="0 * * * *", tags={"team": "a"})
        await h.advance(2.5 * HOUR)

        runs = [run async for run in h.list(tags={"schedule": "hourly", "team": "a"})]
        assert sorted(run.result for run in runs) == ["north at 2030-01-01T01:00:00Z", "north at 2030-01-01T02:00:00Z"]
        assert {run.state for run in runs} == {RunState.SUCCEEDED}
        assert [when.hour for when in info.upcoming] == [1, 2, 3, 4, 5]


async def test_no_run_is_created_before_its_slot(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("hourly", report, every=HOUR)
        await h.advance(HOUR - 0.000001)
        early = await slots(h)
        await h.advance(0.000001)

        assert (early, await slots(h)) == ([], ["2030-01-01T01:00:00Z"])


async def test_several_workers_create_one_run_for_each_slot(stage: Stage) -> None:
    """A worker that has none of the types fires schedules too."""
    async with stage.harness(app) as one, stage.harness() as other:
        await one.schedules.put("hourly", report, every=HOUR)
        await one.schedules.put("both", count, "abc", every=HOUR)
        for _ in range(5):
            # Both workers fire at the same time, in either order.
            for callback in stage.clock.pass_to(stage.clock.now() + HOUR * 1_000_000):
                callback()
            await one.settle()
            await other.settle()
            await one.settle()

        expected = [f"2030-01-01T0{hour}:00:00Z" for hour in range(1, 6)]
        assert await slots(one) == await slots(one, "both") == expected


class Faults:
    """Put a store that can fail between a harness and its store."""

    store: FaultyStore

    def wrap(self, store: Store) -> Store:
        self.store = FaultyStore(store)
        return self.store

    async def crash(self) -> None:
        self.store.crashed.set()
        raise StoreUnavailable("fire: this worker has crashed")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_worker_that_dies_while_it_fires_neither_loses_nor_duplicates_a_slot(stage: Stage, when: Any) -> None:
    faults = Faults()
    async with stage.harness(app, wrap=faults.wrap) as h:
        await h.schedules.put("hourly", report, every=HOUR)
        faults.store.interpose("fire", faults.crash, when=when)
        await h.advance(HOUR)
        assert faults.store.crashed.is_set()
        await h.crash_worker()
        faults.store.revive()
        await h.start_worker()
        await h.advance(HOUR)

        assert await slots(h) == ["2030-01-01T01:00:00Z", "2030-01-01T02:00:00Z"]


CRASHED = "this worker has crashed; call revive() to let workers through"


async def test_an_outage_is_waited_out(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    async with stage.harness(app, wrap=faults.wrap) as h:
        await h.schedules.put("hourly", report, every=HOUR)
        await h.settle()
        with caplog.at_level(logging.WARNING, "holdfast.scheduler"):
            faults.store.crashed.set()
            await h.advance(HOUR + 10)
            faults.store.revive()
            await h.advance(10)

        assert await slots(h) == ["2030-01-01T01:00:00Z"]
        told = [record.getMessage() for record in caplog.records if record.name == "holdfast.scheduler"]
        assert [text.partition(" after ")[0] for text in told] == [
            f"cannot fire schedules; trying again: due_schedules: {CRASHED}",
            "firing schedules works again",
        ]


# Missed slots


@pytest.mark.parametrize(
    ("catch_up", "made_up_for"), [("one", ["04"]), ("skip", []), ("all", ["01", "02", "03", "04"])]
)
async def test_after_downtime_missed_slots_are_caught_up_by_the_chosen_rule(
    stage: Stage, catch_up: Any, made_up_for: list[str]
) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("hourly", report, cron="0 * * * *", catch_up=catch_up)
        await h.stop_worker()
        await h.advance(4.5 * HOUR)
        await h.start_worker()
        await h.settle()
        missed = await slots(h)
        await h.advance(HOUR)

        assert missed == [f"2030-01-01T{hour}:00:00Z" for hour in made_up_for]
        assert await slots(h) == [*missed, "2030-01-01T05:00:00Z"]


@pytest.mark.long
async def test_thousands_of_missed_slots_are_caught_up_in_small_portions(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("often", "nobody.v1", every=10, catch_up="all")
        await h.stop_worker()
        await h.advance(25_000)
        await h.start_worker()
        await h.advance(1)

        assert len(await slots(h, "often")) == 2_500


async def test_a_year_of_missed_slots_costs_nothing(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("often", report, cron="* * * * *")
        await h.stop_worker()
        await h.advance(timedelta(days=365))
        await h.start_worker()
        await h.settle()

        assert await slots(h, "often") == ["2031-01-01T00:00:00Z"]


# Overlap, jitter, zones


async def test_a_slot_is_skipped_while_an_earlier_run_goes_on(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("hourly", long, every=HOUR, overlap="skip")
        with caplog.at_level(logging.INFO, "holdfast.scheduler"):
            await h.advance(3 * HOUR)
        info = await h.schedules.get("hourly")
        assert info.last_run_id is not None
        await h.run(info.last_run_id).send("go on")
        await h.advance(HOUR)

        assert await slots(h) == ["2030-01-01T01:00:00Z", "2030-01-01T04:00:00Z"]
        assert (info.skipped, info.last_skipped_slot) == (2, datetime(2030, 1, 1, 3, tzinfo=UTC))
        assert "schedule hourly skips slot 2030-01-01T02:00:00+00:00" in caplog.text


async def test_runs_that_may_overlap_do(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("hourly", long, every=HOUR)
        await h.advance(3 * HOUR)

        states = [run.state async for run in h.list(tags={"schedule": "hourly"})]
        assert states == [RunState.SUSPENDED] * 3


async def test_jitter_spreads_starts_but_not_slots(stage: Stage) -> None:
    async with stage.harness(app) as h:
        for number in range(5):
            await h.schedules.put(f"s{number}", report, every=HOUR, jitter=600)
        await h.advance(HOUR)
        runs = [run async for run in h.list(type="report.v1")]
        delays = {run.ready_at - run.created_at for run in runs if run.ready_at is not None}
        await h.advance(600)

        assert len(delays) == 5
        assert all(timedelta() < delay < timedelta(seconds=600) for delay in delays)
        assert {run.state async for run in h.list(type="report.v1")} == {RunState.SUCCEEDED}


async def test_slots_follow_the_clocks_of_their_zone(stage: Stage) -> None:
    """Rome puts its clocks forward on 31 March 2030, and back on 27 October."""
    async with stage.harness(app) as h:
        await h.advance(timedelta(days=88))
        await h.schedules.put("nightly", report, cron="30 2 * * *", zone="Europe/Rome")
        await h.advance(timedelta(days=3))
        await h.schedules.pause("nightly")
        await h.advance(timedelta(days=207))
        await h.schedules.resume("nightly")
        await h.advance(timedelta(days=3))

        local = [datetime.fromisoformat(slot).astimezone(ROME) for slot in await slots(h, "nightly")]
        assert [when.isoformat(timespec="minutes") for when in local] == [
            "2030-03-30T02:30+01:00",
            "2030-03-31T03:00+02:00",
            "2030-04-01T02:30+02:00",
            "2030-10-26T02:30+02:00",
            "2030-10-27T02:30+02:00",
            "2030-10-28T02:30+01:00",
        ]


# In code


async def test_a_schedule_in_code_is_stored_once_a_worker_starts(stage: Stage) -> None:
    code = Registry()

    @code.schedule("0 9 * * mon-fri", zone="Europe/Rome", args=("north",))
    @code.schedule(every=HOUR, name="often", catch_up="skip", overlap="skip", jitter=5, priority=1, tags={"a": "b"})
    @code.workflow("report.v1")
    async def daily(ctx: Context, shop: str = "all") -> str:
        return shop

    assert daily.type == "report.v1"
    async with stage.harness(code) as h:
        weekdays, often = [info async for info in h.schedules.list()][::-1]
        await h.advance(timedelta(days=7))

        assert (often.name, often.every, often.catch_up, often.overlap) == ("often", timedelta(hours=1), "skip", "skip")
        assert (often.jitter, often.priority, often.tags) == (timedelta(seconds=5), 1, {"a": "b"})
        assert (weekdays.name, weekdays.cron, weekdays.zone) == ("report.v1", "0 9 * * mon-fri", "Europe/Rome")
        assert weekdays.is_declared
        results = [run.result async for run in h.list(tags={"schedule": "report.v1"})]
        assert results == ["north"] * 5


async def test_a_deploy_without_changes_leaves_schedules_untouched(stage: Stage) -> None:
    code = Registry()
    code.schedule(every=HOUR, name="often")(code.task("count.v1")(lambda: 1))
    code.schedule("0 9 * * *", name="paused")(code.task("other.v1")(lambda: 1))

    async with stage.harness(code) as h:
        await h.schedules.pause("paused")
        before = [info async for info in h.schedules.list()]
        await h.advance(HOUR / 2)
        await h.stop_worker()
        await h.start_worker()

        assert [info async for info in h.schedules.list()] == before
        assert [info.is_paused for info in before] == [False, True]


@each_row(
    ("declare", "says"),
    [
        (lambda r: r.schedule("0 25 * * *"), "column 3: '25' is not a valid hour"),
        (lambda r: r.schedule("0 9 * * *", zone="Europe/Roma"), "did you mean 'Europe/Rome'"),
        (lambda r: r.schedule(), "needs a cron expression or every"),
        (lambda r: r.schedule("0 9 * * *", every=5), "but not both"),
        (lambda r: r.schedule(every=5, zone="Europe/Rome"), "zone='Europe/Rome' is for cron"),
        (lambda r: r.schedule(every=0.5), "at least 1 second"),
        (lambda r: r.schedule(every=float("nan")), "not a length of time"),
        (lambda r: r.schedule(every="5"), "every='5': expected seconds or a timedelta"),
        (lambda r: r.schedule(every=5, jitter=-1), "no run starts earlier than its slot"),
        (lambda r: r.schedule(every=5, catch_up="some"), "catch_up='some': expected 'skip', 'one' or 'all'"),
        (lambda r: r.schedule(every=5, overlap="never"), "overlap='never': expected 'allow' or 'skip'"),
        (lambda r: r.schedule(every=5, name=""), "a schedule's name is a string"),
        (lambda r: r.schedule(every=5, tags={"slot": "x"}), "tag 'slot' is set by the schedule itself"),
        (
            lambda r: r.schedule(every=5, delay=3),
            "option delay of a schedule; .*options of a schedule are tags, max_run",
        ),
        (lambda r: r.schedule(every=5, args=(1, 2, 3)), "takes 1 arguments"),
    ],
)
def test_an_invalid_schedule_in_code_is_refused_at_its_definition(declare: Any, says: str) -> None:
    registry = Registry()

    @registry.task("count.v1")
    def task(shop: str = "") -> int:
        return len(shop)

    with pytest.raises(InvalidRequest, match=says):
        declare(registry)(task)


def test_a_schedule_needs_a_registered_function_and_a_unique_name() -> None:
    registry = Registry()
    task = registry.task("count.v1")(lambda: 1)
    registry.schedule(every=5)(task)

    with pytest.raises(InvalidRequest, match=r"is not a workflow or task; decorate it"):
        registry.schedule(every=5)(lambda: 1)
    with pytest.raises(InvalidRequest, match=r"schedule 'count.v1' already exists"):
        registry.schedule(every=9)(task)
    other = Registry()
    other.schedule(every=5, name="count.v1")(other.task("other.v1")(lambda: 1))
    with pytest.raises(InvalidRequest, match=r"schedule 'count.v1' already exists"):
        registry.include(other)


# Manual control


async def test_a_paused_schedule_fires_again_when_it_is_resumed(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("hourly", report, every=HOUR, catch_up="all")
        changes = [await h.schedules.pause("hourly"), await h.schedules.pause("hourly")]
        await h.advance(3.5 * HOUR)
        paused = await h.schedules.get("hourly")
        changes += [await h.schedules.resume("hourly"), await h.schedules.resume("hourly")]
        await h.advance(HOUR)

        assert changes == [True, False, True, False]
        assert (paused.is_paused, paused.next_at, paused.upcoming) == (True, None, [])
        assert await slots(h) == ["2030-01-01T04:00:00Z"]


async def test_a_schedule_is_triggered_by_hand(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("hourly", report, "north", every=HOUR, jitter=600)
        run = await h.schedules.trigger("hourly")

        assert await run.result() == "north at None"
        assert (await h.schedules.get("hourly")).last_run_id == run.id
        assert await slots(h) == ["by hand"]


async def test_a_removed_schedule_stops_firing(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("hourly", report, every=HOUR)
        await h.advance(HOUR)
        removed = [await h.schedules.remove("hourly"), await h.schedules.remove("hourly")]
        await h.advance(2 * HOUR)

        assert removed == [True, False]
        assert await slots(h) == ["2030-01-01T01:00:00Z"]


async def test_a_changed_schedule_fires_by_its_new_rule(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.schedules.put("hourly", report, every=HOUR)
        await h.advance(HOUR)
        await h.schedules.put("hourly", report, every=HOUR / 4)
        await h.advance(HOUR / 2)

        assert await slots(h) == ["2030-01-01T01:00:00Z", "2030-01-01T01:15:00Z", "2030-01-01T01:30:00Z"]


async def test_an_unknown_name_is_reported(stage: Stage) -> None:
    async with stage.harness(app) as h:
        for ask in (h.schedules.get, h.schedules.pause, h.schedules.resume, h.schedules.trigger):
            with pytest.raises(ScheduleNotFound, match="there is no schedule 'nobody'"):
                await ask("nobody")


async def test_arguments_that_do_not_fit_the_function_are_refused_when_the_schedule_is_set(stage: Stage) -> None:
    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match=r"payload of 'count.v1'"):
            await h.schedules.put("hourly", "count.v1", {"shop": 5}, every=HOUR)
        assert [info async for info in h.schedules.list()] == []


async def test_schedules_are_listed_by_name_and_type(stage: Stage) -> None:
    async with stage.harness(app) as h:
        for name, type in (("b", "shop.x"), ("a", "shop.y"), ("c", "other")):
            await h.schedules.put(name, type, every=HOUR)

        assert [info.name async for info in h.schedules.list()] == ["a", "b", "c"]
        assert [info.name async for info in h.schedules.list(type="shop.*", limit=1)] == ["a"]
