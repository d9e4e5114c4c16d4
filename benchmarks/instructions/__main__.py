"""Count the cost of operations, and compare it with the stored baseline, or with another commit.

python -m benchmarks.instructions [--only step,claim] [--store sqlite] [--base REV] [--update] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.instructions import baseline, commits, comparison
from benchmarks.instructions.build import differences, this_build
from benchmarks.instructions.comparison import Row
from benchmarks.instructions.counters import CannotMeasure, find_counter
from benchmarks.instructions.figures import OPERATIONS, STORES, Figures, chosen
from benchmarks.instructions.measurement import PARTS, Job, Measurement, Outcome, figures_of, private_server
from tests.postgres import find_installation

WORSE, UNABLE = 1, 2


def main(arguments: list[str] | None = None) -> int:
    given = _parsed(arguments)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return Command(given, Path(folder)).run()
    except CannotMeasure as error:
        print(error, file=sys.stderr)
        return UNABLE


class Command:
    """One call of the command."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given = given
        self._counter = find_counter(folder)
        self._build = this_build(self._counter.name, str(find_installation().version))
        self._stored = baseline.load(baseline.PATH)
        self._is_stored_build = self._stored is not None and self._stored.build == self._build
        if given.update and given.is_part and not self._is_stored_build:
            raise CannotMeasure(
                "there is no stored baseline of this build, so --update needs all operations and stores"
            )

    def run(self) -> int:
        base = self._base()
        before, now = self._measured(base)
        rows = comparison.compared(before, now)
        self._show(rows, base)
        if self._given.update:
            baseline.store(now, self._build, baseline.PATH)
            _say(f"stored in {baseline.PATH}")
            return 0
        return WORSE if comparison.is_worse(rows) else 0

    def _base(self) -> str | None:
        """The commit to compare with; None for the stored baseline."""
        if self._given.base is not None:
            return commits.commit_named(self._given.base)
        if self._is_stored_build or self._given.update:
            return None
        if self._stored is not None:
            found = "; ".join(differences(self._stored.build, self._build))
            _say(f"the stored baseline is of another build ({found})")
        base = commits.last_change_of(baseline.PATH)
        _say(f"comparing with the commit that last changed the baseline, {base[:10]}")
        return base

    def _measured(self, base: str | None) -> tuple[Figures, Figures]:
        """The earlier and the current figures."""
        here = [Job(operation, store, commits.PROJECT / "src") for operation, store in self._given.chosen]
        with ExitStack() as stack:
            there: list[Job] = []
            if base is not None:
                source = stack.enter_context(commits.checked_out(base)) / "src"
                there = [Job(job.operation, job.store, source, base[:10]) for job in here]
            server = private_server() if any(job.store == "postgres" for job in here) else None
            if server is not None:
                stack.enter_context(server)
            measurement = Measurement(self._counter, server, Progress(PARTS * len(here + there)))
            outcomes = measurement.measure(here + there)
        now, before = outcomes[: len(here)], outcomes[len(here) :]
        for outcome in now:
            _check(outcome)
        if base is None:
            stored = self._stored if self._is_stored_build else None
            return {} if stored is None else stored.known(), figures_of(now)
        if not figures_of(before):
            _check(before[0])
        return figures_of(before), figures_of(now)

    def _show(self, rows: list[Row], base: str | None) -> None:
        before = "baseline" if base is None else base[:10]
        if self._given.json:
            print(json.dumps({"before": before, "build": self._build, "figures": [row.as_json() for row in rows]}))
            return
        print(comparison.table(rows, before))
        print(f"\n{comparison.summary(rows)}")
        if comparison.is_worse(rows) and not self._given.update:
            print('if that is the price of something better, accept it: make instructions ARGS="--update"')


def _check(outcome: Outcome) -> None:
    if outcome.error is not None:
        raise CannotMeasure(f"{outcome.job} cannot be measured: {outcome.error}")


class Progress:
    """Print a line for each finished part."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        self._done += 1
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        _say(f"{minutes:02}:{seconds:02} {self._done}/{self._total} {text}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    names = ", ".join(operation.name for operation in OPERATIONS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description="Count instructions, Python calls, SQL statements and WAL bytes of each operation, and compare "
        "them with the stored baseline. It exits with 1 if something got more than 3 % worse, and with 2 if it cannot "
        "measure.",
    )
    parser.add_argument("--only", metavar="NAMES", help=f"operations, with commas between them: {names}")
    parser.add_argument("--store", choices=STORES, action="append", help="default: both")
    parser.add_argument("--base", metavar="REV", help="compare with this commit, measured now with this interpreter")
    parser.add_argument("--update", action="store_true", help="store what is measured as the new baseline")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    given = parser.parse_args(arguments)
    try:
        given.chosen = chosen(given.only, given.store)
    except ValueError as error:
        parser.error(str(error))
    given.is_part = len(given.chosen) < len(chosen(None, None))
    return given


if __name__ == "__main__":
    sys.exit(main())
