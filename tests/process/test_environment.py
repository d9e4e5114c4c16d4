"""The tests pass in an unusual environment: a child process has one and runs the tests that depend on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.folders import reachable_directory
from tests.process.crew import ROOT

TESTS = (
    "tests/scenario/test_cli_checking.py::test_verbose_shows_history_and_code_side_by_side",  # LC_ALL
    "tests/scenario/test_cli_config.py::test_the_origin_is_shown_only_on_request",  # HOLDFAST_…
    "tests/scenario/test_cli_reading.py::test_history_and_audit_are_tables_for_people",  # COLUMNS, HOLDFAST_COLOR
    "tests/scenario/test_cli_worker.py::test_an_interrupt_ends_watching",  # signals
    "tests/unit/cli/test_times.py::test_an_instant_without_a_zone_is_local_time",  # TZ
    "tests/unit/core/test_retry.py",  # HOME, for Hypothesis
    "tests/unit/stores/postgres/test_views.py::test_the_other_views_show_the_stored_rows",  # PG…, TMPDIR
    "tests/unit/stores/test_sqlite_errors.py",  # umask
)

ODD = {
    "CI": "true",
    "COLUMNS": "20",
    "HOLDFAST_COLOR": "always",
    "HOLDFAST_RETENTION": "1s",
    "HOLDFAST_URL": "postgresql://nowhere/nothing",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "NO_COLOR": "1",
    "PGDATESTYLE": "German",
    "PGHOST": "nowhere",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONUTF8": "0",
    "TERM": "dumb",
    "TZ": "Asia/Kathmandu",
}

STARTED_IN_THE_BACKGROUND = 'trap "" HUP INT QUIT; umask 077; exec <&-; exec "$@"'


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder whose path is too long for Unix sockets, and that every user can reach."""
    with reachable_directory() as directory:
        path = directory / ("a long name " * 10)
        path.mkdir()
        path.chmod(0o1777)
        yield path


def test_tests_pass_in_an_unusual_environment(temporary: Path) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    pytest_ = [sys.executable, "-m", "pytest", "-n", "1", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *TESTS]

    done = subprocess.run(
        ["sh", "-c", STARTED_IN_THE_BACKGROUND, "sh", *pytest_],
        cwd=ROOT,
        env=ours | ODD | {"TMPDIR": str(temporary)},
        capture_output=True,
        check=False,
    )

    output = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    assert done.returncode == 0, output
    assert " passed" in output
