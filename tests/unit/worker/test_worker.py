"""The worker: which runs it claims, how it frees slots, how it gets news, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from holdfast import Context, Holdfast, InvalidRequest, KeyConflict, Registry, Retry, RunHandle, RunState, step_info
from holdfast.app import session_of
from holdfast.core.clock import SECOND, FollowingClock, Micros, Timer
from holdfast.core.model import Intent
from holdfast.core.news import Hint
from holdfast.core.questions import ListFlows
from holdfast.runner.operation import StepCall
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from holdfast.testing.patience import GUARD_SECONDS, guarded, until
from holdfast.worker.executor import Body
from holdfast.worker.worker import Worker


def registry() -> Registry:
    app = Registry()

    @app.workflow("shop.order.v1")
    async def order(ctx: Context, number: int) -> int:
        return await ctx.step("count", lambda: number)

    @app.workflow("shopping.v1")
    async def shopping(ctx: Context) -> str:
        return "bought"

    return app


@pytest_asyncio.fixture
async def h() -> AsyncIterator[Harness]:
    """A harness without a worker, so that the test starts its own."""
    async with Harness(registry(), patience_seconds=0.02) as harness:
        await harness.stop_worker()
        yield harness


def hire(h: Harness, **options: Any) -> Worker:
    return h._local_workers.make(clock=h.clock, poll=None, has_heart=False, **options)


@pytest.mark.parametrize(
    ("types", "claimed"),
    [
        (None, {"shop.order.v1", "shopping.v1"}),
        (["shop.order.v1"], {"shop.order.v1"}),
        (["shop.*"], {"shop.order.v1"}),
        (["shop*"], set()),
        (["%", "shop_order_v1", "shop.order"], set()),
        (["elsewhere.v1"], set()),
    ],
)
async def test_a_worker_claims_registered_types_that_match_its_patterns(
    h: Harness, types: list[str] | None, claimed: set[str]
) -> None:
    runs = [
        await h.start("shop.order.v1", {"number": 1}),
        await h.start("shopping.v1"),
        await h.start("elsewhere.v1"),
    ]
    await hire(h, types=types).run_until_idle()
    infos = [await run.info() for run in runs]
    assert {info.type for info in infos if info.state is RunState.SUCCEEDED} == claimed


async def test_a_worker_claims_types_that_are_registered_while_it_works(h: Harness) -> None:
    async with hire(h):
        late = Registry()

        @late.workflow("late.v1")
        async def added(ctx: Context) -> str:
            return "in time"

        h.include(late)
        assert await h.execute(added) == "in time"


async def test_a_run_without_a_hint_is_claimed_at_the_next_poll(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_of(h).store, "listen", lambda _: lambda: None)  # every hint is lost
    async with h._local_workers.make(clock=h.clock, poll=10 * SECOND, has_heart=False) as worker:
        while not worker.is_idle:
            await asyncio.sleep(0.001)
        await session_of(h).store.create([Intent(id="somebody's", type="shopping.v1", payload="{}")])
        await h.advance(10)
        while not (await h.run("somebody's").info()).state.is_end:
            await asyncio.sleep(0.001)


async def test_an_idle_worker_polls_less_than_once_in_two_seconds() -> None:
    clock = VirtualClock()
    store = FaultyStore(MemoryStore(clock=clock))
    async with Harness(registry(), clock=clock, store=store) as h:
        await h.stop_worker()
        await h.start("shopping.v1", delay=3600)
        h._worker = h._local_workers.make(clock=h.clock, has_heart=False)
        await h._worker.start()
        await h.advance(10)  # so that every backoff has reached its limit
        before = len(store.calls)

        await h.advance(600)

        assert 0 < len(store.calls) - before < 300, store.calls


async def test_a_worker_without_types_says_so(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    await hire(h, types=["nothing.*"]).run_until_idle()
    assert "no registered type that matches nothing.*" in caplog.text


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"threads": 0}, {"steps": 0}, {"lease_seconds": 0}, {"grace_seconds": -1}],
)
async def test_invalid_settings_are_refused(h: Harness, options: Any) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options)).removesuffix("_seconds")):
        h.worker(**options)


async def test_a_worker_is_started_once(h: Harness) -> None:
    async with hire(h) as worker:
        with pytest.raises(InvalidRequest, match="already started"):
            await worker.start()


async def test_run_until_idle_ends_when_nothing_is_due_even_if_runs_sleep_and_wait(h: Harness) -> None:
    app = Registry()

    @app.workflow
    async def sleepy(ctx: Context) -> None:
        await ctx.step("first", lambda: None)
        await ctx.sleep(3600)

    @app.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.receive("go")

    h.include(app)
    runs = [await h.start(sleepy), await h.start(waiting), await h.start(sleepy, delay=60)]
    await hire(h).run_until_idle()
    states = [(await run.info()).state for run in runs]
    assert states == [RunState.SUSPENDED, RunState.SUSPENDED, RunState.PENDING]


async def test_run_until_idle_executes_runs_that_its_runs_have_woken_even_if_every_hint_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context) -> str:
        return "done"

    @app.workflow
    async def parent(ctx: Context) -> str:
        return await ctx.call(child)

    store = MemoryStore()
    monkeypatch.setattr(store, "listen", lambda listener: lambda: None)
    async with Harness(app, store=store) as h:
        await h.stop_worker()
        run = await h.start(parent)
        await hire(h).run_until_idle()
        assert (await run.info()).state is RunState.SUCCEEDED


async def test_run_until_idle_ends_even_if_a_look_for_flows_is_the_last_to_end(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, store = hire(h), session_of(h).store
    catalog = store.catalog

    async def answer_last(question: Any) -> Any:
        if isinstance(question, ListFlows) and worker._worker_types.is_running:
            await until("nothing else is under way", lambda: worker._claimer.is_idle and worker._scheduler.is_idle)
        return await catalog(question)

    monkeypatch.setattr(store, "catalog", answer_last)
    await guarded("the worker is idle", worker.run_until_idle())


def family(children: int) -> Registry:
    app = Registry()

    @app.workflow
    async def child(ctx: Context, number: int) -> int:
        return await ctx.step("count", lambda: number)

    @app.workflow
    async def parent(ctx: Context) -> int:
        return sum(await asyncio.gather(*(ctx.call(child, number) for number in range(children))))

    return app


async def claims_of(run: RunHandle[Any]) -> int:
    return sum(fact.event == "claimed" for fact in await run.audit())


async def test_a_parent_of_many_children_is_not_claimed_for_each_of_them(h: Harness) -> None:
    h.include(family(200))
    run = await h.start("parent")

    await hire(h, concurrency=4).run_until_idle()

    assert await run.result() == sum(range(200))
    assert await claims_of(run) <= 3


async def test_a_parent_of_few_children_leaves_memory_while_it_waits(h: Harness) -> None:
    h.include(family(6))
    run = await h.start("parent")

    await hire(h, concurrency=2).run_until_idle()

    assert await run.result() == sum(range(6))
    assert await claims_of(run) > 3


async def test_a_parent_whose_children_take_long_leaves_memory_soon_after_the_last_end() -> None:
    app = Registry()

    @app.workflow
    async def child(ctx: Context, number: int) -> None:
        await ctx.sleep(0 if number < 10 else 3600)

    @app.workflow
    async def parent(ctx: Context) -> None:
        await asyncio.gather(*(ctx.call(child, number) for number in range(60)))

    async with Harness(app) as h:
        run = await h.start(parent)
        await h.advance(5)

        assert (await run.info()).state is RunState.SUSPENDED
        assert await claims_of(run) > 1


async def test_a_run_that_waits_for_a_near_timer_gives_way_to_one_that_is_ready(h: Harness) -> None:
    app = Registry()
    order: list[str] = []

    @app.workflow
    async def job(ctx: Context, name: str, rounds: int) -> None:
        for number in range(rounds):
            await ctx.step("work", order.append, f"{name}{number}")
            await ctx.sleep(0.5)

    h.include(app)
    async with hire(h, concurrency=1):
        first = await h.start(job, "a", 3)
        while not order:
            await asyncio.sleep(0)
        second = await h.start(job, "b", 1)
        await first.result()
        await second.result()
    assert order == ["a0", "b0", "a1", "a2"]


async def test_no_more_runs_are_held_than_the_concurrency_allows(h: Harness) -> None:
    app = Registry()
    running: set[int] = set()
    peak: list[int] = []
    opened = asyncio.Event()

    async def body(number: int) -> None:
        running.add(number)
        peak.append(len(running))
        await opened.wait()
        running.discard(number)

    @app.workflow
    async def job(ctx: Context, number: int) -> None:
        await ctx.step("work", body, number)

    h.include(app)
    async with hire(h, concurrency=3):
        runs = await h.start_many(job, [(n,) for n in range(10)])
        while len(peak) < 3:
            await asyncio.sleep(0)
        opened.set()
        for run in runs:
            await run.result()
    assert max(peak) == 3


async def test_no_more_bodies_run_at_once_than_steps_allows_and_the_others_wait(h: Harness) -> None:
    app = Registry()
    running: list[int] = []
    peak: list[int] = []

    async def body(number: int) -> int:
        running.append(number)
        peak.append(len(running))
        await asyncio.sleep(0)
        running.remove(number)
        return number

    @app.workflow
    async def job(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step("work", body, n) for n in range(20))))

    h.include(app)
    async with hire(h, steps=4):
        assert await h.execute(job) == list(range(20))
    assert max(peak) == 4


async def test_a_hint_that_comes_while_the_last_query_ends_is_not_lost() -> None:
    """T1: the holder learns of an arrival by a hint. A lost hint may only cost latency; this one costs nothing."""
    app = Registry()

    @app.workflow
    async def slow(ctx: Context) -> None:
        await ctx.step("slow", asyncio.Event().wait)

    clock = VirtualClock()
    store = FaultyStore(MemoryStore(clock=clock))
    async with Harness(app, clock=clock, store=store, patience_seconds=0.02) as h:
        run = await h.start(slow)
        await h.settle()
        worker = h._worker
        assert worker is not None
        lease_check = worker._lease_check
        on_done = lease_check._on_done

        def hint_meanwhile(task: asyncio.Task[None]) -> None:
            lease_check._on_done = on_done  # type: ignore[method-assign]
            worker._on_hint(Hint(arrived=frozenset({run.id})))
            on_done(task)

        lease_check._on_done = hint_meanwhile  # type: ignore[method-assign]
        worker._on_hint(Hint(arrived=frozenset({run.id})))
        await h.settle()
        assert store.calls.count("look") == 2


async def test_reading_held_runs_does_not_count_as_renewing_their_leases(h: Harness) -> None:
    """T8: after an outage a worker renews before it claims, so it never takes a run from itself."""
    app = Registry()
    opened = asyncio.Event()

    @app.workflow
    async def slow(ctx: Context) -> str:
        await ctx.step("slow", opened.wait)
        return "done"

    h.include(app)
    async with hire(h, lease_seconds=30) as worker:
        run = await h.start(slow)
        while not worker.is_executing:
            await asyncio.sleep(0)
        h.clock.pass_to(h.clock.now() + 29_000_000)
        await run.send("hello")  # causes a read
        await asyncio.sleep(0.01)
        h.clock.pass_to(h.clock.now() + 2_000_000)
        await h.execute("shopping.v1")  # causes a claim
        opened.set()
        assert await run.result() == "done"
        assert [fact.event for fact in await run.audit()].count("claimed") == 1


async def test_a_stopping_worker_lets_running_steps_finish_within_the_grace(h: Harness) -> None:
    app = Registry()
    opened = asyncio.Event()

    async def quick() -> str:
        await opened.wait()
        return "finished in grace"

    @app.workflow
    async def job(ctx: Context) -> str:
        return await ctx.step("work", quick)

    h.include(app)
    worker = hire(h)
    await worker.start()
    run = await h.start(job)
    await until("the step is executed", lambda: worker.is_executing)
    stopping = asyncio.create_task(worker.stop(grace_seconds=GUARD_SECONDS))
    await until("the worker takes no more", lambda: worker.is_draining)
    opened.set()
    await stopping
    assert await run.result() == "finished in grace"


async def test_a_stopping_worker_gives_a_run_back_when_the_grace_is_over(h: Harness) -> None:
    app = Registry()
    cancelled: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append("forever")

    @app.workflow
    async def job(ctx: Context) -> None:
        await ctx.step("work", forever)

    h.include(app)
    worker = hire(h)
    await worker.start()
    run = await h.start(job)
    await until("the step is executed", lambda: worker.is_executing)
    await worker.stop(grace_seconds=0.05)
    assert cancelled == ["forever"]
    info = await run.info()
    assert (info.state, info.worker, info.ready_at) == (RunState.PENDING, None, h.now)
    assert list(await run.history()) == []
    async with hire(h) as worker:
        await until("the step is executed again", lambda: worker.is_executing)
        assert (await run.info()).attempt == 1  # a shutdown is not charged as an attempt
        await run.cancel()


async def test_stopping_a_worker_twice_or_before_its_start_does_nothing(h: Harness) -> None:
    worker = hire(h)
    await worker.stop()
    async with hire(h) as worker:
        await worker.stop()
        await worker.stop()
        assert list(await session_of(h).store.workers()) == []


async def endless(ctx: Context) -> None:
    await ctx.step("work", asyncio.Event().wait)


def held(worker: Worker) -> int:
    return sum(run.is_executing for run in worker._drivers.values())


async def test_a_worker_takes_at_most_its_concurrency_of_runs_started_at_once(h: Harness) -> None:
    app = Registry()
    app.workflow(endless)
    h.include(app)
    async with hire(h, concurrency=2, grace_seconds=0) as worker:
        while not worker.is_idle:
            await asyncio.sleep(0)
        await asyncio.gather(*(h.start("endless") for _ in range(20)))
        while held(worker) < 2:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert worker.held_count == 2
        assert worker.free() == 0


async def test_a_run_that_became_ready_during_a_start_is_claimed_if_the_start_created_none(h: Harness) -> None:
    known = await h.start("shopping.v1", key="known")
    async with hire(h, concurrency=1) as worker:
        await known.result()
        while not worker.is_idle:
            await asyncio.sleep(0)
        offer = worker.offer("shopping.v1")
        assert offer is not None
        await session_of(h).store.create([Intent(id="somebody's", type="shopping.v1", payload="{}")])
        worker._claimer.wake()
        assert worker.free() == 0
        is_asking = [worker._claimer.is_running]
        worker.accept([], h.clock.now())  # the key was known: no run was created
        is_asking.append(worker._claimer.is_running)
        assert is_asking == [False, True]
        assert await h.run("somebody's").result() == "bought"


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_a_worker_whose_caller_is_cancelled_stops_all_the_same(h: Harness, is_stopping: bool) -> None:
    app = Registry()
    app.workflow(endless)
    h.include(app)
    worker = hire(h, grace_seconds=0.02)
    if is_stopping:
        await worker.start()
    running = None if is_stopping else asyncio.create_task(worker.run())
    run = await h.start("endless")
    while not held(worker):
        await asyncio.sleep(0)
    caller = running or asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await worker.stop()  # waits until the worker has stopped
    info = await run.info()
    assert (info.state, info.worker) == (RunState.PENDING, None)
    assert list(await session_of(h).store.workers()) == []


async def test_a_step_that_cannot_be_started_blocks_its_run_and_no_other(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Registry()

    @app.workflow
    async def one(ctx: Context, name: str) -> str:
        return await ctx.step(name, lambda: name)

    h.include(app)
    async with hire(h) as worker:
        start = worker.executor.start

        def refusing(call: StepCall, *more: Any) -> Body:
            if call.location == "b":
                raise MemoryError("no more")
            return start(call, *more)

        monkeypatch.setattr(worker.executor, "start", refusing)
        runs = await h.start_many(one, [("a",), ("b",), ("c",)], keys=["a", "b", "c"])
        assert [await runs[0].result(), await runs[2].result()] == ["a", "c"]
        while (await runs[1].info()).state is not RunState.BLOCKED:
            await asyncio.sleep(0)
        assert "MemoryError: no more" in str((await runs[1].info()).error)


async def test_a_worker_registers_and_retires(h: Harness) -> None:
    async with hire(h, name="w-1", concurrency=7) as worker:
        (info,) = await session_of(h).store.workers()
        assert (info.id, info.name, info.concurrency) == (worker.id, "w-1", 7)
        assert set(info.types) == {"shop.order.v1", "shopping.v1"}
    assert list(await session_of(h).store.workers()) == []


async def test_the_audit_names_the_holder_of_a_run_after_that_worker_is_gone(h: Harness) -> None:
    run = await h.start("shopping.v1")
    first, second = hire(h, name="billing-1"), hire(h, name="billing-1")
    async with first:
        await run.result()
    (claimed,) = [fact for fact in await run.audit() if fact.event == "claimed"]
    assert claimed.data["worker"] == first.id
    assert first.id.startswith("billing-1.")
    assert first.id != second.id


async def test_a_slow_workflow_is_named_in_the_log(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    app = Registry()

    @app.workflow
    async def busy(ctx: Context) -> None:
        time.sleep(0.11)

    h.include(app)
    with caplog.at_level(logging.WARNING):
        async with hire(h):
            await h.execute(busy)
    assert "(busy) blocked the worker's loop for" in caplog.text


async def test_a_start_that_is_refused_leaves_the_clock_of_the_worker_alone() -> None:
    hf = Holdfast(store=MemoryStore())
    hf.include(registry())
    async with hf, hf.worker() as worker:
        await (await hf.start("shop.order.v1", {"number": 1}, key="order")).result()
        await until("the worker is idle", lambda: worker.is_idle)
        before = worker.clock.now()

        with pytest.raises(KeyConflict):
            await hf.start("shop.order.v1", {"number": 2}, key="order")

        assert worker.clock.now() >= before


class CountingClock(FollowingClock):
    """A clock that counts its timers."""

    timers = 0

    def call_at(self, when: Micros, callback: Callable[[], object]) -> Timer:
        self.timers += 1
        return super().call_at(when, callback)


@pytest.mark.parametrize("why", ["it is to pause", "its lease is over"])
async def test_a_due_retry_that_may_not_start_is_not_checked_repeatedly(why: str) -> None:
    hf, clock, is_over = Holdfast(store=MemoryStore()), CountingClock(), asyncio.Event()
    attempts: list[int] = []
    is_to_pause = why == "it is to pause"

    async def failing() -> None:
        attempts.append(len(attempts))
        if is_to_pause:
            await hf.run(step_info().run_id).pause()  # before the next attempt can be due
        raise ValueError

    @hf.workflow("busy.v1")
    async def busy(ctx: Context) -> None:
        # In the other case the retry becomes due when the clock jumps, and not before.
        retry = Retry(initial=0.05 if is_to_pause else 60, jitter=0)
        await asyncio.gather(ctx.step("long", is_over.wait), ctx.step("failing", failing, retry=retry))

    async with hf, hf._local_workers.make(clock=clock, poll=None):
        await hf.start(busy)
        await until("the step has failed", lambda: bool(attempts))
        await asyncio.sleep(0.2)
        if not is_to_pause:
            clock.sync(clock.now() + 3600 * SECOND)
            await asyncio.sleep(0.2)

        before = clock.timers
        for _ in range(100):
            await asyncio.sleep(0)

        assert len(attempts) == 1
        assert clock.timers - before < 5
        is_over.set()
