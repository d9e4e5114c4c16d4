"""A trial: the tests, run on one interpreter, and their results."""

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
    """The numbers of tests by result."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the tests. The counts are 0 if pytest did not report any."""

    interpreter: Interpreter
    verdict: str
    reason: str = ""
    counts: Counts = Counts()
    seconds: float = 0.0

    @property
    def has_passed(self) -> bool:
        return self.verdict == "passed"


def attempt(interpreter: Interpreter, project: Path, uv: str, pytest_options: Sequence[str]) -> Trial:
    """Create the environment and run the tests in it; pytest writes to the terminal as usual."""
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
    """Return the numbers in pytest's JUnit report, whose `tests` are all of them."""
    suites = [suite.attrib for suite in ET.fromstring(report).iter("testsuite")]  # noqa: S314 - pytest wrote it
    total, failures, errors, skipped = (
        sum(int(suite[name]) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return Counts(total - failed - skipped, failed, skipped)
