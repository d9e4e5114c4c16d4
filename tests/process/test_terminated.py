"""A worker that is stopped: running steps have their grace, then every run is given back; no attempt is charged."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime
from functools import partial

import pytest

from holdfast import RunState
from holdfast.app import session_of
from tests.process.app import BodyName, saga, story
from tests.process.crew import LONG_LEASE_SECONDS, Crew, Hand, facts, marks, step

RUNS, PLACES = 60, 8
"""More than the workers have slots for, so that each is busy all the time."""

GRACE_SECONDS = 1.0


@pytest.mark.parametrize(
    ("crew", "body"), [("sqlite", "hang"), ("sqlite", "stick"), ("postgres", "hang")], indirect=["crew"]
)
async def test_a_run_with_a_long_step_is_given_back_after_the_grace(crew: Crew, body: BodyName) -> None:
    crew.lease = LONG_LEASE_SECONDS
    run = await crew.hf.start(story, crew.book, str(crew.gate()), body)
    ended = await crew.hire(grace=GRACE_SECONDS)
    await crew.begun(run, "middle", ended)
    told_at = time.monotonic()
    ended.leave()
    code = await crew.exited(ended)
    took = time.monotonic() - told_at
    after = await run.info()
    given_back_at = datetime.now(UTC)

    crew.gate().touch()
    heir = await crew.hire()
    result = await crew.result(run)

    assert code == 0
    assert took >= GRACE_SECONDS
    assert (after.state, after.worker) == (RunState.PENDING, None)
    assert after.ready_at is not None
    assert after.ready_at <= given_back_at  # claimable before any worker could ask
    assert crew.executions(run, "middle") == [ended.number, heir.number]
    assert [deed.attempt for deed in crew.ledger.deeds("began", run.id, "middle")] == [1, 1]
    assert (await step(run, "middle")).attempts == 1
    assert [fact.event for fact in await run.audit()] == ["created", "claimed", "released", "claimed", "succeeded"]
    assert not [fact for fact in await facts(run, "claimed") if "lost" in fact.data]
    assert result == list((await marks(run)).values())


async def test_the_body_of_a_long_step_is_cancelled_when_the_grace_is_over(crew: Crew) -> None:
    run = await crew.hf.start(story, crew.book, str(crew.gate()), "hang")
    ended = await crew.hire(grace=0)
    await crew.begun(run, "middle", ended)
    ended.leave()
    await crew.exited(ended)

    assert [deed.location for deed in crew.ledger.deeds("cancelled", run.id)] == ["middle"]


async def test_a_step_that_ends_within_the_grace_is_recorded(crew: Crew) -> None:
    run = await crew.hf.start(story, crew.book, str(crew.gate()))
    ended = await crew.hire(grace=LONG_LEASE_SECONDS)
    await crew.begun(run, "middle", ended)
    ended.leave()
    await crew.said(ended, "no more claims")
    crew.gate().touch()
    code = await crew.exited(ended)
    recorded = await marks(run)

    heir = await crew.hire()
    result = await crew.result(run)

    assert code == 0
    assert list(recorded) == ["first", "middle"]
    assert result[:2] == list(recorded.values())
    assert crew.executions(run, "middle") == [ended.number]
    assert crew.executions(run, "last") == [heir.number]
    assert not [fact for fact in await facts(run, "claimed") if "lost" in fact.data]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_grace_at_once(crew: Crew, second: signal.Signals) -> None:
    run = await crew.hf.start(story, crew.book, str(crew.gate()))
    ended = await crew.hire(grace=LONG_LEASE_SECONDS)
    await crew.begun(run, "middle", ended)
    ended.leave()
    await crew.said(ended, "no more claims")
    ended.signal(second)

    assert await crew.exited(ended) == 0
    assert [fact.event for fact in await run.audit()] == ["created", "claimed", "released"]
    assert await session_of(crew.hf).store.workers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_worker_ends_at_once(crew: Crew, number: signal.Signals) -> None:
    idle = await crew.hire()
    idle.signal(number)

    assert await crew.exited(idle) == 0
    assert await session_of(crew.hf).store.workers() == []


async def test_a_rolling_restart_repeats_nothing_and_charges_nothing(crew: Crew) -> None:
    crew.lease = LONG_LEASE_SECONDS
    runs = await crew.hf.start_many(saga, [(crew.book, number) for number in range(RUNS)])
    for run in runs:
        for word in ("one", "two"):
            await run.send("word", word)
    old = [await crew.hire(concurrency=PLACES, grace=LONG_LEASE_SECONDS) for _ in range(2)]
    for worker in old:
        await crew.until("it is in the midst of it", partial(is_executing, crew, worker))
        worker.leave()
        await crew.hire(concurrency=PLACES)
        assert await crew.exited(worker) == 0

    tales = await crew.results(runs)

    assert [(tale.words, tale.answer) for tale in tales] == [(["one", "two"], number * 2) for number in range(RUNS)]
    began = crew.ledger.deeds("began")
    assert len({(deed.run_id, deed.location) for deed in began}) == len(began)
    assert {hand.pid for hand in crew.hands} == {deed.pid for deed in began}
    async for info in crew.hf.list():
        assert info.attempt == 1


def is_executing(crew: Crew, hand: Hand) -> bool:
    began, ended = (sum(deed.pid == hand.pid for deed in crew.ledger.deeds(what)) for what in ("began", "ended"))
    return began > ended + 2
