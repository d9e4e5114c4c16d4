"""Retries: attempts are counted and recorded, delays are drawn once, failures are the same on every replay."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Context, Fatal, Registry, Retry, RunFailed, RunState, StepFailed, StepTimeout, step_info
from holdfast.app import session_of
from holdfast.core.model import EntryState
from holdfast.testing.harness import Harness
from holdfast.testing.patience import until, wait_for
from tests.stage import Stage, facts


class Broken(Exception):
    """A user-defined error."""


class Fixable(Broken):
    """A user-defined error that is worth a retry."""


def failing(times: int, error: type[Exception] = Fixable) -> Any:
    """A body that raises a given number of times, then returns the number of its attempt."""

    def body() -> int:
        attempt = step_info().attempt
        if attempt <= times:
            raise error(f"attempt {attempt}")
        return attempt

    return body


@pytest.mark.every_store
async def test_a_step_is_tried_four_times_by_default(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context, times: int) -> int:
        return await ctx.step("flaky", failing(times))

    async with stage.harness(app) as h:
        assert await h.execute(shop, 3) == 4
        with pytest.raises(RunFailed, match="step 'flaky' failed after 4 attempts: Fixable: attempt 4"):
            await h.execute(shop, 4)


async def test_delays_grow_by_their_factor_up_to_a_limit(stage: Stage) -> None:
    app = Registry()
    begun: list[float] = []

    @app.workflow
    async def shop(ctx: Context) -> None:
        def body() -> None:
            begun.append(h.clock.now() / 1_000_000)
            raise Broken

        retry = Retry(max_attempts=6, initial=10, factor=3, max_delay=100, jitter=0)
        await ctx.step("flaky", body, retry=retry)

    async with stage.harness(app) as h:
        with pytest.raises(RunFailed):
            await h.execute(shop)
    assert [round(b - a, 3) for a, b in pairwise(begun)] == [10, 30, 90, 100, 100]


async def test_jitter_spreads_a_delay_and_the_drawn_delay_is_stored(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        return await ctx.step("flaky", failing(1), retry=Retry(initial=100, max_delay=1000, jitter=0.5))

    async with stage.harness(app) as h:
        begun = h.now
        run = await h.start(shop)
        await h.settle()
        (entry,) = await run.history()
        assert (entry.state, entry.attempts) == (EntryState.RETRYING, 1)
        assert entry.retry_at is not None
        assert timedelta(seconds=50) <= entry.retry_at - begun <= timedelta(seconds=150)
        await run.result()
        assert h.now == entry.retry_at


async def test_a_failed_attempt_is_recorded_with_its_number_and_audited(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        return await ctx.step("flaky", failing(2), retry=Retry(initial=3600, max_delay=3600, factor=1, jitter=0))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        (entry,) = await run.history()
        assert (entry.attempts, entry.state) == (1, EntryState.RETRYING)
        assert str(entry.error) == "Fixable: attempt 1"
        assert (await run.info()).state is RunState.SUSPENDED
        await h.advance(3600)
        (entry,) = await run.history()
        assert (entry.attempts, str(entry.error)) == (2, "Fixable: attempt 2")
        assert await run.result() == 3
        retried = [fact.data for fact in await run.audit() if fact.event == "retried"]
        assert [(fact["location"], fact["attempt"]) for fact in retried] == [("flaky", 1), ("flaky", 2)]


async def test_an_early_wake_does_not_shorten_a_delay(stage: Stage) -> None:
    app = Registry()
    begun: list[timedelta] = []

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        def body() -> int:
            begun.append(h.now - start)
            if len(begun) == 1:
                raise Fixable
            return 1

        return list(
            await asyncio.gather(
                ctx.step("flaky", body, retry=Retry(initial=3600, max_delay=3600, factor=1, jitter=0)),
                ctx.receive("poke"),
                ctx.receive("poke"),
            )
        )

    async with stage.harness(app) as h:
        start = h.now
        run = await h.start(shop)
        await h.advance(60)
        await run.send("poke", 1)
        await h.advance(60)
        await h.crash_worker()
        await h.start_worker()
        await run.send("poke", 2)
        await h.settle()
        assert begun == [timedelta(0)]
        assert await run.result() == [1, 1, 2]
        assert begun == [timedelta(0), timedelta(hours=1)]


async def test_a_short_delay_is_waited_for_in_the_worker_and_costs_no_suspension(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        return await ctx.step("flaky", failing(2), retry=Retry(initial=0.3))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        assert await run.result() == 3
        assert [fact.event for fact in await run.audit()] == ["created", "claimed", "retried", "retried", "succeeded"]


async def test_fatal_fails_at_once(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            await ctx.step("hopeless", failing(9, Fatal))
        except StepFailed as failure:
            return f"{failure.attempts} {failure.type} {failure.matches(Fatal)}"
        return "?"

    async with stage.harness(app) as h:
        assert await h.execute(shop) == "1 Fatal True"
        assert h.executed == ["hopeless"]


async def test_retry_on_and_give_up_on_choose_the_errors_worth_a_retry(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> list[int]:
        only = Retry(retry_on=Fixable, initial=0)
        but = Retry(give_up_on=(Fixable, OSError), initial=0)
        tries = []
        for retry, error in [(only, Fixable), (only, Broken), (but, Fixable), (but, Broken), (but, ConnectionError)]:
            try:
                await ctx.step("s", failing(9, error), retry=retry)
            except StepFailed as failure:
                tries.append(failure.attempts)
        return tries

    async with stage.harness(app) as h:
        assert await h.execute(shop) == [4, 1, 1, 4, 1]


async def test_a_failure_has_type_message_and_attempts_and_is_the_same_on_every_replay(stage: Stage) -> None:
    app = Registry()
    seen: list[Any] = []

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            await ctx.step("broken", failing(9), retry=Retry(max_attempts=2, initial=0))
        except StepFailed as failure:
            seen.append(
                (
                    type(failure),
                    str(failure),
                    failure.type,
                    failure.message,
                    failure.attempts,
                    failure.location,
                    failure.matches(Fixable),
                    failure.matches(Broken),
                    failure.matches(OSError),
                    "in body" in failure.record.traceback,
                )
            )
        await ctx.sleep(3600)
        return "went on"

    async with stage.harness(app) as h:
        assert await h.execute(shop) == "went on"
        assert h.executed == ["broken", "broken"]
    text = "step 'broken' failed after 2 attempts: Fixable: attempt 2"
    assert len(seen) >= 2
    assert set(seen) == {(StepFailed, text, "Fixable", "attempt 2", 2, "broken", True, True, False, True)}


async def test_a_failure_caught_by_the_workflow_is_recorded_and_not_executed_again(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            await ctx.step("charge", failing(9), retry=Retry(max_attempts=1))
        except StepFailed:
            await ctx.step("apologise", lambda: None)
        await ctx.receive("go")
        return "done"

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await run.send("go")
        assert await run.result() == "done"
        assert h.executed == ["charge", "apologise"]
        assert await facts(run) == ["charge step failed", "apologise step done", "receive:go message done"]


async def test_a_timeout_is_terminal_and_cancels_the_body(stage: Stage) -> None:
    app = Registry()
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled" if step_info().is_cancelled else "?")

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            await ctx.step("slow", forever, timeout=0.01)
        except StepTimeout as failure:
            await ctx.sleep(60)
            return f"{failure.attempts} {failure.matches(TimeoutError)} {failure}"
        return "?"

    async with stage.harness(app) as h:
        expected = "1 True step 'slow' failed after 1 attempt: StepTimeout: an attempt took longer than 0.01 s"
        assert await h.execute(shop) == expected
        assert h.executed == ["slow"]
    assert ended == ["cancelled"]


async def test_a_timeout_is_retried_if_the_step_says_so(stage: Stage) -> None:
    app = Registry()

    async def slow_twice() -> int:
        attempt = step_info().attempt
        if attempt < 3:
            await asyncio.Event().wait()
        return attempt

    @app.workflow
    async def shop(ctx: Context) -> int:
        return await ctx.step("slow", slow_twice, timeout=0.01, retry_timeout=True, retry=Retry(initial=1))

    async with stage.harness(app) as h:
        assert await h.execute(shop) == 3


async def test_a_sync_body_that_timed_out_can_see_it_and_its_result_is_dropped(stage: Stage) -> None:
    app = Registry()
    release = threading.Event()
    told: list[bool] = []

    def slow() -> str:
        wait_for("the attempt has timed out", release)
        told.append(step_info().is_cancelled)
        return "too late"

    @app.workflow
    async def shop(ctx: Context) -> str:
        try:
            return await ctx.step("slow", slow, timeout=0.01)
        except StepTimeout:
            return "timed out"

    async with stage.harness(app) as h:
        assert await h.execute(shop) == "timed out"
        release.set()
    while not told:
        await asyncio.sleep(0.001)
    assert told == [True]


async def test_an_uncaught_failure_fails_the_run_and_its_text_contains_the_cause(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("charge", failing(9), retry=Retry(max_attempts=1))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        with pytest.raises(RunFailed, match="Fixable: attempt 1") as failure:
            await run.result()
        assert failure.value.run_id == run.id
        assert failure.value.error.type == "StepFailed"
        assert failure.value.error.cause is not None
        assert failure.value.error.cause.matches(Fixable)
        info = await run.info()
        assert info.state is RunState.FAILED
        assert "test_retries.py" in str(info.error and info.error.traceback)


async def test_a_traceback_is_kept_as_text_and_cut_at_sixteen_kibibytes(stage: Stage) -> None:
    app = Registry()

    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        raise Broken("é" * 10_000)

    @app.workflow
    async def shop(ctx: Context) -> list[int]:
        try:
            await ctx.step("deep", deep, 300, retry=Retry(max_attempts=1))
        except StepFailed as failure:
            return [len(failure.record.traceback.encode()), len(failure.message)]
        return []

    async with stage.harness(app) as h:
        traceback, message = await h.execute(shop)
        assert 16_000 < traceback <= 16 * 1024
        assert message == 4_000


async def test_a_retry_policy_that_raises_blocks_the_run_instead_of_leaving_it_stuck(stage: Stage) -> None:
    app = Registry()

    def no_delay(attempt: int) -> float:
        raise RuntimeError("no idea how long")

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("flaky", failing(1), retry=Retry(delay=no_delay))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        info = await run.info()
        assert info.state is RunState.BLOCKED
        assert "no idea how long" in str(info.error)


@pytest.mark.parametrize("error", [SystemExit("bye"), asyncio.CancelledError("self"), GeneratorExit("odd")])
async def test_a_body_that_raises_a_base_exception_fails_its_step_and_not_the_worker(
    stage: Stage, error: BaseException
) -> None:
    app = Registry()

    async def asynchronous() -> None:
        raise error

    def synchronous() -> None:
        raise error

    @app.workflow
    async def shop(ctx: Context) -> list[str]:
        found = []
        for body in (asynchronous, synchronous):
            try:
                await ctx.step("body", body)
            except StepFailed as failure:
                found.append(f"{failure.attempts} {failure.type}")
        return found

    async with stage.harness(app) as h:
        assert await h.execute(shop) == [f"1 {type(error).__name__}"] * 2


async def test_steps_that_used_up_their_attempts_by_crashes_fail_in_the_order_of_a_replay() -> None:
    """T3: results recorded and requested after the first of them come before the next one."""
    seen: list[list[str]] = []
    begun: list[str] = []

    def shop(version: int) -> Registry:
        app = Registry()
        once = Retry(max_attempts=1)

        async def hang() -> None:
            begun.append(step_info().location)
            await asyncio.sleep(1e6)

        async def new_step(ctx: Context, name: str) -> None:
            with suppress(StepFailed):
                await ctx.step(name, hang, retry=once)

        @app.workflow("shop", strict=False)
        async def shop(ctx: Context) -> list[str]:
            order: list[str] = []

            async def left(ctx: Context) -> None:
                if version == 2:
                    await new_step(ctx, "a")
                await ctx.step("r", lambda: 1)
                order.append("r")

            async def right(ctx: Context) -> None:
                await (new_step(ctx, "b") if version == 2 else ctx.receive("never"))
                order.append("b")

            await ctx.join("j", {"l": left, "r": right})
            seen.append(list(order))
            await ctx.step(f"first-{order[0]}", lambda: 1)
            await ctx.sleep(3600)
            return order

        return app

    async with Harness(shop(1)) as h:
        run = await h.start("shop", {})
        await h.advance(1)
        await h.stop_worker()
        session_of(h).registry = shop(2)
        await run.wake()
        await h.start_worker()
        await run.send("never")
        await until("both steps execute", lambda: len(begun) == 2)
        await h.crash_worker()
        await h.start_worker()
        await h.advance(60)
        await h.crash_worker()
        await h.start_worker()
        await h.advance(4000)

        assert await run.result() == ["r", "b"]
        assert all(order == ["r", "b"] for order in seen)


# Steps that cannot have been executing when the worker died


async def test_a_crash_is_not_charged_to_a_step_that_a_due_timer_leads_to(stage: Stage) -> None:
    app = Registry()

    @app.workflow
    async def shop(ctx: Context) -> int:
        await ctx.step("first", lambda: 1)
        await ctx.sleep(0.9)  # short, so that the worker waits for it and holds the run
        return await ctx.step("charge", lambda: 2, retry=Retry(max_attempts=1))

    async with stage.harness(app) as h:
        run = await h.start(shop)
        await h.settle()
        await h.crash_worker()
        await h.advance(60)
        await h.start_worker()

        assert await run.result() == 2
        assert h.executed == ["first", "charge"]


async def test_a_crash_is_not_charged_to_a_step_that_a_message_leads_to(stage: Stage) -> None:
    app = Registry()
    is_hanging = [True]

    async def hang() -> int:
        if is_hanging.pop():
            is_hanging.append(False)
            await asyncio.sleep(1e6)
        return 1

    @app.workflow
    async def shop(ctx: Context) -> list[int]:
        async def mail(ctx: Context) -> int:
            await ctx.receive("go")
            return await ctx.step("mail", lambda: 2, retry=Retry(max_attempts=1))

        async def long(ctx: Context) -> int:
            return await ctx.step("long", hang)

        return list((await ctx.join("j", {"long": long, "mail": mail})).values())

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        await h.crash_worker()
        await run.send("go")
        await h.advance(60)
        await h.start_worker()

        assert await run.result() == [1, 2]
        assert {entry.location: entry.attempts for entry in await run.history() if entry.kind.value == "step"} == {
            "j/long/long": 2,
            "j/mail/mail": 1,
        }


async def test_a_crash_is_not_charged_to_a_step_whose_next_attempt_is_not_due(stage: Stage) -> None:
    app = Registry()
    attempts: list[int] = []

    def fail_once() -> int:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise ValueError("not yet")
        return 1

    @app.workflow
    async def shop(ctx: Context) -> int:
        hang = asyncio.ensure_future(ctx.step("hang", asyncio.sleep, 1e6))
        result = await ctx.step("charge", fail_once, retry=Retry(max_attempts=2, initial=600, max_delay=600, jitter=0))
        hang.cancel()
        return result

    async with stage.harness(app, has_endless_bodies=True) as h:
        run = await h.start(shop)
        await h.settle()
        await h.crash_worker()
        await h.advance(60)
        await h.start_worker()

        assert await run.result() == 1
        assert len(attempts) == 2
