"""Settings of every command, from its flags or from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.config import settings
from holdfast.config.configuration import Configuration


@dataclass(frozen=True)
class Settings:
    """Settings that every command has. `url` is None unless it was typed; `verbosity` is -1 (quiet) to 2."""

    url: str | None = None
    output: str = settings.OUTPUT.default
    verbosity: int = settings.VERBOSITY.default
    color: str = settings.COLOR.default
    configuration: Configuration = field(default_factory=Configuration)

    @classmethod
    def of(cls, flags: Mapping[str, object]) -> Settings:
        """Return the settings for typed flags, given by the keys of their settings. Raises `InvalidRequest`."""
        configuration = Configuration(flags)
        return cls(
            url=configuration[settings.URL] if settings.URL.key in flags else None,
            output=configuration[settings.OUTPUT],
            verbosity=configuration[settings.VERBOSITY],
            color=configuration[settings.COLOR],
            configuration=configuration,
        )

    @property
    def is_quiet(self) -> bool:
        return self.verbosity < 0

    @property
    def shows_tracebacks(self) -> bool:
        return self.verbosity >= 2

    @property
    def is_json(self) -> bool:
        """True if the output is JSON, for a program."""
        return self.output != "table"
