"""The processes of the demo: workers on a directory with a database and a step log, which end with the demo."""

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
from holdfast.cli.demo.application import LEDGER_VARIABLE, PACE_VARIABLE
from holdfast.cli.demo.step_log import StepLog
from holdfast.config.file import OWN_NAME
from holdfast.config.settings import SETTINGS

_LEASE = "5s"
_END_SECONDS = 5.0


class DemoProcesses:
    """Everything the demo makes. Leaving it ends the workers and, unless it is to be kept, removes the directory."""

    def __init__(self, *, pace: float, is_kept: bool) -> None:
        self._pace = pace
        self._is_kept = is_kept
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        self.url = f"sqlite:///{self.directory / 'demo.db'}"
        self.ledger = StepLog(self.directory / "ledger.jsonl")
        self.log = self.directory / "worker.log"
        (self.directory / OWN_NAME).touch()  # so that no file further up counts
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_workers()
        if not self._is_kept:
            shutil.rmtree(self.directory, ignore_errors=True)

    def hire(self, name: str) -> subprocess.Popen[bytes]:
        """Start a worker process: the command a user would type."""
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "--url",
            self.url,
            "-v",
            "worker",
            "holdfast.cli.demo.application:hf",
        ]
        home = str(Path(holdfast.__file__).parents[1])
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            LEDGER_VARIABLE: str(self.directory / "ledger.jsonl"),
            PACE_VARIABLE: str(self._pace),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        with self.log.open("ab") as log:
            worker = subprocess.Popen(  # noqa: S603 - our own interpreter, with our own arguments
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
        """Ask them to stop, and kill what does not."""
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
    """The environment without settings: the demo is the same for everybody."""
    settings = {setting.variable for setting in SETTINGS.values()}
    return {name: value for name, value in os.environ.items() if name not in settings}
