"""Ways to carry a statement from the event loop to Postgres, compared on one store, in turns.

python -m benchmarks.postgres_connections [--pairs 20] [--url URL]

The hand-written connection of the store, the driver's `AsyncConnection` in its place, and threads alone.
"""

# It is put in the place of a private part.
# ruff: noqa: SLF001
# mypy: ignore-errors

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from benchmarks.async_wire import AsyncWire
from benchmarks.stores import the_postgres
from holdfast import Holdfast
from holdfast.cli import yardstick
from holdfast.core.checkpoint import Checkpoint, ClaimRequest, Hold
from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.stores.postgres.connections import OWN
from holdfast.stores.postgres.loop_session import LoopSession
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.wire import Wire

STEPS = 200
STARTS = 60
RUNS = 200


class Threads(Wire):
    """No connection of the loop's own: everything is for the sessions."""

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        return


WAYS: dict[str, Any] = {"hand-written": Wire, "driven": LoopSession, "in a task": AsyncWire, "threads": Threads}


class HeldRun:
    """A run that nobody works on: its checkpoints are ours to write."""

    def __init__(self, store: PostgresStore, run_id: str, token: int) -> None:
        self._store = store
        self._run_id = run_id
        self._token = token
        self._position = 0

    async def step(self) -> None:
        self._position += 1
        entry = Entry(
            location=f"step#{self._position}",
            kind=EntryKind.STEP,
            state=EntryState.DONE,
            position=self._position,
            attempts=1,
            result='{"total": 1999}',
        )
        checkpoint = Checkpoint(run_id=self._run_id, token=self._token, seen=0, next=Hold(), entries=(entry,))
        told = await self._store.checkpoint([checkpoint])
        assert told.verdicts[0].is_held


async def held_run(hf: Holdfast, store: PostgresStore) -> HeldRun:
    await hf.start(yardstick.wait_for_message)
    claimed = await store.claim(
        ClaimRequest(
            id=f"claim-{time.monotonic_ns()}",
            worker="bench",
            types=(yardstick.wait_for_message.type,),
            limit=1,
            lease=10**10,
            python=platform.python_version(),
        )
    )
    lease = claimed.leases[0]
    return HeldRun(store, lease.run.id, lease.run.token)


Work = Callable[[], Awaitable[int]]
"""Does something so many times."""

Sample = tuple[float, float]
"""Seconds on the wall and of this process's processor time, for one of what was done."""


async def sample(work: Work) -> Sample:
    wall, busy = time.perf_counter(), time.process_time()
    count = await work()
    return (time.perf_counter() - wall) / count, (time.process_time() - busy) / count


async def opened(store: PostgresStore, way: type[Wire]) -> Wire:
    """A wire that is connected."""
    wire: Any = way(store._connector, store._writers, limits=OWN)
    while way is not Threads and getattr(wire, "_link", None) is None and getattr(wire, "_connection", None) is None:
        await wire.hold(_look)
        await asyncio.sleep(0.01)
    return wire


def _look() -> Any:
    return (yield b"select '1'", ())


async def compare(title: str, work: Work, store: PostgresStore, wires: dict[str, Wire], pairs: int) -> None:
    found: dict[str, list[Sample]] = {name: [] for name in wires}
    for turn in range(pairs + 1):
        names = list(wires) if turn % 2 else list(reversed(wires))
        for name in names:
            store._wire = wires[name]
            taken = await sample(work)
            if turn:  # the first round warms up
                found[name].append(taken)
    base = found["hand-written"]
    for name, samples in found.items():
        wall, busy = (statistics.median(one[part] for one in samples) * 1e6 for part in (0, 1))
        ratios = (
            statistics.median(one[part] / other[part] for one, other in zip(samples, base, strict=True))
            for part in (0, 1)
        )
        best = [min(one[part] for one in samples) * 1e6 for part in (0, 1)]
        print(
            f"{title:<16} {name:<16} wall {wall:8.1f} µs (best {best[0]:7.1f})  CPU {busy:7.1f} µs"
            f" (best {best[1]:7.1f})  × hand-written: wall {next(ratios):.2f}, CPU {next(ratios):.2f}",
            flush=True,
        )


async def measure(url: str, pairs: int) -> None:
    async with Holdfast(url) as hf:
        hf.include(yardstick.registry)
        await hf.opened()
        store = hf.store
        assert isinstance(store, PostgresStore)
        own = store._wire
        wires = {name: await opened(store, way) for name, way in WAYS.items()}
        run = await held_run(hf, store)

        async def steps() -> int:
            for _ in range(STEPS):
                await run.step()
            return STEPS

        async def starts() -> int:
            for _ in range(STARTS):
                await hf.execute(yardstick.one_step)
            return STARTS

        async def at_once() -> int:
            await asyncio.gather(*(hf.execute(yardstick.one_step) for _ in range(RUNS)))
            return RUNS

        await compare("lone step", steps, store, wires, pairs)
        async with hf.worker(types=[yardstick.one_step.type], concurrency=RUNS):
            await compare("start to result", starts, store, wires, pairs)
            await compare(f"{RUNS} runs at once", at_once, store, wires, pairs)
            store._wire = own
        for wire in wires.values():
            await wire.stop()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--url", help="a Postgres server that may be used (databases are created), not a private one")
    given = parser.parse_args(arguments)
    print(f"Python {platform.python_version()}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__})")
    with the_postgres(given.url) as server, server.place() as url:
        print(f"a bare commit takes {server.bare_commit_seconds() * 1e6:.0f} µs", flush=True)
        asyncio.run(measure(url, given.pairs))


if __name__ == "__main__":
    main()
