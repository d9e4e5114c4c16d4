"""A separate environment for an interpreter, with the locked tools and holdfast from this checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.pythons.discovery import Interpreter

REQUIREMENTS = "requirements-dev.txt"
_INPUTS = (REQUIREMENTS, "pyproject.toml")


class NotInstalled(Exception):
    """An environment could not be created; the text says why."""


def install(interpreter: Interpreter, project: Path, uv: str) -> Path:
    """Return the environment for an interpreter; a changed interpreter or requirement creates it again."""
    folder = project / f".venv-{interpreter.minor}"
    python = str(folder / "bin" / "python")
    ready = folder / ".ready"
    wanted = _wanted(interpreter, project)
    if not ready.exists() or ready.read_text() != wanted:
        _run(project, uv, "venv", "--quiet", "--clear", "--python", interpreter.executable, str(folder))
        _run(project, uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", REQUIREMENTS)
        editable = ("--no-deps", "--no-build-isolation", "--editable", ".")
        _run(project, uv, "pip", "install", "--quiet", "--python", python, *editable)
        ready.write_text(wanted)
    return folder


def _wanted(interpreter: Interpreter, project: Path) -> str:
    inputs = b"".join((project / name).read_bytes() for name in _INPUTS)
    return f"{interpreter.version} {interpreter.executable} {hashlib.sha256(inputs).hexdigest()}\n"


def _run(project: Path, *command: str) -> None:
    environ = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled((done.stderr or done.stdout).strip() or f"{' '.join(command)}: exit code {done.returncode}")
