"""A trial: the tests, run on one interpreter, and what came of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

import msgspec

from tests.pythons.discovery import Interpreter
from tests.pythons.environment import NotInstalled, install

SHORT_TIER = ("-n", "auto", "--dist", "worksteal", "--tier", "short")
"""The options of `make test`."""


class Counts(msgspec.Struct, frozen=True):
    """How many tests ended in which way."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How the tests went. The counts are 0 if pytest did not come so far as to report any."""

    interpreter: Interpreter
    verdict: str
    reason: str = ""
    counts: Counts = Counts()
    seconds: float = 0.0

    @property
    def has_passed(self) -> bool:
        return self.verdict == "passed"


def attempt(interpreter: Interpreter, project: Path, uv: str, pytest_options: Sequence[str]) -> Trial:
    """Make the environment and run the tests in it; pytest writes to the terminal as it always does."""
    try:
        folder = install(interpreter, project, uv)
    except NotInstalled as error:
        return Trial(interpreter=interpreter, verdict="no environment", reason=str(error))
    with TemporaryDirectory(prefix="holdfast-pythons-") as scratch:
        report = Path(scratch) / "report.xml"
        began = time.monotonic()
        command = [str(folder / "bin" / "pytest"), *SHORT_TIER, f"--junit-xml={report}", *pytest_options]
        code = subprocess.run(command, cwd=project, check=False).returncode
        seconds = time.monotonic() - began
        counts = count(report.read_text(encoding="utf-8")) if report.exists() else Counts()
    verdict = "passed" if code == 0 else f"failed (exit code {code})"
    return Trial(interpreter=interpreter, verdict=verdict, seconds=seconds, counts=counts)


def count(report: str) -> Counts:
    """The numbers in pytest's report in the format of JUnit, whose `tests` are all of them."""
    suites = [suite.attrib for suite in ET.fromstring(report).iter("testsuite")]  # noqa: S314 - pytest wrote it
    total, failures, errors, skipped = (
        sum(int(suite[name]) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return Counts(total - failed - skipped, failed, skipped)
