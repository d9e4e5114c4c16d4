"""Measure one workload on one engine, once: a driver in a separate process, with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.peers.driver import MARK
from benchmarks.stores import MeasuredStore
from benchmarks.versus.engines import Engine, Place
from benchmarks.versus.environments import PROJECT
from benchmarks.versus.workloads import Workload

_BARE_COMMITS = 40


class DriverFailed(Exception):
    """A driver returned no figures; the text says why, in a line."""


@dataclass(frozen=True)
class Cell:
    """One measurement, with the bare commits that were timed right before and after it."""

    workload: str
    engine: str
    round: int
    figures: Mapping[str, float]
    bare_seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Measurer:
    """Has the stores, and calls drivers."""

    stores: Mapping[str, MeasuredStore]
    pythons: Mapping[str, Path]
    is_quick: bool

    def cell(self, workload: Workload, engine: Engine, round: int) -> Cell:
        """Measure in a new, empty store. Never raises: an error is a result, too."""
        figures: dict[str, float] = {}
        error = None
        bare = self.bare_seconds(engine.place)
        sizes = workload.sizes_for(is_ours=engine.is_ours, is_quick=self.is_quick)
        try:
            with ExitStack() as stack:
                url = self._place(engine.place, stack)
                for stage in workload.requests:
                    request = {"workload": stage, "url": url, "sizes": sizes}
                    figures |= self.ask(engine.peer, request, workload.limit_seconds)["figures"]
        except (DriverFailed, psycopg.Error, OSError) as failed:
            error = " ".join(str(failed).split())
        bare = (bare + self.bare_seconds(engine.place)) / 2
        return Cell(workload.name, engine.name, round, {} if error else figures, bare, error)

    def about(self, engine: Engine) -> dict[str, Any]:
        """Return the workloads of an engine's driver, and its setup."""
        found: dict[str, Any] = self.ask(engine.peer, {"workload": "about", "url": "", "sizes": {}}, 60)["about"]
        return found

    def bare_seconds(self, place: Place) -> float:
        return self.stores["sqlite" if place == "folder" else place].bare_commit_seconds(_BARE_COMMITS)

    def ask(self, peer: str, request: Mapping[str, object], limit_seconds: float) -> dict[str, Any]:
        """Return the answer of a driver in a new process, which leaves nothing behind."""
        command = [str(self.pythons[peer]), "-m", f"benchmarks.peers.{peer}", json.dumps(request)]
        return answer_of(command, limit_seconds)

    def _place(self, place: Place, stack: ExitStack) -> str:
        if place == "folder":
            return f"file://{stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))}"
        return stack.enter_context(self.stores[place].place())


def answer_of(command: list[str], limit_seconds: float) -> dict[str, Any]:
    """Return the answer of a driver, or raise `DriverFailed`."""
    # Its child processes, such as a server, belong to its session, and end with it.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=_environment(command[0]),
        start_new_session=True,
    ) as process:
        try:
            out, complaints = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            raise DriverFailed(f"no answer within {limit_seconds:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    answers = [line for line in out.splitlines() if line.startswith(MARK)]
    if not answers:
        lines = complaints.strip().splitlines() or ["it said nothing"]
        raise DriverFailed(f"ended with {process.returncode}: {lines[-1][:200]}")
    answer: dict[str, Any] = json.loads(answers[-1].removeprefix(MARK))
    if "error" in answer:
        raise DriverFailed(answer["error"])
    return answer


def _environment(python: str) -> dict[str, str]:
    """Return the environment. Our own drivers import everything; those of peers only see the drivers themselves."""
    path = os.pathsep.join(sys.path) if python == sys.executable else str(PROJECT)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": path}  # an import is measured compiled, as users have it
