"""A catcher: a command that passes while holdfast is correct, and fails with the bug."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests.mutants.mutant import PROJECT

SEEDS = 60
_PATIENCE_SECONDS = 10.0
_HANG_SECONDS = 60.0
"""Time after which a test hangs because of the bug; the control shows that no test takes that long without it."""
_PYTEST = (
    "pytest",
    "-x",
    "-q",
    "--tb=no",
    "-rf",
    "-p",
    "no:cacheprovider",
    "--hypothesis-profile=mutants",
    "-o",
    f"timeout={_HANG_SECONDS:g}",
)
_SETTINGS = {"HOLDFAST_GUARD_SECONDS": f"{_HANG_SECONDS * 0.75:g}"}


class Caught(msgspec.Struct, frozen=True):
    """The end of a command: 0 is passed, 1 is failed, and any other code says nothing. `line` is its first message."""

    code: int
    seconds: float
    line: str = ""


class Catcher(msgspec.Struct, frozen=True, kw_only=True):
    """A command of one layer of tests, and its time limit in seconds.

    `words` choose among its tests. A command that is not pytest `plays` the same scenarios as tests of the suite.
    """

    layer: str
    command: tuple[str, ...]
    words: str = ""
    plays: tuple[str, ...] = ()
    limit_seconds: float = 1_200.0
    settings: Mapping[str, str] = {}

    @property
    def places(self) -> list[str]:
        """The files and folders of its tests, or single tests: `tests/a.py::test_b`."""
        return [word for word in (*self.command, *self.plays) if word.startswith("tests/")]

    @property
    def names(self) -> list[str]:
        """The single tests of the command, if it does not run whole files."""
        return [name for _, _, name in (place.partition("::") for place in self.places) if name]

    async def run(self, folder: Path, words: str = "") -> Caught:
        """Run it on the holdfast in a folder."""
        chosen = " and ".join(f"({one})" for one in (self.words, words) if one)
        environment = os.environ | {"PYTHONPATH": str(folder)} | _SETTINGS | dict(self.settings)
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *self.command,
            *(("--basetemp", str(folder / "temporary")) if self.command[0] == "pytest" else ()),
            *(("-k", chosen) if chosen else ()),
            cwd=PROJECT,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self.limit_seconds):
                output, _ = await process.communicate()
        except TimeoutError:
            return Caught(-1, time.monotonic() - began, f"it did not end within {self.limit_seconds:g} s")
        finally:
            await _end(process)
        code = process.returncode
        assert code is not None
        return Caught(code, time.monotonic() - began, _failure_in(output.decode(errors="replace"), code))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let the command stop what it started, such as a database server; then kill what is left."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=_PATIENCE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _failure_in(output: str, code: int) -> str:
    """Return the line that names the failure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    failed = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    if code == 0:
        return lines[-1] if lines else ""
    return (failed or lines[-1:] or [""])[0]


def _tests(*args: str) -> tuple[str, ...]:
    return (*_PYTEST, *args)


