"""Connections are cut around commits: a committed call is not executed again, and an uncommitted one is not lost.

`HOLDFAST_PROCESS_SECONDS` makes it last longer, with more cuts in proportion.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast import Holdfast, RunState, StoreUnavailable
from holdfast.testing.patience import GUARD_SECONDS, until
from holdfast.worker import leases
from tests.duration import lasting
from tests.faults.app import Post, letters, watch
from tests.faults.statements import COMMIT, STATEMENTS
from tests.postgres import PostgresProxy

SECONDS = float(os.environ.get("HOLDFAST_PROCESS_SECONDS", "8"))
ROUNDS = round(SECONDS / 8 * 3)

CUTS = {name: round(SECONDS / 8 * (1 if name == "renew" else 8)) for name in STATEMENTS}
"""Number of cuts of each statement before its commit, and as many after it; there are few heartbeats."""

around = pytest.mark.parametrize("before", [True, False], ids=["before", "after"])


class Scissors:
    """Cuts the next connection that carries a certain statement."""

    def __init__(self, proxy: PostgresProxy, *, before: bool) -> None:
        self._proxy = proxy
        self._before = before

    @contextmanager
    def __call__(self, statement: str = COMMIT) -> Iterator[None]:
        rule = self._proxy.cut_around_commit(statement, before=self._before)
        yield
        assert rule.hits == 1


@around
async def test_a_start_that_is_cut_off_exists_once_and_counts_as_new(
    proxy: PostgresProxy, hf: Holdfast, *, before: bool
) -> None:
    cut = Scissors(proxy, before=before)
    for number in range(ROUNDS):
        with cut(STATEMENTS["create"]):
            run = await hf.start(letters, 0, key=f"one-{number}")
        with cut(STATEMENTS["create"]):
            runs = await hf.start_many(letters, [(0,)] * 3, keys=[f"many-{number}-{part}" for part in range(3)])

        assert all(one.created for one in (run, *runs))
        again = await hf.start(letters, 0, key=f"one-{number}")
        assert (again.id, again.created) == (run.id, False)
    assert len([info async for info in hf.list()]) == ROUNDS * 4


@around
async def test_messages_that_are_cut_off_arrive_once_and_in_order(
    proxy: PostgresProxy, hf: Holdfast, *, before: bool
) -> None:
    cut = Scissors(proxy, before=before)
    words = [f"word {number}" for number in range(ROUNDS * 3)]
    run = await hf.start(letters, len(words))
    for word in words:
        with cut():
            await run.send("word", word)
    async with hf.worker():
        assert await run.result(timeout=GUARD_SECONDS) == words


@around
async def test_events_that_are_cut_off_reach_all_waiters_once(
    proxy: PostgresProxy, hf: Holdfast, *, before: bool
) -> None:
    cut = Scissors(proxy, before=before)
    runs = {number: await hf.start_many(watch, [(f"topic-{number}",)] * 2) for number in range(ROUNDS)}
    async with hf.worker() as worker:
        await worker.run_until_idle()
        for number in range(ROUNDS):
            # No other commits happen meanwhile: the worker is idle.
            with cut():
                assert await hf.emit(f"topic-{number}", number) == 2
            assert [await run.result(timeout=GUARD_SECONDS) for run in runs[number]] == [number] * 2
            assert await hf.emit(f"topic-{number}", "nobody waits") == 0


@around
async def test_control_requests_that_are_cut_off_take_effect_once(
    proxy: PostgresProxy, hf: Holdfast, *, before: bool
) -> None:
    cut = Scissors(proxy, before=before)
    for _ in range(ROUNDS):
        run = await hf.start(letters, 1)
        with cut():
            assert await run.pause("a moment")
        with cut():
            assert await run.resume()
        with cut():
            assert await run.cancel("no longer wanted")

        assert (await run.info()).state is RunState.CANCELLED
        assert [fact.event for fact in await run.audit()] == ["created", "paused", "resumed", "cancelled"]


@around
async def test_a_start_that_is_cut_off_goes_to_the_worker_it_was_leased_to(
    proxy: PostgresProxy, hf: Holdfast, *, before: bool
) -> None:
    cut = Scissors(proxy, before=before)
    async with hf.worker() as worker:
        for _ in range(ROUNDS):
            await worker.run_until_idle()  # so that it takes the run at the moment it is created
            with cut(STATEMENTS["create"]):
                run = await hf.start(letters, 0)

            assert await run.result(timeout=GUARD_SECONDS) == []
            assert [fact.event for fact in await run.audit()] == ["created", "claimed", "succeeded"]


async def test_a_start_whose_producer_gave_up_is_not_lost_for_its_worker(proxy: PostgresProxy, hf: Holdfast) -> None:
    async with hf.worker() as worker:
        await worker.run_until_idle()  # so that it takes the run at the moment it is created
        rule = proxy.cut_around_commit(STATEMENTS["create"], before=False, count=100)
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await hf.start(letters, 0, key="k")
        rule.end()

        assert await hf.run(key="k").result(timeout=GUARD_SECONDS) == []

    assert rule.hits >= 3
    info = await hf.run(key="k").info()
    assert (info.state, info.attempt) == (RunState.SUCCEEDED, 1)
    assert [fact.event for fact in await hf.run(key="k").audit()] == ["created", "claimed", "succeeded"]


def some_of(statement: str) -> Callable[[str], bool]:
    """Match every third of these statements, so that the repetition usually succeeds."""
    pattern = re.compile(statement, re.IGNORECASE)
    numbers = itertools.count(1)
    return lambda text: pattern.search(text) is not None and next(numbers) % 3 == 0


@lasting(SECONDS)
async def test_nothing_is_lost_or_duplicated_under_load(
    proxy: PostgresProxy, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LONGEST_PAUSE_SECONDS", 1.0)  # so that there are heartbeats to cut
    post = Post(hf)
    async with hf.worker(concurrency=50), post.sending():
        rules = [
            proxy.cut_around_commit(some_of(statement), before=before, count=CUTS[name])
            for name, statement in STATEMENTS.items()
            for before in (True, False)
        ]
        await until("all cuts are made", lambda: sum(rule.hits for rule in rules) == 2 * sum(CUTS.values()))

    await post.check()
    cuts = sum(rule.hits for rule in rules)
    sys.stdout.write(f"figure: {cuts} cuts, {len(post.runs)} runs: 0 duplicates, 0 losses\n")
