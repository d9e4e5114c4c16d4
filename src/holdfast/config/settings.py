"""The table of settings: each has one line here, and nowhere else a name or a default.

A setting `worker.threads` is `threads` of `[tool.holdfast.worker]` in a file, `HOLDFAST_WORKER_THREADS` in the
environment, and `--threads` where a command takes it. `docs/configuration.md` has to mention it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from holdfast.config.address import Address
from holdfast.config.kind import Choice, Kind, Length, Listening, Names, Secret, Text, Url, Whole

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """Something that can be set. `about` is for the help of the command line; `otherwise` says what no value means."""

    key: str
    kind: Kind[T]
    default: T
    about: str
    otherwise: str = ""

    @property
    def variable(self) -> str:
        return f"HOLDFAST_{self.key.replace('.', '_').upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.key.rpartition('.')[2].replace('_', '-')}"

    @property
    def default_text(self) -> str:
        """The default, as it would be written."""
        return self.otherwise if self.default is None else self.kind.written(self.default)

    @property
    def help(self) -> str:
        """What the command line says of its option."""
        default = f"; default: {self.default_text}" if self.default_text else ""
        return f"{self.about}  [env var: {self.variable}{default}]"


Maybe = Setting[T | None]

URL = Setting("url", Url(), "sqlite:///holdfast.db", "Where the runs are kept, such as sqlite:///shop.db.")
APPLICATION: Maybe[str] = Setting("application", Text(), None, "Your Holdfast object, as MODULE:ATTR.")
RETENTION = Setting("retention", Length(), timedelta(days=30), "How long a run is kept after its end.")

METRICS_TOKEN: Maybe[str] = Setting("metrics_token", Secret(), None, "What readers of metrics have to present.")

OUTPUT = Setting("output", Choice("table", "json", "jsonl"), "table", "A table for people, or JSON for programs.")
COLOR = Setting(
    "color",
    Choice("auto", "always", "never"),
    "auto",
    "Colour and live display; auto: on a terminal, unless NO_COLOR is set.",
)
VERBOSITY = Setting("verbosity", Whole(-1, 2), 0, "How much commands say: -1 is -q, 1 is -v, 2 is -vv.")

TYPES: Maybe[tuple[str, ...]] = Setting(
    "worker.types", Names(), None, "Only these types, such as 'billing.*,x.y.v1'.", otherwise="all of the application"
)
CONCURRENCY = Setting("worker.concurrency", Whole(1), 200, "Runs at once, in each process.")
STEPS = Setting("worker.steps", Whole(1), 1000, "Step bodies at once, in each process.")
THREADS = Setting("worker.threads", Whole(1), 32, "Threads for steps that are plain functions.")
PROCESSES = Setting("worker.processes", Whole(1), 1, "Worker processes; one that dies is replaced.")
LEASE = Setting(
    "worker.lease",
    Length(),
    timedelta(seconds=30),
    "After this time without a heartbeat another worker takes over.",
)
GRACE = Setting(
    "worker.grace",
    Length(may_be_zero=True),
    timedelta(seconds=10),
    "How long running steps may take when the worker stops.",
)
NAME: Maybe[str] = Setting("worker.name", Text(), None, "What the worker is called.", otherwise="host and process")

METRICS: Maybe[Address] = Setting(
    "worker.metrics", Listening(), None, "Serve /metrics and /healthz there; each further process one port higher."
)
LOG_FORMAT = Setting(
    "worker.log_format", Choice("text", "json"), "text", "How logs are written: lines for people, or JSON lines."
)

SETTINGS: dict[str, Setting[Any]] = {
    setting.key: setting for setting in list(globals().values()) if isinstance(setting, Setting)
}
"""All of them by their keys, in the order above."""
