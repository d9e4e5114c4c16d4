"""Write results: a page in Markdown, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.table import Table
from rich.text import Text

from benchmarks.versus.engines import Engine
from benchmarks.versus.numbers import NOTHING, shown, times
from benchmarks.versus.results import Results, targets
from benchmarks.versus.workloads import Figure, Workload

_INTRODUCTION = """\
`make bench` writes this page. It compares the speed of holdfast with that of other engines.
[Benchmarks](../docs/benchmarks.md) explains the method.

Each figure is the median over rounds in which the engines ran alternately. `30×` beside the figure of a peer means
that holdfast is 30 times better there, faster or smaller. It is the median of the ratios of each round, compared with
holdfast on the same store. (Restate has its own files and server, and is compared with holdfast on Postgres.) `–`
means that the engine does not have the feature, or that it was not measured.

![How many times faster holdfast is](results.svg)
"""

_COMMITS = """\
A bare commit is one row in one transaction with nothing around it, as durable as the store. It is timed right before
and after each measurement, and is the physical limit of a single write. Times are given in bare commits. Rates are
the number of operations in the time of one bare commit."""

_WIDTH = 118
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
            line = f"- **{engine.title.split(',')[0]}** ({about.versions}). {about.setup}"
            yield from wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            yield f"  Code: [`benchmarks/peers/{engine.peer}.py`](peers/{engine.peer}.py)."


def _markdown(header: Sequence[str], rows: Iterator[list[str]] | list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join(['---'] * len(header))} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
