"""`claim.lua` chooses and changes exactly what the shared rules in Python choose and change."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.claim_order import SHARE, Shares
from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.core.verbs import StopRequest
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import Part
from holdfast.stores.kv.histories import fact_line
from holdfast.stores.kv.names import run_of
from holdfast.stores.operations import leases
from holdfast.stores.redis import RedisDriver
from holdfast.stores.redis.scripts import OWN_RUNS
from holdfast.testing.contract import START, SettableClock
from tests.plugin.tiers import amount
from tests.redis.driver_runs import a_run, entries_of_all, lanes_and_types, place, read_indexes, read_lines, read_run
from tests.redis.server import RedisServer

pytestmark = pytest.mark.both_tiers

SEEDS = amount(short=20, long=400)
TYPES = ("order", "e-mail", 'quo"te', "back\\slash", "päckchen", "line\nbreak")
WORKERS = ("me", "w-1", 'w"2', "w\\3\t")
PRIORITIES = (-3, 0, 100, 101)
LEASE: Micros = 30 * SECOND
LANGUAGE = "tr_TR.utf8"
"""A locale whose order of letters is not that of their bytes."""
CLAIMERS_PYTHON = '3.11 "x"'


def raised(run: Run, base: int) -> Run:
    """The run as it is claimed in an epoch. Only a first claim gets the first token of the epoch."""
    return replace(run, token=base if run.token == 0 else max(run.token, base + 1 if base else 0))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_claim_equals_the_shared_rules(redis_url: str, seed: int) -> None:
    chance = random.Random(seed)
    clock = SettableClock(START + 7)
    runs = _runs(chance)
    driver = RedisDriver(redis_url, clock=clock)
    await driver.open()
    try:
        await place(driver, runs)
        base = chance.choice((0, 0, 50))
        await driver.commit([Part(puts={names.META: {"base": b"%d" % base}})])
        request = _request(chance)
        for _ in range(3):
            now = clock.now()
            expected = _choice(runs, request, now)

            found = await driver.claim(request)

            after = [rules.claimed(raised(run, base), request, now) for run in expected]
            assert [run_of(one.head.fields) for one in found.runs] == after
            assert [one.id for one in found.runs] == [run.id for run in expected]
            runs = _updated(runs, after)
            assert found.next_ready_at == _next_ready_at(runs, request, len(after), now)
            await _compare(driver, redis_url, runs)
            for before, held in zip(expected, after, strict=True):
                lines = await read_lines(driver, names.audit(held.id))
                assert lines[-1] == fact_line(audit.of_claim(before, held, now))
            clock.advance(chance.choice((1, 3, 40 * SECOND)))
            request = _request(chance)
    finally:
        await driver.close()


async def _compare(driver: RedisDriver, url: str, runs: Sequence[Run]) -> None:
    """Compare all runs and indexes on the server with those that the rules make."""
    found, expected = read_indexes(url), entries_of_all(runs)
    assert found.entries == expected.entries
    assert found.names >= expected.names
    for run in runs:
        assert (await read_run(driver, run.id))[0] == run


def _choice(runs: Sequence[Run], request: ClaimRequest, now: Micros) -> list[Run]:
    due = [run for run in runs if run.type in request.types and rules.is_due(run, now)]
    chosen, _ = leases.choose(leases.queue_of(due), request, lambda run: run)
    return chosen


def _next_ready_at(runs: Sequence[Run], request: ClaimRequest, count: int, now: Micros) -> Micros | None:
    if count >= request.limit:
        return now
    assert len(runs) < OWN_RUNS  # or else the script does not look at all of them
    offered = [run for run in runs if run.type in request.types and run.worker != request.worker]
    return min((run.ready_at for run in offered if run.ready_at is not None), default=None)


def _updated(runs: Sequence[Run], changed: Sequence[Run]) -> list[Run]:
    known = {run.id: run for run in changed}
    return [known.get(run.id, run) for run in runs]


def _request(chance: random.Random) -> ClaimRequest:
    return ClaimRequest(
        id=f'claim-{chance.randrange(9)}"',
        worker=chance.choice(WORKERS),
        types=tuple(chance.sample((*TYPES, "unknown"), chance.randint(1, 5))),
        limit=chance.choice((1, 2, 5, 12, 30)),
        lease=LEASE,
        python=CLAIMERS_PYTHON,
        may_suspect=chance.random() < 0.6,
        shares=Shares(since_new=chance.randrange(SHARE), since_child=chance.randrange(SHARE)),
    )


def _runs(chance: random.Random) -> list[Run]:
    ids = chance.sample([f"{letter}{number:02x}" for letter in "aAzé-" for number in range(40)], chance.randint(1, 60))
    return [_run(chance, run_id) for run_id in ids]


def _run(chance: random.Random, run_id: str) -> Run:
    is_held = chance.random() < 0.35
    token = chance.choice((1, 2, 77)) if is_held else chance.choice((0, 0, 0, 1, 5))
    rollback = chance.choice((RunState.FAILED, RunState.CANCELLED)) if token and chance.random() < 0.2 else None
    run = Run(
        id=run_id,
        type=chance.choice(TYPES),
        state=RunState.PENDING,
        payload='{"a":"ü"}',
        created_at=START - chance.randrange(3),
        start_at=START,
        updated_at=START,
        priority=chance.choice(PRIORITIES),
        ready_at=START + chance.choice((-5, -5, 0, 0, 0, 7, 8, 50, 10**9)),
        token=token,
        parent_id=chance.choice((None, None, "parent")),
        rollback=rollback,
        first_claimed_at=START - 9 if token else None,
        python=chance.choice(("3.12.1", 'odd "\x01\x1f\x7f', None)) if token else None,
        attempt=1 + (token > 1),
        crashes=chance.choice((0, 0, 0, 1, 2, 3)) if token else 0,
        arrivals=chance.choice((0, 0, 3)),
        stop=StopRequest.PAUSE if is_held and chance.random() < 0.2 else None,
        suspended_at=chance.choice((None, START - 4)),
    )
    if is_held:
        state = RunState.RUNNING if rollback is None else RunState.ROLLING_BACK
        return replace(run, state=state, worker=chance.choice(WORKERS), claim_id="earlier")
    if rollback is not None:
        return replace(run, state=chance.choice((RunState.ROLLING_BACK, RunState.BLOCKED)))
    states = (RunState.PENDING, RunState.SUSPENDED, RunState.BLOCKED) if token else (RunState.PENDING,)
    asleep = replace(run, ready_at=None) if chance.random() < 0.1 else run
    return replace(asleep, state=chance.choice(states))


async def test_the_language_of_the_server_does_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", LANGUAGE)  # without it on this machine, the server has none
    ids = ["a-b", "aa", "aB", "B", "ab", "I", "é", "z"]
    with RedisServer() as server:
        driver = RedisDriver(server.url, clock=SettableClock())
        await driver.open()
        await place(driver, [a_run(run_id, type=TYPES[place % 2]) for place, run_id in enumerate(ids)])

        found = await driver.claim(replace(_request(random.Random(1)), types=TYPES[:2], limit=20))

        assert [run.id for run in found.runs] == sorted(ids)
        await driver.close()


async def test_the_names_of_lanes_and_types_that_became_empty_are_removed(redis_url: str) -> None:
    clock = SettableClock(START + 7)
    driver = RedisDriver(redis_url, clock=clock)
    await driver.open()
    try:
        runs = [replace(_run(random.Random(1), f"r{number}"), type="order", ready_at=START) for number in range(3)]
        await place(driver, [replace(run, state=RunState.PENDING, worker=None, token=0, crashes=0) for run in runs])
        request = replace(_request(random.Random(1)), types=("order",), limit=10)

        found = await driver.claim(request)

        left = entries_of_all([run_of(one.head.fields) for one in found.runs])
        assert len(found.runs) == 3
        assert lanes_and_types(read_indexes(redis_url).names) == lanes_and_types(left.names)
    finally:
        await driver.close()
