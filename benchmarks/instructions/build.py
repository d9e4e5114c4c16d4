"""The build: everything besides our own code that figures depend on. Figures of two builds cannot be compared."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

import apsw
import psycopg

Build = dict[str, str]


def this_build(counter: str, postgres: str) -> Build:
    """Return the current build, with the name of the counter and the version of the Postgres server."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {
        "python": f"{python} ({', '.join(platform.python_build())})",
        "compiler": platform.python_compiler(),
        "machine": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "counter": counter,
        "sqlite": f"{apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}",
        "postgres": f"{postgres}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__}, libpq {psycopg.pq.version()})",
        "msgspec": version("msgspec"),
    }


def differences(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences between two builds, each in a few words."""
    names = [*now, *(name for name in stored if name not in now)]
    return [
        f"{name} {now.get(name, 'unknown')} instead of {stored.get(name, 'unknown')}"
        for name in names
        if now.get(name) != stored.get(name)
    ]
