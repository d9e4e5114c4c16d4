"""The plan of a storm: how long, with whom, what load, and which blows. The same seed makes the same plan."""

from __future__ import annotations

from dataclasses import dataclass

KILLS_SECONDS = 45.0
KILLS_RUNS = 200


@dataclass(frozen=True)
class Plan:
    """`pace` is how many jobs a second each producer begins, up to `most` (0: no end); `kinds` and `blows` none: all.

    `slack_seconds` is how much longer than a lease and a second a takeover may take, where the machine is busy with
    other things too.
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
    settle_seconds: float = 90.0
    slack_seconds: float = 0.0


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
    )
