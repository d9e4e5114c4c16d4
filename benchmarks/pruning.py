"""Duration of a claim while ended runs are pruned, compared with one on an otherwise idle store.

python -m benchmarks.pruning [--store sqlite|postgres|redis] [--count 100000] [--elsewhere]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable

import apsw
import psycopg

from benchmarks.stores import MeasuredStore, add_options, chosen
from holdfast import Holdfast
from holdfast.app import session_of
from holdfast.core.checkpoint import Checkpoint, ClaimRequest, Finish
from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Entry, EntryKind, EntryState, Intent, new_id
from holdfast.core.ports import Store
from holdfast.core.questions import CountRuns
from holdfast.core.states import RunState
from holdfast.worker.pruner import bites

IDLE_SECONDS = 5.0
PAUSE_SECONDS = 0.005
BUSY_TYPE = "busy"
AT_ONCE = 500

# Runs with two steps and two facts, of ten types, which ended long ago.
FILL_SQLITE = """
    create temp table n (n integer primary key, id text);
    insert into n
    with recursive n (n) as (select 1 union all select n + 1 from n where n < {count})
    select n, printf('%012x-0000-7000-8000-%012x', n, n) from n;
    insert into run (id, type, state, priority, token, crashes, arrivals, attempt, generation, on_close, created_at,
        start_at, updated_at, first_claimed_at, finished_at, result)
    select id, 'old.' || n % 10, iif(n % 50, 'succeeded', 'failed'), 100, 1, 0, 0, 1, 1, 'abandon', n, n, n, n, n,
        '"done"'
    from n;
    insert into intent (run_id, payload) select id, '{{"number": 1, "name": "somebody"}}' from n;
    insert into entry (run_id, location, kind, state, position, attempts, result, started_at, finished_at, token)
    select id, 'charge', 'step', 'done', 1, 1, '"a result"', n, n, 1 from n
    union all
    select id, 'ship', 'step', 'done', 2, 1, '"another result"', n, n, 1 from n;
    insert into audit (run_id, event, at, data)
    select id, 'claimed', n, '{{"worker":"w","token":1}}' from n
    union all
    select id, 'succeeded', n, null from n;
    drop table n
"""

FILL_POSTGRES = """
    create temp table n as
    select n, lpad(to_hex(n), 12, '0') || '-0000-7000-8000-' || lpad(to_hex(n), 12, '0') as id
    from generate_series(1, {count}) as n;
    insert into holdfast.runs (id, type, state, ready_at, token, created_at, start_at, updated_at, finished_at, payload,
        result)
    select id, 'old.' || n % 10, case when n % 50 = 0 then 'failed' else 'succeeded' end, null, 1, n, n, n, n,
        '{{"number": 1, "name": "somebody"}}', '"done"'
    from n;
    insert into holdfast.entries (run_id, location, kind, state, position, attempts, since, started_at, token, has_undo,
        result)
    select id, 'charge', 'step', 'done', 1, 1, 0, n, 1, false, '"a result"' from n
    union all
    select id, 'ship', 'step', 'done', 2, 1, 1, n, 1, false, '"another result"' from n;
    insert into holdfast.audits (run_id, event, at, data)
    select id, 'claimed', n, '{{"worker":"w","token":1}}' from n
    union all
    select id, 'succeeded', n, null from n;
    drop table n;
    vacuum analyze
