"""Limits while workers are being killed: no claim ever exceeds one, and everything is done all the same."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from holdfast import RunHandle
from holdfast.core.ports import Query
from holdfast.core.states import RunState
from tests.process.app import errand
from tests.process.crew import Crew, facts, on_every_store

RUNS = 40
LIMIT = 3
RATE = 5
PERIOD_SECONDS = 1.0
WORKERS = 3
CALM_SECONDS = 3.0
"""A lease that no worker loses while it lives, on a busy machine on which others start and die all the time."""


async def disturb(crew: Crew, runs: list[RunHandle[Any]], kills: int) -> None:
    """Kill one of the workers that have something to do, and hire another, over and over."""
    for _ in range(kills):
        await asyncio.sleep(0.3 * random.uniform(0.5, 1.5))
        known = {worker.pid for worker in await crew.hf.store.workers()}
        ready = [hand for hand in crew.hands if hand.is_alive and hand.pid in known]
        if ready:
            await asyncio.to_thread(random.choice(ready).kill)
            await crew.ready(crew.launch())


async def watch(crew: Crew, highest: list[int]) -> None:
    """See how many runs are held at once, as often as possible."""
    while True:
        held = await crew.hf.store.list(Query(states=frozenset({RunState.RUNNING}), type="errand", limit=RUNS))
        highest.append(sum(details.run.is_held for details in held))
        await asyncio.sleep(0.01)


async def most_at_once(runs: list[RunHandle[Any]]) -> int:
    """How many runs were held at once at most, from the first claim of each to its end, by what the store has noted."""
    changes = []
    for run in runs:
        claims, (end,) = await facts(run, "claimed"), await facts(run, "succeeded")
        changes += [(claims[0].at, 1), (end.at, -1)]
    count = most = 0
    for _, change in sorted(changes):
        count += change
        most = max(most, count)
    return most


@pytest.mark.timeout(120)
@on_every_store
async def test_a_limit_is_never_exceeded_while_workers_are_killed(crew: Crew) -> None:
    crew.lease = max(crew.lease, CALM_SECONDS)
    await crew.hf.type("errand", concurrency=LIMIT)
    runs = await crew.hf.start_many(errand, [(crew.book, number) for number in range(RUNS)])
    for hand in [crew.launch() for _ in range(WORKERS)]:
        await crew.ready(hand)
    highest: list[int] = []
    watching = asyncio.create_task(watch(crew, highest))

    await disturb(crew, runs, kills=6)
    results = await crew.results(runs, 60)

    watching.cancel()
    assert results == [number * 2 for number in range(RUNS)]
    assert 1 < max(highest) <= LIMIT
    assert await most_at_once(runs) <= LIMIT
    assert await crew.hf.store.slots() == []


@pytest.mark.timeout(120)
@on_every_store
async def test_a_rate_is_never_exceeded_while_workers_are_killed(crew: Crew) -> None:
    crew.lease = max(crew.lease, CALM_SECONDS)
    await crew.hf.type("errand", rate=(RATE, PERIOD_SECONDS))
    runs = await crew.hf.start_many(errand, [(crew.book, number) for number in range(RUNS)])
    for hand in [crew.launch() for _ in range(WORKERS)]:
        await crew.ready(hand)

    await disturb(crew, runs, kills=6)
    results = await crew.results(runs, 60)

    assert results == [number * 2 for number in range(RUNS)]
    begins = sorted([(await facts(run, "claimed"))[0].at for run in runs])
    gaps = [(later - first).total_seconds() for first, later in zip(begins, begins[RATE:], strict=False)]
    assert min(gaps) >= PERIOD_SECONDS
