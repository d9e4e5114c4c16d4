"""Limits: the number of runs of a type at once, per type and per key, and the number per period."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, InvalidRequest, Registry, RunState
from holdfast.app import session_of
from holdfast.core.questions import CountSlots, FindOrphans
from holdfast.testing.harness import Harness
from tests.stage import Stage

pytestmark = pytest.mark.every_store

app = Registry()

gates: list[asyncio.Event] = []
"""The gate of the current test; an asyncio event belongs to one event loop."""
inside: Counter[str] = Counter()
most: Counter[str] = Counter()
begun: list[str] = []


@pytest.fixture(autouse=True)
def gate() -> asyncio.Event:
    """A closed gate; all counters are reset."""
    for seen in (inside, most, begun):
        seen.clear()
    gates[:] = [asyncio.Event()]
    return gates[0]


@contextmanager
def counted(*names: str) -> Iterator[None]:
    inside.update(names)
    for name in names:
        most[name] = max(most[name], inside[name])
    yield
    inside.subtract(names)


async def pass_gate(name: str, tenant: str) -> None:
    begun.append(name)
    with counted("all", tenant):
        await gates[0].wait()


async def yield_now(name: str, tenant: str) -> None:
    begun.append(name)
    with counted("all", tenant):
        await asyncio.sleep(0)


@app.workflow("job.v1")
async def job(ctx: Context, name: str, tenant: str = "") -> str:
    """Does a job.

    As slowly as it likes.
    """
    await ctx.step("work", yield_now, name, tenant)
    return name


@app.workflow("slow.v1")
async def slow(ctx: Context, name: str, tenant: str = "") -> str:
    await ctx.step("work", pass_gate, name, tenant)
    return name


@app.workflow("chat.v1")
async def chat(ctx: Context, name: str) -> Any:
    with counted(name):
        answer = await ctx.receive("answer")
    await ctx.step("work", yield_now, name, "")
    return answer


@app.workflow("other.v1")
async def other(ctx: Context) -> str:
    return "done"


async def begin(h: Harness, type: str, count: int, **options: Any) -> list[Any]:
    return [await h.start(type, {"name": f"{number}"}, **options) for number in range(count)]


async def finished(h: Harness, runs: list[Any]) -> None:
    """Wait until runs have ended, without advancing time: leases would run out."""
    while not all([(await run.info()).state.is_end for run in runs]):
        await h.settle()


async def test_no_more_bodies_run_at_once_than_a_limit_allows_and_all_are_done(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.types.set("job.v1", concurrency=2)
        runs = await h.start_many(job, [(f"{number}",) for number in range(20)])

        results = [await run.result() for run in runs]

        assert results == [f"{number}" for number in range(20)]
        assert 1 <= most["all"] <= 2
        assert await session_of(h).store.stats(FindOrphans(limit=10)) == []
        assert await session_of(h).store.stats(CountSlots()) == []


async def test_each_key_has_its_own_limit(stage: Stage, gate: asyncio.Event) -> None:
    async with stage.harness(app, has_endless_bodies=True) as h:
        await h.types.set("slow.v1", concurrency=5, per_key={"tenant": 2})
        runs = [
            await h.start(slow, f"{tenant}{number}", tenant, tags={"tenant": tenant})
            for number in range(4)
            for tenant in ("a", "b", "c")
        ]
        await h.settle()

        assert (inside["all"], inside["a"], inside["b"], inside["c"]) == (5, 2, 2, 1)
        (info,) = [one for one in await h.types.list() if one.name == "slow.v1"]
        assert info.parked == 7
        gate.set()
        await finished(h, runs)
        assert (most["all"], max(most["a"], most["b"], most["c"])) == (5, 2)


async def test_a_rate_limit_spreads_starts_over_time(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.types.set("job.v1", rate=(3, 60))
        runs = await h.start_many(job, [(f"{number}",) for number in range(8)])

        counts = []
        for _ in range(4):
            await h.settle()
            counts.append(len(begun))
            await h.advance(60)

        assert counts == [3, 6, 8, 8]
        assert [await run.result() for run in runs] == [f"{number}" for number in range(8)]
        assert begun == [f"{number}" for number in range(8)]


@pytest.mark.parametrize("others", [{"concurrency": 3}, {"concurrency": 2}, {"per_key": {"tenant": 2}}], ids=repr)
async def test_a_run_that_waits_for_a_rate_and_another_limit_starts_when_both_allow_it(
    stage: Stage, others: dict[str, Any]
) -> None:
    async with stage.harness(app) as h:
        began = h.now
        await h.types.set("job.v1", rate=(3, 60), **others)
        runs = [await h.start(job, f"{number}", tags={"tenant": "a"}) for number in range(9)]

        assert [await run.result() for run in runs] == [f"{number}" for number in range(9)]
        assert h.now - began == timedelta(minutes=2)


async def test_a_suspended_run_leaves_its_slot_to_others(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.types.set("chat.v1", concurrency=1)
        runs = [await h.start(chat, f"{number}") for number in range(5)]
        await h.settle()

        assert [(await run.info()).state for run in runs] == [RunState.SUSPENDED] * 5
        for number, run in enumerate(runs):
            await run.send("answer", number)
        assert [await run.result() for run in runs] == [0, 1, 2, 3, 4]
        assert most["all"] == 1


async def test_limits_are_changed_while_runs_wait(stage: Stage) -> None:
    async with stage.harness(app, has_endless_bodies=True) as h:
        await h.types.set("slow.v1", concurrency=1)
        await begin(h, "slow.v1", 6)
        await h.settle()
        counts = [inside["all"]]
        for limit in (3, 2, None):
            await h.types.set("slow.v1", concurrency=limit)
            await h.settle()
            counts.append(inside["all"])

        assert counts == [1, 3, 3, 6]


async def test_a_type_that_is_switched_off_waits_and_others_do_not(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.types.set("job.v1", enabled=False)
        run = await h.start(job, "x")

        assert await h.execute(other) == "done"

        await h.settle()
        assert (await run.info()).state is RunState.PENDING
        await h.types.set("job.v1", enabled=True)
        assert await run.result() == "x"


async def test_a_worker_that_dies_keeps_its_slot_until_another_takes_over(stage: Stage, gate: asyncio.Event) -> None:
    async with stage.harness(app, has_endless_bodies=True) as h:
        await h.types.set("slow.v1", concurrency=1)
        first, second = await begin(h, "slow.v1", 2)
        await h.settle()
        await h.crash_worker()
        inside.clear()
        gate.set()
        await h.start_worker()

        assert (await session_of(h).store.stats(CountSlots()))[0].used == 1
        assert (await first.result(), await second.result()) == ("0", "1")
        assert begun == ["0", "0", "1"]
        assert most["all"] == 1


async def test_runs_that_are_parked_say_why(stage: Stage) -> None:
    async with stage.harness(app, has_endless_bodies=True) as h:
        await h.types.set("slow.v1", concurrency=1)
        await h.types.set("job.v1", rate=(1, 60))
        _, second, _ = await begin(h, "slow.v1", 3)
        _, next_job, last_job = await begin(h, "job.v1", 3)
        await h.settle()
        at = "2030-01-01 00:00:00 UTC"

        assert await second.explain() == (
            f"Parked by a limit since {at}: concurrency of slow.v1, 1 of 1 in use, 2 runs wait."
        )
        assert await next_job.explain() == (
            f"Parked by a limit since {at}: the rate of job.v1, 1 in 60 s; it may begin at 2030-01-01 00:01:00 UTC, "
            "2 runs wait."
        )
        assert "begins in its turn" in await last_job.explain()
        await h.types.set("slow.v1", enabled=False, concurrency=None, per_key={"tenant": 1})
        assert await second.explain() == (
            f"Ready since {at}, but type slow.v1 is disabled; `holdfast types enable slow.v1` enables it."
        )


async def test_a_run_that_is_parked_by_its_key_says_so(stage: Stage) -> None:
    async with stage.harness(app, has_endless_bodies=True) as h:
        await h.types.set("slow.v1", per_key={"tenant": 1})
        _, second = await begin(h, "slow.v1", 2, tags={"tenant": "acme"})
        await h.settle()

        assert "per_key tenant=acme of slow.v1, 1 of 1 in use, no other run waits." in await second.explain()


async def test_types_are_listed_with_all_their_fields(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.types.set("job.v1", concurrency=2, per_key={"tenant": 1}, rate=(100, 60), retention=timedelta(days=1))
        await h.types.set("go.v1", runtime="go", description="Not of Python.", enabled=False)
        await h.execute(job, "x")
        await h.start("unknown.v1")

        types = {one.name: one for one in await h.types.list()}

        assert list(types) == ["chat.v1", "go.v1", "job.v1", "other.v1", "slow.v1", "unknown.v1"]
        known = types["job.v1"]
        assert (known.runtime, known.description, known.enabled) == ("python", "Does a job.", True)
        assert (known.concurrency, known.per_key, known.rate) == (2, {"tenant": 1}, (100, timedelta(seconds=60)))
        assert (known.retention, known.counts, known.parked) == (timedelta(days=1), {RunState.SUCCEEDED: 1}, 0)
        assert known.last_worker is not None
        assert known.last_seen_at == h.now
        assert (types["go.v1"].runtime, types["go.v1"].enabled, types["go.v1"].last_worker) == ("go", False, None)
        assert types["unknown.v1"].counts == {RunState.PENDING: 1}


async def test_invalid_limits_are_refused_before_anything_is_stored(stage: Stage) -> None:
    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match="concurrency=0"):
            await h.types.set("job.v1", concurrency=0, enabled=False)

        (known,) = [one for one in await h.types.list() if one.name == "job.v1"]
        assert known.enabled


async def test_a_run_that_calls_its_own_type_leaves_its_slot_to_its_child(stage: Stage) -> None:
    """PROMISES 8: no silent stop."""
    families = Registry()

    @families.workflow("self.v1")
    async def descend(ctx: Context, depth: int) -> int:
        return 1 + await ctx.call("self.v1", {"depth": depth - 1}) if depth else 0

    async with stage.harness(families) as h:
        await h.types.set("self.v1", concurrency=1)

        assert await h.execute(descend, 5) == 5


async def test_children_are_limited_like_any_other_run(stage: Stage) -> None:
    families = Registry()

    @families.workflow("child.v1")
    async def child(ctx: Context, number: int) -> int:
        await ctx.step("work", yield_now, f"{number}", "")
        return number

    @families.workflow("parent.v1")
    async def parent(ctx: Context, count: int) -> list[int]:
        return await ctx.map(child, list(range(count)), limit=4)

    async with stage.harness(families) as h:
        await h.types.set("child.v1", concurrency=2)

        assert await h.execute(parent, 9) == list(range(9))
        assert most["all"] <= 2
