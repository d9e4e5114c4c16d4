"""The configuration: decides which value of a setting counts, and says where it came from.

A value comes from the command line, the environment, the settings file, or the default of the setting. The file is
`holdfast.toml`, or `pyproject.toml` with a table `[tool.holdfast]`. The search for it starts in the current directory
and goes up. The first file with settings counts. All of its keys are checked, even those that no command uses: a
misspelt key must not be ignored silently.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from holdfast.config.kind import Secret
from holdfast.config.secret import HIDDEN, excerpt
from holdfast.config.settings import SETTINGS, Setting
from holdfast.core.errors import nearest

OWN_NAME = "holdfast.toml"
PROJECT_NAME = "pyproject.toml"

_GROUPS = {key.rpartition(".")[0] for key in SETTINGS} - {""}


@dataclass(frozen=True)
class SettingsFile:
    """The values in a settings file, by the keys of their settings. `prefix` precedes each key in the file."""

    path: Path
    prefix: str
    values: Mapping[str, object]

    def place(self, key: str) -> str:
        """Return the place of a setting, such as `/shop/pyproject.toml:tool.holdfast.url`."""
        return f"{self.path}:{self.prefix}{key}"


def find_file(directory: Path | None = None) -> SettingsFile | None:
    """Return the settings file for a program in this directory. Raises `ValueError` if the file is invalid."""
    try:
        start = directory or Path.cwd()
    except FileNotFoundError:
        return None  # the current directory was removed
    for folder in (start, *start.parents):
        # `holdfast.toml` first: it is specific to holdfast, and `pyproject.toml` belongs to the whole project.
        for name in (OWN_NAME, PROJECT_NAME):
            if (found := _read(folder / name)) is not None:
                return found
    return None


def _read(path: Path) -> SettingsFile | None:
    if not _exists(path):
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if path.name == OWN_NAME:
        return SettingsFile(path, "", _values(path, "", _parsed(path, content)))
    if b"holdfast" not in content:
        return None  # no settings of ours, so it does not matter whether it is valid TOML
    tools = _parsed(path, content).get("tool")
    table = tools.get("holdfast") if isinstance(tools, dict) else None
    if table is None:
        return None
    if isinstance(table, dict):
        return SettingsFile(path, "tool.holdfast.", _values(path, "tool.holdfast.", table))
    raise ValueError(f"{path}: tool.holdfast = {excerpt(table)}: expected a table, written [tool.holdfast]")


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # a directory that this user cannot access


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def _values(path: Path, prefix: str, table: Mapping[str, object]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in _flat(table):
        setting = SETTINGS.get(key)
        if setting is None:
            raise ValueError(f"{path}: there is no setting {prefix}{key}{_advice(path, key, value)}")
        try:
            values[key] = setting.kind.rooted(setting.kind.accept(value), path.parent)
        except ValueError as error:
            shown = HIDDEN if isinstance(setting.kind, Secret) else excerpt(value)
            raise ValueError(f"{path}: {prefix}{key} = {shown}: {error}") from None
    return values


def _flat(table: Mapping[str, object], group: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{group}{name}"
        if key in _GROUPS and isinstance(value, dict):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _advice(path: Path, key: str, value: object) -> str:
    if key == "tool" and isinstance(value, dict):
        return f"; in {path.name}, put settings at the top level, without [tool.holdfast]"
    if key in _GROUPS:
        return f"; {key} is a table of settings"
    # A key in the wrong table, or named like an argument: `concurrency`, `lease_seconds`.
    alike = (known for known in SETTINGS if known.rpartition(".")[2] == key.rpartition(".")[2])
    near = nearest(key, [*_GROUPS, *SETTINGS], cutoff=0.5) or next(alike, None)
    return f"; did you mean {near}?" if near else f"; the settings are {', '.join(SETTINGS)}"


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
