"""Replay: random programs are in the same state at every fact, in every process and on every replay."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast.runner.loop import RunFuture, RunGather, RunTask
from tests.unit.runner.loop_programs import Diverged, Recording, as_line, record, replay

SEEDS = range(150)


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return [record(seed) for seed in SEEDS]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence asyncio: random programs leave failed tasks behind, which asyncio logs."""
    logger = logging.getLogger("holdfast.workflow")
    logger.disabled = True
    yield
    gc.collect()
    logger.disabled = False


def test_replays_match_at_every_fact(recordings: list[Recording]) -> None:
    for recording in recordings:
        replay(recording)
        replay(recording)

    facts = sum(len(recording.facts) for recording in recordings)
    kinds = Counter(fact[0] for recording in recordings for fact in recording.facts)
    assert facts > 5 * len(recordings), "the programs have become too small to tell anything"
    assert min(kinds["finish"], kinds["fail"], kinds["fire"]) > 50
    assert sum(recording.evictions for recording in recordings) > len(recordings) / 2


def test_replays_match_while_the_collector_runs_all_the_time(recordings: list[Recording]) -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(20)
    try:
        for recording in recordings[::5]:
            replay(recording)
    finally:
        gc.set_threshold(*threshold)


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_replays_match_in_another_process_with_another_hash_seed(recordings: list[Recording], hash_seed: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.unit.runner.loop_programs"],
        input="\n".join(map(as_line, recordings)),
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stderr[-2_000:]


@pytest.mark.parametrize("kinds", [(RunTask, RunFuture), (RunGather,)], ids=["tasks", "gathers"])
def test_without_stable_hashes_this_test_finds_divergences(
    kinds: tuple[type, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in kinds:
        monkeypatch.setattr(kind, "__hash__", object.__hash__)
    diverged = 0
    for seed in SEEDS:
        try:
            replay(record(seed))
        except Diverged:
            diverged += 1

    assert diverged > len(SEEDS) / 20
