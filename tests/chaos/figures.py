"""The figures that are promised, reproduced one by one: each is a storm of its own, or tests told to go on for longer.

A test tells the number it has reached in a line that begins with `figure:`.
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

from holdfast.cli.table import Column, Table, plain_lines
from tests.chaos import plan
from tests.chaos.display import Display
from tests.chaos.session import hold
from tests.process.crew import ROOT

_FIGURE = re.compile(r"^.*?figure: (.*)$", re.MULTILINE)
_TAIL_CHARACTERS = 3_000


class Row(msgspec.Struct, frozen=True):
    """One figure: what was asked for, what was reached, and how long that took."""

    figure: str
    reached: str
    is_good: bool
    seconds: float
    proof: str = ""


@dataclass(frozen=True)
class Tests:
    """Tests that show a figure: which, on which stores, and what makes them go on for so long."""

    figure: str
    path: str
    choice: str
    stores: Sequence[str] = ("postgres", "sqlite")
    settings: dict[str, str] = field(default_factory=dict)

    def reached(self, store: str) -> Row:
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", self.path]
        command += ["-k", f"({self.choice})" + ("" if len(self.stores) == 1 else f" and {store}")]
        begun = time.monotonic()
        environment = os.environ | self.settings
        done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
        told = _FIGURE.findall(done.stdout)
        is_good = done.returncode == 0 and bool(told)
        reached = "; ".join(told) or f"pytest ended with exit code {done.returncode}"
        seconds = time.monotonic() - begun
        return Row(self.figure, reached, is_good, seconds, "" if is_good else done.stdout[-_TAIL_CHARACTERS:])


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
        "arrive_when_the_lease_is_over",
        stores=("postgres",),
        settings={"HOLDFAST_PROCESS_SECONDS": "160"},
    ),
    Tests(
        "200 cuts around COMMIT: 0 duplicates, 0 losses",
        "tests/faults/test_cut_commits.py",
        "nothing_is_lost_or_doubled",
        stores=("postgres",),
        settings={"HOLDFAST_PROCESS_SECONDS": "25"},
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
        "of_a_cancel_and_an_end",
        settings={"HOLDFAST_RACES": "5000"},
    ),
    Tests(
        "SIGTERM with a 60 s step and 5 s grace: claimable within 1 s, never terminal",
        "tests/process/test_terminated.py",
        "long_step_is_given_back and hang",
        settings={"HOLDFAST_PROCESS_SECONDS": "40"},
    ),
    Tests(
        "a run that kills its worker is blocked after 3, others unaffected",
        "tests/process/test_crash_loop.py",
        "kills_three_workers",
    ),
)


async def reach(store: str, seed: str, display: Display) -> list[Row]:
    """All figures that are promised of a store, one after the other."""
    display.say(f"SIGKILL every 500 ms for {plan.KILLS_SECONDS:g} s")
    rows = [await _kills(store, seed, display)]
    for tests in TESTS:
        if store in tests.stores:
            display.say(tests.figure)
            rows.append(await asyncio.to_thread(tests.reached, store))
    return rows


async def _kills(store: str, seed: str, display: Display) -> Row:
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
    return Row(figure, reached, verdict.is_good, time.monotonic() - begun, proof)


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """For people."""
    table = Table([Column("figure"), Column("reached"), Column("seconds", is_number=True), Column("verdict")])
    for row in rows:
        held = "holds" if row.is_good else "MISSED"
        cells = {"figure": row.figure, "reached": row.reached, "seconds": f"{row.seconds:.0f}", "verdict": held}
        table.rows.append(cells)
    yield from plain_lines(table)
    yield from (f"\n{row.figure}\n{row.proof}" for row in rows if row.proof)
