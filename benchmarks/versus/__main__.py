"""Measure holdfast and its peers side by side.

python -m benchmarks.versus [--quick] [--only throughput,step] [--engines holdfast-sqlite,dbos-sqlite] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.stores import MeasuredStore, the_postgres, the_redis, the_sqlite
from benchmarks.versus import machine, plot, report
from benchmarks.versus.cells import Cell, DriverFailed, Measurer
from benchmarks.versus.engines import Engine, engines_named
from benchmarks.versus.environments import ENVIRONMENTS, PROJECT, NotInstalled, python_of
from benchmarks.versus.numbers import shown
from benchmarks.versus.results import About, Results
from benchmarks.versus.workloads import Workload, workloads_named

COMMITTED = PROJECT / "benchmarks"
"""Folder for the results of a whole run."""


def main(arguments: list[str] | None = None) -> None:
    given = _parsed(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=180)
    started = time.monotonic()
    with ExitStack() as stack:
        stores: dict[str, MeasuredStore] = {
            "sqlite": stack.enter_context(the_sqlite()),
            "postgres": stack.enter_context(the_postgres(given.url)),
            "redis": stack.enter_context(the_redis()),
        }
        pythons, about = installed(given.engines, console)
        measurer = Measurer(stores, pythons, given.quick)
        about |= {one.name: described(measurer, one) for one in given.engines if one.name not in about}
        facts = machine.facts(stack.enter_context(stores["postgres"].place()))
        plan = list(planned(given.engines, given.only, about, is_quick=given.quick, rounds=given.rounds))
        cells = measured(measurer, plan, console)
    results = Results(given.engines, given.only, about, cells, facts)
    form = "quick" if given.quick else "full"
    results = replace(results, facts=facts | _run_facts(results, len(plan), form, time.monotonic() - started))
    console.print(report.table(results))
    console.print(report.verdicts(results))
    if len(cells) < len(plan) and given.output == COMMITTED:
        given.output = ENVIRONMENTS  # interrupted: complete earlier results stay unchanged
    write(results, given.output, console)


def installed(engines: Sequence[Engine], console: Console) -> tuple[dict[str, Path], dict[str, About]]:
    """Return the interpreters of the peers, and the errors of those that cannot be installed."""
    pythons: dict[str, Path] = {}
    failed: dict[str, About] = {}
    for engine in engines:
        try:
            pythons[engine.peer] = pythons.get(engine.peer) or python_of(engine.peer)
        except NotInstalled as error:
            failed[engine.name] = About(error=f"not installed: {error}")
            console.print(f"{engine.title} is left out: {error}", markup=False)
    return pythons, failed


def described(measurer: Measurer, engine: Engine) -> About:
    try:
        found = measurer.about(engine)
    except DriverFailed as error:
        return About(error=str(error))
    return About(found["versions"], found["setup"], tuple(found["workloads"]))


def planned(
    engines: Sequence[Engine],
    workloads: Sequence[Workload],
    about: dict[str, About],
    *,
    is_quick: bool,
    rounds: int | None = None,
) -> Iterator[tuple[Workload, Engine, int]]:
    """Yield one engine after another in each round, so that noise affects all alike; each round starts with another."""
    for workload in workloads:
        asked = [engine for engine in engines if engine.is_ours or not workload.ours_only]
        able = [
            engine for engine in asked if set(workload.requests) <= set(about[engine.name].workloads) - engine.without
        ]
        for round in range(rounds or (workload.quick_rounds if is_quick else workload.rounds)):
            first = round % len(able) if able else 0
            for engine in able[first:] + able[:first]:
                yield workload, engine, round


def measured(measurer: Measurer, plan: Sequence[tuple[Workload, Engine, int]], console: Console) -> list[Cell]:
    """Measure one after another, with a line about each. An interrupt returns the results so far."""
    cells: list[Cell] = []
    started = time.monotonic()
    try:
        for number, (workload, engine, round) in enumerate(plan, start=1):
            cells.append(measurer.cell(workload, engine, round))
            line = _progress(number, len(plan), time.monotonic() - started, workload, cells[-1])
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print("broken off; this is what was measured until now")
    return cells


def write(results: Results, folder: Path, console: Console) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(report.page(results))
    (folder / "results.svg").write_text(plot.drawing(results))
    console.print(f"written to {folder / 'results.md'} and results.svg", markup=False, highlight=False, soft_wrap=True)


def _progress(number: int, total: int, elapsed: float, workload: Workload, cell: Cell) -> str:
    found = ", ".join(
        shown(cell.figures[figure.key], figure.unit) for figure in workload.figures if figure.key in cell.figures
    )
    minutes, seconds = divmod(int(elapsed), 60)
    where = f"{minutes:02}:{seconds:02} {number}/{total} {workload.name}, round {cell.round + 1}"
    bare = f"a bare commit {shown(cell.bare_seconds, 'seconds')}"
    return f"{where}: {cell.engine} {cell.error or found} ({bare})"


def _run_facts(results: Results, planned: int, form: str, elapsed: float) -> dict[str, str]:
    rounds = max((cell.round + 1 for cell in results.cells), default=0)
    done = len(results.cells)
    broken_off = "" if done == planned else f", broken off after {done} of {planned} measurements"
    commits = [
        f"{shown(seconds, 'seconds')} on {title} ({shown(1 / seconds, 'a second')})"
        for place, title in (("sqlite", "SQLite"), ("postgres", "Postgres"), ("redis", "Redis"))
        if (seconds := results.bare_seconds(place)) is not None
    ]
    return {
        "bare commit": f"{', '.join(commits)}, median over the run",
        "load": f"{os.getloadavg()[2]:.1f} runnable processes, on average over the last 15 minutes",
        "run": f"{form} form, rounds: {rounds} at most, {elapsed / 60:.0f} minutes{broken_off}",
    }


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versus",
        description="Measure holdfast and its peers side by side. The peers are installed into .bench/.",
    )
    parser.add_argument("--quick", action="store_true", help="a few minutes: smaller sizes, fewer rounds")
    parser.add_argument("--only", metavar="NAMES", help="workloads, with commas between them, such as throughput,step")
    parser.add_argument("--engines", metavar="NAMES", help="engines, with commas, such as holdfast-sqlite,dbos-sqlite")
    parser.add_argument("--rounds", type=int, help="as many rounds of each workload, instead of its own number")
    parser.add_argument("--url", help="a Postgres server that may be used (databases are created), not a private one")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where results.md and results.svg go; default: benchmarks/ for a whole run, .bench/ for any other",
    )
    given = parser.parse_args(arguments)
    if given.rounds is not None and given.rounds < 1:
        parser.error("--rounds is at least 1")
    is_whole = not (given.quick or given.only or given.engines or given.rounds)
    given.output = given.output or (COMMITTED if is_whole else ENVIRONMENTS)
    try:
        given.engines, given.only = engines_named(given.engines), workloads_named(given.only, is_quick=given.quick)
    except ValueError as error:
        parser.error(str(error))
    return given


if __name__ == "__main__":
    main()
