"""Random programs under random crashes end as without crashes, and replay alike in another process.

`HOLDFAST_PROGRAMS=5000` plays that many instead of a few hundred; a failure names its seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import Registry
from holdfast.testing.faults import When
from holdfast.testing.harness import Harness
from holdfast.testing.patience import GUARD_SECONDS
from tests.crash import programs
from tests.crash.rehearsal import Fault, Outcome, Script, play
from tests.plugin.tiers import amount
from tests.programs.ledger import EffectLedger
from tests.stage import Stage

PROGRAMS = amount(short=36, long=400, variable="HOLDFAST_PROGRAMS")
BATCHES = amount(short=4, long=20)


def program(seed: int) -> programs.Node:
    return programs.Gardener(seed).grow(depth=1 + seed % 3)


def script(seed: int, *, strict: bool = True) -> Script:
    node = program(seed)

    async def act(h: Harness) -> None:
        run = await h.start("program", {"node": node}, id=f"program-{seed}")
        for name in programs.messages_of(node):
            await run.send(name, name)
        await run.result()

    return Script(str(seed), partial(programs.build, strict=strict), act)


def some_faults(seed: int, calls: int) -> tuple[Fault, ...]:
    """Return crashes at up to three calls, far enough apart not to look like a run that kills its workers."""
    chance = random.Random(seed)
    whens: list[When] = ["before", "after"]
    numbers = sorted(chance.sample(range(3, max(4, calls + 1)), min(chance.randint(1, 3), max(1, calls - 3))))
    apart = [number for index, number in enumerate(numbers) if index == 0 or number - numbers[index - 1] > 4]
    return tuple((number, chance.choice(whens)) for number in apart)


def compare_ends(undisturbed: Outcome, disturbed: Outcome) -> None:
    """Check for the same ends of the same runs. Histories may differ in order, and in what a timeout cut off."""
    assert disturbed.orphans == []
    assert {name: facts[:3] for name, facts in disturbed.runs.items()} == {
        name: facts[:3] for name, facts in undisturbed.runs.items()
    }
    for body, times in disturbed.begun.items():
        assert times <= undisturbed.begun.get(body, 1) + disturbed.crashes, (body, times)


@pytest.mark.both_tiers
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_random_programs_end_alike_with_any_crashes(batch: int, tmp_path: Path) -> None:
    for seed in range(batch, PROGRAMS, BATCHES):
        undisturbed = await play(script(seed), "memory", tmp_path)
        faults = some_faults(seed, len(undisturbed.calls))
        try:
            compare_ends(undisturbed, await play(script(seed), "memory", tmp_path, crashes=faults))
            if seed % 3 < 2:  # replaying after every checkpoint is quadratic; the deepest third would take too long
                compare_ends(undisturbed, await play(script(seed), "replay", tmp_path))
        except BaseException as error:
            error.add_note(f"seed {seed}, crashes {faults}, program {program(seed)}")
            raise


@pytest.mark.both_tiers
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_random_programs_that_are_not_strict_end_alike_too(batch: int, tmp_path: Path) -> None:
    for seed in range(2_000 + batch, 2_000 + PROGRAMS // 2, BATCHES):
        undisturbed = await play(script(seed, strict=False), "memory", tmp_path)
        faults = some_faults(seed, len(undisturbed.calls))
        try:
            compare_ends(undisturbed, await play(script(seed, strict=False), "memory", tmp_path, crashes=faults))
            if seed % 3 < 2:
                compare_ends(undisturbed, await play(script(seed, strict=False), "replay", tmp_path))
        except BaseException as error:
            error.add_note(f"seed {seed}, crashes {faults}, program {program(seed)}")
            raise


@pytest.mark.long
async def test_random_programs_replay_alike_in_another_process_with_another_hash_seed(tmp_path: Path) -> None:
    """Iteration over sets of strings differs there; iteration over sets of tasks must not."""
    stage = Stage("sqlite", tmp_path)
    app = Registry()
    programs.build(app, EffectLedger())
    traces: dict[str, Any] = {}
    async with stage.harness(app) as h:
        runs = []
        for seed in range(1_000, 1_000 + max(30, PROGRAMS // 8)):
            node = program(seed)
            run = await h.start("program", {"node": node, "waits": True}, id=f"program-{seed}")
            runs.append(run)
            for name in programs.messages_of(node):
                await run.send(name, name)
        await h.settle()
        while await h.skip():
            pass
        for run in runs:
            waits = [wait.location for wait in (await run.info()).waits]
            assert waits == ["receive:end"], f"{run.id}: {await run.explain()}"
            traces[run.id] = await run.value("trace")
        now = h.now.isoformat()
    command = [sys.executable, "-m", "tests.crash.replay", str(tmp_path / "runs.db"), now, *traces]
    root = Path(__file__).parents[2]
    replayed = await asyncio.to_thread(
        subprocess.run,
        command,
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stderr.decode()
    answer = json.loads(replayed.stdout)
    assert answer["executed"] == []
    assert answer["results"] == traces
