"""The workloads for every engine, and their sizes.

Rates are measured over fewer runs where an engine is slower (`peers`), so that each measurement takes a few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["a second", "seconds", "of a core", "bytes"]

MOST = "a second"
"""The unit for which more is better; for all others, less is."""


@dataclass(frozen=True)
class Figure:
    """One number of a workload: a row of the tables."""

    key: str
    title: str
    unit: Unit

    @property
    def more_is_better(self) -> bool:
        return self.unit == MOST


@dataclass(frozen=True)
class Workload:
    """One workload. Its stages are requests to the driver, each in a new process, in the same store."""

    name: str
    figures: tuple[Figure, ...]
    sizes: Mapping[str, int]
    peers: Mapping[str, int] = field(default_factory=dict)
    quick: Mapping[str, int] = field(default_factory=dict)
    stages: tuple[str, ...] = ()
    rounds: int = 5
    quick_rounds: int = 2
    limit_seconds: float = 90
    ours_only: bool = False
    is_in_quick: bool = True

    @property
    def requests(self) -> tuple[str, ...]:
        return self.stages or (self.name,)

    def sizes_for(self, *, is_ours: bool, is_quick: bool) -> dict[str, int]:
        sizes = {**self.sizes, **(self.quick if is_quick else {})}
        less = {} if is_ours else {key: min(size, sizes[key]) for key, size in self.peers.items()}
        return {**sizes, **less}


def _rate(key: str, title: str) -> Figure:
    return Figure(key, title, "a second")


def _time(key: str, title: str) -> Figure:
    return Figure(key, title, "seconds")


def _history(steps: int, title: str, *, is_in_quick: bool) -> Workload:
    return Workload(
        f"history-{steps}",
        (_time("seconds", f"a step in a history of {title}"), _time("resume", f"resume after {title} steps")),
        {"steps": steps},
        stages=("history", "resume"),
        rounds=1,
        quick_rounds=1,
        limit_seconds=240,
        is_in_quick=is_in_quick,
    )


def _growth(rows: int, title: str, *, ours_only: bool = False) -> Workload:
    return Workload(
        f"growth-{title}",
        (
            _rate("per_second", f"steps, five-step workflows, {title} stored runs"),
            _time("seconds", f"start to result, {title} stored runs"),
        ),
        {"rows": rows, "runs": 200},
        peers={"runs": 60},
        stages=("growth",),
        rounds=2 if rows < 1_000_000 else 1,
        quick_rounds=1,
        limit_seconds=300,
        ours_only=ours_only,
        is_in_quick=rows == 10_000,
    )


WORKLOADS = (
    Workload(
        "throughput",
        (_rate("per_second", "steps, five-step workflows, many at once"),),
        {"runs": 2_000},
        peers={"runs": 200},
        quick={"runs": 500},
    ),
    Workload(
        "tasks",
        (_rate("per_second", "tasks, many at once"),),
        {"count": 5_000},
        peers={"count": 500},
        quick={"count": 1_000},
        rounds=3,
        quick_rounds=1,
    ),
    Workload("step", (_time("seconds", "one step after another"),), {"steps": 300}, quick={"steps": 100}),
    Workload("start", (_time("seconds", "start to result of one step"),), {"runs": 50}, quick={"runs": 20}),
    Workload("message", (_time("seconds", "message to result of a waiting run"),), {"runs": 40}, quick={"runs": 20}),
    Workload("children", (_time("seconds", "fan-out to 200 children"),), {"width": 200}, rounds=3, quick_rounds=1),
    Workload("parallel", (_time("seconds", "fan-out to 200 steps at once"),), {"width": 200}, rounds=3, quick_rounds=1),
    Workload(
        "enqueue",
        (_rate("single", "enqueue, one by one"), _rate("bulk", "enqueue, in bulk")),
        {"count": 300, "bulk": 10_000},
        peers={"bulk": 1_000},
        quick={"count": 100, "bulk": 1_000},
        rounds=3,
        quick_rounds=1,
    ),
    Workload(
        "timers",
        (_time("seconds", "lateness of a timer, median of 50"), _time("worst", "lateness of a timer, worst of 50")),
        {"runs": 50},
        rounds=3,
        quick_rounds=1,
    ),
    _history(2_000, "2,000", is_in_quick=True),
    _history(10_000, "10,000", is_in_quick=False),
    Workload(
        "idle",
        (Figure("share", "idle worker: CPU", "of a core"), Figure("bytes", "idle worker: memory", "bytes")),
        {"seconds": 5},
        rounds=1,
        quick_rounds=1,
    ),
    Workload("import", (_time("seconds", "import"),), {"count": 5}, rounds=1, quick_rounds=1),
    _growth(10_000, "10k"),
    _growth(100_000, "100k"),
    _growth(1_000_000, "1M", ours_only=True),
)


def workloads_named(names: str | None, *, is_quick: bool) -> tuple[Workload, ...]:
    """Return the workloads of a comma-separated list; by default all of the form."""
    known = {workload.name: workload for workload in WORKLOADS}
    if names is None:
        return tuple(one for one in WORKLOADS if one.is_in_quick or not is_quick)
    found = []
    for name in names.split(","):
        matches = [one for one in WORKLOADS if one.name == name or one.name.startswith(f"{name}-")]
        if not matches:
            raise ValueError(f"there is no workload {name!r}; there are {', '.join(known)}")
        found += matches
    return tuple(found)
