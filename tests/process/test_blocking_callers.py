"""Processes that block in `hf.sync`: how they are interrupted, forked and ended, and that they never hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.patience import GUARD_SECONDS
from tests.process.crew import ROOT

PRELUDE = """
import asyncio, os, signal, sys, threading, time
from holdfast import Holdfast, HoldfastError

hf = Holdfast(sys.argv[1])
run = hf.sync.start("anything", {})

def in_child(call):
    child = os.fork()
    if child == 0:
        try:
            print(call() or "it worked", flush=True)
        except HoldfastError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

NOT_CLOSED = """
print(run.info().state.value)
"""

WAITED_FOR_BY_A_DAEMON = """
threading.Thread(target=run.result, daemon=True).start()
print(hf.sync.start("anything", {}).info().state.value)
"""

INTERRUPTED = """
def interrupt():
    # Not before somebody waits; there is no telling that from outside.
    while not hf.sync._target._session.results.is_awaited:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

for _ in range(20):
    threading.Thread(target=interrupt).start()
    try:
        run.result()
    except KeyboardInterrupt:
        assert not hf.sync._target._session.results.is_awaited
print(run.info().state.value)
"""

FORKED = """
in_child(lambda: hf.sync.start("anything", {}))
in_child(run.info)
in_child(hf.sync.close)  # does nothing
print(run.info().state.value)
"""

CLOSED_BEFORE = """
hf.sync.close()
in_child(lambda: hf.sync.start("anything", {}).info().state.value)
print(run.info().state.value)
"""


def said(script: str, url: str) -> list[str]:
    """Return the output of a program, which must succeed without complaints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + script, url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return str(request.getfixturevalue("postgres_store_url"))


@pytest.mark.parametrize("script", [NOT_CLOSED, WAITED_FOR_BY_A_DAEMON])
def test_a_process_that_closes_nothing_ends_all_the_same(script: str, url: str) -> None:
    assert said(script, url) == ["pending"]


def test_ctrl_c_while_waiting_leaves_no_waiter_behind(url: str) -> None:
    assert said(INTERRUPTED, url) == ["pending"]


def test_an_object_opened_before_a_fork_refuses_to_work_after_it(url: str) -> None:
    started, looked, closed, parent = said(FORKED, url)

    assert "StoreUnavailable: hf.sync was opened in another process" in started
    assert looked == started
    assert (closed, parent) == ("it worked", "pending")


def test_an_object_closed_before_a_fork_may_be_used_after_it(url: str) -> None:
    assert said(CLOSED_BEFORE, url) == ["pending", "pending"]
