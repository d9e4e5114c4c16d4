"""A fault at every driver call of the key-value store: the end is the same.

A store call loads, decides and commits, so these faults fall between its parts. `test_crash_everywhere` has those
before and after whole store calls. The very first call, with which a worker registers, is left out.

`HOLDFAST_DRIVER_FAULTS=1000` tests every call on Redis too, not only some.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.crash.compositions import COMPOSITIONS
from tests.crash.deploys import DEPLOYS
from tests.crash.driver_rehearsal import play_on_driver
from tests.crash.rehearsal import Outcome, Script, compare, play
from tests.crash.scripts import SCRIPTS
from tests.duration import lasting
from tests.key_value.faulty_driver import DriverFault
from tests.plugin.tiers import amount
from tests.redis import Namespaces

WRITES = ("commit", "renew")
"""Calls by which the driver on dictionaries writes. It leaves claims to loads and commits."""
REDIS_WRITES = (*WRITES, "claim")

ALL = 1_000
FAULTS_ON_REDIS = amount(short=1, long=4, variable="HOLDFAST_DRIVER_FAULTS")

ALL_SCRIPTS = [*SCRIPTS, *COMPOSITIONS, *DEPLOYS]
scripts = pytest.mark.parametrize("script", ALL_SCRIPTS[:: amount(short=4, long=1)], ids=lambda script: script.name)
crashes = pytest.mark.parametrize("fault", ["crash before", "crash after"])
failures = pytest.mark.parametrize("fault", ["fail before", "fail after", "repeat"])


@pytest.fixture(autouse=True)
def impatient_committer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the committer retry at once, because it waits in real time."""
    monkeypatch.setattr("holdfast.worker.committer.pauses", lambda: itertools.repeat(0.0))


def places(script: Script, outcome: Outcome, limit: int, kinds: tuple[str, ...] = WRITES) -> list[int]:
    """Return the numbers of calls at which a fault happens: up to `limit` writes, and a third as many of the others.

    A crash at a read leaves what the crash after the write before it has left, so a few of these are enough.
    """
    chance = random.Random(script.name)
    numbered = list(enumerate(outcome.calls, start=1))[1:]
    writes = [number for number, name in numbered if name in kinds]
    others = [number for number, name in numbered if name not in kinds]
    chosen = chance.sample(writes, min(limit, len(writes)))
    return sorted(chosen + chance.sample(others, min(len(others), -(-len(chosen) // 3))))


@pytest.mark.both_tiers
@lasting(5)
@crashes
@scripts
async def test_a_crash_at_any_driver_call_changes_nothing(script: Script, fault: DriverFault, tmp_path: Path) -> None:
    """T8, S6: the worker vanishes inside of an operation, which is written wholly or not at all."""
    expected = await play(script, "memory", tmp_path)
    undisturbed = await play_on_driver(script)
    compare(expected, undisturbed)
    for number in places(script, undisturbed, amount(short=1, long=ALL)):
        disturbed = await play_on_driver(script, {number: fault})
        compare(expected, disturbed)
        assert disturbed.crashes == 1 or len(disturbed.calls) <= number


@pytest.mark.long
@lasting(10)
@failures
@scripts
async def test_a_driver_call_that_fails_once_changes_nothing_at_all(script: Script, fault: DriverFault) -> None:
    """T8: the store or the worker repeats the call, and finds what the lost answer was about."""
    undisturbed = await play_on_driver(script)
    for number in places(script, undisturbed, ALL):
        disturbed = await play_on_driver(script, {number: fault})
        compare(undisturbed, disturbed)
        assert disturbed.begun == undisturbed.begun


@pytest.mark.long
@lasting(10)
@scripts
async def test_every_driver_call_that_loses_its_first_answer_changes_nothing_at_all(script: Script) -> None:
    """T8: the driver repeats every single call by itself."""
    undisturbed = await play_on_driver(script)
    disturbed = await play_on_driver(script, dict.fromkeys(range(2, ALL), "repeat"))
    compare(undisturbed, disturbed)
    assert disturbed.begun == undisturbed.begun


@pytest.mark.both_tiers
@lasting(5)
@scripts
async def test_one_lost_answer_in_five_changes_nothing_at_all(script: Script) -> None:
    """T8: some calls are repeated by the driver, others by the store or the worker."""
    undisturbed = await play_on_driver(script)
    for seed in range(amount(short=1, long=10, variable="HOLDFAST_LOST_ANSWERS")):
        disturbed = await play_on_driver(script, lost_answers(random.Random(seed)))
        compare(undisturbed, disturbed)
        assert disturbed.begun == undisturbed.begun, f"seed {seed}"


def lost_answers(chance: random.Random) -> dict[int, DriverFault]:
    kinds: list[DriverFault] = ["repeat", "fail after"]
    return {number: chance.choice(kinds) for number in range(2, ALL) if chance.random() < 0.2}


@pytest.mark.long
@lasting(2 * FAULTS_ON_REDIS)
@pytest.mark.parametrize("fault", ["crash before", "crash after", "fail after", "repeat"])
@scripts
async def test_a_fault_at_any_driver_call_changes_nothing_on_redis(
    script: Script, fault: DriverFault, tmp_path: Path, redis_namespaces: Namespaces
) -> None:
    expected = await play(script, "memory", tmp_path)
    with redis_namespaces.lend() as url:
        undisturbed = await play_on_driver(script, url=url)
    compare(expected, undisturbed)
    for number in places(script, undisturbed, FAULTS_ON_REDIS, REDIS_WRITES):
        with redis_namespaces.lend() as url:
            compare(expected, await play_on_driver(script, {number: fault}, url=url))
