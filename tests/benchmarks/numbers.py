"""Results with given numbers, for tests of reports."""

from __future__ import annotations

from benchmarks.versus.cells import Cell
from benchmarks.versus.engines import Engine, engines_named
from benchmarks.versus.results import About, Results
from benchmarks.versus.workloads import Workload, workloads_named

BARE_SECONDS = 0.001

OURS, PEER, FAILING = engines_named("holdfast-postgres,dbos-postgres,absurd-postgres")
THROUGHPUT, STEP = workloads_named("throughput,step", is_quick=False)


def cell(workload: Workload, engine: Engine, round: int, value: float | None, error: str | None = None) -> Cell:
    figures = {} if value is None else {workload.figures[0].key: value}
    return Cell(workload.name, engine.name, round, figures, BARE_SECONDS, error)


def results(*cells: Cell, broken: str | None = None) -> Results:
    known = About("1.0", "as it comes", ("throughput", "step"))
    about = {OURS.name: known, PEER.name: known, FAILING.name: About(error=broken) if broken else known}
    return Results((OURS, PEER, FAILING), (THROUGHPUT, STEP), about, cells, {"machine": "2 cores"})
