"""`make test-pythons` and `make test-newest`: run the tests on each CPython that is found, or on the newest.

`--list` only names them. All other options go to pytest. Exit code 1 if the tests failed, or could not run, on any.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.pythons.discovery import Found, candidates, discover
from tests.pythons.trial import Trial, attempt

PROJECT = Path(__file__).parents[2]


def main(arguments: Sequence[str], tested: tuple[int, int] = sys.version_info[:2]) -> int:
    """Execute the command line and return the exit code. `make test` uses the version `tested`."""
    options, pytest_options = _parser().parse_known_args(arguments)
    found = discover([Path(sys.executable), *candidates(os.environ)])
    for path, reason in found.passed_over.items():
        _say(f"not used: {path} {reason}")
    if not found.interpreters:
        _say("No CPython is found that holdfast is tested on.")
        return 1
    if options.newest and (refusal := nothing_newer(found, tested)):
        _say(refusal)
        return 0
    chosen = found.interpreters[-1:] if options.newest else found.interpreters
    if options.list:
        _say(table([("PYTHON", "PATH"), *((one.version, one.executable) for one in chosen)]))
        return 0
    trials = []
    for interpreter in chosen:
        _say(f"\nPython {interpreter.version} at {interpreter.executable}")
        trial = attempt(interpreter, PROJECT, os.environ.get("UV", ".tools/bin/uv"), pytest_options)
        _say(trial.reason)
        trials.append(trial)
    _say(table(rows(trials)))
    return int(not all(trial.has_passed for trial in trials))


def nothing_newer(found: Found, tested: tuple[int, int]) -> str:
    """Return why the newest interpreter is not tested, which is that `make test` uses it; otherwise an empty string."""
    newest = found.interpreters[-1]
    if newest.order[:2] != tested:
        return ""
    if len(found.interpreters) == 1:
        return f"Only Python {newest.minor} is found, which `make test` uses: no other version is tested."
    return f"The newest Python that is found is {newest.version}, which `make test` uses: it is not tested twice."


def rows(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """The result as a table, with a heading."""
    heading = ("PYTHON", "PATH", "PASSED", "FAILED", "SKIPPED", "SECONDS", "VERDICT")
    return [heading, *map(_row, trials)]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines in which all cells of a column have the same width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _row(trial: Trial) -> tuple[str, ...]:
    counts = trial.counts
    numbers = map(str, (counts.passed, counts.failed, counts.skipped, round(trial.seconds)))
    return trial.interpreter.version, trial.interpreter.executable, *numbers, trial.verdict


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__, allow_abbrev=False)
    parser.add_argument("--newest", action="store_true", help="only the newest one, unless `make test` uses it")
    parser.add_argument("--list", action="store_true", help="name the interpreters, and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
