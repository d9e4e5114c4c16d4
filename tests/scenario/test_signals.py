"""Signals: each change is announced once, after its write, to all listeners, and listeners change nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import pytest

from holdfast import Context, Fatal, InvalidRequest, Registry, Retry, RunFailed, RunState, Signal, StoreUnavailable
from holdfast.app import session_of
from holdfast.core.news import SIGNALS
from holdfast.telemetry import hooks
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from tests.stage import Stage

SECRET = "hunter2"  # noqa: S105 - what must not appear anywhere


def gathered(h: Harness, *patterns: str) -> list[Signal]:
    """Collect all signals from now on, in order."""
    signals: list[Signal] = []
    session_of(h).signals.tap(signals.append, *patterns or ("run.*", "step.*"))
    return signals


def told(signals: list[Signal]) -> list[str]:
    return [f"{signal.name} {signal.location}" if signal.location else signal.name for signal in signals]


def app() -> Registry:
    found = Registry()

    @found.workflow("order.v1")
    async def order(ctx: Context, card: str) -> str:
        await ctx.step("charge", lambda: card)
        await ctx.sleep(3600)
        paid: str = await ctx.receive("paid", type=str)
        return paid

    @found.workflow("parent.v1")
    async def parent(ctx: Context) -> str:
        answer: str = await ctx.call("child.v1")
        return answer

    @found.workflow("child.v1")
    async def child(ctx: Context) -> str:
        return "done"

    @found.workflow("flaky.v1")
    async def flaky(ctx: Context, card: str) -> None:
        def refuse() -> None:
            raise ConnectionError(f"card {card} is refused")

        await ctx.step("charge", refuse, retry=Retry(max_attempts=2, initial=60, jitter=0))

    @found.workflow("undoing.v1")
    async def undoing(ctx: Context) -> None:
        await ctx.step("book", lambda: "seat", undo=lambda seat: None)
        await ctx.receive("never")

    @found.workflow("again.v1")
    async def again(ctx: Context, count: int) -> int:
        if count == 0:
            return 0
        return await ctx.continue_as_new(count - 1)

    @found.workflow("stuck.v1")
    async def stuck(ctx: Context) -> None:
        await asyncio.get_running_loop().create_future()

    return found


@pytest.mark.every_store
async def test_the_life_of_a_run_is_signalled_in_order(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        signals = gathered(h)

        run = await h.start("order.v1", {"card": SECRET})
        await h.advance(timedelta(hours=2))
        await run.send("paid", SECRET)
        await run.result()
        await h.settle()

        # A worker may finish before the process that started the run knows of the start.
        assert sorted(told(signals)[:2]) == ["run.claimed", "run.started"]
        assert told(signals)[2:] == [
            "step.started charge",
            "step.succeeded charge",
            "run.suspended",
            "run.claimed",
            "run.suspended",
            "run.claimed",
            "run.succeeded",
        ]
        assert {signal.run_id for signal in signals} == {run.id}
        assert {signal.type for signal in signals} == {"order.v1"}
        assert SECRET not in repr(signals)
        end = signals[-1]
        assert (end.state, end.error, end.worker is not None) == (RunState.SUCCEEDED, None, True)
        assert end.seconds == 7200


async def test_a_claim_signal_has_the_time_the_run_was_ready(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        signals = gathered(h, "run.claimed")
        await h.stop_worker()
        run = await h.start("order.v1", {"card": "x"}, delay=10)
        h.clock.pass_to(h.clock.now() + 15_000_000)
        await h.start_worker()
        await h.settle()  # 5 s after its start time
        await h.stop_worker()
        h.clock.pass_to(h.clock.now() + 3_607_000_000)
        await h.start_worker()
        await h.settle()  # 7 s after the end of its sleep
        await h.stop_worker()
        await run.send("paid", "yes")
        h.clock.pass_to(h.clock.now() + 3_000_000)
        await h.start_worker()
        await h.settle()  # 3 s after the message

        assert [signal.seconds for signal in signals] == [5, 7, 3]


async def test_a_failed_attempt_is_signalled_without_the_text_of_its_error(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        signals = gathered(h)

        run = await h.start("flaky.v1", {"card": SECRET})
        with pytest.raises(RunFailed):
            await run.result()
        await h.settle()

        steps = [signal for signal in signals if signal.location]
        assert [(one.name, one.attempt, one.error) for one in steps] == [
            ("step.started", 1, None),
            ("step.retried", 1, "ConnectionError"),
            ("step.started", 2, None),
            ("step.failed", 2, "ConnectionError"),
        ]
        assert all(one.seconds is not None for one in steps if one.name != "step.started")
        assert (signals[-1].name, signals[-1].error) == ("run.failed", "StepFailed")
        assert SECRET not in repr(signals)


async def test_a_child_is_signalled_with_its_parent(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        signals = gathered(h, "run.started", "run.succeeded")

        run = await h.start("parent.v1")
        await run.result()
        await h.settle()

        assert sorted((one.name, one.type or "", one.parent_id or "") for one in signals) == [
            ("run.started", "child.v1", run.id),
            ("run.started", "parent.v1", ""),
            ("run.succeeded", "child.v1", run.id),
            ("run.succeeded", "parent.v1", ""),
        ]


async def test_control_requests_on_a_run_are_signalled(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        run = await h.start("undoing.v1")
        await h.settle()
        signals = gathered(h, "run.*")

        await run.wake()
        await h.settle()
        await run.pause()
        await run.resume()
        await h.settle()
        fork = await run.fork("book")
        await h.settle()
        await run.rewind("book")
        await h.settle()
        await run.cancel("enough")
        await h.settle()
        await run.recover()
        await h.settle()  # a run that is held cannot be deleted
        await fork.cancel(force=True)
        await fork.delete()
        await run.delete()

        changes = [one.name for one in signals if one.name not in ("run.claimed", "run.suspended")]
        # The worker signals the end. It may do that before the cancelling caller has its answer.
        ended, begun = changes.index("run.cancelled"), changes.index("run.rolling_back")
        assert abs(ended - begun) == 1
        changes[min(ended, begun)], changes[max(ended, begun)] = "run.rolling_back", "run.cancelled"
        assert changes == [
            "run.woken",
            "run.paused",
            "run.resumed",
            "run.forked",
            "run.started",
            "run.rewound",
            "run.rolling_back",
            "run.cancelled",
            "run.recovered",
            "run.cancelled",
            "run.deleted",
            "run.cancelled",
            "run.deleted",
        ]
        assert [one.run_id for one in signals if one.name == "run.started"] == [fork.id]
        assert {one.type for one in signals} == {"undoing.v1"}


async def test_a_run_that_a_worker_pauses_is_signalled_as_paused(stage: Stage) -> None:
    release = asyncio.Event()
    found = Registry()

    @found.workflow("slow.v1")
    async def slow(ctx: Context) -> None:
        await ctx.step("wait", release.wait)
        await ctx.receive("never")

    async with stage.harness(found, has_endless_bodies=True) as h:
        signals = gathered(h, "run.*")
        run = await h.start(slow)
        await h.settle()
        await run.pause()
        release.set()
        await h.settle()

        assert sorted(told(signals)) == ["run.claimed", "run.paused", "run.started"]
        assert signals[-1].state is RunState.PAUSED


async def test_other_ways_to_leave_a_worker_are_signalled(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        signals = gathered(h, "run.*", "worker.*")
        await (await h.start("again.v1", {"count": 1})).result()
        await h.start("stuck.v1")
        await h.settle()
        await h.stop_worker()

        names = [one.name for one in signals if one.name not in ("run.started", "run.claimed", "worker.flushed")]
        assert names == ["run.continued", "run.succeeded", "run.blocked", "worker.stopped"]
        assert [one.error for one in signals if one.name == "run.blocked"] == ["WorkflowViolation"]
        flushes = [one for one in signals if one.name == "worker.flushed"]
        assert flushes
        assert all(one.count and one.seconds is not None for one in flushes)


async def test_a_run_that_is_cancelled_under_a_worker_is_signalled_as_lost(stage: Stage) -> None:
    found = Registry()

    @found.workflow("endless.v1")
    async def endless(ctx: Context) -> None:
        await ctx.step("wait", asyncio.Event().wait)

    async with stage.harness(found, has_endless_bodies=True) as h:
        signals = gathered(h)
        run = await h.start(endless)
        await h.settle()
        await run.cancel()
        await h.settle()

        assert sorted(told(signals)[-2:]) == ["run.cancelled", "run.lost"]


async def test_a_run_that_a_stopping_worker_gives_back_is_signalled_as_released(stage: Stage) -> None:
    found = Registry()

    @found.workflow("endless.v1")
    async def endless(ctx: Context) -> None:
        await ctx.step("wait", asyncio.Event().wait)

    async with stage.harness(found, has_endless_bodies=True) as h:
        signals = gathered(h, "run.*", "worker.*")
        await h.start(endless)
        await h.settle()
        assert h._worker is not None
        await h._worker.stop(grace_seconds=0)

        assert [one.name for one in signals if one.name != "worker.flushed"][-2:] == ["run.released", "worker.stopped"]


async def test_a_change_is_signalled_only_after_its_write_is_answered_and_then_once(stage: Stage) -> None:
    async with stage.harness(app(), wrap=FaultyStore) as h:
        signals = gathered(h, "run.*")
        before: list[str] = []
        faults = cast("FaultyStore", session_of(h).store)

        async def lose_the_answer() -> None:
            before.extend(told(signals))
            raise StoreUnavailable("carried out, but the answer got lost")

        faults.interpose("checkpoint", lose_the_answer, when="after")
        run = await h.start("child.v1")
        await run.result()
        await h.settle()

        assert "run.succeeded" not in before
        assert sorted(told(signals)) == ["run.claimed", "run.started", "run.succeeded"]


async def test_a_replayed_run_signals_no_step_again(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        run = await h.start("order.v1", {"card": "x"})
        await h.settle()
    async with stage.harness(app()) as h:
        signals = gathered(h)
        await h.advance(timedelta(hours=2))
        await h.run(run.id).send("paid", "yes")
        await h.run(run.id).result()
        await h.settle()

        assert told(signals)[-1] == "run.succeeded"
        assert not [one for one in signals if one.name.startswith("step.")]


# Hooks


@pytest.fixture
def harness() -> Harness:
    return Harness(app())


def a_hook(is_async: bool, calls: list[Signal]) -> Callable[[Signal], object]:
    def block(signal: Signal) -> None:
        assert threading.current_thread() is not threading.main_thread()
        calls.append(signal)

    async def wait(signal: Signal) -> None:
        await asyncio.sleep(0)
        calls.append(signal)

    return wait if is_async else block


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_hook_gets_its_signals_in_order(harness: Harness, is_async: bool) -> None:
    calls: list[Signal] = []
    harness.on("run.*", "run.failed")(a_hook(is_async, calls))

    async with harness as h:
        with pytest.raises(RunFailed):
            await h.execute("flaky.v1", {"card": "x"})
        await h.settle()

        assert told(calls) == [
            "run.started",
            "run.claimed",
            "run.suspended",
            "run.claimed",
            "run.failed",
        ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_hook_that_raises_changes_nothing_and_is_logged_without_its_text(
    harness: Harness, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    def block(signal: Signal) -> None:
        raise Fatal(SECRET)

    async def wait(signal: Signal) -> None:
        raise Fatal(SECRET)

    caplog.set_level(logging.INFO)
    harness.on("run.succeeded")(wait if is_async else block)
    async with harness as h:
        assert await h.execute("child.v1") == "done"
        await h.settle()

        (record,) = [one for one in caplog.records if one.name == "holdfast.hooks"]
        assert "failed on run.succeeded: Fatal" in record.getMessage()
        assert vars(record)["run_id"]
        assert SECRET not in caplog.text


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_hook_that_hangs_changes_nothing_and_loses_signals_beyond_its_queue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    monkeypatch.setattr(hooks, "PENDING_LIMIT", 3)
    monkeypatch.setattr("holdfast.app._HOOK_SECONDS", 0.05)
    h = Harness(app(), patience_seconds=0.02)
    release = threading.Event()

    async def wait(signal: Signal) -> None:
        await asyncio.Event().wait()

    h.on("run.*")(wait if is_async else lambda signal: release.wait())
    async with h:
        for _ in range(5):
            assert await h.execute("child.v1") == "done"
        assert h._hooks.dropped in (15 - 3, 15 - 3 - 1)  # it may have taken one before the next came
    release.set()

    assert [one.getMessage() for one in caplog.records if "too slow" in one.getMessage()]


async def test_a_hook_gets_its_pending_signals_before_the_object_is_closed() -> None:
    calls: list[Signal] = []
    h = Harness(app())
    h.on("worker.stopped")(a_hook(is_async=True, calls=calls))

    async with h:
        pass

    assert told(calls) == ["worker.stopped"]


@pytest.mark.parametrize("name", ["run.fail", "run", "", "runs.*", "run.failed.*"])
def test_an_unknown_signal_is_refused_with_the_known_ones(harness: Harness, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"the signals are .*run\.failed"):
        harness.on(name)


def test_a_hook_without_a_signal_is_refused(harness: Harness) -> None:
    with pytest.raises(InvalidRequest):
        harness.on()


def test_no_signal_is_created_without_listeners(harness: Harness) -> None:
    untap = session_of(harness).signals.tap(print, "run.failed")

    assert session_of(harness).signals.wants("run.failed")
    assert not session_of(harness).signals.wants("step.started")
    untap()
    assert not session_of(harness).signals.is_used


def test_a_family_is_all_signals_with_a_common_prefix(harness: Harness) -> None:
    session_of(harness).signals.tap(print, "step.*")

    assert {name for name in SIGNALS if session_of(harness).signals.wants(name)} == {
        "step.started",
        "step.succeeded",
        "step.failed",
        "step.retried",
    }


async def test_runs_of_schedules_are_signalled(stage: Stage) -> None:
    async with stage.harness(app()) as h:
        signals = gathered(h, "run.started")
        await h.schedules.put("hourly", "child.v1", {}, every=3600)
        await h.advance(3600)
        await h.settle()
        triggered = await h.schedules.trigger("hourly")

        runs = [info.id async for info in h.list(tags={"schedule": "hourly"})]
        assert {signal.run_id for signal in signals} == set(runs)
        assert len(runs) == 2
        assert triggered.id in runs
        assert {signal.type for signal in signals} == {"child.v1"}
