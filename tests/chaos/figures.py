"""The promised figures, reproduced one by one, each with the speed of the host right before it.

A figure is a storm, a file of `tests/figures`, or tests that run for longer. A test prints its number in a line that
begins with `figure:`.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.cli.output import Column, Table, plain_lines
from tests.chaos import plan
from tests.chaos.display import Display
from tests.chaos.host import Host, measured
from tests.chaos.session import hold
from tests.process.crew import ROOT

_FIGURE = re.compile(r"^[.FEs]*figure: (.*)$", re.MULTILINE)
"""A line of output, perhaps behind the letters of finished tests; not the source of a failed test."""
_TAIL_CHARACTERS = 3_000


class Row(msgspec.Struct, frozen=True):
    """One figure: the promise, the result, the speed of the host, and the duration."""

    figure: str
    reached: str
    host: Host
    is_good: bool
    seconds: float
    proof: str = ""


@dataclass(frozen=True)
class Tests:
    """Tests that show a figure: their names, their stores, and the settings that make them run for longer."""

    figure: str
    path: str
    choice: str
    stores: Sequence[str] = ("postgres", "redis", "sqlite")
    settings: dict[str, str] = field(default_factory=dict)

    def reached(self, store: str) -> Row:
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", self.path]
        command += ["-k", f"({self.choice})" + ("" if len(self.stores) == 1 else f" and {store}")]
        host = measured()
        begun = time.monotonic()
        environment = os.environ | self.settings
        done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
        figures = _FIGURE.findall(done.stdout)
        is_good = done.returncode == 0 and bool(figures)
        reached = "; ".join(figures) or f"pytest ended with exit code {done.returncode}"
        seconds = time.monotonic() - begun
        return Row(self.figure, reached, host, is_good, seconds, "" if is_good else done.stdout[-_TAIL_CHARACTERS:])


TESTS = (
    Tests(
        "SIGSTOP 20 times: 0 stale writes",
        "tests/process/test_frozen.py",
        "was_stopped_writes_nothing",
        stores=("sqlite",),
        settings={"HOLDFAST_PROCESS_SECONDS": "160"},
    ),
    Tests(
        "SIGSTOP 20 times, writes under way: 0 stale writes",
        "tests/process/test_frozen.py",
        "arrive_after_the_lease",
        stores=("postgres", "redis"),
        settings={"HOLDFAST_PROCESS_SECONDS": "160"},
    ),
    Tests(
        "200 cuts around COMMIT: 0 duplicates, 0 losses",
        "tests/faults/test_cut_commits.py",
        "nothing_is_lost_or_duplicated",
        stores=("postgres",),
        settings={"HOLDFAST_PROCESS_SECONDS": "25"},
    ),
    Tests(
        "200 cuts around scripts: 0 duplicates, 0 losses",
        "tests/figures/cuts.py",
        "around_scripts",
        stores=("redis",),
    ),
    Tests(
        "send versus park, 10,000 races: 0 stuck",
        "tests/contract/test_races.py",
        "a_message_that_races_a_suspension",
        settings={"HOLDFAST_RACES": "10000"},
    ),
    Tests(
        "cancel versus complete, 5,000 races: one end, 0 deadlocks",
        "tests/contract/test_races.py",
        "a_cancel_and_an_end_that_race",
        settings={"HOLDFAST_RACES": "5000"},
    ),
    Tests(
        "SIGTERM with a long step and 5 s grace: claimable within 1 s, never terminal",
        "tests/figures/shutdown.py",
        "given_back",
    ),
    Tests(
        "SIGKILL of one worker: taken over by the next within 2 s (on a server: the lease of 2 s and 1 s)",
        "tests/figures/takeover.py",
        "takes_over",
    ),
    Tests(
        "a start is executed in another process: p50 under 500 ms, result included",
        "tests/figures/latency.py",
        "start",
    ),
    Tests("a message wakes a run in another process: p50 under 500 ms", "tests/figures/latency.py", "message"),
    Tests("a cancel ends a body in another process: within 2 s", "tests/figures/latency.py", "cancel"),
    Tests(
        "a commit is noticed in another process: p50 under 5 ms",
        "tests/figures/latency.py",
        "commit",
        stores=("sqlite",),
    ),
    Tests(
        "a sleeping run goes on in time: p50 within 5 ms (on a server: 8 ms)",
        "tests/figures/timers.py",
        "in_time",
    ),
    Tests(
        "a waiting run behind 1,000 starts: p50 within 150 ms",
        "tests/figures/backlog.py",
        "thousand_starts",
    ),
    Tests(
        "a parent with two children behind 500 starts: p50 within 150 ms",
        "tests/figures/backlog.py",
        "two_children",
    ),
    Tests(
        "a run of a limited type behind 500 that are parked: p50 within 150 ms",
        "tests/figures/backlog.py",
        "limited_type",
    ),
    Tests(
        "a message with 1,000 types and 4 workers that hold runs: at most 2 x the time with one type",
        "tests/figures/backlog.py",
        "many_types",
    ),
    Tests(
        "asyncio.gather over 5,000 children: at most 3 x the processor time of 2,000",
        "tests/figures/gather.py",
        "linear",
    ),
    Tests(
        "two processes write all the time: none waits for 2 s",
        "tests/figures/turns.py",
        "turns",
        stores=("sqlite",),
    ),
    Tests(
        "an idle worker: less than 1 statement a second",
        "tests/figures/idle.py",
        "idle",
        stores=("postgres", "redis"),
    ),
    Tests(
        "steps a second with appendfsync everysec: at least 0.7 of memory://",
        "tests/figures/throughput.py",
        "as_fast_as_in_memory",
        stores=("redis",),
    ),
    Tests(
        "a message wakes a run in another process: p50 at most 1.2 x that of SQLite",
        "tests/figures/messages.py",
        "as_soon_as",
        stores=("redis",),
    ),
    Tests(
        "a claim beside 20,000 sleeping runs: at most 1.3 x the time beside none",
        "tests/figures/claims.py",
        "sleeping_runs",
        stores=("redis",),
    ),
    Tests(
        "a finished run of five steps: under 3 KiB of the server's memory",
        "tests/figures/memory.py",
        "little_memory",
        stores=("redis",),
    ),
    Tests(
        "a run that kills its worker is blocked after 3, others unaffected",
        "tests/process/test_crash_loop.py",
        "kills_three_workers",
    ),
)


async def reach(store: str, seed: str, display: Display) -> list[Row]:
    """Reproduce all promised figures of a store, one after the other."""
    display.say(f"SIGKILL every 500 ms for {plan.KILLS_SECONDS:g} s")
    rows = [await _kills(store, seed, display)]
    for tests in TESTS:
        if store in tests.stores:
            display.say(tests.figure)
            rows.append(await asyncio.to_thread(tests.reached, store))
    return rows


async def _kills(store: str, seed: str, display: Display) -> Row:
    host = await asyncio.to_thread(measured)
    begun = time.monotonic()
    verdict = await hold(store, plan.of_kills(seed), display)
    display.say("")
    one = verdict.figures
    reached = (
        f"{one.blows.get('kill', 0)} kills, {one.runs} runs: {one.lost} lost, {one.wrong} wrong, {one.stuck} stuck; "
        f"{one.takeovers} takeovers, p99 {one.takeover_p99:.2f} s, most {one.takeover_most:.2f} s"
    )
    figure = f"SIGKILL one of 4 every 500 ms for 45 s, 200 runs x 10 steps: 0 lost, takeover in {one.takeover_aim:g} s"
    proof = "" if verdict.is_good else "\n".join(verdict.lines())
    return Row(figure, reached, host, verdict.is_good, time.monotonic() - begun, proof)


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Return a table for people."""
    texts = [Column(name) for name in ("figure", "verdict", "reached", "host")]
    table = Table([*texts, Column("seconds", is_number=True)])
    for row in rows:
        held = "holds" if row.is_good else "MISSED"
        cells = {"figure": row.figure, "verdict": held, "reached": row.reached, "host": str(row.host)}
        table.rows.append(cells | {"seconds": f"{row.seconds:.0f}"})
    yield from plain_lines(table)
    yield from (f"\n{row.figure}\n{row.proof}" for row in rows if row.proof)
