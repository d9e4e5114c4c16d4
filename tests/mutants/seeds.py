"""Simulations up to the first that goes wrong, and no more: it is neither made smaller nor played again."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from tests.simulation.outcome import played
from tests.simulation.plan import plan_of

SEED_SECONDS = 60.0
"""One that takes so much time of the processor, hundreds of times as long as usual, goes in circles."""


def main(count: int) -> int:
    """Play so many seeds; the exit code is 1 if one of them goes wrong."""
    for seed in range(count):
        with _Patience(seed):
            outcome = played(plan_of(seed))
        if outcome.rule:
            _say(f"FAILED seed {seed}: {outcome.what}")
            return 1
    _say(f"{count} seeds, none went wrong")
    return 0


class _Patience:
    """While it lasts, whoever takes too long ends the process: an error could be caught by what goes in circles."""

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
