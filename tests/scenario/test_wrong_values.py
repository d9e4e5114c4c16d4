"""Wrong values are refused where they are passed, with their name, their value and the expected one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from holdfast import (
    Context,
    Holdfast,
    HoldfastError,
    InvalidRequest,
    Registry,
    Retry,
    StepFailed,
    StepTimeout,
    WaitTimeout,
)
from holdfast.testing.harness import Harness
from tests.rows import each_row
from tests.stage import DATABASE_KINDS, Stage, url_for

app = Registry()


@app.workflow("shop.order.v1")
async def order(ctx: Context, number: int) -> int:
    return number


@app.workflow("shop.wait.v1")
async def wait(ctx: Context) -> Any:
    return await ctx.receive("go")


async def listed(h: Harness, **conditions: Any) -> None:
    async for _ in h.list(**conditions):
        pass


SEVERAL = [
    ({"delay": "5s"}, "delay='5s': expected seconds or a timedelta"),
    ({"max_run": "1h"}, "max_run='1h': expected seconds or a timedelta"),
    ({"max_suspend": [1]}, r"max_suspend=\[1\]: expected seconds or a timedelta"),
    ({"retention": "7d"}, "retention='7d': expected seconds or a timedelta"),
    ({"ready_at": "2030-01-01"}, "ready_at='2030-01-01': expected a datetime"),
    ({"ready_at": datetime(2030, 1, 1).date()}, r"ready_at=datetime.date\(2030, 1, 1\): expected a datetime"),  # noqa: DTZ001
    ({"ready_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "in UTC it is outside the years 1 to"),
    ({"ready_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))}, "in UTC it is outside the years 1 to"),
    ({"tags": ["a"]}, r"tags=\['a'\]: expected a dict of strings"),
    ({"tags": {"a": 1}}, "value of tag 'a'"),
    ({"delay": 5, "ready_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay= and ready_at= both set the start"),
]


@each_row(("options", "message"), SEVERAL)
async def test_a_start_with_a_wrong_value_is_refused_and_starts_nothing(
    stage: Stage, options: dict[str, Any], message: str
) -> None:
    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match=message):
            await h.start(order, 1, **options)
        with pytest.raises(InvalidRequest, match=message):
            await h.start_many(order, [(1,)], **options)
        assert [info async for info in h.list()] == []


LISTS = [
    ({"since": "2h"}, "since='2h': expected a datetime, or a timedelta that counts back from now"),
    ({"since": 7200}, "since=7200: expected a datetime"),
    ({"until": "now"}, "until='now': expected a datetime"),
    ({"tags": ["a"]}, r"tags=\['a'\]"),
    ({"state": 5}, "the states are pending"),
    ({"type": 5}, "type=5: expected a string, not int"),
    ({"key": 17}, "key=17: expected a string"),
    ({"parent_id": [1]}, r"parent_id=\[1\]: expected a string"),
    ({"limit": "5"}, "limit='5': expected a whole number of runs"),
    ({"after": 5}, "after=5: expected a string"),
]


@each_row(("conditions", "message"), LISTS)
async def test_a_list_with_a_wrong_value_is_refused(stage: Stage, conditions: dict[str, Any], message: str) -> None:
    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match=message):
            await listed(h, **conditions)


async def test_ids_keys_locations_and_patches_of_a_wrong_type_are_refused(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(wait, key="17")
        number: Any = 17
        uuid: Any = UUID(run.id)
        pairs: Any = ["x"]
        with pytest.raises(InvalidRequest, match=r"id=UUID\('.*'\): expected a string, not uuid.UUID"):
            h.run(uuid)
        with pytest.raises(InvalidRequest, match="key=17: expected a string"):
            h.run(key=number)
        with pytest.raises(InvalidRequest, match=r"ids=UUID\("):
            h.runs(ids=[uuid])
        for refused in (run.rewind(number), run.fork(number)):
            with pytest.raises(InvalidRequest, match="location=17: expected a string"):
                await refused
        with pytest.raises(InvalidRequest, match=r"patch=\['x'\]: expected a dict"):
            await run.fork("x", patch=pairs)
        for wrong in (h.start_many(order, number), h.start_many(order, [(1,)], keys=number)):
            with pytest.raises(InvalidRequest, match=r"pass a tuple for each run|a list of strings"):
                await wrong


async def test_a_reason_must_be_a_string(stage: Stage) -> None:
    async with stage.harness(app) as h:
        run = await h.start(wait)
        await h.settle()
        reason: Any = 5
        for control in (run.cancel, run.pause):
            with pytest.raises(InvalidRequest, match="reason=5: expected a string"):
                await control(reason)
        assert (await run.info()).state == "suspended"


async def test_a_result_timeout_may_be_a_timedelta() -> None:
    hf = Holdfast("memory://")
    hf.include(app)
    async with hf:
        run = await hf.start(wait)
        for impatient in (run.result(timedelta(milliseconds=1)), run.request("x", timeout=timedelta(milliseconds=1))):
            with pytest.raises(TimeoutError):
                await impatient
        wrong: Any = "5"
        for refused in (run.result(wrong), run.request("x", timeout=wrong)):
            with pytest.raises(InvalidRequest, match="timeout='5': expected seconds or a timedelta"):
                await refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": "5"}, r"worker\(concurrency='5'\): expected a whole number of at least 1"),
        ({"threads": 0}, r"worker\(threads=0\)"),
        ({"steps": 1.5}, r"worker\(steps=1.5\)"),
        ({"lease_seconds": "30"}, "worker: lease_seconds='30': expected seconds or a timedelta"),
        ({"grace_seconds": [1]}, "worker: grace_seconds="),
        ({"retention": "30d"}, "worker: retention='30d'"),
        ({"types": 5}, r"worker\(types=5\): expected a list of type names"),
        ({"types": [5]}, r"worker\(types=\[5\]\): expected a list of type names"),
        ({"types": "billing.*"}, r"worker\(types='billing\.\*'\): expected a list of type names"),
    ],
)
def test_a_worker_with_a_wrong_value_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Holdfast("memory://").worker(**options)


def test_a_worker_takes_durations_as_timedeltas() -> None:
    Holdfast("memory://").worker(lease_seconds=timedelta(seconds=30), grace_seconds=timedelta(0))


async def body() -> int:
    return 1


IN_WORKFLOWS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sleep": (lambda ctx: ctx.sleep("5"), "'5': expected seconds or a timedelta"),
    "sleep_until": (lambda ctx: ctx.sleep_until("2030-01-01"), "'2030-01-01': expected a datetime"),
    "receive": (lambda ctx: ctx.receive("x", timeout="5"), "timeout='5': expected seconds or a timedelta"),
    "call": (lambda ctx: ctx.call(order, 1, delay="5s"), "delay='5s': expected seconds or a timedelta"),
    "tags": (lambda ctx: ctx.call(order, 1, tags=["a"]), r"tags=\['a'\]: expected a dict"),
    "retry": (lambda ctx: ctx.step("s", body, retry=3), "retry=3: expected a Retry"),
    "timeout": (lambda ctx: ctx.step("s", body, timeout="30"), "timeout='30': expected seconds or a timedelta"),
    "argument": (lambda ctx: ctx.step("s", body, city="Bonn"), "unknown option city"),
}


@pytest.mark.parametrize("use", IN_WORKFLOWS)
async def test_a_wrong_value_in_workflow_code_blocks_the_run_with_a_clear_error(stage: Stage, use: str) -> None:
    code = Registry()
    wrong, message = IN_WORKFLOWS[use]

    @code.workflow
    async def shop(ctx: Context) -> Any:
        return await wrong(ctx)

    async with stage.harness(code) as h:
        with pytest.raises(HoldfastError, match=f"Blocked by InvalidRequest: {message}"):
            await h.execute(shop)


@pytest.mark.parametrize("use", IN_WORKFLOWS)
async def test_a_wrong_value_in_a_def_workflow_blocks_the_run_with_a_clear_error(stage: Stage, use: str) -> None:
    code = Registry()
    wrong, message = IN_WORKFLOWS[use]

    @code.workflow("shop")
    def shop(ctx: Any) -> Any:
        return wrong(ctx)

    async with stage.harness(code) as h:
        with pytest.raises(HoldfastError, match=f"Blocked by InvalidRequest: {message}"):
            await h.execute("shop")


@pytest.mark.parametrize("kind", DATABASE_KINDS)
async def test_a_wrong_retry_of_a_transaction_blocks_the_run_with_a_clear_error(
    kind: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    code = Registry()

    @code.workflow("shop")
    async def shop(ctx: Any) -> Any:
        return await ctx.tx("t", lambda connection: 1, retry=0)

    async with Stage(kind, tmp_path, url_for(kind, request)).harness(code) as h:
        with pytest.raises(HoldfastError, match="Blocked by InvalidRequest: retry=0: expected a Retry"):
            await h.execute("shop")


async def test_durations_of_steps_and_waits_may_be_timedeltas(stage: Stage) -> None:
    code = Registry()

    @code.step(timeout=timedelta(milliseconds=20))
    async def endless() -> None:
        await forever()

    @code.workflow
    async def shop(ctx: Context) -> str:
        with pytest.raises(StepTimeout, match=r"longer than 0\.02 s"):
            await endless()
        with pytest.raises(StepTimeout, match=r"longer than 0\.01 s"):
            await ctx.step("given", forever, timeout=timedelta(milliseconds=10))
        with pytest.raises(WaitTimeout):
            await ctx.receive("x", timeout=timedelta(seconds=1))
        with pytest.raises(StepFailed, match="after 2 attempts"):
            await ctx.step(
                "flaky", flaky, retry=Retry(max_attempts=2, initial=timedelta(0), retry_on=[ConnectionError])
            )
        return "done"

    async with stage.harness(code, has_endless_bodies=True) as h:
        assert await h.execute(shop) == "done"


async def forever() -> None:
    await asyncio.Event().wait()


def flaky() -> None:
    raise ConnectionError("x")


def test_only_a_registry_can_be_included() -> None:
    hf, other = Holdfast("memory://"), Holdfast("memory://")
    wrong: Any = other

    with pytest.raises(InvalidRequest, match=r"include\(<Holdfast memory://>\): expected a Registry"):
        hf.include(wrong)
