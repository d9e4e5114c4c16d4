"""The driver of holdfast runs every workload on both stores; the coordinator measures it in separate processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers.driver import MARK, Driver, Request
from benchmarks.peers.holdfast import SETUP, WORKLOADS
from benchmarks.versus import __main__ as versus
from benchmarks.versus.workloads import WORKLOADS as ASKED

SIZES = {"runs": 2, "count": 1, "steps": 3, "width": 3, "bulk": 5, "rows": 7, "seconds": 0}

CHEAP = ("throughput", "tasks", "step", "start", "message", "children", "parallel", "enqueue", "growth")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/bench.db"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


def test_every_workload_of_the_coordinator_is_known_to_the_driver() -> None:
    assert {request for workload in ASKED for request in workload.requests} == set(WORKLOADS)


@pytest.mark.parametrize("workload", CHEAP)
def test_the_driver_runs_a_workload(workload: str, url: str) -> None:
    check_figures(workload, url)


@pytest.mark.parametrize("workload", [one for one in CHEAP if one != "growth"])
def test_the_driver_runs_a_workload_on_redis(workload: str, redis_url: str) -> None:
    check_figures(workload, redis_url)


def check_figures(workload: str, url: str) -> None:
    figures = WORKLOADS[workload](Request(workload, url, SIZES))

    wanted = {figure.key for one in ASKED if one.requests == (workload,) for figure in one.figures}
    assert set(figures) == wanted
    assert all(value > 0 for value in figures.values())


@pytest.mark.parametrize("workload", ["timers", "idle", "import"])
def test_the_driver_runs_the_slow_workloads(workload: str, tmp_path: Path) -> None:
    figures = WORKLOADS[workload](Request(workload, f"sqlite:///{tmp_path}/bench.db", SIZES))

    (wanted,) = [{figure.key for figure in one.figures} for one in ASKED if one.name == workload]
    assert set(figures) == wanted
    assert all(0 <= value < 2**32 for value in figures.values())


def test_the_driver_resumes_a_history_in_a_worker_that_has_never_seen_it(url: str) -> None:
    WORKLOADS["history"](Request("history", url, SIZES))

    assert WORKLOADS["resume"](Request("resume", url, SIZES))["resume"] > 0


def test_growth_is_measured_beside_the_requested_number_of_runs(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "bench.db"
    WORKLOADS["growth"](Request("growth", f"sqlite:///{path}", SIZES))

    connection = sqlite3.connect(path)
    copies = connection.execute("select count(*) from run where id like '%-_' and state = 'succeeded'").fetchone()
    connection.close()
    assert copies == (7,)


def test_the_driver_answers_about_and_errors_in_a_line() -> None:
    driver = Driver(("holdfast",), SETUP, WORKLOADS)

    about = json.loads(driver.answer('{"workload": "about", "url": "", "sizes": {}}').removeprefix(MARK))["about"]
    error = json.loads(driver.answer('{"workload": "step", "url": "memory://", "sizes": {}}').removeprefix(MARK))[
        "error"
    ]

    assert set(about["workloads"]) == set(WORKLOADS)
    assert "\n" not in about["setup"]
    assert error.startswith(("KeyError", "InvalidRequest"))


@pytest.mark.long
def test_a_run_of_two_engines_ends_with_a_page_and_a_picture(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = "holdfast-sqlite,holdfast-postgres"

    where = ["--url", postgres_url, "--output", str(tmp_path)]
    versus.main(["--quick", "--rounds", "1", "--engines", engines, "--only", "step", *where])

    page = (tmp_path / "results.md").read_text()
    assert "| one step after another |" in page
    assert "failed" not in page
    assert (tmp_path / "results.svg").read_text().startswith("<svg")
    assert "step, round 1: holdfast-postgres" in capsys.readouterr().out
