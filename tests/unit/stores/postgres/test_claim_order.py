"""Claim order on Postgres: a claim over many lanes returns the runs of the rule, in the same order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from holdfast.core import rules
from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.claim_order import SHARE, Shares, rank_of
from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Run
from holdfast.stores.operations.leases import choose, queue_of
from holdfast.stores.postgres import claims, reads
from holdfast.stores.postgres.scripts import Calls, run_script
from holdfast.testing.contract.clock import START
from tests.duration import lasting
from tests.plugin.tiers import amount
from tests.unit.stores.postgres.database import Place

SEEDS = amount(short=30, long=600)
NOW: Micros = START + 100 * SECOND
TYPES = ("B", "a", "a.b", "b", "b ", "c", "Ö", "ä", "☃", "🦊")
"""Upper case, accents and other alphabets: the order of a language differs from that of code points."""

INSERT = """
    insert into {schema}.runs (id, type, state, priority, start_at, ready_at, worker, token, crashes, parent_id)
    select
        r.id, r.type, 'running', r.priority, 1, {schema}.instant(r.ready_at), r.worker, r.token, r.crashes, r.parent_id
    from json_to_recordset(%s) as r (
        id text, type text, priority smallint, ready_at bigint, worker text, token bigint, crashes integer,
        parent_id text
    )
"""

Row = dict[str, Any]


def a_row(chance: random.Random, types: Sequence[str], priorities: Sequence[int]) -> Row:
    """A run that is ready or not, held or not. Many have the same ready time."""
    token = chance.choice([0, 0, 1, 4])
    worker = chance.choice([None, None, None, "w1", "w2"]) if token else None
    ready_at = chance.choice([*[NOW - chance.randrange(4) * SECOND] * 8, NOW + SECOND, NOW + 2 * SECOND])
    return {
        "id": f"{chance.choice('aAbB')}{chance.getrandbits(40):010x}",
        "type": chance.choice(types),
        "priority": chance.choice(priorities),
        "ready_at": ready_at if worker or chance.random() < 0.9 else None,
        "worker": worker,
        "token": token,
        "crashes": chance.choice([0, 0, 0, 0, 1, 2]) if token else 0,
        "parent_id": chance.choice([None, "p"]),
    }


def a_request(chance: random.Random) -> ClaimRequest:
    return ClaimRequest(
        id="c",
        worker="w1",
        types=tuple(chance.sample(TYPES, chance.choice([1, 3, len(TYPES) - 2]))),
        limit=chance.choice([1, 2, 5, 30]),
        lease=SECOND,
        python="3.11.0",
        may_suspect=chance.random() < 0.7,
        shares=Shares(chance.randrange(SHARE), chance.randrange(SHARE)),
    )


def runs_of(place: Place) -> list[Run]:
    texts = place.all("select row_to_json(r)::text from {schema}.runs_read as r")
    return [msgspec.json.decode(text, type=Run) for text in texts]


def expected(runs: Sequence[Run], request: ClaimRequest) -> tuple[list[str], Micros | None]:
    """Return the runs that the rule gives, and when the next of the others may be claimed."""
    offered = [run for run in runs if run.type in request.types and run.ready_at is not None]
    chosen, _ = choose(queue_of(run for run in offered if rules.is_due(run, NOW)), request, lambda run: run)
    ids = [run.id for run in chosen]
    others = [run.ready_at for run in offered if run.id not in ids and run.worker != request.worker]
    soonest = min((at for at in others if at is not None), default=None)
    return ids, NOW if len(ids) == request.limit else soonest


@pytest.mark.both_tiers
@lasting(SEEDS / 10)
def test_a_claim_returns_the_runs_that_the_rule_gives(place: Place) -> None:
    """S4 for any number of lanes, with ties, suspects and expired leases among them."""
    calls = Calls(place.schema)
    for seed in range(SEEDS):
        chance = random.Random(seed)
        types, priorities = chance.choice([TYPES, TYPES[:2]]), chance.choice([(100,), (0, 100, 255)])
        rows = [a_row(chance, types, priorities) for _ in range(chance.choice([5, 60, 200]))]
        place.execute("delete from {schema}.runs")
        place.execute(INSERT, msgspec.json.encode(rows).decode())
        runs = runs_of(place)
        for _ in range(4):
            request = a_request(chance)
            with place.connection.transaction(force_rollback=True):
                found = run_script(place.connection, claims.claim(calls, request, NOW))

            answer = [lease.run.id for lease in found.leases], found.next_ready_at
            assert answer == expected(runs, request), (seed, request)


def firsts(runs: Sequence[Run], wanted: int, group: Callable[[Run], object]) -> set[str]:
    """Return the first few runs of each group, by priority, ready time and id."""
    groups: dict[object, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.priority, run.ready_at, run.id)):
        groups.setdefault(group(run), []).append(run)
    return {run.id for known in groups.values() for run in known[:wanted]}


@pytest.mark.parametrize("wanted", [1, 2, 6])
def test_the_first_runs_of_each_rank_are_found_in_their_lanes(place: Place, wanted: int) -> None:
    place.execute("set search_path = {schema}, pg_catalog")  # as in the functions that call these
    for seed in range(10):
        chance = random.Random(seed)
        rows = [a_row(chance, TYPES, (0, 100)) for _ in range(chance.choice([20, 200]))]
        place.execute("delete from {schema}.runs")
        place.execute(INSERT, msgspec.json.encode(rows).decode())
        due = [run for run in runs_of(place) if rules.is_due(run, NOW)]
        plain = [run for run in due if not rules.is_suspect(run)]
        suspects = firsts([run for run in due if rules.is_suspect(run)], 2, lambda _: None)

        heads = {*place.all("select id from heads_v1(%s, instant(%s), %s, 0, 2)", [*TYPES], NOW, wanted)}
        found = {*place.all("select id from due_v1(%s, instant(%s), %s, 2)", [*TYPES], NOW, wanted)}

        assert firsts(plain, wanted, lambda run: (run.priority, rank_of(run))) | suspects <= heads
        assert firsts(plain, wanted, rank_of) | suspects == found


def test_the_backlog_counts_every_lane(place: Place) -> None:
    """The backlog skips through the same lanes as a claim."""
    chance = random.Random(1)
    rows = [a_row(chance, TYPES, (0, 100, 255)) for _ in range(300)]
    place.execute(INSERT, msgspec.json.encode(rows).decode())

    found = {one.type: (one.count, one.since) for one in reads.backlog(place.connection, place.schema, NOW)}

    due = [run for run in runs_of(place) if rules.is_due(run, NOW)]
    counted = {type: [run.ready_at or 0 for run in due if run.type == type] for type in TYPES}
    assert found == {type: (len(ready), min(ready)) for type, ready in counted.items() if ready}
