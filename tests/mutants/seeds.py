"""Run simulations up to the first failure, without shrinking or repeating it."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from tests.simulation.outcome import played
from tests.simulation.plan import plan_of

SEED_SECONDS = 60.0
"""CPU time after which a simulation counts as an endless loop: hundreds of times the usual."""


def main(count: int) -> int:
    """Play this many seeds; the exit code is 1 if one of them fails."""
    for seed in range(count):
        with _Patience(seed):
            outcome = played(plan_of(seed))
        if outcome.rule:
            _say(f"FAILED seed {seed}: {outcome.what}")
            return 1
    _say(f"{count} seeds, none went wrong")
    return 0


class _Patience:
    """End the process if a simulation takes too long; an endless loop could catch an exception."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        signal.signal(signal.SIGPROF, self._lose)
        signal.setitimer(signal.ITIMER_PROF, SEED_SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _lose(self, _signal: int, _frame: FrameType | None) -> None:
        _say(f"FAILED seed {self._seed}: it does not come to an end")
        os._exit(1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
