"""Workers are killed, ended and stopped at random: every run still ends once, with the right result.

`HOLDFAST_PROCESS_SECONDS` makes it last longer, with more runs in proportion.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import sys
import time
from typing import Any

import pytest

from holdfast import RunHandle, RunState
from tests.process.app import Tale, saga
from tests.process.crew import Crew, facts, marks, on_every_store
from tests.process.ledger import Deed

SECONDS = float(os.environ.get("HOLDFAST_PROCESS_SECONDS", "8"))
RUNS = round(60 * SECONDS / 8)
WORKERS = 4
PAUSE_SECONDS = 0.4
CALM_SECONDS = 4.0
"""A lease that no worker loses while it lives, on a busy machine on which others start and die all the time."""
TAKEOVER_SECONDS = 15.0
"""Half the lease on an SQLite file; on Postgres the lease comes on top. All but a second of it is for a busy machine,
on which every worker may be about to start. How soon one takes over that stands by is for `test_killed` to say."""


@pytest.mark.timeout(SECONDS * 2 + 90)
@on_every_store
async def test_runs_survive_whatever_happens_to_their_workers(crew: Crew) -> None:
    crew.lease = max(crew.lease, CALM_SECONDS)
    hands = [crew.launch() for _ in range(WORKERS)]
    await crew.ready(hands[0])
    until = time.monotonic() + SECONDS
    async with asyncio.TaskGroup() as group:
        disturbing = group.create_task(disturb_until(crew, until))
        starting = group.create_task(start_all(crew))
    kills, runs = disturbing.result(), starting.result()

    tales = await crew.results(runs, 30)

    assert kills >= SECONDS / 4, "hardly any worker was ready to be killed"
    executions = crew.ledger.executions()
    for number, (run, tale) in enumerate(zip(runs, tales, strict=True)):
        assert tale == Tale(marks=await marks(run), words=[f"{number} first", f"{number} second"], told=number * 2)
        await check_run(crew, run, executions)
        (child,) = [info async for info in crew.hf.list(parent_id=run.id)]
        await check_run(crew, crew.hf.run(child.id), executions)
    assert sum((await crew.hf.store.counts())["saga"].values()) == RUNS
    for hand in crew.hands:
        if hand.is_leaving:
            assert await crew.exited(hand) == 0
        else:
            assert hand.is_alive == (hand.killed_at is None), crew.report(f"worker {hand.number} ended by itself")
    check_takeovers(await takeovers(crew), kills, TAKEOVER_SECONDS + (0 if crew.hears_of_deaths else crew.lease))


async def start_all(crew: Crew) -> list[RunHandle[Tale]]:
    """Start runs all the time, and send each the words it waits for, sooner or later."""
    runs: list[RunHandle[Tale]] = []
    async with asyncio.TaskGroup() as group:
        for number in range(RUNS):
            run = await crew.hf.start(saga, crew.book, number)
            group.create_task(talk(run, number))
            runs.append(run)
            await asyncio.sleep(SECONDS * 0.75 / RUNS)
    return runs


async def talk(run: RunHandle[Tale], number: int) -> None:
    for word in ("first", "second"):
        await asyncio.sleep(random.uniform(0, 1.5))
        await run.send("word", f"{number} {word}")


async def disturb_until(crew: Crew, until: float) -> int:
    """Now and then kill a worker, or have it end or stand still for a moment. How many were killed."""
    kills = 0
    while time.monotonic() < until:
        await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))
        known = {worker.pid: worker.id for worker in await crew.hf.store.workers()}
        ready = [hand for hand in crew.hands if hand.is_alive and not hand.is_leaving and hand.pid in known]
        if not ready:
            continue
        victim = random.choice(ready)
        victim.worker_id = known[victim.pid]
        match random.choices(("kill", "end", "stop"), (6, 1, 1)):
            case ["kill"]:
                await asyncio.to_thread(victim.kill)
                crew.launch()
                kills += 1
            case ["end"]:
                victim.leave()
                crew.launch()
            case _:
                victim.signal(signal.SIGSTOP)
                await asyncio.sleep(random.uniform(0.05, 0.3))
                victim.signal(signal.SIGCONT)
    return kills


async def check_run(crew: Crew, run: RunHandle[Any], executions: dict[tuple[str, str], list[Deed]]) -> None:
    """It ended once; no step was executed after its record, nor twice but for the death of a worker."""
    assert (await run.info()).state is RunState.SUCCEEDED
    assert len(await facts(run, "succeeded")) == 1
    killed = {hand.pid for hand in crew.hands if hand.killed_at is not None}
    for location, recorded in (await marks(run)).items():
        *repeated, last = executions[run.id, location]
        assert last.mark == recorded, f"{location} was executed again after its record"
        victims = [deed.pid for deed in repeated]
        assert killed.issuperset(victims), f"{location} was repeated, though its worker lived"
        assert len({*victims, last.pid}) == len(victims) + 1, f"{location} was executed twice by one worker"


async def takeovers(crew: Crew) -> list[float]:
    """How long it took after the death of a worker until another one claimed each of its runs."""
    killed = {hand.worker_id: hand.killed_at for hand in crew.hands if hand.killed_at is not None}
    return [
        fact.at.timestamp() - killed[str(fact.data["lost"])]
        async for info in crew.hf.list()
        for fact in await facts(crew.hf.run(info.id), "claimed")
        if "lost" in fact.data
    ]


def check_takeovers(seconds: list[float], kills: int, limit: float) -> None:
    assert seconds, "no worker had a run when it was killed"
    middle, most = statistics.median(seconds), max(seconds)
    sys.stdout.write(f"{kills} kills, {len(seconds)} takeovers: p50 {middle:.2f} s, most {most:.2f} s\n")
    assert most < limit
