"""The protocol between the holder of a run and all other processes (T1, T4, T5, T8, T9 of DESIGN.md), end to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import repeat
from typing import Any, cast

import pytest

from holdfast import ChildFailed, Context, Registry, Retry, RunCancelled, RunFinished, RunHandle, RunState
from holdfast.app import session_of
from holdfast.core.checkpoint import Checkpoint, Suspend, Verdicts
from holdfast.core.ports import Store
from holdfast.core.questions import EndsOf, FindOrphans
from holdfast.runner.turn import Turn
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from holdfast.testing.patience import guarded
from tests.stage import Stage, facts

# An arrival for a run in every possible state (T1, T4)

app = Registry()


@app.workflow("receiver.v1")
async def receiver(ctx: Context, state: str, kind: str) -> Any:
    async def take() -> Any:
        return await (ctx.receive("x") if kind == "message" else ctx.wait_event("x"))

    match state:
        case "running":
            await ctx.step("slow", _gate)
        case "running, waiting beside":
            got, _ = await asyncio.gather(take(), ctx.step("slow", _gate))
            return got
        case "lingering":
            await ctx.sleep(0.5)
        case "lingering on it":
            got, _ = await asyncio.gather(take(), ctx.sleep(0.5))
            return got
        case "suspended on something else":
            await ctx.receive("other")
        case "blocked":
            if _is_broken:
                await asyncio.Event().wait()
        case "ended":
            return "over"
        case _:
            pass
    return await take()


_is_broken: list[int] = []
_gates: list[asyncio.Event] = []


async def _gate() -> None:
    await _gates[-1].wait()


async def deliver(h: Harness, run: RunHandle[Any], kind: str) -> Any:
    if kind == "message":
        return await run.send("x", "delivered")
    return await h.emit("x", "delivered")


STATES: dict[str, RunState] = {
    "pending": RunState.PENDING,
    "running": RunState.RUNNING,
    "running, waiting beside": RunState.RUNNING,
    "lingering": RunState.RUNNING,
    "lingering on it": RunState.RUNNING,
    "suspended on something else": RunState.SUSPENDED,
    "suspended on it": RunState.SUSPENDED,
    "blocked": RunState.BLOCKED,
}
WAITING = {"running, waiting beside", "lingering on it", "suspended on it"}


@pytest.mark.parametrize("kind", ["message", "event"])
@pytest.mark.parametrize("state", STATES)
async def test_t1_a_message_to_a_live_run_reaches_it_in_any_state(stage: Stage, state: str, kind: str) -> None:
    """T1: the sender only adds an arrival, and wakes the run if it is suspended on it."""
    _gates.append(asyncio.Event())
    _is_broken[:] = [1]
    async with stage.harness(app, has_endless_bodies=state.startswith("running")) as h:
        run = await h.start(receiver, state, kind, delay=60 if state == "pending" else 0)
        await h.settle()
        before = await run.info()
        assert before.state is STATES[state]
        reached = await deliver(h, run, kind)
        if kind == "event":
            assert reached == (state in WAITING)
        if before.worker is not None or state == "pending":
            assert (await run.info()).ready_at == before.ready_at
        _gates[-1].set()
        _is_broken.clear()
        if state == "suspended on something else":
            await h.settle()
            assert (await run.info()).state is RunState.SUSPENDED
            await run.send("other")
        assert await run.result() == "delivered"


@pytest.mark.parametrize("kind", ["message", "event"])
async def test_t1_nothing_reaches_a_run_that_has_ended(stage: Stage, kind: str) -> None:
    async with stage.harness(app) as h:
        run = await h.start(receiver, "ended", kind)
        await run.result()
        if kind == "message":
            with pytest.raises(RunFinished):
                await deliver(h, run, kind)
        else:
            assert await deliver(h, run, kind) == 0
        assert (await run.info()).state is RunState.SUCCEEDED


# Suspension versus arrival (T4)


def faulty(h: Harness) -> FaultyStore:
    return cast("FaultyStore", session_of(h).store)


class Ambush(FaultyStore):
    """Injects an action just before a given run is suspended, while its checkpoint is on the way."""

    run_id = ""
    is_over = False
    action: Callable[[], Awaitable[object]] | None = None

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        suspended = [one.run_id for one in checkpoints if isinstance(one.next, Suspend)]
        if self.action is not None and self.run_id in suspended:
            action, self.action = self.action, None
            await action()
            self.is_over = True
        return await super().checkpoint(checkpoints)


async def arrive(h: Harness, kind: str) -> None:
    match kind:
        case "message":
            await h.run("parent").send("x", 1)
        case "other message":
            await h.run("parent").send("y", 1)
        case "event":
            await h.emit("x", 1)
        case _:
            (info,) = [info async for info in h.list(parent_id="parent")]
            assert await h.run(info.id).cancel()


@pytest.mark.parametrize("kind", ["message", "event", "child", "other message"])
async def test_t4_an_arrival_between_the_standstill_and_the_suspending_checkpoint_is_not_slept_over(
    stage: Stage, kind: str
) -> None:
    """T4, S3: the checkpoint carries the last arrival it knows. If there is a newer one, the run stays held."""
    local = Registry()

    @local.workflow
    async def child(ctx: Context) -> None:
        await ctx.receive("never")

    @local.workflow
    async def parent(ctx: Context) -> Any:
        started = await ctx.start(child)
        await ctx.step("first", lambda: None)
        match kind:
            case "event":
                return await ctx.wait_event("x")
            case "child":
                with pytest.raises(ChildFailed):
                    await started
                return 1
            case _:
                return await ctx.receive("x")

    async with stage.harness(local, wrap=Ambush) as h:
        store = cast("Ambush", session_of(h).store)

        store.run_id, store.action = "parent", lambda: arrive(h, kind)
        run = await h.start(parent, id="parent")
        await h.settle()
        assert store.is_over
        if kind == "other message":
            assert (await run.info()).state is RunState.SUSPENDED
            await run.send("x", 1)
        assert await run.result() == 1
        if kind != "other message":
            assert "suspended" not in [fact.event for fact in await run.audit()]


# The one queue column (T5)


@pytest.mark.every_store
async def test_t5_ready_at_says_when_a_run_may_be_claimed(stage: Stage) -> None:
    local = Registry()
    _gates.append(asyncio.Event())

    @local.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("slow", _gate)
        await asyncio.gather(ctx.sleep(3600), ctx.receive("x", timeout=600))
        await ctx.receive("y")
        await asyncio.Event().wait()

    async with stage.harness(local, has_endless_bodies=True) as h:
        run = await h.start(shop, delay=60)

        async def ready_in() -> float | None:
            ready_at = (await run.info()).ready_at
            return None if ready_at is None else (ready_at - h.now).total_seconds()

        assert await ready_in() == 60  # pending: its start time
        await h.advance(60)
        assert await ready_in() == 30  # held: the end of its lease
        _gates[-1].set()
        await h.settle()
        assert await ready_in() == 600  # suspended: the earliest deadline of its waits
        await run.send("x")
        await h.settle()
        assert await ready_in() == 3600
        await h.advance(3600)
        assert await ready_in() is None  # suspended without a deadline
        await h.stop_worker()
        await run.send("y")
        assert await ready_in() == 0  # woken: now
        await h.start_worker()
        await h.settle()
        assert await ready_in() == 5  # blocked: its next try
        await run.cancel()
        assert await ready_in() is None  # ended


async def test_t5_a_needless_wake_up_is_harmless(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def shop(ctx: Context) -> Any:
        await ctx.step("first", lambda: None)
        await asyncio.gather(ctx.receive("a"), ctx.receive("b"))
        return "done"

    async with stage.harness(local) as h:
        run = await h.start(shop)
        await h.settle()
        await run.send("a")
        await h.settle()
        assert (await run.info()).state is RunState.SUSPENDED
        assert h.executed == ["first"]
        await run.send("b")
        assert await run.result() == "done"


# Lost answers (T8)


async def lost_answers(h: Harness, name: str) -> Callable[[], Awaitable[None]]:
    """Lose the answer to the next call of this name, although the store executes it."""

    async def lose() -> None:
        faulty(h).fail(len(faulty(h).calls) + 1, when="after")

    return lose


@pytest.mark.parametrize("name", ["checkpoint", "claim"])
async def test_t8_a_call_that_is_repeated_after_its_answer_was_lost_has_no_second_effect(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.committer.pauses", lambda: repeat(0.0))
    local = Registry()

    @local.workflow
    async def listener(ctx: Context) -> list[Any]:
        return [[await ctx.receive("x"), await ctx.wait_event("x")] for _ in range(4)]

    @local.workflow
    async def child(ctx: Context) -> None: ...

    @local.workflow
    async def shop(ctx: Context, to: str) -> str:
        for number in range(4):
            ctx.send(to, "x", number)
            ctx.emit("x", number)
            ctx.start(child)
            await ctx.step("s", lambda: None)
            await ctx.sleep(60)
        return "done"

    async with stage.harness(local, wrap=FaultyStore) as h:
        other = await h.start(listener)
        await h.settle()
        run = await h.start(shop, other.id)
        for _ in range(100):
            faulty(h).interpose(name, await lost_answers(h, name))
            await h.settle()
            if (await run.info()).state.is_end or not await h.skip():
                break
        assert await run.result() == "done"
        assert await other.result() == [[number, number] for number in range(4)]
        assert len([info async for info in h.list(type="child")]) == 4
        assert h.executed == [f"s#{number}" if number > 1 else "s" for number in range(1, 5)]
        claims = [fact.data["token"] for fact in await run.audit() if fact.event == "claimed"]
        assert claims == list(range(1, len(claims) + 1))
        assert (await run.info()).attempt == 1


async def test_t8_a_run_that_was_cancelled_while_its_end_was_on_the_way_is_cancelled_for_every_reader(
    stage: Stage,
) -> None:
    """T8: the token grows with each control that takes a held run away, so the holder learns that it lost the run."""
    local = Registry()

    @local.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step("first", lambda: "done")

    async with stage.harness(local, wrap=FaultyStore) as h:
        faulty(h).freeze("checkpoint")
        run = await h.start(shop)
        waiting = asyncio.create_task(run.result())
        await guarded("the worker is frozen", faulty(h).frozen.wait())
        assert await run.cancel("enough")
        faulty(h).thaw()
        with pytest.raises(RunCancelled, match="enough"):
            await waiting


# Refused checkpoints (T9)


async def test_t9_a_checkpoint_that_the_store_cannot_take_blocks_only_its_run(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def shop(ctx: Context, number: int) -> int:
        await ctx.step("first", lambda: number)
        await ctx.sleep(60)
        return number

    async with stage.harness(local, wrap=FaultyStore) as h:
        poisonous = "poison"
        faulty(h).refuse(
            lambda checkpoint: checkpoint.run_id == poisonous and bool(checkpoint.entries), ValueError("bad bytes")
        )
        runs = [await h.start(shop, number, id=poisonous if number == 7 else None) for number in range(16)]
        await h.settle()
        info = await h.run(poisonous).info()
        assert info.state is RunState.BLOCKED
        assert info.error is not None
        assert "bad bytes" in info.error.message
        assert info.ready_at is None
        for number, run in enumerate(runs):
            if number != 7:
                assert await run.result() == number
        assert await facts(h.run(poisonous)) == []
        assert list(await session_of(h).store.stats(FindOrphans(limit=10))) == []


async def test_t9_a_block_that_the_store_cannot_take_with_its_results_is_written_without_them(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("first", lambda: "done")
        await asyncio.to_thread(print)

    async with stage.harness(local, wrap=FaultyStore) as h:
        faulty(h).refuse(lambda checkpoint: bool(checkpoint.entries), ValueError("bad bytes"))
        run = await h.start(shop)
        await h.settle()
        info = await run.info()
        assert (info.state, info.ready_at) == (RunState.BLOCKED, None)
        assert "bad bytes" in str(info.error)
        assert await facts(run) == []


async def test_t9_a_block_for_an_error_of_driving_is_written_even_if_its_results_are_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Registry()

    @local.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step("first", lambda: "done")

    def fail(*_: object) -> None:
        raise MemoryError("no room for another result")

    async with stage.harness(local, wrap=FaultyStore) as h:
        faulty(h).refuse(lambda checkpoint: bool(checkpoint.entries), ValueError("bad bytes"))
        with monkeypatch.context() as broken:
            broken.setattr(Turn, "_feed_entry", fail)
            run = await h.start(shop)
            await h.settle()
        info = await run.info()
        assert (info.state, info.ready_at) == (RunState.BLOCKED, None)
        assert await facts(run) == []


async def test_t9_a_run_whose_block_is_refused_too_is_given_up_and_does_not_spin(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step("first", lambda: "done")

    async with stage.harness(local, wrap=FaultyStore) as h:
        faulty(h).refuse(lambda checkpoint: True, ValueError("bad bytes"))
        run = await h.start(shop)
        await h.settle()
        assert len(faulty(h).calls) < 10
        assert (await run.info()).state is RunState.RUNNING  # until its lease ends
        faulty(h)._refusal = None
        assert await run.result() == "done"


async def test_t9_a_local_result_resolves_after_the_commit_and_never_at_the_feed(stage: Stage) -> None:
    local = Registry()

    @local.workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step("first", lambda: "done")

    async with stage.harness(local, wrap=FaultyStore) as h:
        run = await h.start(shop)
        waiting = asyncio.create_task(run.result())
        seen: list[bool] = []

        async def look() -> None:
            seen.append(waiting.done())

        while not waiting.done():
            faulty(h).interpose("checkpoint", look)
            await asyncio.sleep(0)
        assert seen[:1] == [False]
        assert await waiting == "done"
        store: Store = session_of(h).store
        assert [one.state for one in await store.changes(EndsOf(run_ids=[run.id]))] == [RunState.SUCCEEDED]


async def test_crashes_in_a_row_block_a_run_that_kills_its_worker_and_leave_others_alone(stage: Stage) -> None:
    local = Registry()
    _gates.append(asyncio.Event())

    @local.workflow
    async def killer(ctx: Context) -> None:
        await ctx.step("kill", _gate, retry=Retry(max_attempts=10))

    @local.workflow
    async def healthy(ctx: Context) -> str:
        await ctx.sleep(3600)
        return "alive"

    async with stage.harness(local, has_endless_bodies=True) as h:
        bystander = await h.start(healthy)
        run = await h.start(killer)
        for _ in range(3):
            await h.settle()
            assert (await run.info()).state is RunState.RUNNING
            await h.crash_worker()
            await h.start_worker()
            await h.advance(31)
        info = await run.info()
        assert info.state is RunState.BLOCKED
        assert info.error is not None
        assert info.error.type == "CrashLoop"
        assert info.ready_at is None
        assert (await run.explain()).startswith("Blocked by CrashLoop: 3 workers in a row died")
        assert await bystander.result() == "alive"


async def test_a_body_that_kills_its_worker_uses_up_its_attempts(stage: Stage) -> None:
    local = Registry()
    _gates.append(asyncio.Event())

    @local.workflow
    async def killer(ctx: Context) -> str:
        try:
            await ctx.step("kill", _gate, retry=Retry(max_attempts=2))
        except Exception as error:  # noqa: BLE001 - its text is what matters
            return str(error)
        return "?"

    async with stage.harness(local, has_endless_bodies=True) as h:
        run = await h.start(killer)
        for _ in range(2):
            await h.settle()
            await h.crash_worker()
            await h.start_worker()
            await h.advance(timedelta(seconds=31))
        result = await run.result()
        assert result.startswith("step 'kill' failed after 2 attempts: WorkerLost: the worker died while this step ran")
        assert h.executed == ["kill", "kill"]
