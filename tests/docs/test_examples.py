"""Every example runs, and its last line is as expected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.flows.compiler import compile_flow
from tests.docs.page import PROJECT
from tests.plugin.tiers import amount

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
    "flow_access": "eve, 04 January: expired",
    "flow_approval": "tea: refused, clerk gave no answer",
    "flow_early_tasks": "Report of Monday: 17 sold, 230 visitors, no weather (the station is silent).",
    "flow_from_model": "{'kind': 'outage', 'reply': 'we are on it', 'words': 4}",
    "flow_fulfilment": "ledger: +4350 A-1, +900 A-2, -900 A-2",
    "flow_poller": "110 polls, the last changes: v3, v4, v5",
    "isolated_runs": "parcel-3 by bike",
    "limits": "24 mails, at most 3 at once and 2 for one customer, 10 a second",
    "newsletter": "1995 sent, returned: gone-7@example.org, ",
    "nightly_report": "  publish          done    1 attempts",
    "onboarding": "welcome Ada: ada, laptop of Ada",
    "outbox": "orders: [('cups', 1), ('tea', 1)]",
    "polling": "job-cats.mp4 after 7 rounds",
    "redis_orders": "4 of 10 are left: 3 orders of 2, each taken once",
    "reminders": "ada, your tea is ready! (asked for by hand)",
    "subscription": "the customer paid ",
    "sync_workflow": "order 1: 1999 from visa, by ada, parcel-1",
    "trip": "in the books: flight to Lisbon, hotel in Lisbon, car in Lisbon",
    "web_app": "'thumbnails': ['cat.png@64', 'cat.png@256', 'cat.png@1024']",
    "webhook": "download link for your order",
}

ON_POSTGRES = {"outbox"}
ON_REDIS = {"redis_orders"}


@pytest.fixture
def url(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of the store of an example."""
    if name in ON_POSTGRES:
        return str(request.getfixturevalue("postgres_url"))
    if name in ON_REDIS:  # with a server of its own, because it has keys beside the namespace of the store
        return str(request.getfixturevalue("redis_server").url)
    return f"sqlite:///{tmp_path}/example.db"


@pytest.mark.both_tiers
@pytest.mark.parametrize("name", LAST_WORDS)
def test_an_example_runs(name: str, url: str, tmp_path: Path) -> None:
    """In the long tier also a second time, on the store that it left."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HOLDFAST_URL": url}
    for _ in range(amount(short=1, long=2)):
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


@pytest.mark.parametrize("path", sorted((PROJECT / "examples" / "flows").iterdir()), ids=lambda path: path.stem)
def test_a_flow_is_named_by_its_type_and_registered_by_an_example(path: Path) -> None:
    programs = "".join(one.read_text(encoding="utf-8") for one in (PROJECT / "examples").glob("flow_*.py"))

    assert path.suffix == ".py"
    assert f'"{path.stem}"' in programs
    assert compile_flow(path.read_text(encoding="utf-8")).description


def test_every_example_is_run() -> None:
    examples = {path.stem for path in (PROJECT / "examples").glob("*.py")} - {"__init__"}

    assert examples == set(LAST_WORDS)


@pytest.mark.parametrize("name", LAST_WORDS)
def test_both_lists_of_examples_contain_each_one(name: str) -> None:
    assert f"| [{name}]({name}.py) | " in (PROJECT / "examples" / "README.md").read_text(encoding="utf-8")
    assert f"](examples/{name}.py)" in (PROJECT / "README.md").read_text(encoding="utf-8")
