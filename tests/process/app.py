"""A worker process of the tests: `python -m tests.process.app URL [--lease …] [--grace …] [--hints-only 1] …`.

The payload of a run names the ledger file, and the gate file that lets a body continue.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Literal

import apsw
import msgspec

from holdfast import Context, Holdfast, Registry, Retry, step_info
from holdfast.stores.sqlite import hints
from holdfast.testing.patience import GUARD_SECONDS, wait_until
from tests.process.ledger import Ledger

POLL_SECONDS = 0.01
LONG_SECONDS = 600.0
"""Longer than any test waits."""

workflows = Registry()

# Bodies


def is_open(gate: str) -> bool:
    """True if a gate is open, for all or for this process alone."""
    return Path(gate).exists() or Path(f"{gate}.{os.getpid()}").exists()


async def work(book: str, seconds: float = 0.02) -> str:
    """Take a moment, as most steps do."""
    with Ledger(book).execution() as mark:
        await asyncio.sleep(seconds)
        return mark


async def hold(book: str, gate: str) -> str:
    """Wait until the gate is opened."""
    with Ledger(book).execution() as mark:
        for _ in range(round(LONG_SECONDS / POLL_SECONDS)):
            if is_open(gate):
                return mark
            await asyncio.sleep(POLL_SECONDS)
        raise TimeoutError(f"nobody has opened {gate}")


async def hang(book: str, gate: str) -> str:
    """Take very long, unless the gate is open from the beginning."""
    with Ledger(book).execution() as mark:
        if not is_open(gate):
            await asyncio.sleep(LONG_SECONDS)
        return mark


def stick(book: str, gate: str) -> str:
    """The same in a thread, which cannot be cancelled."""
    with Ledger(book).execution() as mark:
        if not is_open(gate):
            time.sleep(LONG_SECONDS)
        return mark


async def block(book: str, gate: str) -> str:
    """Block the worker's whole event loop until the gate is opened."""
    with Ledger(book).execution() as mark:
        wait_until(f"somebody opens {gate}", lambda: is_open(gate))
        return mark


async def die(book: str) -> None:
    """Kill the worker process."""
    with Ledger(book).execution():
        os._exit(13)


BodyName = Literal["hold", "hang", "stick"]
BODIES: dict[BodyName, Callable[[str, str], Any]] = {"hold": hold, "hang": hang, "stick": stick}

# Workflows


@workflows.workflow("quick")
async def quick(ctx: Context, book: str, steps: int = 1, seconds: float = 0.0) -> list[str]:
    """Steps in a row."""
    return [await ctx.step("work", work, book, seconds) for _ in range(steps)]


@workflows.workflow("story")
async def story(ctx: Context, book: str, gate: str, body: BodyName = "hold") -> list[str]:
    """Three steps, of which the middle one depends on a gate."""
    first = await ctx.step("first", work, book)
    middle = await ctx.step("middle", BODIES[body], book, gate)
    last = await ctx.step("last", work, book)
    return [first, middle, last]


@workflows.workflow("stages")
async def stages(ctx: Context, book: str, gates: list[str]) -> list[str]:
    """A step for each gate."""
    return [await ctx.step("stage", hold, book, gate) for gate in gates]


@workflows.workflow("blocking")
async def blocking(ctx: Context, book: str, gate: str) -> str:
    """A step that should have been in a thread."""
    return await ctx.step("block", block, book, gate)


@workflows.workflow("letter")
async def letter(ctx: Context) -> Any:
    """Return a received message."""
    return await ctx.receive("word")


@workflows.workflow("deadly")
async def deadly(ctx: Context, book: str, attempts: int) -> str:
    """Kill its worker."""
    await ctx.step("die", die, book, retry=Retry(max_attempts=attempts))
    return "it lived"


deadly_twice = workflows.workflow("deadly.twice", crash_limit=2)(deadly.function)

STUBBORN = Retry(max_attempts=30, initial=0.01)


class Tale(msgspec.Struct):
    """The outcome of a saga: the marks of its steps by location, the received messages, the result of its child."""

    marks: dict[str, str] = {}
    words: list[str] = []
    answer: int = 0


