"""Install each peer into its own environment, from locked and hashed requirements.

An environment is created once and kept under `.bench/`, until its requirements change. Everything comes from the
package registries of PyPI and npm.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.versus.engines import OURSELVES

PROJECT = Path(__file__).parents[2]
ENVIRONMENTS = PROJECT / ".bench"
REQUIREMENTS = PROJECT / "benchmarks" / "peers" / "requirements"

_LIMIT_SECONDS = 600
_SERVERS = {"restate": PROJECT / "benchmarks" / "peers" / "restate_server"}
"""Peers that need a server from npm, with the folder of its package.json and package-lock.json."""


class NotInstalled(Exception):
    """A peer could not be installed; the text says why, in a line."""


def python_of(peer: str) -> Path:
    """Return the interpreter that has the peer; install what is missing."""
    if peer == OURSELVES:
        return Path(sys.executable)
    folder = ENVIRONMENTS / peer
    python = folder / ".venv" / "bin" / "python"
    wanted = _wanted(peer)
    ready = folder / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        uv = _uv()
        _run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder / ".venv"))
        locked = str(REQUIREMENTS / f"{peer}.txt")
        _run(uv, "pip", "sync", "--quiet", "--compile-bytecode", "--python", str(python), "--require-hashes", locked)
        if peer in _SERVERS:
            _install_server(folder, _SERVERS[peer])
        ready.write_text(wanted)
    return python


def _install_server(folder: Path, package: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("its server comes from npm, which is not installed")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(package / name, folder / name)
    _run(npm, "ci", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", "--ignore-scripts")


def _wanted(peer: str) -> str:
    paths = [REQUIREMENTS / f"{peer}.txt"]
    if peer in _SERVERS:
        paths.append(_SERVERS[peer] / "package-lock.json")
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _uv() -> str:
    for found in (os.environ.get("UV"), PROJECT / ".tools" / "bin" / "uv", shutil.which("uv")):
        if found is not None and Path(found).exists():
            return str(found)
    raise NotInstalled("uv was not found; `make bench` brings its own")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{Path(command[0]).name} took longer than {_LIMIT_SECONDS} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise NotInstalled(f"{Path(command[0]).name} failed: {lines[0][:200]}")
