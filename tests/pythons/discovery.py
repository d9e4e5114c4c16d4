"""Find the installed interpreters. Each candidate is executed: a pyenv shim may exist without working."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

OLDEST = (3, 11)

_NAME = re.compile(r"python3(?:\.(?P<minor>\d+))?t?")
_PROBE_SECONDS = 60

# It also runs on Python 2, which may be among the candidates.
_PROBE = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "implementation": platform.python_implementation(),
    "version": platform.python_version(),
    "order": list(sys.version_info),
    "is_free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "executable": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
}))
"""


class Interpreter(msgspec.Struct, frozen=True):
    """The self-description of a Python. `executable` is the real path of the interpreter, also from inside a venv."""

    implementation: str
    version: str
    order: tuple[int, int, int, str, int]
    is_free_threaded: bool
    executable: str

    @property
    def minor(self) -> str:
        return f"{self.order[0]}.{self.order[1]}"


class Broken(Exception):
    """A candidate is not a working interpreter; the text says what it did."""


class Found(msgspec.Struct, frozen=True):
    """One interpreter for each minor version, oldest first, and the reasons why others were skipped."""

    interpreters: list[Interpreter]
    passed_over: dict[str, str]


def discover(candidates: Iterable[Path]) -> Found:
    """Execute the candidates, and choose the newest patch of each minor version of CPython."""
    chosen: dict[str, Interpreter] = {}
    passed_over: dict[str, str] = {}
    seen: set[str] = set()
    for candidate in candidates:
        try:
            interpreter = probe(candidate)
        except Broken as broken:
            passed_over[str(candidate)] = str(broken)
            continue
        if interpreter.order[:2] < OLDEST or interpreter.executable in seen:
            continue
        seen.add(interpreter.executable)
        if reason := _unfit(interpreter):
            passed_over[interpreter.executable] = reason
            continue
        rival = chosen.get(interpreter.minor, interpreter)
        best = max(rival, interpreter, key=lambda one: one.order)  # among equals the first found
        chosen[interpreter.minor] = best
        if rival is not interpreter:
            other = rival if best is interpreter else interpreter
            passed_over[other.executable] = f"is {other.version}; {best.version} at {best.executable} is used"
    return Found(sorted(chosen.values(), key=lambda one: one.order), passed_over)


def candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Return the possible locations of interpreters: on PATH, and among the versions of pyenv."""
    for folder in filter(None, environ.get("PATH", "").split(os.pathsep)):
        with suppress(OSError):  # it does not exist, or belongs to another user
            yield from sorted(path for path in Path(folder).iterdir() if _is_promising(path.name))
    root = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/")) / ".pyenv")
    with suppress(OSError):
        yield from sorted(root.glob("versions/*/bin/python"))


def probe(candidate: Path) -> Interpreter:
    """Ask a candidate for its version."""
    try:
        answer = subprocess.run(
            [candidate, "-E", "-s", "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Broken(f"does not start: {error}") from error
    if answer.returncode:
        said = [line for line in answer.stderr.splitlines() if line.strip()] or ["it says nothing"]
        raise Broken(f"does not work: exit code {answer.returncode}, {said[0].strip()}")
    try:
        return msgspec.json.decode(answer.stdout, type=Interpreter)
    except msgspec.MsgspecError as error:
        raise Broken(f"does not answer as a Python: {error}") from error


def _is_promising(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and (match["minor"] is None or int(match["minor"]) >= OLDEST[1])


def _unfit(interpreter: Interpreter) -> str:
    if interpreter.implementation != "CPython":
        return f"is {interpreter.implementation} {interpreter.version}; holdfast is tested on CPython only"
    if interpreter.is_free_threaded:
        return f"is a free-threaded build of {interpreter.version}; holdfast is not tested without the GIL"
    return ""
