"""Settings: what the global options say. A flag wins over `HOLDFAST_*`, which wins over the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OutputKind = Literal["table", "json", "jsonl"]
ColorKind = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class Settings:
    """The same for every command. `url` is None unless it was given; `verbosity` is -1 for quiet, up to 2."""

    url: str | None = None
    output: OutputKind = "table"
    verbosity: int = 0
    color: ColorKind = "auto"

    @property
    def is_quiet(self) -> bool:
        return self.verbosity < 0

    @property
    def shows_tracebacks(self) -> bool:
        return self.verbosity >= 2

    @property
    def is_json(self) -> bool:
        """Whether a program reads the output."""
        return self.output != "table"
