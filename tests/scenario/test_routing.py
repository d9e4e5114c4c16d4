"""Routing: a worker takes the runs that match its patterns. Every character of a type name is literal."""

from __future__ import annotations

import logging

import pytest

from holdfast import Holdfast, RunState
from holdfast.app import session_of
from holdfast.core.questions import CountRuns
from tests.stage import Stage, complaints

TYPES = [
    "billing",
    "billing.a",
    "billing.a.b",
    "billing_x",
    "billing%",
    "billings.a",
    "Billing.a",
    "bill%.a",
    "b_lling.a",
]


@pytest.fixture
def hf(stage: Stage) -> Holdfast:
    """An application with all of the types."""
    hf = Holdfast(store=stage.store())
    for type in TYPES:
        hf.task(type)(lambda: None)
    return hf


@pytest.mark.parametrize(
    ("patterns", "taken"),
    [
        (["billing.*"], {"billing.a", "billing.a.b"}),
        (["billing.a"], {"billing.a"}),
        (["billing.a.*", "billing"], {"billing.a.b", "billing"}),
        (["bill%.*"], {"bill%.a"}),
        (["b_lling.*"], {"b_lling.a"}),
        (["billing%", "billing_x"], {"billing%", "billing_x"}),
        (["billing.*", "billing.a"], {"billing.a", "billing.a.b"}),
        (None, set(TYPES)),
    ],
)
async def test_a_worker_takes_runs_that_match_its_patterns_and_nothing_else(
    hf: Holdfast, patterns: list[str] | None, taken: set[str]
) -> None:
    async with hf:
        for type in TYPES:
            await hf.start(type)
        await hf.worker(patterns).run_until_idle()

        assert {info.type async for info in hf.list(state=RunState.SUCCEEDED)} == taken
        assert {info.type async for info in hf.list(state=RunState.PENDING)} == set(TYPES) - taken


@pytest.mark.parametrize("pattern", ["*", "billing*", "b%", "billing.", "bil.*", "%.*", "_illing.*"])
async def test_a_worker_whose_patterns_match_nothing_says_so_and_takes_nothing(
    hf: Holdfast, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with hf:
        for type in TYPES:
            await hf.start(type)
        with caplog.at_level(logging.WARNING):
            await hf.worker([pattern], name="wally").run_until_idle()

        assert complaints(caplog) == [
            f"worker wally has no registered type that matches {pattern}; it claims nothing until one is registered"
        ]
        assert await session_of(hf).store.stats(CountRuns()) == {type: {RunState.PENDING: 1} for type in sorted(TYPES)}


async def test_two_workers_share_the_load_by_type(hf: Holdfast) -> None:
    async with hf:
        for type in TYPES:
            await hf.start(type)
        orphan = await hf.start("billing_x")
        async with hf.worker(["billing.*"], name="a"), hf.worker(["billing", "bill%.*"], name="b"):
            for type in ("billing.a.b", "bill%.a"):
                await hf.execute(type)
            told = {worker.name: set(worker.types) for worker in await session_of(hf).store.workers()}
            why = await orphan.explain()

        assert told == {"a": {"billing.a", "billing.a.b"}, "b": {"billing", "bill%.a"}}
        assert "but none of the 2 workers that are running handles type billing_x; start one that does" in why
