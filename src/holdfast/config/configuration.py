"""The configuration: decides which value of a setting counts, and says where it came from.

A flag or an argument wins over the environment, which wins over the file, which wins over the default. Values are read
on demand, and only from the sources that the answer depends on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from holdfast.config.file import SettingsFile, find_file
from holdfast.config.secret import excerpt
from holdfast.config.settings import Setting

T = TypeVar("T")

FLAG = "flag"
DEFAULT = "default"


@dataclass(frozen=True)
class SettingOrigin:
    """A value and where it came from: `flag`, `HOLDFAST_URL`, `/shop/pyproject.toml:tool.holdfast.url` or `default`.

    `folder` is the directory of the file, if the value came from one.
    """

    value: Any
    place: str
    folder: Path | None = None


class Configuration:
    """The values of all settings. `flags` are the options of a command line, by the keys of their settings.

    The file is read once, the environment on every access.
    """

    def __init__(
        self,
        flags: Mapping[str, object] | None = None,
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._flags = flags or {}
        self._directory = directory
        self._environment = os.environ if environment is None else environment

    def __getitem__(self, setting: Setting[T]) -> T:
        """Return the effective value. Raises `InvalidRequest` if the value or the settings file is invalid."""
        return cast("T", self.origin(setting).value)

    def chosen(self, setting: Setting[T], given: T | None) -> T:
        """Return the argument that was given, or the effective value if it is None."""
        return self[setting] if given is None else given

    def origin(self, setting: Setting[Any]) -> SettingOrigin:
        """Return the effective value and its origin."""
        if setting.key in self._flags:
            return SettingOrigin(self._flags[setting.key], FLAG)
        # An empty variable counts as not set, by convention.
        if text := self._environment.get(setting.variable):
            return SettingOrigin(self._parsed(setting, text), setting.variable)
        if self._file is not None and setting.key in self._file.values:
            return SettingOrigin(self._file.values[setting.key], self._file.place(setting.key), self._file.path.parent)
        return SettingOrigin(setting.default, DEFAULT)

    def _parsed(self, setting: Setting[Any], text: str) -> object:
        try:
            return setting.kind.parse(text)
        except ValueError as error:
            raise _refused(f"{setting.variable}={excerpt(text)}: {error}") from None

    @cached_property
    def _file(self) -> SettingsFile | None:
        try:
            return find_file(self._directory)
        except ValueError as error:
            raise _refused(str(error)) from error


def _refused(message: str) -> Exception:
    from holdfast.core.errors import InvalidRequest  # imported here, because `holdfast --help` does not need it

    return InvalidRequest(message)
