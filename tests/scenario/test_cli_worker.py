"""`holdfast worker`, and other commands that run as separate processes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.patience import GUARD_SECONDS, wait_until
from tests.unit.cli.rig import Shop

APPLICATION = """
import asyncio
from pathlib import Path
from holdfast import Context, Holdfast

hf = Holdfast()

@hf.task("shop.add.v1")
def add(a: int, b: int) -> int:
    return a + b

@hf.task("shop.slow.v1")
async def slow() -> str:
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "done"

@hf.workflow("billing.wait.v1")
async def wait(ctx: Context) -> None:
    await ctx.receive("never")
"""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop with an application in the same directory."""
    (tmp_path / "app.py").write_text(APPLICATION)
    return Shop(tmp_path)


def holdfast(
    shop: Shop, *arguments: str, directory: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as a process, in the directory of the shop or another."""
    place = _place(shop, environment)
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        text=True,
        capture_output=True,
        check=False,
        **place | {"cwd": directory or place["cwd"]},
    )


@contextmanager
def running(shop: Shop, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command that runs until the end of the `with` block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **_place(shop, {}),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_begun(shop: Shop) -> None:
    wait_until("the step has begun", (shop.path.parent / "begun").exists)


def _place(shop: Shop, environment: dict[str, str]) -> dict[str, Any]:
    return {"cwd": shop.path.parent, "env": os.environ | {"HOLDFAST_URL": "sqlite:///shop.db"} | environment}


def test_a_worker_executes_all_ready_runs_and_ends_when_idle(shop: Shop) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")
    shop.start("billing.wait.v1", key="waits")

    done = holdfast(shop, "worker", "app:hf", "--until-idle", "--name", "wally")

    assert (done.returncode, done.stdout) == (0, "")
    assert "worker wally on sqlite:///shop.db executes billing.wait.v1, shop.add.v1, shop.slow.v1" in done.stderr
    assert shop.type("result", "key:sum").stdout == "3\n"
    assert shop.read("show", "key:waits")["run"]["state"] == "suspended"
    assert shop.read("workers") == []


@pytest.mark.long
def test_a_worker_names_the_flows_that_it_executes(shop: Shop) -> None:
    for type in ("shop.gift.v1", "other.v1"):
        (shop.path.parent / f"{type}.py").write_text("async def main():\n    return 1\n")
        assert shop.type("flows", "register", str(shop.path.parent / f"{type}.py")).exit_code == 0

    some = holdfast(shop, "worker", "app:hf", "--until-idle", "--types", "shop.gift.*,shop.add.v1")
    without = holdfast(shop, "worker", "app:hf", "--until-idle", "--no-flows", "--types", "shop.*")

    assert "executes shop.add.v1, shop.gift.v1 (flow) until" in some.stderr
    assert "executes shop.add.v1, shop.slow.v1 until" in without.stderr


def test_a_worker_takes_only_the_configured_types(shop: Shop) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")
    shop.start("billing.wait.v1", key="waits")

    done = holdfast(shop, "-q", "worker", "app:hf", "--until-idle", "--types", "billing.*,shop.slow.v1")

    assert (done.returncode, done.stderr) == (0, "")
    assert shop.read("show", "key:sum")["run"]["state"] == "pending"
    assert shop.read("show", "key:waits")["run"]["state"] == "suspended"


def test_a_worker_lets_its_steps_finish_when_it_is_stopped(shop: Shop) -> None:
    shop.start("shop.slow.v1", key="slow")

    with running(shop, "-v", "worker", "app:hf") as worker:
        until_begun(shop)
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        shown = next(line for line in worker.stderr if "no more claims" in line)
        (shop.path.parent / "go").touch()
        worker.communicate(timeout=GUARD_SECONDS)

    assert worker.returncode == 0
    assert "running steps get 10 s" in shown
    assert shop.read("show", "key:slow")["history"][0]["result"] == "done"


def test_workers_show_their_slots_and_the_number_of_held_runs(shop: Shop) -> None:
    shop.start("shop.slow.v1")

    with running(shop, "worker", "app:hf", "--name", "wally", "--concurrency", "7", "--types", "shop.*"):
        until_begun(shop)
        (worker,) = shop.read("workers")
        table = shop.type("workers").stdout

    assert (worker["name"], worker["concurrency"], worker["held"], worker["is_alive"]) == ("wally", 7, 1, True)
    assert worker["types"] == ["shop.add.v1", "shop.slow.v1"]
    assert table.splitlines()[0].split() == ["NAME", "STATE", "HOST", "PID", "SLOTS", "HELD", "UP", "HEARD", "TYPES"]


def test_every_command_reports_a_killed_worker_at_once(shop: Shop) -> None:
    held = shop.start("shop.slow.v1")
    with running(shop, "worker", "app:hf", "--name", "wally") as worker:
        until_begun(shop)
        wait_until("the store knows the worker", lambda: bool(shop.read("workers")))
        worker.kill()
        worker.wait()
        ready = shop.start("shop.add.v1", {"a": 1, "b": 2})

        (found,) = shop.read("workers")
        started = shop.type("start", "shop.add.v1", "a:=1", "b:=2").stderr
        said = [shop.type("explain", run).stdout for run in (held, ready)]
        checkup = shop.type("doctor").stdout

    assert (found["name"], found["is_alive"]) == ("wally", False)
    assert "no worker for shop.add.v1 is running yet" in started
    assert "Running on worker wally, which was killed, and no other worker is running that could take over" in said[0]
    assert "but no worker is running (the last worker for this type, wally, sent its last heartbeat at" in said[1]
    assert "was killed; another worker takes over its runs" in checkup
    assert "no worker handles shop.add.v1" in checkup


def test_the_url_of_the_command_line_applies_to_an_application_without_one(shop: Shop) -> None:
    done = holdfast(shop, "--url", "sqlite:///other.db", "worker", "app:hf", "--until-idle")

    assert done.returncode == 0
    assert (shop.path.parent / "other.db").exists()
    assert not shop.path.exists()


def test_an_application_with_a_different_url_is_refused(shop: Shop) -> None:
    (shop.path.parent / "own.py").write_text(APPLICATION.replace("Holdfast()", "Holdfast('sqlite:///own.db')"))

    done = holdfast(shop, "--url", "sqlite:///other.db", "worker", "own:hf", "--until-idle")

    assert done.returncode == 2
    assert "own:hf uses sqlite:///own.db, but --url says sqlite:///other.db" in done.stderr
    assert not (shop.path.parent / "own.db").exists()


@pytest.mark.long
def test_an_application_with_its_own_store_is_not_replaced(shop: Shop) -> None:
    made = "Holdfast(store=SqliteStore('own.db'))"
    source = f"from holdfast.stores.sqlite import SqliteStore\n{APPLICATION.replace('Holdfast()', made)}"
    (shop.path.parent / "own.py").write_text(source)

    done = holdfast(shop, "worker", "own:hf", "--until-idle")
    refused = [holdfast(shop, "--url", "sqlite:///other.db", word, "own:hf") for word in ("worker", "check")]

    assert done.returncode == 0, done.stderr
    assert "on SqliteStore executes" in done.stderr
    assert (shop.path.parent / "own.db").exists()
    for one in refused:
        assert one.returncode == 2
        assert "own:hf uses SqliteStore, but --url says sqlite:///other.db" in one.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nosuch:hf", "there is no module 'nosuch'"),
        ("app:add", "app:add is a Task, not a Holdfast; did you mean app:hf?"),
        (
            "app:hf --types shop.ad.v1",
            "no type of the application and no flow matches 'shop.ad.v1' (did you mean shop.add.v1?)",
        ),
        ("app:hf --types shop.ad.v1 --no-flows", "no type of the application matches 'shop.ad.v1'"),
        ("app:hf --types billing.*,shipping.*", "no type of the application and no flow matches 'shipping.*'"),
        ("", "name your Holdfast object, as in shop:hf"),
        ("app:hf --lease 0", "Invalid value for '--lease': '0': expected a duration greater than zero"),
        ("app:hf --concurrency 0", "'0': expected a whole number of at least 1"),
        ("app:hf --grace soon", "'soon': expected a duration"),
    ],
)
def test_a_worker_that_cannot_start_says_why(shop: Shop, words: str, message: str) -> None:
    done = holdfast(shop, "worker", *words.split())

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not shop.path.exists()


def test_a_worker_without_a_store_ends(shop: Shop) -> None:
    done = holdfast(shop, "worker", "app:hf", HOLDFAST_URL="sqlite:///nowhere/shop.db")

    assert done.returncode == 5
    assert "there is no directory" in done.stderr


@pytest.mark.long
def test_commands_that_only_read_never_import_the_application(shop: Shop) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")
    (shop.path.parent / "app.py").write_text("raise SystemExit('imported')")

    for words in ("ls", "show key:sum", "doctor", "cancel key:sum --yes"):
        assert holdfast(shop, *words.split()).returncode == 0


def test_a_reader_that_closes_the_pipe_is_not_an_error(shop: Shop) -> None:
    for _ in range(3):
        shop.start("shop.large.v1", {"text": "x" * 100_000})

    command = f"{sys.executable} -m holdfast ls -o jsonl"
    piped = f"set -o pipefail; {command} | head -c 10"
    done = subprocess.run(["bash", "-c", piped], text=True, capture_output=True, check=False, **_place(shop, {}))

    assert (done.returncode, done.stderr, len(done.stdout)) == (0, "", 10)


def test_an_interrupt_ends_watching(shop: Shop) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")

    with running(shop, "watch", "key:sum") as watching:
        assert watching.stdout is not None
        assert "created" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, talk = watching.communicate(timeout=GUARD_SECONDS)

    assert (watching.returncode, talk) == (130, "interrupted\n")


@pytest.mark.long
@pytest.mark.parametrize("form", ["--json", "-ojsonl"])
def test_a_list_can_be_watched(shop: Shop, form: str) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")

    with running(shop, "ls", "--watch", form) as watching:
        assert watching.stdout is not None
        assert '"state": "pending"' in watching.stdout.readline()
        shop.type("cancel", "key:sum", "--yes")
        assert '"state": "cancelled"' in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=GUARD_SECONDS)

    assert watching.returncode == 130


@pytest.mark.long
@pytest.mark.parametrize(("answer", "code", "state"), [("n", 1, "pending"), ("y", 0, "cancelled")])
def test_cancel_asks_once_on_a_terminal(shop: Shop, answer: str, code: int, state: str) -> None:
    run_id = shop.start("shop.add.v1", {"a": 1, "b": 2})
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        command = [sys.executable, "-m", "holdfast", "cancel", run_id]
        done = subprocess.run(
            command,
            stdin=theirs,
            text=True,
            capture_output=True,
            check=False,
            timeout=GUARD_SECONDS,
            **_place(shop, {}),
        )
    finally:
        os.close(ours)
        os.close(theirs)

    assert done.returncode == code
    assert "Cancel this run? [y/N]" in done.stderr
    assert shop.read("show", run_id)["run"]["state"] == state


def test_a_worker_serves_its_metrics_and_logs_in_json(shop: Shop) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")

    with running(shop, "-v", "worker", "app:hf", "--metrics", "0", "--log-format", "json", "--name", "wally") as worker:
        assert worker.stderr is not None
        address = json.loads(_said(worker, "metrics at "))["message"].removeprefix("metrics at ")
        assert shop.type("watch", "key:sum").exit_code == 0
        metrics = _fetched(address)
        health = _fetched(address.replace("/metrics", "/healthz"))
        worker.send_signal(signal.SIGTERM)
        records = [json.loads(line) for line in worker.stderr]  # and nothing else
        assert worker.wait() == 0

    assert 'holdfast_runs_ended_total{type="shop.add.v1",state="succeeded"} 1' in metrics.splitlines()
    assert 'holdfast_worker_slots{worker="wally"} 200' in metrics.splitlines()
    assert health == "ok\n"
    assert {record["worker"] for record in records if record["logger"] == "holdfast.worker"} == {"wally"}
    assert "worker wally stopped" in [record["message"] for record in records]


@pytest.mark.long
def test_metrics_for_other_machines_need_a_token(shop: Shop) -> None:
    done = holdfast(shop, "worker", "app:hf", "--until-idle", "--metrics", "0.0.0.0:0")
    allowed = holdfast(shop, "worker", "app:hf", "--until-idle", "--metrics", "0.0.0.0:0", HOLDFAST_METRICS_TOKEN="t")  # noqa: S106

    assert done.returncode == 2
    assert "set HOLDFAST_METRICS_TOKEN" in done.stderr
    assert allowed.returncode == 0


@pytest.mark.long
def test_each_worker_process_serves_its_own_metrics(shop: Shop) -> None:
    with running(shop, "worker", "app:hf", "--processes", "2", "--metrics", "0") as supervisor:
        addresses = {_said(supervisor, "metrics at ").split()[-1] for _ in range(2)}
        slots = [_fetched(address).count("holdfast_worker_slots{") for address in addresses]
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait()

    assert slots == [1, 1]


def _said(process: subprocess.Popen[str], beginning: str) -> str:
    """Return the next line on stderr that begins with this text, or whose JSON message does."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(beginning) or f'"message": "{beginning}' in line:
            return line
    raise AssertionError(f"{beginning!r} was not said")


def _fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=GUARD_SECONDS) as answer:  # noqa: S310 - of our own worker
        text: str = answer.read().decode()
        return text
