"""Explore: random programs of the whole vocabulary, played and compared with the prediction of an interpreter.

    python -m tests.crash.explore --count 10000 --seed 1     # that many programs, starting with this seed
    python -m tests.crash.explore --only 4711                # one of them, with full details

Each is played undisturbed, replayed after every checkpoint, and with workers that crash, are restarted, or lose calls
and answers; some on SQLite and on Postgres.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import RunCancelled, RunFailed, RunState
from holdfast.app import session_of
from holdfast.core.clock import SECOND
from holdfast.core.questions import FindOrphans, Query
from holdfast.testing.faults import When
from holdfast.testing.harness import Harness
from holdfast.testing.patience import GUARD_SECONDS
from tests.crash.rehearsal import Faults, Rehearsal, Script
from tests.postgres import Databases, PostgresServer
from tests.programs.comparison import Played, problems
from tests.programs.expectation import ExpectedOutcome
from tests.programs.interpreter import LIMIT_SECONDS, Interpreter, Program, mail_of, news_of
from tests.programs.performer import build
from tests.programs.vocabulary import Gardener
from tests.stage import Stage, lent


class Mismatch(AssertionError):
    """The outcome of a program differs from the prediction of the interpreter."""


@dataclass
class Play:
    """The outcome of one play, the number of store calls, and the number of lost workers."""

    played: Played
    calls: int
    crashes: int


def program_of(seed: int) -> Program:
    """Return the program that a seed generates."""
    return Gardener(seed).grow()


async def act(h: Harness, program: Program) -> None:
    """Start a program, send its messages, cancel it if it does not end by itself, and let the other runs end."""
    limits: dict[str, Any] = {program["end"]: LIMIT_SECONDS} if str(program.get("end")).startswith("max") else {}
    await h.topics.set("queue*", mode="queue")
    run = await h.start("program", {"program": program}, id="root", **limits)
    for mail, count in mail_of(program).items():
        for each in range(count):
            await run.send(f"mail{mail}", [mail, each + 1])
    for news, count in news_of(program).items():
        for each in range(count):
            await h.emit(f"news{news}", [news, each + 1])
    if program.get("end") == "cancel":
        await _come_to_hang(h, program["parts"][-1][1][-1][1])
        await run.cancel("enough")
    with contextlib.suppress(RunFailed, RunCancelled):
        await run.result()
    while [info async for info in h.list() if not info.state.is_end]:
        await _pass_time(h)
    await h.settle()


async def _pass_time(h: Harness) -> None:
    if not await h.skip():
        await asyncio.sleep(0.001)  # the worker is being replaced


async def _come_to_hang(h: Harness, number: int) -> None:
    while True:
        await h.settle()
        info = await h.run("root").info()
        is_there = any(wait.location.endswith(f":hang{number}") for wait in info.waits)
        if info.state is RunState.SUSPENDED and is_there:
            return
        if info.state is RunState.BLOCKED or info.state.is_end:
            raise Mismatch(f"it does not come to where it should wait: {await h.run('root').explain()}")
        await _pass_time(h)


async def play(program: Program, stage: Stage, faults: Faults, *, strict: bool = True) -> Play:
    """Execute a program for real."""
    script = Script("program", partial(build, strict=strict), lambda h: act(h, program))
    rehearsal = Rehearsal(script, stage, faults)
    async with rehearsal.harness as h:
        try:
            async with asyncio.timeout(GUARD_SECONDS):
                await rehearsal.play()
        except TimeoutError:
            stuck = [f"{info.id}: {await h.run(info.id).explain()}" async for info in h.list() if not info.state.is_end]
            raise Mismatch("it does not come to its end. " + " ".join(stuck)) from None
        return await read(h, rehearsal)


async def read(h: Harness, rehearsal: Rehearsal) -> Play:
    """Return the outcome of a play, by the paths of runs."""
    details = list(await session_of(h).store.list(Query(limit=10_000)))
    histories = {one.run.id: list(await session_of(h).store.history(one.run.id)) for one in details}
    for one in details:
        await h.run(one.run.id).history()  # as its user sees it
    played = Played.of(details, histories, rehearsal.ledger)
    played.problems += [f"orphan {run_id}" for run_id in await session_of(h).store.stats(FindOrphans(limit=10))]
    return Play(played, calls=len(rehearsal.store.calls), crashes=rehearsal.crashes)


def problems_of(expected: ExpectedOutcome, play: Play, *, is_timed: bool) -> list[str]:
    """Return the differences to the expected outcome. The duration counts only if nothing was disturbed."""
    found = problems(expected, play.played, crashes=play.crashes)
    root = play.played.runs["root"]
    took = ((root.finished_at or 0) - root.created_at) / SECOND
    if is_timed and took != expected.seconds:
        found.append(f"it took {took} s, not {expected.seconds} s")
    return found


def some_faults(chance: random.Random, calls: int) -> Faults:
    """Return crashes, lost calls and answers, or restarts, at a few of the calls.

    The first call, with which a worker registers, is left out: a worker that cannot register does not start.
    """
    whens: list[When] = ["before", "after"]
    numbers = sorted(chance.sample(range(3, max(6, calls + 1)), min(chance.randint(1, 3), max(1, calls - 3))))
    apart = [number for index, number in enumerate(numbers) if index == 0 or number - numbers[index - 1] > 4]
    match chance.choice(["crash", "crash", "fail", "restart", "mixed"]):
        case "crash":
            return Faults(crashes=tuple((number, chance.choice(whens)) for number in apart))
        case "fail":
            return Faults(failures=tuple((number, chance.choice(whens)) for number in numbers))
        case "restart":
            return Faults(restarts=tuple(apart))
        case _:
            return Faults(crashes=((apart[0], chance.choice(whens)),), restarts=tuple(apart[1:]))


async def explore(
    seed: int, folder: Path, *, databases: Databases | None = None, is_thorough: bool = False, is_verbose: bool = False
) -> int:
    """Play the program of a seed in several ways. Raises `Mismatch` if an outcome is wrong."""
    program, chance = program_of(seed), random.Random(seed)
    expected = Interpreter().root(program)
    plays: list[tuple[str, Faults]] = [("memory", Faults())]
    calls = 0
    while plays:
        kind, faults = plays.pop(0)
        place = folder / f"{seed}-{kind}-{chance.random()}"
        place.mkdir()
        try:
            with lent(kind, databases) as url:
                played = await play(program, Stage(kind, place, url), faults, strict=seed % 4 != 3)
            found = problems_of(expected, played, is_timed=not (faults.crashes or faults.failures))
        except Exception as error:
            raise Mismatch(_report(seed, program, kind, faults, [f"{type(error).__name__}: {error}"])) from error
        if is_verbose:
            _say(f"{kind} {faults}: {played.calls} calls, {len(played.played.runs)} runs, {'; '.join(found) or 'fine'}")
        if found:
            raise Mismatch(_report(seed, program, kind, faults, found))
        if not calls:
            calls = played.calls
            plays += [("memory", some_faults(chance, calls)) for _ in range(3 if is_thorough else 1)]
            if is_thorough or (seed % 2 == 0 and calls < 60):  # replaying after every checkpoint is quadratic
                plays += [("replay", Faults()), ("replay", some_faults(chance, calls))][: 2 if is_thorough else 1]
            if seed % (5 if is_thorough else 25) == 0:
                plays += [("sqlite", Faults()), ("sqlite", some_faults(chance, calls))]
            if databases is not None and seed % (5 if is_thorough else 25) == 1:
                plays += [("postgres", Faults()), ("postgres", some_faults(chance, calls))]
    return calls


def _report(seed: int, program: Program, kind: str, faults: Faults, found: list[str]) -> str:
    listed = "\n".join(f"  - {problem}" for problem in found[:12])
    return (
        f"seed {seed}, {kind}, {faults}:\n{listed}\n{json.dumps(program)}\n"
        f"again: python -m tests.crash.explore --only {seed}"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Explore many programs and return the number of mismatches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="so many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=int, help="this one seed, and print it")
    parser.add_argument("--quick", action="store_true", help="fewer plays of each, as `make test` does")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.seed, chosen.seed + chosen.count) if chosen.only is None else [chosen.only]
    if chosen.only is not None:
        _say(json.dumps(program_of(chosen.only)))
        _say(str(Interpreter().root(program_of(chosen.only))))
    logging.disable(logging.CRITICAL if chosen.only is None else logging.INFO)
    failed, began = 0, time.monotonic()
    with PostgresServer() as server, Databases(server.url) as databases:
        explored = partial(
            explore, databases=databases, is_thorough=not chosen.quick, is_verbose=chosen.only is not None
        )
        for number, seed in enumerate(seeds, 1):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    asyncio.run(explored(seed, Path(folder)))
                except Mismatch as mismatch:
                    failed += 1
                    _say(f"\n{mismatch}\n")
            if number % 100 == 0:
                _say(f"{number} programs, {failed} wrong, {time.monotonic() - began:.0f} s")
    _say(f"{failed} of {len(seeds)} programs went wrong")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
