"""Counters of instructions: callgrind, or `perf stat` if callgrind is missing and the processor counts.

Callgrind is preferred: it gives the same figures on every machine of a kind, regardless of its load.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_LIMIT_SECONDS = 3_600
_TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)
_MARK = "ctermid"
"""The function whose calls mark the sections of the workload; nothing else calls it."""


class CannotMeasure(Exception):
    """Nothing can be measured here; the text says why."""


class Command(Protocol):
    """Return the command line of the workload for sections of these sizes."""

    def __call__(self, meter: str, sizes: Sequence[int], *more: str) -> list[str]: ...


class Counter(Protocol):
    """Counts the instructions of each section of the workload."""

    name: str

    def count(
        self, command: Command, sizes: Sequence[int], folder: Path, environment: Mapping[str, str]
    ) -> list[int]: ...


class Callgrind:
    """One process for all sections: callgrind writes a part of its profile at each mark."""

    def __init__(self, valgrind: str) -> None:
        self._valgrind = valgrind
        self.name = f"callgrind of {_output([valgrind, '--version']).strip()}"

    def count(self, command: Command, sizes: Sequence[int], folder: Path, environment: Mapping[str, str]) -> list[int]:
        profile = folder / "callgrind.out"
        options = ["--tool=callgrind", "--quiet", f"--dump-before={_MARK}", f"--callgrind-out-file={profile}"]
        run([self._valgrind, *options, *command("callgrind", sizes)], folder, environment)
        # Part 1 is everything before the first section, 2 the section, 3 the code between two sections, and so on.
        return [part_total(profile.with_name(f"{profile.name}.{2 * number}")) for number in range(1, len(sizes) + 1)]


class Perf:
    """One process for each section: `perf stat` counts while the workload enables it."""

    def __init__(self, perf: str) -> None:
        self._perf = perf
        self.name = f"perf stat ({_output([perf, '--version']).strip()})"

    def count(self, command: Command, sizes: Sequence[int], folder: Path, environment: Mapping[str, str]) -> list[int]:
        return [self._section(command, size, folder, environment) for size in sizes]

    def works(self, folder: Path) -> bool:
        """True if this processor, or its hypervisor, counts instructions."""
        report = folder / "perf.out"
        command = [self._perf, *self._options(report), "--", sys.executable, "-c", ""]
        done = subprocess.run(command, capture_output=True, check=False)
        return done.returncode == 0 and perf_total(report) is not None

    def _section(self, command: Command, size: int, folder: Path, environment: Mapping[str, str]) -> int:
        report = folder / "perf.out"
        commands, acknowledgements = os.pipe(), os.pipe()
        ends = (*commands, *acknowledgements)
        try:
            control = ["--delay=-1", f"--control=fd:{commands[0]},{acknowledgements[1]}"]
            workload = command("perf", [size], "--control", str(commands[1]), str(acknowledgements[0]))
            run([self._perf, *self._options(report), *control, "--", *workload], folder, environment, ends)
        finally:
            for end in ends:
                os.close(end)
        total = perf_total(report)
        if total is None:
            raise CannotMeasure(f"perf stat counted nothing: {report.read_text().strip()}")
        return total

    @staticmethod
    def _options(report: Path) -> list[str]:
        return ["stat", "--field-separator=,", "--event=instructions:u", f"--output={report}"]


def find_counter(folder: Path) -> Counter:
    """Return the counter of this machine; it may use the folder for a trial.

    Raises:
        CannotMeasure: There is none.

    """
    if (valgrind := shutil.which("valgrind")) is not None:
        return Callgrind(valgrind)
    if (path := shutil.which("perf")) is not None and (perf := Perf(path)).works(folder):
        return perf
    found = "`perf stat` counts no instructions on this machine" if path is not None else "neither is `perf`"
    raise CannotMeasure(f"instructions cannot be counted: valgrind is not installed, and {found}; install valgrind")


def part_total(part: Path) -> int:
    """Return the instructions in one part of a callgrind profile."""
    found = _TOTAL.search(part.read_text()) if part.exists() else None
    if found is None:
        raise CannotMeasure(f"callgrind wrote no {part.name}: it did not see the calls of {_MARK} that mark sections")
    return int(found[1])


def perf_total(report: Path) -> int | None:
    """Return the number in a report of `perf stat`; None if there is none, as for an unsupported event."""
    for line in report.read_text().splitlines() if report.exists() else ():
        number, _, rest = line.partition(",")
        if "instructions" in rest:
            return int(number) if number.isdecimal() else None
    return None


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> str:
    """Run a program in the folder and return its output."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=dict(environment),
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"the workload did not end within {_LIMIT_SECONDS} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise CannotMeasure(f"the workload ended with {done.returncode}: {lines[-1]}")
    return done.stdout


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
