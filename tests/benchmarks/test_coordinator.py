"""The order of measurements, and the handling of failing engines. Fake drivers stand for the peers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.versus import __main__ as versus
from benchmarks.versus.cells import DriverFailed, answer_of
from benchmarks.versus.engines import ENGINES, engines_named
from benchmarks.versus.environments import PROJECT, REQUIREMENTS, NotInstalled
from benchmarks.versus.results import About
from benchmarks.versus.workloads import WORKLOADS, workloads_named
from holdfast.testing.patience import GUARD_SECONDS, wait_until
from tests.benchmarks.numbers import FAILING, OURS, PEER, STEP


def driver(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_answer_is_the_marked_line_whatever_else_an_engine_prints() -> None:
    found = answer_of(driver("print('hello'); print('@ {\"figures\": {\"seconds\": 2.5}}'); print('bye')"), 20)

    assert found == {"figures": {"seconds": 2.5}}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ('print(\'@ {"error": "ValueError: no"}\')', "ValueError: no"),
        ("import there_is_no_such_engine", "No module named 'there_is_no_such_engine'"),
        ("pass", "ended with 0: it said nothing"),
    ],
)
def test_a_driver_that_fails_says_why_in_a_line(code: str, error: str) -> None:
    with pytest.raises(DriverFailed, match=error):
        answer_of(driver(code), GUARD_SECONDS)


@pytest.mark.long
def test_a_driver_that_hangs_is_ended_with_all_its_child_processes(tmp_path: Path) -> None:
    started = tmp_path / "server"
    code = (
        "import pathlib, subprocess, sys, time; "
        "server = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        f"pathlib.Path({str(started)!r}).write_text(str(server.pid)); time.sleep(600)"
    )

    for seconds in (5, 20, 60):  # on a busy machine Python takes a while to start
        with pytest.raises(DriverFailed, match=f"no answer within {seconds} s"):
            answer_of(driver(code), seconds)
        if started.exists():
            break

    server = int(started.read_text())
    wait_until("what the driver started has ended", lambda: _is_gone(server))


def _is_gone(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_engines_take_turns_in_each_round_and_each_round_starts_with_another() -> None:
    about = {engine.name: About(workloads=("step",)) for engine in (OURS, PEER, FAILING)}

    plan = versus.planned((OURS, PEER, FAILING), (STEP,), about, is_quick=False, rounds=2)

    assert [(engine.name, round) for _, engine, round in plan] == [
        (OURS.name, 0),
        (PEER.name, 0),
        (FAILING.name, 0),
        (PEER.name, 1),
        (FAILING.name, 1),
        (OURS.name, 1),
    ]


def test_an_engine_is_asked_only_for_workloads_it_has() -> None:
    about = {OURS.name: About(workloads=("step",)), PEER.name: About(workloads=("tasks",)), FAILING.name: About()}

    plan = versus.planned((OURS, PEER, FAILING), (STEP,), about, is_quick=False, rounds=1)

    assert [engine for _, engine, _ in plan] == [OURS]


def test_a_peer_that_cannot_be_installed_does_not_stop_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def python_of(peer: str) -> Path:
        if peer == PEER.peer:
            raise NotInstalled("uv failed: no such package")
        return Path(sys.executable)

    monkeypatch.setattr(versus, "python_of", python_of)

    pythons, failed = versus.installed((OURS, PEER), Console(quiet=True))

    assert list(pythons) == [OURS.peer]
    assert failed[PEER.name].error == "not installed: uv failed: no such package"


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="there is no engine 'celery'; there are holdfast-sqlite, "):
        engines_named("celery")
    with pytest.raises(ValueError, match="there is no workload 'speed'; there are throughput, "):
        workloads_named("speed", is_quick=False)


@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_fewer_rounds_than_one_are_refused(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        versus.main(["--rounds", rounds])

    assert "--rounds is at least 1" in capsys.readouterr().err


def test_a_name_stands_for_all_sizes_of_a_workload() -> None:
    assert [one.name for one in workloads_named("growth", is_quick=True)] == ["growth-10k", "growth-100k", "growth-1M"]


def test_peers_never_get_larger_sizes_than_holdfast() -> None:
    for workload in WORKLOADS:
        for is_quick in (True, False):
            ours = workload.sizes_for(is_ours=True, is_quick=is_quick)
            theirs = workload.sizes_for(is_ours=False, is_quick=is_quick)
            assert all(theirs[key] <= ours[key] for key in ours)


@pytest.mark.parametrize("peer", sorted({engine.peer for engine in ENGINES if not engine.is_ours}))
def test_every_peer_has_a_driver_and_requirements_with_hashes(peer: str) -> None:
    assert (PROJECT / "benchmarks" / "peers" / f"{peer}.py").exists()
    locked = (REQUIREMENTS / f"{peer}.txt").read_text()
    assert locked.count("==") > 0
    assert locked.count("--hash=sha256:") >= locked.count("==")


def test_every_peer_is_compared_with_holdfast_on_the_same_store() -> None:
    names = {engine.name for engine in ENGINES if engine.is_ours}

    assert {engine.counterpart for engine in ENGINES} == names
