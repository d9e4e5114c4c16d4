"""The measurement: runs the workload in separate processes, for each operation, store and source."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.instructions.counters import CannotMeasure, Counter, run
from benchmarks.instructions.figures import Figures, Measure, Operation, Subject
from tests.postgres import Databases, PostgresServer

WORKLOAD = Path(__file__).with_name("workload.py")

# Only the client is counted. The writes of the server depend only on its statements: no full pages after a checkpoint,
# no vacuum in between. Each statement is logged, to be counted.
_SERVER_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "4GB",
    "log_statement": "all",
}
_FOREIGN = ("HOLDFAST", "PG", "PYTHON", "VALGRIND")

PARTS = 2
"""Number of processes in which each job is measured, one after the other."""


@dataclass(frozen=True)
class Job:
    """One operation on one store, measured with the engine from one named folder of sources."""

    operation: Operation
    store: str
    source: Path
    name: str = ""

    @property
    def subject(self) -> Subject:
        return Subject(self.operation.name, self.store)

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.store}{self.name and f' at {self.name}'}"


@dataclass(frozen=True)
class Outcome:
    """The result of a job: figures, or an error."""

    job: Job
    figures: Mapping[Measure, float]
    error: str | None = None


class Measurement:
    """Measures jobs. `told` is called with a line about each finished part."""

    def __init__(self, counter: Counter, server: PostgresServer | None, told: Callable[[str], None]) -> None:
        self._counter = counter
        self._server = server
        self._told = told

    def measure(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Measure every job in two parts: counts in plain processes, and instructions."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            # One after the other: all processes share the server's log and its position.
            counts = [self._part(job, self._counts, "calls, statements and WAL bytes") for job in jobs]
            instructions = pool.map(lambda job: self._part(job, self._instructions, "instructions"), jobs)
            return [_joined(job, *parts) for job, *parts in zip(jobs, counts, instructions, strict=True)]

    def _part(
        self, job: Job, part: Callable[[Job, Path, str], dict[Measure, float]], done: str
    ) -> dict[Measure, float] | str:
        """Return the figures, or the error."""
        try:
            with self._place(job) as (folder, url):
                found = part(job, folder, url)
        except CannotMeasure as error:
            self._told(f"{job}: {error}")
            return str(error)
        self._told(f"{job}: {done}")
        return found

    def _counts(self, job: Job, folder: Path, url: str) -> dict[Measure, float]:
        log = (
            [] if self._server is None or job.store == "sqlite" else ["--log", str(self._server.folder / "server.log")]
        )
        said = run(_command(job, url, "counts", job.operation.sizes, *log), folder, _environment(job.source, folder))
        short, long = json.loads(said)
        measures: tuple[Measure, ...] = ("calls", "statements", "wal_bytes")
        return {measure: job.operation.per_operation(short[measure], long[measure], measure) for measure in measures}

    def _instructions(self, job: Job, folder: Path, url: str) -> dict[Measure, float]:
        def command(meter: str, sizes: Sequence[int], *more: str) -> list[str]:
            return _command(job, url, meter, sizes, *more)

        short, long = self._counter.count(command, job.operation.sizes, folder, _environment(job.source, folder))
        return {"instructions": job.operation.per_operation(short, long, "instructions")}

    @contextmanager
    def _place(self, job: Job) -> Iterator[tuple[Path, str]]:
        """A working folder, and the URL of an empty store."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-instructions-")))
            if job.store == "sqlite":
                yield folder, f"sqlite:///{folder}/measured.db"
            else:
                assert self._server is not None
                databases = stack.enter_context(Databases(self._server.url))
                yield folder, stack.enter_context(databases.lend())


def private_server() -> PostgresServer:
    """Return a server to measure on, not started yet."""
    return PostgresServer(settings=_SERVER_SETTINGS)


def figures_of(outcomes: Sequence[Outcome]) -> Figures:
    """Return the measured figures; a job that failed has none."""
    return {outcome.job.subject: dict(outcome.figures) for outcome in outcomes if outcome.error is None}


def _joined(job: Job, *parts: dict[Measure, float] | str) -> Outcome:
    figures: dict[Measure, float] = {}
    for part in parts:
        if isinstance(part, str):
            return Outcome(job, {}, part)
        figures.update(part)
    return Outcome(job, figures)


def _command(job: Job, url: str, meter: str, sizes: Sequence[int], *more: str) -> list[str]:
    words = [job.operation.name, "--url", url, "--source", str(job.source), "--meter", meter]
    return [sys.executable, "-P", str(WORKLOAD), *words, "--sizes", *map(str, sizes), *more]


def _environment(source: Path, folder: Path) -> dict[str, str]:
    """Return the environment of this process, without variables that could change the engine or the interpreter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**kept, "HOME": str(folder), "PYTHONHASHSEED": "0", "PYTHONPATH": str(source)}
