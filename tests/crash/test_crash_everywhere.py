"""A fault before or after every call that a worker makes to the store: the end is the same.

The very first call, with which a worker registers, is left out: a worker that cannot register does not start.
`HOLDFAST_CRASHES_APART=1` tests every call on Postgres and Redis too, not only some. `test_crash_in_driver` has faults
inside of the calls of a key-value store.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from holdfast.testing.faults import When
from tests.crash.compositions import COMPOSITIONS
from tests.crash.deploys import DEPLOYS
from tests.crash.rehearsal import Outcome, Script, compare, play
from tests.crash.scripts import SCRIPTS
from tests.duration import lasting
from tests.plugin.tiers import amount
from tests.postgres import Databases
from tests.redis import Namespaces
from tests.stage import lent

scripts = pytest.mark.parametrize("script", [*SCRIPTS, *COMPOSITIONS, *DEPLOYS], ids=lambda script: script.name)
either = pytest.mark.parametrize("when", ["before", "after"])

CRASHES_APART = amount(short=16, long=16, variable="HOLDFAST_CRASHES_APART")

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def impatient_committer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the committer retry at once, because it waits in real time."""
    monkeypatch.setattr("holdfast.worker.committer.pauses", lambda: itertools.repeat(0.0))


def calls(outcome: Outcome) -> range:
    return range(2, len(outcome.calls) + 1)


@pytest.mark.both_tiers
@pytest.mark.parametrize("script", DEPLOYS, ids=lambda script: script.name)
async def test_a_run_that_was_blocked_for_a_while_executes_no_step_twice(script: Script, tmp_path: Path) -> None:
    begun = (await play(script, "memory", tmp_path)).begun
    assert set(begun.values()) == {1}, begun


@pytest.mark.both_tiers
@either
@scripts
async def test_a_crash_at_any_call_changes_nothing(script: Script, when: When, tmp_path: Path) -> None:
    """T8, S6: the worker vanishes before the call, or after it: then the call takes effect and its answer is lost."""
    undisturbed = await play(script, "memory", tmp_path)
    for number in calls(undisturbed)[:: amount(short=9, long=1)]:
        compare(undisturbed, await play(script, "memory", tmp_path, crashes=((number, when),)))


@either
@scripts
async def test_a_crash_at_any_call_changes_nothing_with_constant_replay(
    script: Script, when: When, tmp_path: Path
) -> None:
    undisturbed = await play(script, "replay", tmp_path)
    compare(await play(script, "memory", tmp_path), undisturbed)
    for number in calls(undisturbed)[::3]:
        compare(undisturbed, await play(script, "replay", tmp_path, crashes=((number, when),)))


@either
@scripts
async def test_a_call_that_fails_once_changes_nothing_at_all(script: Script, when: When, tmp_path: Path) -> None:
    """T8: a repeated checkpoint that finds its own rows answers applied, a repeated claim the same leases."""
    undisturbed = await play(script, "memory", tmp_path)
    for number in calls(undisturbed):
        disturbed = await play(script, "memory", tmp_path, failures=((number, when),))
        compare(undisturbed, disturbed)
        assert disturbed.begun == undisturbed.begun


@scripts
async def test_two_crashes_in_a_row_change_nothing(script: Script, tmp_path: Path) -> None:
    undisturbed = await play(script, "memory", tmp_path)
    both: list[When] = ["before", "after"]
    for number in calls(undisturbed)[::4]:
        for first, second in itertools.product(both, both):
            # The new worker registers first, which must succeed; the call after that is the next to fail.
            crashes = ((number, first), (number + 2, second))
            compare(undisturbed, await play(script, "memory", tmp_path, crashes=crashes))


@either
@scripts
async def test_a_crash_at_any_call_changes_nothing_on_sqlite(script: Script, when: When, tmp_path: Path) -> None:
    undisturbed = await play(script, "memory", tmp_path)
    offset = 2 if when == "before" else 4
    for number in range(offset, len(undisturbed.calls) + 1, 4):
        folder = tmp_path / str(number)
        folder.mkdir()
        compare(undisturbed, await play(script, "sqlite", folder, crashes=((number, when),)))


@either
@scripts
async def test_a_crash_at_any_call_changes_nothing_on_a_dictionary(script: Script, when: When, tmp_path: Path) -> None:
    undisturbed = await play(script, "memory", tmp_path)
    offset = 2 if when == "before" else 4
    for number in range(offset, len(undisturbed.calls) + 1, 4):
        compare(undisturbed, await play(script, "dictionary", tmp_path, crashes=((number, when),)))


@lasting(60 / CRASHES_APART)
@either
@scripts
async def test_a_crash_at_any_call_changes_nothing_on_postgres(
    script: Script, when: When, tmp_path: Path, postgres_databases: Databases
) -> None:
    undisturbed = await play(script, "memory", tmp_path)
    offset = 3 if when == "before" else 3 + CRASHES_APART // 2
    for number in range(offset, len(undisturbed.calls) + 1, CRASHES_APART):
        with lent("postgres", postgres_databases) as url:
            compare(undisturbed, await play(script, "postgres", tmp_path, url=url, crashes=((number, when),)))


@lasting(60 / CRASHES_APART)
@either
@scripts
async def test_a_crash_at_any_call_changes_nothing_on_redis(
    script: Script, when: When, tmp_path: Path, redis_namespaces: Namespaces
) -> None:
    undisturbed = await play(script, "memory", tmp_path)
    offset = 3 if when == "before" else 3 + CRASHES_APART // 2
    for number in range(offset, len(undisturbed.calls) + 1, CRASHES_APART):
        with lent("redis", namespaces=redis_namespaces) as url:
            compare(undisturbed, await play(script, "redis", tmp_path, url=url, crashes=((number, when),)))
