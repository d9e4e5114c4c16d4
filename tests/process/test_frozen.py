"""A worker that is stopped for longer than its lease: all its later writes come too late."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial

import pytest

from holdfast import RunHandle
from tests.duration import lasting
from tests.postgres import PostgresProxy
from tests.process.app import quick, story
from tests.process.crew import Crew, Hand, facts, is_stopped, marks, step
from tests.redis import RedisProxy

LEASE_SECONDS = 1.5
ROUNDS = max(1, int(os.environ.get("HOLDFAST_PROCESS_SECONDS", "8")) // 8)


@lasting(10 * ROUNDS)
async def test_a_worker_that_was_stopped_writes_nothing_and_drops_its_bodies(crew: Crew) -> None:
    for round in range(ROUNDS):
        await freeze_once(crew, round)
    sys.stdout.write(f"figure: stopped {ROUNDS} times with 4 runs each, 0 stale writes\n")


async def freeze_once(crew: Crew, round: int) -> None:
    # When the process wakes up, the first two runs are over, and another worker executes the other two. Of each pair,
    # one body ends by itself, and the other has to be cancelled. The body of the race has ended before, and its record
    # is almost written.
    over, hung, raced, shared = (f"{name}-{round}" for name in ("over", "hung", "raced", "shared"))
    runs = {
        name: await crew.hf.start(story, crew.book, str(crew.gate(name)), "hang" if name is hung else "hold")
        for name in (over, hung, raced, shared)
    }
    frozen = await crew.hire(lease=LEASE_SECONDS)
    for run in runs.values():
        await crew.begun(run, "middle", frozen)
    with crew.nobody_writing():
        crew.gate(raced, frozen).touch()
        await crew.until("the body of the race has ended", partial(is_dropped, crew, runs[raced], frozen, "ended"))
        frozen.signal(signal.SIGSTOP)
        await crew.until("the process stands still", lambda: is_stopped(frozen))
    for name in (over, hung):
        crew.gate(name).touch()
    heir = await crew.hire()
    await crew.results([runs[over], runs[hung]])
    for name in (raced, shared):
        await crew.begun(runs[name], "middle", heir)
    before = [await everything(runs[name]) for name in (over, hung)]

    frozen.signal(signal.SIGCONT)
    for name in (hung, shared):
        await crew.until(f"the body of {name} is cancelled", partial(is_dropped, crew, runs[name], frozen, "cancelled"))
    for name in (raced, shared):
        crew.gate(name).touch()
    await crew.results([runs[raced], runs[shared]])

    assert [await everything(runs[name]) for name in (over, hung)] == before
    for run in runs.values():
        assert crew.executions(run, "middle") == [frozen.number, heir.number]
        assert crew.executions(run, "last") == [heir.number]
        assert (await marks(run))["middle"] == crew.ledger.deeds("began", run.id, "middle")[-1].mark
        assert (await step(run, "middle")).attempts == 2
        assert len(await facts(run, "succeeded")) == 1
        assert [fact.data.get("lost") for fact in await facts(run, "claimed")] == [None, frozen.worker_id]

    heir.kill()
    assert len(await crew.result(await crew.hf.start(quick, crew.book, 3))) == 3  # the stopped one works again
    frozen.kill()


@pytest.mark.parametrize("crew", ["postgres", "redis"], indirect=True)
@lasting(10 * ROUNDS)
async def test_writes_that_arrive_after_the_lease_change_nothing(crew: Crew) -> None:
    for round in range(ROUNDS):
        with (RedisProxy if crew.url.startswith("redis") else PostgresProxy)(crew.url) as proxy:
            await delay_once(crew, proxy, round)
    sys.stdout.write(f"figure: stopped {ROUNDS} times with 2 runs each, 0 stale writes\n")


async def delay_once(crew: Crew, proxy: PostgresProxy | RedisProxy, round: int) -> None:
    # The record of a finished body, and the heartbeats after it, are delayed between worker and server. They arrive
    # when another worker has executed the one run and is executing the other.
    over, shared = f"over-{round}", f"shared-{round}"
    runs = {name: await crew.hf.start(story, crew.book, str(crew.gate(name))) for name in (over, shared)}
    frozen = await crew.ready(crew.launch(proxy.url, lease=LEASE_SECONDS))
    for run in runs.values():
        await crew.begun(run, "middle", frozen)
    await asyncio.to_thread(proxy.black_hole)
    crew.gate(over, frozen).touch()
    await crew.until("the body has ended", partial(is_dropped, crew, runs[over], frozen, "ended"))
    await asyncio.sleep(LEASE_SECONDS / 2)  # its record is on its way, and so is a heartbeat
    frozen.signal(signal.SIGSTOP)
    await crew.until("the process stands still", lambda: is_stopped(frozen))
    crew.gate(over).touch()
    heir = await crew.hire()
    await crew.result(runs[over])
    await crew.begun(runs[shared], "middle", heir)
    before = [await everything(run) for run in runs.values()]

    await asyncio.to_thread(proxy.heal)
    frozen.signal(signal.SIGCONT)
    await crew.until("the body is cancelled", partial(is_dropped, crew, runs[shared], frozen, "cancelled"))

    assert [await everything(run) for run in runs.values()] == before
    crew.gate(shared).touch()
    await crew.result(runs[shared])
    for run in runs.values():
        assert crew.executions(run, "middle") == [frozen.number, heir.number]
        assert (await marks(run))["middle"] == crew.ledger.deeds("began", run.id, "middle")[-1].mark
        assert len(await facts(run, "succeeded")) == 1
        assert [fact.data.get("lost") for fact in await facts(run, "claimed")] == [None, frozen.worker_id]
    heir.kill()
    assert len(await crew.result(await crew.hf.start(quick, crew.book, 3))) == 3  # the stopped one works again
    frozen.kill()


@pytest.mark.parametrize("crew", ["postgres"], indirect=True)
async def test_a_worker_that_was_stopped_starts_no_step_that_another_has_finished(crew: Crew) -> None:
    """It was stopped before it learned that a step is recorded, and learns that long after its lease."""
    run = await crew.hf.start(story, crew.book, str(crew.gate()))
    with PostgresProxy(crew.url) as proxy:
        frozen = await crew.ready(crew.launch(proxy.url, lease=4))
        await crew.begun(run, "middle", frozen)
        await asyncio.to_thread(proxy.delay, to_client=3.5)
        crew.gate().touch()
        await crew.until("the step is recorded", partial(is_recorded, run, "middle"))
        frozen.signal(signal.SIGSTOP)
        heir = await crew.hire()
        await crew.result(run)

        frozen.signal(signal.SIGCONT)
        await asyncio.to_thread(proxy.heal)
        heir.kill()
        assert len(await crew.result(await crew.hf.start(quick, crew.book, 3))) == 3  # the stopped one works again

    assert crew.executions(run, "last") == [heir.number]


async def is_recorded(run: RunHandle[list[str]], location: str) -> bool:
    return location in await marks(run)


def is_dropped(crew: Crew, run: RunHandle[list[str]], hand: Hand, how: str) -> bool:
    """True if the body that a worker had started has ended in this way."""
    return hand.pid in [deed.pid for deed in crew.ledger.deeds(how, run.id, "middle")]


async def everything(run: RunHandle[list[str]]) -> object:
    """Return all that the store knows of a run."""
    return await run.info(), await run.history(), await run.audit()
