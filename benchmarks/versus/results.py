"""Medians and ratios of measurements. Pure: it neither measures nor prints."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.versus.cells import Cell
from benchmarks.versus.engines import Engine
from benchmarks.versus.workloads import Figure, Workload


@dataclass(frozen=True)
class About:
    """The versions and setup of an engine, or why it could not take part."""

    versions: str = ""
    setup: str = ""
    workloads: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Target:
    """A target of the project, and its measurement."""

    text: str
    measured: str
    is_met: bool | None
    """None if it was not measured."""


@dataclass(frozen=True)
class Results:
    """Everything one run of the benchmarks has found."""

    engines: Sequence[Engine]
    workloads: Sequence[Workload]
    about: Mapping[str, About]
    cells: Sequence[Cell]
    facts: Mapping[str, str]
    """Facts about the machine and the run, in the order in which they are shown."""

    def median(self, workload: Workload, figure: Figure, engine: Engine) -> float | None:
        found = [cell.figures[figure.key] for cell in self.measured(workload, engine) if figure.key in cell.figures]
        return statistics.median(found) if found else None

    def ratio(self, workload: Workload, figure: Figure, peer: Engine) -> float | None:
        """Return how many times better ours is than the peer: the median over rounds in which both were measured."""
        ours = {cell.round: cell.figures for cell in self.cells_of(workload, peer.counterpart)}
        ratios = []
        for cell in self.measured(workload, peer):
            mine, theirs = ours.get(cell.round, {}).get(figure.key), cell.figures.get(figure.key)
            if mine and theirs:
                ratios.append(mine / theirs if figure.more_is_better else theirs / mine)
        return statistics.median(ratios) if ratios else None

    def in_commits(self, workload: Workload, figure: Figure, engine: Engine) -> float | None:
        """A time in bare commits of the moment, or a rate as items per bare commit."""
        cells = [cell for cell in self.measured(workload, engine) if figure.key in cell.figures]
        values = [
            cell.figures[figure.key] * cell.bare_seconds
            if figure.more_is_better
            else cell.figures[figure.key] / cell.bare_seconds
            for cell in cells
        ]
        return statistics.median(values) if values else None

    def error(self, workload: Workload, engine: Engine) -> str | None:
        """Return why there is no figure, if every measurement failed."""
        cells = self.cells_of(workload, engine.name)
        return cells[-1].error if cells and all(cell.error for cell in cells) else None

    def measured(self, workload: Workload, engine: Engine) -> list[Cell]:
        return [cell for cell in self.cells_of(workload, engine.name) if cell.error is None]

    def cells_of(self, workload: Workload, engine: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.workload == workload.name and cell.engine == engine]

    def bare_seconds(self, place: str) -> float | None:
        """Return the median bare commit over the whole run."""
        names = {engine.name for engine in self.engines if engine.place == place}
        found = [cell.bare_seconds for cell in self.cells if cell.engine in names]
        return statistics.median(found) if found else None


def targets(results: Results) -> list[Target]:
    """Return the targets of the project with their measurements."""
    return [
        *_throughput(results, "dbos", 30),
        *_throughput(results, "absurd", 10),
        *_step(results),
        *_faster_than_all(results, "start", "start to result"),
        *_faster_than_all(results, "message", "message to result"),
    ]


def _throughput(results: Results, peer: str, wanted: float) -> list[Target]:
    found = []
    for engine in results.engines:
        if engine.peer == peer:
            ratio = _ratio(results, "throughput", engine)
            text = f"throughput at least {wanted:.0f} times that of {engine.title}"
            found.append(_target(text, ratio, f"{ratio or 0:.1f} times", ratio is not None and ratio >= wanted))
    return found


def _step(results: Results) -> list[Target]:
    found = []
    for engine in results.engines:
        if engine.is_ours:
            workload = _workload(results, "step")
            commits = results.in_commits(workload, workload.figures[0], engine) if workload else None
            text = f"one step after another in at most 1.5 bare commits, {engine.title}"
            found.append(_target(text, commits, f"{commits or 0:.2f} commits", commits is not None and commits <= 1.5))
    return found


def _faster_than_all(results: Results, name: str, title: str) -> list[Target]:
    peers = [engine for engine in results.engines if not engine.is_ours]
    ratios = {engine.title: ratio for engine in peers if (ratio := _ratio(results, name, engine)) is not None}
    if not ratios:
        return [_target(f"{title} faster than every measured peer", None, "", is_met=False)]
    closest = min(ratios, key=lambda title: ratios[title])
    text = f"{title} faster than every measured peer"
    measured = f"{ratios[closest]:.2f} times as fast as the closest, {closest}"
    return [_target(text, ratios[closest], measured, ratios[closest] > 1)]


def _target(text: str, value: float | None, measured: str, is_met: bool) -> Target:  # noqa: FBT001 - a row
    return Target(text, "not measured", None) if value is None else Target(text, measured, is_met)


def _ratio(results: Results, name: str, engine: Engine) -> float | None:
    workload = _workload(results, name)
    return results.ratio(workload, workload.figures[0], engine) if workload else None


def _workload(results: Results, name: str) -> Workload | None:
    return next((workload for workload in results.workloads if workload.name == name), None)
