"""The connection to Redis is cut around one request of a session, around each in turn: the result is the same.

The request never reaches the server, or the server carries it out and its answer is lost. Leases last an hour and
workers do not poll. So a run that its worker does not know, or is not told of, would never continue, and the guard
would end the test.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.questions import FindOrphans, ListDeadLetters, Query
from holdfast.stores.redis import redis_store
from holdfast.testing.patience import GUARD_SECONDS, guard
from holdfast.worker.worker import Worker
from tests.duration import lasting
from tests.faults.app import BOOK, insist, parcel, watch, workflows
from tests.plugin.tiers import amount
from tests.proxy import CutMoment
from tests.redis import Namespaces, RedisProxy

PARTS = 4
"""Number of tests that share the requests of a session."""
APART = amount(short=1, long=1, variable="HOLDFAST_REQUESTS_APART")

Outcome = dict[str, Any]


async def open_application(url: str) -> Holdfast:
    hf = Holdfast(url)
    hf.include(workflows)
    await hf.__aenter__()
    return hf


async def begin_work(hf: Holdfast) -> Worker:
    worker = hf._local_workers.make(lease_seconds=3600, poll=None)  # without polling, a lost hint stops the session
    await worker.start()
    return worker


@asynccontextmanager
async def at_work(url: str) -> AsyncIterator[tuple[Holdfast, Worker]]:
    """An application and its worker. Both are started until that succeeds, as a supervisor does."""
    hf = await insist(partial(open_application, url))
    try:
        worker = await insist(partial(begin_work, hf))
        yield hf, worker
        await worker.stop()
    finally:
        await hf.__aexit__(None, None, None)


async def session(url: str) -> None:
    """Start, claim, steps, a message, a child, an event, and the ends: through one worker in one process."""
    async with guard("the session has ended"), at_work(url) as (hf, worker):
        waiting = await insist(partial(hf.start, watch, "passed-1", key="watch"))
        run = await insist(partial(hf.start, parcel, 1, key="parcel"))
        await worker.run_until_idle()
        await insist(partial(run.send, "word", "word 1", id="message"))
        assert await insist(partial(run.result, timeout=GUARD_SECONDS)) == [1, "word 1", 2, 1]
        assert await insist(partial(waiting.result, timeout=GUARD_SECONDS)) == 1


async def outcome_of(url: str) -> Outcome:
    """Return what a session has left, without times and ids."""
    store = redis_store(url)
    await store.open()
    outcome: Outcome = {}
    for details in await store.list(Query(limit=100)):
        run = details.run
        entries = [(one.location, one.kind, one.state, one.attempts) for one in await store.history(run.id)]
        facts = [fact.event for fact in await store.audit(run.id)]
        effects = {location: count for (run_id, location), count in BOOK.effects.items() if run_id == run.id}
        ends = facts.count("created"), facts.count("succeeded")
        assert run.type not in outcome, f"two runs of {run.type}"
        outcome[run.type] = (run.state, run.result, run.crashes, entries, ends, effects, details.waits)
    outcome["orphans"] = list(await store.stats(FindOrphans(limit=10)))
    outcome["dead letters"] = len(await store.catalog(ListDeadLetters(limit=10)))
    await store.close()
    return outcome


@contextmanager
def proxied(namespaces: Namespaces) -> Iterator[tuple[str, RedisProxy]]:
    """A new namespace, directly and through a proxy."""
    with namespaces.lend() as url, RedisProxy(url) as proxy:
        yield url, proxy


@lasting(60 / PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("moment", ["before", "lost"])
async def test_a_cut_around_any_request_of_a_session_changes_nothing(
    redis_namespaces: Namespaces, moment: CutMoment, part: int
) -> None:
    with proxied(redis_namespaces) as (url, proxy):
        await session(proxy.url)
        requests, expected = proxy.requests, await outcome_of(url)
    assert all(count == 1 for _, _, _, _, _, effects, _ in list(expected.values())[:3] for count in effects.values())
    cuts = 0
    for number in range(part, requests, PARTS * APART):
        with proxied(redis_namespaces) as (url, proxy):
            rule = proxy.cut_around(lambda _: True, moment, skip=number)
            await session(proxy.url)
            cuts += rule.hits
            # A disturbed session has more requests, and only one that needed fewer has none to cut.
            assert rule.hits == 1 or proxy.requests <= number
            assert await outcome_of(url) == expected, f"request {number}"
    assert cuts > 0
    sys.stdout.write(f"figure: {cuts} of {requests} requests cut, 0 differences\n")
