"""Logs of a worker on stderr: one readable line, or one JSON object, for each record."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from holdfast.runner.step_info import current_step

_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}

ABOUT = ("run_id", "location", "type", "worker", "error")
"""Attributes of a log record that name its subject."""


class StepFilter(logging.Filter):
    """Adds the run and the location to every record that a step body logs, by any logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        step = current_step.get(None)
        if step is not None and getattr(record, "run_id", None) is None:
            record.run_id, record.location = step.run_id, step.location
        return True


class LineFormatter(logging.Formatter):
    """`21:31:08.692 warning  holdfast.worker  cannot claim; trying again`, and the run and location if known.

    `process` is the number of a worker process under a supervisor, which its lines show as `[2]`.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        run_id, location = getattr(record, "run_id", None), getattr(record, "location", None)
        text = record.getMessage()
        about = f"  run={run_id}" if run_id and run_id not in text else ""
        about += f"  at={location}" if location and location not in text else ""
        head = f"{clock}.{record.msecs:03.0f} {self._process}{record.levelname.lower():<7}  {record.name}"
        line = f"{head}  {text}{about}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `ts level logger message`, and `run_id location type worker error` if known."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: str(value) for name in ABOUT if (value := getattr(record, name, None)) is not None}
        if self._process is not None:
            line["process"] = self._process
        if record.exc_info:
            line.setdefault("error", getattr(record.exc_info[0], "__name__", ""))
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(verbosity: int, format: str = "text", process: int | None = None) -> None:
    """Send the logs of this process to stderr: warnings and errors, with -v more."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((JsonFormatter if format == "json" else LineFormatter)(process))
    handler.addFilter(StepFilter())
    logging.basicConfig(handlers=[handler], level=_LEVELS.get(verbosity, logging.DEBUG), force=True)
