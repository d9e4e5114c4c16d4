"""Speed of a Postgres store when it is full, and while another session holds an old snapshot.

python -m benchmarks.million [--url URL] [--rows 1000000] [--seconds 60] [--minutes 10]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from benchmarks.stores import Postgres, the_postgres
from benchmarks.throughput import registry
from holdfast import Holdfast
from holdfast.core.checkpoint import Checkpoint, ClaimRequest, Finish, Hold
from holdfast.core.clock import SECOND
from holdfast.core.model import Entry, EntryKind, EntryState, Intent, new_id
from holdfast.core.states import RunState
from holdfast.stores.postgres.store import PostgresStore

BATCH = 100
ROUNDS = 15

FILL = """
    insert into holdfast.runs (id, type, state, created_at, start_at, ready_at, token, finished_at, payload)
    select
        'a' || lpad(to_hex(n), 12, '0'),
        'five_async',
        case when n %% 2 = 0 then 'succeeded' else 'suspended' end,
        1000000 + n,
        1000000 + n,
        case when n %% 2 = 1 then now() + interval '1 day' + n * interval '1 millisecond' end,
        1,
        case when n %% 2 = 0 then 2000000 + n end,
        '{"number": 1}'
    from generate_series(1, 2 * %(rows)s) as n;
    insert into holdfast.entries (run_id, location, kind, state, position, attempts, since, started_at, token, has_undo)
    select 'a' || lpad(to_hex(n), 12, '0'), 'count_up', 'step', 'done', 1, 1, 0, 1, 1, false
    from generate_series(1, 2 * %(rows)s) as n;
    insert into holdfast.waits (run_id, place, location, kind, since, names, deadline, after, count)
    select 'a' || lpad(to_hex(n), 12, '0'), 1, 'sleep', 'time', 1, '[]', 1, 0, 0
    from generate_series(1, 2 * %(rows)s, 2) as n
"""

HEADS = "select id, priority, rank, ready_at from heads_v1(array['five_async'], now(), 100, 416, 1)"


class Costs:
    """Durations of store operations, by their names."""

    def __init__(self) -> None:
        self._took: dict[str, list[float]] = {}

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._took.setdefault(what, []).append(time.perf_counter() - started)

    def median(self, what: str) -> float:
        return statistics.median(self._took[what])

    def __iter__(self) -> Iterator[str]:
        return iter(self._took)


async def operations(store: PostgresStore, costs: Costs) -> None:
    """Execute a batch of runs from start to end, by the operations of the store."""
    with costs.of(f"create {BATCH}"):
        await store.create([Intent(id=new_id(), type="five_async", payload='{"number": 1}') for _ in range(BATCH)])
    request = ClaimRequest(
        id=new_id(), worker="w", types=("five_async",), limit=BATCH, lease=30 * SECOND, python="3.11"
    )
    with costs.of(f"claim {BATCH}"):
        leases = (await store.claim(request)).leases
    assert len(leases) == BATCH
    entry = Entry(location="count_up", kind=EntryKind.STEP, state=EntryState.DONE, position=1, result="2")
    steps = [
        Checkpoint(run_id=one.run.id, token=one.run.token, seen=0, entries=(entry,), next=Hold()) for one in leases
    ]
    with costs.of("one step"):
        await store.checkpoint(steps[:1])
    with costs.of(f"{BATCH} steps"):
        await store.checkpoint(steps)
    ends = [
        Checkpoint(run_id=one.run.id, token=one.run.token, seen=0, next=Finish(state=RunState.SUCCEEDED, result="2"))
        for one in leases
    ]
    with costs.of(f"{BATCH} ends"):
        await store.checkpoint(ends)
    with costs.of("claim, nothing there"):
        await store.claim(
            ClaimRequest(id=new_id(), worker="w", types=("five_async",), limit=1, lease=SECOND, python="")
        )


async def filled(store: Postgres, rows: int) -> None:
    """Compare the same operations on an empty and a full database, in turns; also with plans made when it was empty."""
    with store.place() as empty_url, store.place() as full_url:
        empty, full, old = PostgresStore(empty_url), PostgresStore(full_url), PostgresStore(full_url)
        costs = {name: Costs() for name in ("empty", "full", "old plans")}
        for one in (empty, full, old):
            await one.open()
        for _ in range(3):
            await operations(old, Costs())  # it plans now, and never again
        await full.close()
        with psycopg.connect(full_url, autocommit=True) as connection:
            connection.execute("alter table holdfast.runs set (autovacuum_enabled = off)")
            for statement in FILL.split(";"):
                connection.execute(statement, {"rows": rows})
            for _ in range(2):
                await operations(old, Costs())
            for _ in range(ROUNDS // 3):
                await operations(old, costs["old plans"])
            connection.execute("alter table holdfast.runs reset (autovacuum_enabled)")
            connection.execute("vacuum analyze")
        await full.open()
        for _ in range(3):
            await operations(empty, Costs())
            await operations(full, Costs())
        for _ in range(ROUNDS):
            await operations(empty, costs["empty"])
            await operations(full, costs["full"])
        print(f"{rows:,} runs asleep and {rows:,} ended, in turns with an empty database:")
        for what in costs["empty"]:
            base, now = costs["empty"].median(what), costs["full"].median(what)
            stale = costs["old plans"].median(what)
            print(
                f"  {what:<24} {base * 1e3:7.2f} ms empty, {now * 1e3:7.2f} ms full = {now / base:.2f} times; "
                f"{stale / base:.2f} with plans made when it was empty",
                flush=True,
            )
        print_plan(full_url)
        for one in (empty, full, old):
            await one.close()


def print_plan(url: str) -> None:
    """Return the plan of the main query of a claim, as a separate statement, because a function hides it."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select proconfig from pg_proc where proname = 'claim_v1'").fetchone()
        assert row is not None
        for setting in row[0]:
            name, _, value = setting.partition("=")
            connection.execute("select set_config(%s, %s, false)", (name, value))
        for (line,) in connection.execute(f"explain {HEADS}"):
            print(f"    {line}")


