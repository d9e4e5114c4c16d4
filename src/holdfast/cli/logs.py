"""Logs of a worker: one readable line each, on stderr."""

from __future__ import annotations

import logging
import sys
import time

_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}


class LineFormatter(logging.Formatter):
    """`21:31:08.692 warning  holdfast.worker  cannot claim; trying again`, and the run where there is one.

    `process` is the number of a worker process among its like, which its lines then show as `[2]`.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        run_id = getattr(record, "run_id", None)
        run = f"  run={run_id}" if run_id else ""
        head = f"{clock}.{record.msecs:03.0f} {self._process}{record.levelname.lower():<7}  {record.name}"
        line = f"{head}  {record.getMessage()}{run}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def log_to_stderr(verbosity: int, process: int | None = None) -> None:
    """Send the logs of this process to stderr: warnings, or with -v more."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(process))
    logging.basicConfig(handlers=[handler], level=_LEVELS.get(verbosity, logging.DEBUG), force=True)
