"""`import holdfast` is light: it loads no driver, no renderer, and nothing else that a program may not need."""

from __future__ import annotations

import subprocess
import sys

HEAVY_MODULES = {"apsw", "click", "greenlet", "importlib.metadata", "psycopg", "pydantic", "redis", "rich"}


def test_importing_holdfast_loads_no_driver_and_no_renderer() -> None:
    # A separate process: this one has loaded pytest and its plugins.
    probe = subprocess.run(
        [sys.executable, "-c", "import sys; from holdfast import *; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert probe.returncode == 0, probe.stderr
    assert HEAVY_MODULES.intersection(probe.stdout.split()) == set()
