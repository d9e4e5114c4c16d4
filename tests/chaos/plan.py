"""The plan of a storm: its duration, processes, load and disturbances. The same seed makes the same plan."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, replace

from tests.process.crew import ROOT

KILLS_SECONDS = 45.0
KILLS_RUNS = 200
STARTS_PER_LEASE = 4
LONGEST_LEASE_SECONDS = 20.0


@dataclass(frozen=True)
class Plan:
    """The duration, processes, load and disturbances of a storm.

    `pace` is the number of jobs per second of each producer, up to `most` (0: no limit). Without `kinds` or `blows`,
    all are used. The storm lasts longer than `seconds` until `least_blows` have fallen and `least_runs` were
    accepted. If it `is_timed`, a takeover that comes too late counts as a violation.
    """

    seconds: float
    seed: str
    workers: int = 4
    producers: int = 2
    pause_seconds: float = 0.7
    is_steady: bool = False
    lease_seconds: float = 4.0
    pace: float = 5.0
    most: int = 0
    kinds: tuple[str, ...] = ()
    blows: tuple[str, ...] = ()
    least_blows: int = 0
    least_runs: int = 0
    is_timed: bool = False


def fitted(plan: Plan) -> Plan:
    """Return the same plan, with longer leases if needed.

    On a machine so busy that a process takes seconds to start, a live worker would lose short leases.
    """
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import tests.chaos.load"], cwd=ROOT, check=True)
    lease_seconds = min(LONGEST_LEASE_SECONDS, STARTS_PER_LEASE * (time.monotonic() - begun))
    return replace(plan, lease_seconds=round(max(plan.lease_seconds, lease_seconds), 1))


def of_kills(seed: str) -> Plan:
    """A random one of 4 workers is killed every 500 ms for 45 s, with 200 runs of 10 steps."""
    return Plan(
        seconds=KILLS_SECONDS,
        seed=seed,
        producers=1,
        pause_seconds=0.5,
        is_steady=True,
        pace=KILLS_RUNS / KILLS_SECONDS,
        most=KILLS_RUNS,
        kinds=("chain",),
        blows=("kill",),
        is_timed=True,
    )
