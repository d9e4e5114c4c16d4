"""`holdfast demo` ends by itself, shows that no run is lost, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.patience import GUARD_SECONDS
from tests.unit.cli.rig import Shop

DEMO = [sys.executable, "-m", "holdfast", "demo", "--seconds", "5"]


def environment(directory: Path) -> dict[str, str]:
    """An environment whose temporary directory belongs to this test alone."""
    return os.environ | {"TMPDIR": str(directory)}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_demo_prints_its_story_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(DEMO, env=environment(tmp_path), text=True, capture_output=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    for words in ("charge failed: ConnectionError", "holdfast send key:order-A-1 approve", "kill -9", "■ succeeded"):
        assert words in done.stdout
    assert re.search(r"^pack +1 +2 +interrupted by the kill, so started again$", done.stdout, re.MULTILINE)
    assert re.search(r"^reserve +1 +1 +recorded before the kill, not repeated$", done.stdout, re.MULTILINE)
    assert "No finished step ran again" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert [pid for pid in re.findall(r"process (\d+)", done.stdout) if is_alive(int(pid))] == []


def test_the_files_of_the_demo_can_be_kept_and_inspected(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--keep", "--json"], env=environment(tmp_path), text=True, capture_output=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout)
    assert shown["ok"] is True
    assert [run["executions"]["pack"] for run in shown["runs"]] == [1, 2]
    shop = Shop(tmp_path)
    url = f"sqlite:///{shown['directory']}/demo.db"
    assert len(shop.read("ls", "tag.shop:demo", "--url", url)) == 2
    assert "died; taken over by" in shop.type("show", "key:order-A-2", "--url", url).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_cleans_up_all_the_same(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(DEMO, env=environment(tmp_path), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert demo.stdout is not None
    lines = iter(demo.stdout.readline, "")
    started = next(line for line in lines if "The demo starts a worker process" in line)
    pid = int(re.findall(r"process (\d+)", started)[0])
    next(line for line in lines if "✓ reserve" in line)

    demo.send_signal(number)
    _, talk = demo.communicate(timeout=GUARD_SECONDS)

    assert demo.returncode == 130, talk
    assert list(tmp_path.iterdir()) == []
    assert not is_alive(pid)
