"""A description of the measured machine."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import apsw
import psycopg


def facts(postgres_url: str) -> dict[str, str]:
    """Return the facts about the machine, in the order in which they are shown."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores ({_processor()}), {_gigabytes()} GB of memory, {platform.system()}",
        "versions": f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, {_server(postgres_url)}",
    }


def _server(url: str) -> str:
    with psycopg.connect(url) as connection:
        version = connection.info.server_version
    return f"Postgres {version // 10_000}.{version % 10_000}"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine() or sys.platform


def _gigabytes() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