# Its workers are killed far more often than real ones.
@workflows.workflow("saga", crash_limit=30)
async def saga(ctx: Context, book: str, number: int) -> Tale:
    """Eight steps, some concurrent, with sleeps, messages and a child in between."""
    tale = Tale()
    for place in ("a", "b", "c"):
        tale.marks[place] = await ctx.step(place, work, book, 0.08, retry=STUBBORN)
    await asyncio.sleep(0.05)
    tale.words.append(await ctx.receive("word", type=str))
    both = await asyncio.gather(*(ctx.step(place, work, book, 0.05, retry=STUBBORN) for place in ("d", "e")))
    tale.marks |= zip(("d", "e"), both, strict=True)
    await ctx.sleep(1.2 if number % 3 == 0 else 0.1)  # the first suspends, the second stays in memory
    tale.answer = await ctx.call(errand, book, number)
    for place in ("f", "g", "h"):
        tale.marks[place] = await ctx.step(place, work, book, 0.08, retry=STUBBORN)
    tale.words.append(await ctx.receive("word", type=str))
    return tale


@workflows.workflow("errand", crash_limit=30)
async def errand(ctx: Context, book: str, number: int) -> int:
    """Two steps for a parent."""
    await ctx.step("there", work, book, retry=STUBBORN)
    await ctx.step("back", work, book, retry=STUBBORN)
    return number * 2


def make_tables(connection: Any) -> None:
    """Create the test's own empty tables."""
    connection.execute("create table deposit (run_id text, number integer)")
    connection.execute("create table total (count integer)")
    connection.execute("insert into total values (0)")


def deposit(connection: Any, number: int) -> int:
    """Write to the test's own tables, in the transaction of the store."""
    mark = "?" if isinstance(connection, apsw.Connection) else "%s"
    connection.execute(f"insert into deposit values ({mark}, {mark})", (step_info().run_id, number))  # noqa: S608
    connection.execute("update total set count = count + 1")
    return number


@workflows.workflow("cashiers", crash_limit=30)
async def cashiers(ctx: Context, count: int) -> list[int]:
    """Transactions, each of which counts one."""
    return [await ctx.tx("deposit", deposit, number, retry=STUBBORN) for number in range(count)]


def die_in_transaction(connection: Any) -> None:
    """Kill the worker process in the middle of a transaction."""
    connection.execute("create table trace (x integer)")
    os._exit(13)


@workflows.workflow("deadly.transaction")
async def deadly_transaction(ctx: Context) -> None:
    """Kill its worker twice."""
    await ctx.tx("die", die_in_transaction, retry=Retry(max_attempts=2))


@workflows.workflow("spawning")
async def spawning(ctx: Context) -> list[int]:
    """Steps that start processes, in each of the usual ways."""
    ways = (run_in_thread, run_on_loop, run_in_pool, run_forked)
    return [await ctx.step(way.__name__, way) for way in ways]


_PROGRAM = (sys.executable, "-c", "print(7 * 6)")


def run_in_thread() -> int:
    return int(subprocess.run(_PROGRAM, check=True, capture_output=True, timeout=GUARD_SECONDS).stdout)


async def run_on_loop() -> int:
    process = await asyncio.create_subprocess_exec(*_PROGRAM, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return int(out)


def run_in_pool() -> int:
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(_product, 7, 6).result(GUARD_SECONDS)


def _product(one: int, other: int) -> int:
    return one * other


def run_forked() -> int:
    child = os.fork()
    if child == 0:
        os._exit(42)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@workflows.workflow("nursery")
async def nursery(ctx: Context, book: str, gate: str) -> str:
    """A step whose child processes outlive its worker."""
    return await ctx.step("raise", bring_up, book, gate)


def bring_up(book: str, gate: str) -> str:
    """The first time: leave two children behind, one of them a fork, and wait for the end."""
    with Ledger(book).execution() as mark:
        if not is_open(gate):
            program = subprocess.Popen(["sleep", str(LONG_SECONDS)], stdin=subprocess.DEVNULL)
            fork = os.fork()
            if fork == 0:
                time.sleep(LONG_SECONDS)
                os._exit(0)
            Path(f"{book}.children").write_text(f"{program.pid} {fork}\n")
            time.sleep(LONG_SECONDS)
        return mark


# The process


async def serve(url: str, registries: Sequence[Registry], *, hints_only: bool, **options: Any) -> None:
    hf = Holdfast(url)
    for registry in registries:
        hf.include(registry)
    if hints_only:
        hints._SLOW_POLL_SECONDS = LONG_SECONDS
        options["poll"] = None
    try:
        await hf._local_workers.make(**options).run()
    finally:
        await hf.close()


def main(*others: Registry) -> None:
    """Execute the workflows of this module, and others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lease", dest="lease_seconds", type=float, default=30)
    parser.add_argument("--grace", dest="grace_seconds", type=float, default=10)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--hints-only", type=int, default=0, help="1: rely on hints, never poll")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    asyncio.run(serve(registries=(workflows, *others), **vars(parser.parse_args())))


if __name__ == "__main__":
    main()
