"""Random programs under random crashes come to the same end as without, and replay alike in another process.

`HOLDFAST_PROGRAMS=5000` plays that many instead of a few hundred; a failure names its seed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from holdfast.testing.faults import When
from holdfast.testing.harness import Harness
from tests.crash import programs
from tests.crash.rehearsal import Fault, Outcome, Script, play

PROGRAMS = int(os.environ.get("HOLDFAST_PROGRAMS", "240"))
BATCHES = 8


def program(seed: int) -> programs.Node:
    return programs.Gardener(seed).grow(depth=1 + seed % 3)


def script(seed: int) -> Script:
    node = program(seed)

    async def act(h: Harness) -> None:
        run = await h.start("program", {"node": node}, id=f"program-{seed}")
        for name in programs.messages_of(node):
            await run.send(name, name)
        await run.result()

    return Script(str(seed), programs.build, act)


def some_faults(seed: int, calls: int) -> tuple[Fault, ...]:
    """Crashes at up to three calls, not so close together that they would look like a run that kills its workers."""
    chance = random.Random(seed)
    whens: list[When] = ["before", "after"]
    numbers = sorted(chance.sample(range(3, max(4, calls + 1)), min(chance.randint(1, 3), max(1, calls - 3))))
    apart = [number for index, number in enumerate(numbers) if index == 0 or number - numbers[index - 1] > 4]
    return tuple((number, chance.choice(whens)) for number in apart)


def compare_ends(undisturbed: Outcome, disturbed: Outcome) -> None:
    """The same ends of the same runs. Histories may differ: in what a time-out cut off and how things interleave."""
    assert disturbed.orphans == []
    assert {name: facts[:3] for name, facts in disturbed.runs.items()} == {
        name: facts[:3] for name, facts in undisturbed.runs.items()
    }
    for body, times in disturbed.begun.items():
        assert times <= undisturbed.begun.get(body, 1) + disturbed.crashes, (body, times)


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_random_programs_end_alike_whatever_crashes(batch: int, tmp_path: Path) -> None:
    for seed in range(batch, PROGRAMS, BATCHES):
        undisturbed = await play(script(seed), "memory", tmp_path)
        faults = some_faults(seed, len(undisturbed.calls))
        try:
            compare_ends(undisturbed, await play(script(seed), "memory", tmp_path, crashes=faults))
            compare_ends(undisturbed, await play(script(seed), "replay", tmp_path))
        except BaseException as error:
            error.add_note(f"seed {seed}, crashes {faults}, program {program(seed)}")
            raise
