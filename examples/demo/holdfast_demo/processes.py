"""The processes of the demo: workers, and a directory with a database and a step log. They end with the demo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import holdfast
from holdfast.config.configuration import OWN_NAME
from holdfast.config.settings import SETTINGS
from holdfast_demo.application import LEDGER_VARIABLE, PACE_VARIABLE
from holdfast_demo.step_log import StepLog

_LEASE = "5s"
_END_SECONDS = 5.0


class DemoProcesses:
    """The workers and the directory of the demo. Exit ends the workers and, unless `is_kept`, removes the directory."""

    def __init__(self, *, pace: float, is_kept: bool) -> None:
        self._pace = pace
        self._is_kept = is_kept
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        self.url = f"sqlite:///{self.directory / 'demo.db'}"
        self.ledger = StepLog(self.directory / "ledger.jsonl")
        self.log = self.directory / "worker.log"
        (self.directory / OWN_NAME).touch()  # so that no settings file in a parent directory applies
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_workers()
        if not self._is_kept:
            shutil.rmtree(self.directory, ignore_errors=True)

    def start_worker(self, name: str) -> subprocess.Popen[bytes]:
        """Start a worker process with the command that a user would type."""
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "--url",
            self.url,
            "-v",
            "worker",
            "holdfast_demo.application:hf",
        ]
        homes = dict.fromkeys(str(Path(file).parents[1]) for file in (holdfast.__file__, __file__))
        paths = [*homes, *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            LEDGER_VARIABLE: str(self.directory / "ledger.jsonl"),
            PACE_VARIABLE: str(self._pace),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        with self.log.open("ab") as log:
            worker = subprocess.Popen(
                [*command, "--name", name, "--lease", _LEASE],
                cwd=self.directory,
                env=_surroundings() | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._workers.append(worker)
        return worker

    def _end_workers(self) -> None:
        """Terminate the workers, and kill those that do not stop."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self._workers:
            try:
                worker.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def _surroundings() -> dict[str, str]:
    """Return the environment without holdfast settings, so that the demo is the same on every machine."""
    settings = {setting.variable for setting in SETTINGS.values()}
    return {name: value for name, value in os.environ.items() if name not in settings}
