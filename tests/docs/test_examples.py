"""Every example runs, and its last line is as expected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.page import PROJECT

LAST_WORDS = {
    "agent": "Done: TP-101 is booked (key given).",
    "alerts": "3 runs failed, 1 alert was given",
    "approval": "the holidays: refused by grace",
    "auction": "the painting goes to ada for 150.00, 4 bids",
    "blocking_views": "404 no such order",
    "cart": "receipt for 43.50",
    "checkout": "parcel='parcel-large-",
    "exactly_once": "ada has 200, bob has 300",
    "export": "attempt 2 wrote the other 150 of 300 rows",
    "limits": "24 mails, at most 3 at once and 2 for one customer, 10 a second",
    "newsletter": "1995 sent, returned: gone-7@example.org, ",
    "nightly_report": "  publish          done    1 attempts",
    "outbox": "orders: [('cups', 1), ('tea', 1)]",
    "polling": "job-cats.mp4 after 7 rounds",
    "reminders": "ada, your tea is ready! (asked for by hand)",
    "subscription": "the customer paid ",
    "sync_workflow": "order 1: 1999 from visa, by ada, parcel-1",
    "trip": "in the books: flight to Lisbon, hotel in Lisbon, car in Lisbon",
    "web_app": "'thumbnails': ['cat.png@64', 'cat.png@256', 'cat.png@1024']",
    "webhook": "download link for your order",
}

ON_POSTGRES = {"outbox"}


@pytest.fixture
def url(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of the store of an example."""
    return request.getfixturevalue("postgres_url") if name in ON_POSTGRES else f"sqlite:///{tmp_path}/example.db"


@pytest.mark.parametrize("name", LAST_WORDS)
def test_an_example_runs_twice_on_the_same_store(name: str, url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HOLDFAST_URL": url}
    for _ in range(2):
        program = subprocess.run(
            [sys.executable, "-W", "error", "-m", f"examples.{name}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

        assert program.returncode == 0, program.stderr
        assert LAST_WORDS[name] in program.stdout.splitlines()[-1]


def test_every_example_is_run() -> None:
    examples = {path.stem for path in (PROJECT / "examples").glob("*.py")} - {"__init__"}

    assert examples == set(LAST_WORDS)


@pytest.mark.parametrize("name", LAST_WORDS)
def test_both_lists_of_examples_contain_each_one(name: str) -> None:
    assert f"| [{name}]({name}.py) | " in (PROJECT / "examples" / "README.md").read_text(encoding="utf-8")
    assert f"](examples/{name}.py)" in (PROJECT / "README.md").read_text(encoding="utf-8")