async def throughput(hf: Holdfast, runs: int = 500) -> float:
    """Return steps per second."""
    started = time.perf_counter()
    handles = await hf.start_many("five_async", [{"number": number} for number in range(runs)])
    await asyncio.gather(*(handle.result() for handle in handles))
    return runs * 5 / (time.perf_counter() - started)


async def pinned(store: Postgres, seconds: float) -> None:
    """Return steps per second in a database with an old snapshot pinned, in turns with one without."""
    with store.place() as free_url, store.place() as pinned_url:
        async with Holdfast(free_url) as free, Holdfast(pinned_url) as held:
            rates: list[tuple[float, float]] = []
            for hf in (free, held):
                hf.include(registry)
            async with free.worker(concurrency=500), held.worker(concurrency=500):
                await throughput(free)
                await throughput(held)
                with psycopg.connect(pinned_url) as connection:
                    connection.execute("set transaction isolation level repeatable read")
                    connection.execute("select count(*) from holdfast.runs")
                    until = time.monotonic() + seconds
                    while time.monotonic() < until:
                        rates.append((await throughput(free), await throughput(held)))
    third = max(1, len(rates) // 3)
    first = statistics.median(pin / free for free, pin in rates[:third])
    last = statistics.median(pin / free for free, pin in rates[-third:])
    done = len(rates) * 500
    print(
        f"old snapshot pinned for {seconds:.0f} s, {done:,} runs done: {first:.2f} of the throughput without it in the "
        f"first third, {last:.2f} in the last",
        flush=True,
    )


async def idle(store: Postgres, seconds: float) -> None:
    """Return transactions per second of an idle worker, over all its connections."""

    def commits(connection: psycopg.Connection[Any]) -> int:
        connection.execute("select pg_stat_clear_snapshot()")
        row = connection.execute(
            "select xact_commit + xact_rollback from pg_stat_database where datname = %s", (name,)
        ).fetchone()
        assert row is not None
        return int(row[0])

    with store.place() as url:
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        with psycopg.connect(store.url, autocommit=True) as connection:
            async with Holdfast(url) as hf:
                hf.include(registry)
                async with hf.worker():
                    await hf.execute("five_async", {"number": 0})
                    await asyncio.sleep(12)  # the server reports counts with a delay
                    before, busy = commits(connection), time.process_time()
                    await asyncio.sleep(seconds)
                    made, busy = commits(connection) - before, time.process_time() - busy
    print(
        f"idle worker: {made / seconds:.2f} transactions a second, {busy / seconds * 100:.2f} % of a core", flush=True
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a Postgres server that may be used (databases are created), not a private one")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60, help="how long a snapshot is pinned")
    parser.add_argument("--minutes", type=float, help="likewise")
    parser.add_argument("--only", choices=("filled", "pinned", "idle"))
    given = parser.parse_args(arguments)
    with the_postgres(given.url) as store:
        print(f"postgres: a bare commit takes {store.bare_commit_seconds() * 1e3:.2f} ms", flush=True)
        if given.only in (None, "idle"):
            asyncio.run(idle(store, 30))
        if given.only in (None, "filled"):
            asyncio.run(filled(store, given.rows))
        if given.only in (None, "pinned"):
            asyncio.run(pinned(store, given.seconds if given.minutes is None else given.minutes * 60))


if __name__ == "__main__":
    main()