CATCHERS: Mapping[str, Catcher] = {
    "simulation": Catcher(
        layer="simulation",
        command=("tests.mutants.seeds", str(SEEDS)),
        plays=("tests/simulation/test_simulation.py::test_no_seed_breaks_a_promise",),
    ),
    "contract": Catcher(layer="contract", command=_tests("tests/contract/test_contract_memory.py")),
    "contract on SQLite": Catcher(layer="contract", command=_tests("tests/contract/test_contract_sqlite.py")),
    "contract on Postgres": Catcher(layer="contract", command=_tests("tests/contract/test_contract_postgres.py")),
    "contract on dictionaries": Catcher(layer="contract", command=_tests("tests/contract/test_contract_dictionary.py")),
    "races": Catcher(layer="contract", command=_tests("tests/contract/test_races.py")),
    "claimers": Catcher(layer="contract", command=_tests("tests/contract/test_concurrent_claimers.py")),
    "model on SQLite": Catcher(
        layer="model",
        command=_tests("tests/contract/test_model.py::test_the_sqlite_store_answers_like_the_model"),
        settings={"HOLDFAST_MODEL_EXAMPLES": "60"},
    ),
    "random programs": Catcher(
        layer="crash tests",
        command=_tests("tests/crash/test_vocabulary.py::test_random_programs_end_as_the_interpreter_predicts"),
        settings={"HOLDFAST_VOCABULARY": "200"},
    ),
    "recovered children": Catcher(
        layer="scenarios", command=_tests("tests/scenario/test_recovering_children.py"), words="memory"
    ),
    "flows": Catcher(
        layer="scenarios",
        command=_tests(
            "tests/scenario/test_flows.py",
            "tests/scenario/test_flow_controls.py",
            "tests/scenario/test_flow_recovery.py",
            "tests/scenario/test_flow_versions.py",
        ),
        words="memory",
    ),
    "evictions": Catcher(layer="scenarios", command=_tests("tests/scenario/test_evicting.py"), words="memory"),
    "migrations": Catcher(layer="unit tests", command=_tests("tests/migrations", "tests/golden")),
    "rounds": Catcher(layer="scenarios", command=_tests("tests/scenario/test_rounds.py"), words="memory"),
    "frozen worker": Catcher(layer="crash tests", command=_tests("tests/crash/test_frozen_worker.py")),
    "index of runs": Catcher(layer="unit tests", command=_tests("tests/unit/stores/test_memory_run_index.py")),
    "commits of SQLite": Catcher(layer="unit tests", command=_tests("tests/unit/stores/test_sqlite_commit.py")),
    "log of SQLite": Catcher(layer="unit tests", command=_tests("tests/unit/stores/test_sqlite_wal.py")),
    "privacy of SQLite": Catcher(layer="unit tests", command=_tests("tests/unit/stores/test_sqlite_privacy.py")),
    "power cuts": Catcher(layer="unit tests", command=_tests("tests/unit/stores/test_sqlite_durability.py")),
    "durability of Postgres": Catcher(
        layer="unit tests", command=_tests("tests/unit/stores/postgres/test_durability.py")
    ),
    "schema of SQLite": Catcher(layer="unit tests", command=_tests("tests/unit/stores/test_sqlite_schema.py")),
    "schema of Postgres": Catcher(layer="unit tests", command=_tests("tests/unit/stores/postgres/test_schema.py")),
    "producers in SQL": Catcher(layer="unit tests", command=_tests("tests/unit/stores/postgres/test_producers.py")),
    "check-up of Postgres": Catcher(layer="unit tests", command=_tests("tests/unit/stores/postgres/test_checkup.py")),
    "functions of users on Postgres": Catcher(
        layer="unit tests", command=_tests("tests/unit/stores/postgres/test_functions.py")
    ),
    "key-value store": Catcher(layer="unit tests", command=_tests("tests/unit/stores/kv")),
    "races in every order": Catcher(layer="unit tests", command=_tests("tests/key_value")),
    "unit tests of Redis": Catcher(layer="unit tests", command=_tests("tests/unit/stores/redis")),
    "driver of Redis": Catcher(layer="Redis", command=_tests("tests/redis")),
    "transactions": Catcher(layer="scenarios", command=_tests("tests/scenario/test_transactions.py")),
    "unit tests of clocks": Catcher(layer="unit tests", command=_tests("tests/unit/core/test_clock.py")),
    "unit tests of workers": Catcher(layer="unit tests", command=_tests("tests/unit/worker")),
    "busy workers": Catcher(layer="unit tests", command=_tests("tests/unit/stores/postgres/test_busy_workers.py")),
    "values in SQL": Catcher(layer="unit tests", command=_tests("tests/unit/stores/postgres/test_producer_values.py")),
    "unit tests of names": Catcher(layer="unit tests", command=_tests("tests/unit/core/test_text.py")),
    "blocked results": Catcher(
        layer="scenarios", command=_tests("tests/scenario/test_blocked_results.py"), words="memory"
    ),
    "slips": Catcher(layer="scenarios", command=_tests("tests/scenario/test_slips.py"), words="memory"),
    "swallowing": Catcher(layer="scenarios", command=_tests("tests/scenario/test_swallowing.py"), words="memory"),
    "unreadable rows": Catcher(layer="scenarios", command=_tests("tests/scenario/test_unreadable.py")),
    "unit tests of runs": Catcher(layer="unit tests", command=_tests("tests/unit/runner")),
}
