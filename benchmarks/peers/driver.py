"""A driver: a program that reads one request, runs one workload on one engine, and writes the measured figures.

    python -m benchmarks.peers.dbos '{"workload": "step", "url": "sqlite:////tmp/a.db", "sizes": {"steps": 100}}'

The answer is one line, `@ {"figures": {"seconds": 0.0021}}` or `@ {"error": "…"}`; all other output of an engine is
ignored. Figures are in seconds, bytes, shares or items per second. Every driver answers the workload `about`: its
workloads, the versions it uses, and the setup of its engine.

Nothing here depends on an engine, and only the standard library is imported: this runs in the environments of all of
them.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

MARK = "@ "

Figures = dict[str, float]


@dataclass(frozen=True)
class Request:
    """The workload, its (empty) store, and its sizes."""

    workload: str
    url: str
    sizes: Mapping[str, int]

    def __getitem__(self, size: str) -> int:
        return self.sizes[size]


Workload = Callable[[Request], Figures]


@dataclass(frozen=True)
class Driver:
    """The workloads of one engine, and its setup: its author should agree with every word."""

    packages: tuple[str, ...]
    setup: str
    workloads: Mapping[str, Workload]

    def about(self) -> dict[str, object]:
        versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in self.packages)
        return {"versions": versions, "setup": " ".join(self.setup.split()), "workloads": list(self.workloads)}

    def answer(self, argument: str) -> str:
        """Return the line that answers one request."""
        try:
            request = Request(**json.loads(argument))
            if request.workload == "about":
                return MARK + json.dumps({"about": self.about()})
            return MARK + json.dumps({"figures": self.workloads[request.workload](request)})
        except Exception as error:  # noqa: BLE001 - the coordinator reports every error
            traceback.print_exc()
            text = " ".join(str(error).split())
            return MARK + json.dumps({"error": f"{type(error).__name__}: {text}"[:300]})

    def main(self) -> None:
        """Answer the request in the arguments, and exit at once: an engine's threads may not want to end."""
        print(self.answer(sys.argv[1]), flush=True)
        sys.stderr.flush()
        os._exit(0)


def timed(work: Callable[[], object], count: int) -> Figures:
    """Return the median of repeated calls, without the first: it includes one-time costs."""
    work()
    return {"seconds": statistics.median(seconds(work) for _ in range(count))}


async def timed_async(work: Callable[[], Awaitable[object]], count: int) -> Figures:
    """The same, for an engine with an event loop."""
    await work()
    return {"seconds": statistics.median([await seconds_async(work()) for _ in range(count)])}


def per_step(work: Callable[[], object], steps: int) -> Figures:
    """Return the time of one step of a run, without the first run."""
    return {"seconds": timed(work, 1)["seconds"] / steps}


async def per_step_async(work: Callable[[], Awaitable[object]], steps: int) -> Figures:
    """The same, for an engine with an event loop."""
    return {"seconds": (await timed_async(work, 1))["seconds"] / steps}


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def seconds_async(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


def lateness(late: list[float]) -> Figures:
    """Return how late timers fired."""
    return {"seconds": statistics.median(late), "worst": max(late)}


def idle(duration: float, *processes: int) -> Figures:
    """Return the share of a core of idle processes, including this one, and their memory. Blocks."""
    everyone = (os.getpid(), *processes)
    time.sleep(1)
    before = sum(map(_cpu_seconds, everyone))
    took = seconds(lambda: time.sleep(duration))
    after = sum(map(_cpu_seconds, everyone))
    return {"share": (after - before) / took, "bytes": sum(map(resident_bytes, everyone))}


def importing(statement: str) -> Workload:
    """The workload that measures what an import adds to the start of the interpreter."""

    def measure(request: Request) -> Figures:
        _start_seconds(statement)  # compiles it
        # In turns, so that a moment of load affects both.
        took = [(_start_seconds("pass"), _start_seconds(statement)) for _ in range(request["count"])]
        return {"seconds": max(0.0, statistics.median(full - bare for bare, full in took))}

    return measure


def resident_bytes(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())


def _cpu_seconds(process: int) -> float:
    if process == os.getpid():
        return time.process_time()  # finer than the ticks of the system
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _start_seconds(statement: str) -> float:
    """CPU seconds: an import only computes, and other programs may use the cores meanwhile."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