"""


def fill(url: str, count: int) -> None:
    """Insert ended runs into a store, faster than they could be executed."""
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        file.execute(f"begin; {FILL_SQLITE.format(count=count)}; commit")
        file.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        file.close()
        return
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in FILL_POSTGRES.format(count=count).split(";"):
            connection.execute(statement.encode())


async def fill_by_commands(hf: Holdfast, count: int) -> None:
    """End runs with two steps, many at a time, in a store that cannot copy them by itself."""
    store = session_of(hf).store
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        payload = '{"number": 1, "name": "somebody"}'
        await store.create(
            [Intent(id=new_id(), type=f"old.{number % 10}", payload=payload, retention=1) for number in numbers]
        )
        types = tuple(f"old.{number}" for number in range(10))
        request = ClaimRequest(id=new_id(), worker="w", types=types, limit=len(numbers), lease=30 * SECOND, python="3")
        end = Finish(state=RunState.SUCCEEDED, result='"done"')
        await store.checkpoint(
            [
                Checkpoint(
                    run_id=lease.run.id, token=lease.run.token, seen=0, next=end, entries=_steps(lease.run.created_at)
                )
                for lease in (await store.claim(request)).leases
            ]
        )


def _steps(at: Micros) -> tuple[Entry, ...]:
    names = ("charge", "ship")
    return tuple(
        Entry(
            location=name,
            kind=EntryKind.STEP,
            state=EntryState.DONE,
            position=position,
            attempts=1,
            result='"a result"',
            started_at=at,
            finished_at=at,
        )
        for position, name in enumerate(names, 1)
    )


async def claims(store: Store, is_over: Callable[[], bool]) -> list[float]:
    """Claim and end one run after the other, at a steady pace; return the milliseconds of each claim."""
    took = []
    while not is_over():
        await store.create([Intent(id=new_id(), type=BUSY_TYPE, payload="{}", retention=3600 * SECOND)])
        request = ClaimRequest(id=new_id(), worker="w", types=(BUSY_TYPE,), limit=1, lease=30 * SECOND, python="3")
        began = time.perf_counter()
        (lease,) = (await store.claim(request)).leases
        took.append((time.perf_counter() - began) * 1e3)
        end = Finish(state=RunState.SUCCEEDED)
        await store.checkpoint([Checkpoint(run_id=lease.run.id, token=lease.run.token, seen=0, next=end)])
        await asyncio.sleep(PAUSE_SECONDS)
    return took


async def prune(hf: Holdfast) -> tuple[int, list[float]]:
    """Prune everything; return the number of runs, and the milliseconds of each batch."""
    removed, took, began = 0, [], time.perf_counter()
    async for pruned in bites(session_of(hf).store):
        now = time.perf_counter()
        took.append((now - began) * 1e3)
        removed += sum(pruned.runs.values())
        began = time.perf_counter()
    return removed, took


async def prune_elsewhere(url: str) -> None:
    """The same, by a separate process."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "holdfast", "--url", url, "prune")
    await process.wait()


async def measure(store: MeasuredStore, url: str, count: int, *, is_elsewhere: bool) -> None:
    async with Holdfast(url) as hf:
        await session_of(hf).open()
    if url.startswith("redis"):
        async with Holdfast(url) as hf:
            await session_of(hf).open()
            await fill_by_commands(hf, count)
    else:
        fill(url, count)
    print(f"{count:,} ended runs, {store.megabytes(url):,.0f} MB", flush=True)
    async with Holdfast(url) as hf:
        await session_of(hf).open()
        until = time.monotonic() + 1
        await claims(session_of(hf).store, lambda: time.monotonic() > until)
        until = time.monotonic() + IDLE_SECONDS
        tell("claims, nobody else there", await claims(session_of(hf).store, lambda: time.monotonic() > until))
        began = time.perf_counter()
        pruning = asyncio.create_task(prune_elsewhere(url) if is_elsewhere else prune(hf))
        took = await claims(session_of(hf).store, pruning.done)
        seconds = time.perf_counter() - began
        tell("claims, while pruning", took)
        if isinstance(done := pruning.result(), tuple):
            tell("bites, with the pauses between them", done[1])
            assert done[0] == count
        left = sum(
            sum(states.values())
            for type, states in (await session_of(hf).store.stats(CountRuns())).items()
            if type != BUSY_TYPE
        )
        assert left == 0
        print(f"  {count / seconds:,.0f} runs removed a second, {seconds:,.1f} s in all", flush=True)


def tell(what: str, took: list[float]) -> None:
    cuts = statistics.quantiles(took, n=1000)
    late = sum(one > 50 for one in took)
    print(
        f"  {what:<36} {len(took):>7,}: p50 {cuts[499]:6.2f} ms, p99 {cuts[989]:6.2f} ms, p99.9 {cuts[998]:6.2f} ms, "
        f"max {max(took):6.2f} ms; over 50 ms: {late}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--count", type=int, default=100_000, help="how many ended runs there are")
    parser.add_argument("--elsewhere", action="store_true", help="prune in another process")
    given = parser.parse_args(arguments)
    for store in chosen(given):
        with store.place() as url:
            asyncio.run(measure(store, url, given.count, is_elsewhere=given.elsewhere))


if __name__ == "__main__":
    main()
