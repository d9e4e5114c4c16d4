"""The table of settings. The name and the default of a setting are defined only here.

The setting `worker.threads` is `threads` in `[tool.holdfast.worker]` of a file, `HOLDFAST_WORKER_THREADS` in the
environment, and `--threads` on commands with that option. `docs/configuration.md` must mention every setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from holdfast.config.kind import Choice, Kind, Length, Listening, Names, Secret, Text, Url, Whole
from holdfast.config.secret import Address

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A setting. `about` is its help text on the command line. `otherwise` describes the meaning of no value."""

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
        """The default, in the form in which a user writes it."""
        return self.otherwise if self.default is None else self.kind.written(self.default)

    @property
    def help(self) -> str:
        """The help text of the option on the command line."""
        default = f"; default: {self.default_text}" if self.default_text else ""
        return f"{self.about}  [env var: {self.variable}{default}]"


Maybe = Setting[T | None]

URL = Setting("url", Url(), "sqlite:///holdfast.db", "URL of the store: sqlite:///FILE, postgresql://… or redis://….")
APPLICATION: Maybe[str] = Setting("application", Text(), None, "Your Holdfast object, as MODULE:ATTR.")
MIGRATE = Setting(
    "migrate",
    Choice("manual", "auto"),
    "manual",
    "Who migrates a store on Postgres or Redis: `holdfast migrate`, or with auto the first process that opens it.",
)
RETENTION = Setting("retention", Length(), timedelta(days=30), "How long a run is kept after its end.")

METRICS_TOKEN: Maybe[str] = Setting("metrics_token", Secret(), None, "Bearer token that clients need to read /metrics.")

OUTPUT = Setting("output", Choice("table", "json", "jsonl"), "table", "A table for people, or JSON for programs.")
COLOR = Setting(
    "color",
    Choice("auto", "always", "never"),
    "auto",
    "Colour and live display; auto: on a terminal, unless NO_COLOR is set.",
)
VERBOSITY = Setting("verbosity", Whole(-1, 2), 0, "How much commands print: -1 is -q, 1 is -v, 2 is -vv.")

TYPES: Maybe[tuple[str, ...]] = Setting(
    "worker.types",
    Names(),
    None,
    "Serve only these types, such as 'billing.*,x.y.v1'.",
    otherwise="all of the application",
)
CONCURRENCY = Setting("worker.concurrency", Whole(1), 200, "Concurrent runs per process.")
STEPS = Setting("worker.steps", Whole(1), 1000, "Concurrent step bodies per process.")
THREADS = Setting("worker.threads", Whole(1), 32, "Threads for steps that are plain functions.")
PROCESSES = Setting("worker.processes", Whole(1), 1, "Worker processes; a process that dies is replaced.")
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
    "How long running steps may continue when the worker stops.",
)
NAME: Maybe[str] = Setting("worker.name", Text(), None, "Name of the worker.", otherwise="host and process")

METRICS: Maybe[Address] = Setting(
    "worker.metrics",
    Listening(),
    None,
    "Serve /metrics and /healthz at this address; each further process one port higher.",
)
LOG_FORMAT = Setting("worker.log_format", Choice("text", "json"), "text", "Log format: text for people, or JSON lines.")

SETTINGS: dict[str, Setting[Any]] = {
    setting.key: setting for setting in list(globals().values()) if isinstance(setting, Setting)
}
"""All settings by their keys, in the order above."""
