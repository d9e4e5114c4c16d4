"""The supervisor, with processes that only end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from holdfast.cli.exits import ExitCode
from holdfast.cli.supervisor import VARIABLE, Patience, Supervisor
from holdfast.testing.patience import guarded, until

HASTY = Patience(steady_seconds=60, first_pause_seconds=0.01, last_pause_seconds=0.02, starts=3)

SAY_READY = f"import os, time; os.write(int(os.environ['{VARIABLE}'].partition(':')[2]), b'r')"


class Script:
    """The code of each process, by its number. Each start is recorded in a file."""

    def __init__(self, folder: Path) -> None:
        self._starts = folder / "starts"
        self.lines: dict[int, str] = {}

    def command(self, number: int) -> list[str]:
        with self._starts.open("a") as starts:
            starts.write(f"{number}\n")
        return [sys.executable, "-S", "-c", self.lines[number]]

    def dying(self, number: int, *, code: int, times: int) -> str:
        """Fail a given number of times, then stay alive, so that only a stop ends it."""
        starts = f"open({str(self._starts)!r}).read().split().count('{number}')"
        return f"import os, time; time.sleep(600) if {starts} > {times} else os._exit({code})"

    def starts(self, number: int) -> int:
        return self._starts.read_text().split().count(str(number)) if self._starts.exists() else 0


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def supervisor(script: Script, *, grace_seconds: float = 5, ends_when_idle: bool = False) -> Supervisor:
    return Supervisor(
        script.command, len(script.lines), grace_seconds=grace_seconds, ends_when_idle=ends_when_idle, patience=HASTY
    )


async def until_started(script: Script, number: int, times: int) -> None:
    await until(f"process {number} is started for the {times}th time", lambda: script.starts(number) >= times)


async def test_the_other_processes_are_not_started_if_the_first_cannot_work(script: Script) -> None:
    script.lines = {1: "raise SystemExit(5)", 2: SAY_READY}

    assert await supervisor(script).run() is ExitCode.UNREACHABLE

    assert (script.starts(1), script.starts(2)) == (1, 0)


@pytest.mark.parametrize("end", ["raise SystemExit(77)", "import os; os.kill(os.getpid(), 9)", ""])
async def test_an_exit_without_a_reason_is_a_failure(script: Script, end: str) -> None:
    script.lines = {1: end}

    assert await supervisor(script).run() is ExitCode.FAILED


async def test_a_command_that_does_not_exist_is_a_failure(tmp_path: Path) -> None:
    nobody = Supervisor(lambda _: [str(tmp_path / "nobody")], 2, grace_seconds=1, patience=HASTY)

    assert await nobody.run() is ExitCode.FAILED


async def test_the_supervisor_gives_up_when_every_process_keeps_failing_before_it_can_work(
    script: Script, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    once = f"""
import os, pathlib
if pathlib.Path({str(mark)!r}).exists():
    raise SystemExit(2)
pathlib.Path({str(mark)!r}).touch()
{SAY_READY}
"""
    script.lines = {1: once, 2: once}

    assert await supervisor(script).run() is ExitCode.USAGE

    assert script.starts(1) + script.starts(2) >= 2 * HASTY.starts + 1


async def test_the_supervisor_keeps_trying_as_long_as_one_process_can_work(script: Script) -> None:
    times = HASTY.starts + 2
    script.lines = {1: f"{SAY_READY}; time.sleep(600)", 2: script.dying(2, code=2, times=times)}
    running = asyncio.create_task(supervisor(script).run())

    await until_started(script, 2, times + 1)
    os.kill(os.getpid(), signal.SIGTERM)

    assert await running is ExitCode.OK
    assert script.starts(1) == 1


async def test_a_process_that_works_and_keeps_dying_is_always_replaced(script: Script) -> None:
    times = HASTY.starts + 2
    script.lines = {1: f"{SAY_READY}; {script.dying(1, code=1, times=times)}"}
    running = asyncio.create_task(supervisor(script).run())

    await until_started(script, 1, times + 1)
    os.kill(os.getpid(), signal.SIGTERM)

    assert await running is ExitCode.OK


async def test_an_idle_process_is_not_replaced_with_until_idle(script: Script) -> None:
    script.lines = {1: SAY_READY, 2: SAY_READY}

    assert await supervisor(script, ends_when_idle=True).run() is ExitCode.OK

    assert (script.starts(1), script.starts(2)) == (1, 1)


async def test_a_process_that_ignores_signals_is_killed_by_the_third(script: Script) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)"
    script.lines = {1: f"{deaf}; {SAY_READY}; time.sleep(600)", 2: f"{SAY_READY}; time.sleep(600)"}
    running = asyncio.create_task(supervisor(script, grace_seconds=600).run())
    await until_started(script, 2, times=1)

    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)

    assert await guarded("all processes are killed", running) is ExitCode.FAILED


def test_pauses_grow_to_a_limit() -> None:
    patience = Patience()

    assert [patience.pause_seconds(ends) for ends in (0, 1, 2, 3, 4, 5)] == [0, 0, 0.5, 1, 2, 4]
    assert patience.pause_seconds(1_000_000) == 30
