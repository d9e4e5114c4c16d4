"""Compare the instructions of a step of an isolated run, on a dictionary, with those of a step on `memory://`.

python -m benchmarks.isolated

It needs valgrind, takes a few minutes, and exits with 1 if the ratio is over the limit.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.instructions.counters import CannotMeasure, find_counter
from holdfast import Context, Holdfast, isolated

LIMIT = 1.3
FEW, MANY = 100, 400
_TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)


def main() -> int:
    if len(sys.argv) > 2:
        asyncio.run(_execute(sys.argv[1], int(sys.argv[2])))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            find_counter(Path(folder))
        except CannotMeasure as error:
            print(error, file=sys.stderr)
            return 2
        isolated, memory = (_step(kind, Path(folder)) for kind in ("isolated", "memory"))
    print(f"instructions per step: isolated {isolated:,}, memory {memory:,}, ratio {isolated / memory:.3f} (≤ {LIMIT})")
    return int(isolated / memory > LIMIT)


def _step(kind: str, folder: Path) -> int:
    """Return the instructions of one step: the difference between many and few, so that the start does not count."""
    few, many = (_instructions(kind, count, folder / f"{kind}-{count}") for count in (FEW, MANY))
    return (many - few) // (MANY - FEW)


def _instructions(kind: str, count: int, report: Path) -> int:
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={report}", sys.executable, "-m", __spec__.name]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run([*command, kind, str(count)], check=True, capture_output=True, env=environment)
    found = _TOTAL.search(report.read_text())
    if found is None:
        raise CannotMeasure(f"callgrind wrote no total for {kind}")
    return int(found[1])


async def _execute(kind: str, count: int) -> None:
    hf = Holdfast("memory://")

    @hf.step
    async def one(number: int) -> int:
        return number

    @hf.workflow("steps")
    async def steps(ctx: Context, count: int) -> int:
        for number in range(count):
            await one(number)
        return count

    if kind == "isolated":
        await isolated.advance(isolated.DictionaryNamespace(), hf, "run", type="steps", payload={"count": count})
        return
    async with hf, hf.worker():
        await hf.execute(steps, count)


if __name__ == "__main__":
    sys.exit(main())
