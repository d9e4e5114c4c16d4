"""Write results: a page in Markdown, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.versus.engines import Engine
from benchmarks.versus.numbers import NOTHING, shown, times
from benchmarks.versus.results import Results, targets
from benchmarks.versus.workloads import Figure, Workload

_INTRODUCTION = """\
Written by `make bench`; how it is measured and how to read it: [Benchmarks](../docs/benchmarks.md).

Each figure is the median over rounds in which all engines took turns. `30×` beside the figure of a peer says that
holdfast is 30 times better there, faster or smaller: the median of the ratios of each round, to holdfast on the same
store (Restate has files and a server of its own, and is compared with holdfast on Postgres). `–` means that the engine
has nothing of the kind, or that it was not measured.

![How many times faster holdfast is](results.svg)
"""

_COMMITS = """\
A bare commit is one row in one transaction with nothing around it, as durable as the store, timed right before and
after each measurement: the physical limit of a single write. Times are in bare commits, rates are what is done in the
time of one."""

_VERDICTS = {True: "met", False: "**not met**", None: "not measured"}


def page(results: Results) -> str:
    """Return the whole page."""
    return "\n".join(
        [
            "# Results of the benchmarks",
            "",
            _INTRODUCTION,
            *[f"- {name}: {text}" for name, text in results.facts.items()],
            "",
            "## Targets",
            "",
            *_markdown(
                ["what we want", "measured", ""],
                [[one.text, one.measured, _VERDICTS[one.is_met]] for one in targets(results)],
            ),
            "",
            "## Figures",
            "",
            *_markdown(["", *(engine.title for engine in results.engines)], _rows(results)),
            "",
            "## In bare commits",
            "",
            _COMMITS,
            "",
            *_markdown(["", *(engine.title for engine in results.engines)], _commit_rows(results)),
            "",
            *_failures(results),
            "## How each engine was set up",
            "",
            *_setups(results),
        ]
    )


def table(results: Results) -> Table:
    """Return the figures, for the terminal."""
    made = Table(title="median, and how many times better holdfast is")
    made.add_column("")
    for engine in results.engines:
        made.add_column(engine.title, justify="right")
    for title, *cells in _rows(results):
        made.add_row(title, *(Text(cell) for cell in cells))
    return made


def verdicts(results: Results) -> Table:
    """Return the targets, for the terminal."""
    made = Table(title="targets")
    for column in ("what we want", "measured", ""):
        made.add_column(column)
    for one in targets(results):
        style = {True: "green", False: "red", None: "dim"}[one.is_met]
        made.add_row(one.text, one.measured, Text(_VERDICTS[one.is_met].strip("*"), style=style))
    return made


def _rows(results: Results) -> Iterator[list[str]]:
    for workload in results.workloads:
        for figure in workload.figures:
            title = figure.title
            yield [title, *(_cell(results, workload, figure, engine) for engine in results.engines)]


def _cell(results: Results, workload: Workload, figure: Figure, engine: Engine) -> str:
    value = results.median(workload, figure, engine)
    if value is None:
        return "failed" if results.error(workload, engine) else NOTHING
    ratio = None if engine.is_ours else results.ratio(workload, figure, engine)
    return f"{shown(value, figure.unit)} {times(ratio)}".strip()


def _commit_rows(results: Results) -> Iterator[list[str]]:
    for workload in results.workloads:
        for figure in workload.figures:
            if workload.name in ("throughput", "tasks", "step", "start", "message", "enqueue"):
                found = [results.in_commits(workload, figure, engine) for engine in results.engines]
                yield [figure.title, *(NOTHING if one is None else f"{one:.2f}" for one in found)]


def _failures(results: Results) -> Iterator[str]:
    lines = [
        f"- {engine.title}: {error}" for engine in results.engines if (error := results.about[engine.name].error)
    ] + [
        f"- {engine.title}, {workload.name}: {error}"
        for workload in results.workloads
        for engine in results.engines
        if (error := results.error(workload, engine))
    ]
    if lines:
        yield from ("## What failed", "", *lines, "")


def _setups(results: Results) -> Iterator[str]:
    seen = set()
    for engine in results.engines:
        about = results.about[engine.name]
        if engine.peer not in seen and not about.error:
            seen.add(engine.peer)
            yield f"- **{engine.title.split(',')[0]}** ({about.versions}). {about.setup}"
            yield f"  Code: [`benchmarks/peers/{engine.peer}.py`](peers/{engine.peer}.py)."


def _markdown(header: Sequence[str], rows: Iterator[list[str]] | list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join(['---'] * len(header))} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
