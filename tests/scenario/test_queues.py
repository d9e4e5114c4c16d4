"""Queues: an event of a queue topic is delivered to exactly one run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from holdfast import Context, InvalidRequest, Registry, RunState, WaitTimeout
from holdfast.app import session_of
from holdfast.core.ports import Store
from holdfast.testing.faults import FaultyStore
from holdfast.typing import TopicInfo
from tests.rows import each_row
from tests.stage import Stage, facts

pytestmark = pytest.mark.every_store

app = Registry()


@app.workflow
async def consume(ctx: Context, count: int) -> list[Any]:
    return [await ctx.wait_event("jobs") for _ in range(count)]


@app.workflow
async def consume_in_time(ctx: Context, seconds: float) -> Any:
    try:
        return await ctx.wait_event("jobs", timeout=seconds)
    except WaitTimeout:
        return "late"


@app.workflow
async def choosy(ctx: Context) -> list[Any]:
    """Wait for a job or a message. After a message, do something else for a while, then wait for a job again."""
    job = asyncio.create_task(ctx.wait_event("jobs"))
    stop = asyncio.create_task(ctx.receive("stop"))
    done, pending = await asyncio.wait({job, stop}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if job in done:
        return [job.result()]
    await ctx.sleep(3600)
    return [stop.result(), await ctx.wait_event("jobs")]


@app.workflow
async def consume_two_at_once(ctx: Context) -> list[Any]:
    return list(await asyncio.gather(ctx.wait_event("jobs"), ctx.wait_event("jobs")))


async def test_each_queue_event_goes_to_the_run_that_waits_longest(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        runs = []
        for _ in range(3):
            runs.append(await h.start(consume, 1))
            await h.settle()
            await h.advance(1)

        assert [await h.emit("jobs", number) for number in range(4)] == [1, 1, 1, 0]

        assert [await run.result() for run in runs] == [[0], [1], [2]]
        assert await h.execute(consume, 1) == [3]


async def test_a_queue_is_consumed_in_order(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        for number in range(5):
            await h.emit("jobs", number)
        await h.advance(60)

        run = await h.start(consume, 5)

        assert await run.result() == [0, 1, 2, 3, 4]
        assert await facts(run) == [f"event:jobs{n} event done" for n in ("", "#2", "#3", "#4", "#5")]


async def test_consumers_share_the_work_and_no_event_is_consumed_twice(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jo*", mode="queue")
        runs = [await h.start(consume, 5) for _ in range(4)]
        for number in range(20):
            await h.emit("jobs", number)

        results = [cast("list[int]", await run.result()) for run in runs]

        assert sorted(job for result in results for job in result) == list(range(20))


async def test_two_waits_of_one_run_get_two_events(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        run = await h.start(consume_two_at_once)
        await h.settle()
        for number in range(2):
            await h.emit("jobs", number)

        assert sorted(await run.result()) == [0, 1]


async def test_a_run_whose_wait_timed_out_takes_nothing(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        assert await h.execute(consume_in_time, 60.0) == "late"

        assert await h.emit("jobs", 1) == 0

        assert await h.execute(consume, 1) == [1]


async def test_a_cancelled_run_hands_its_event_to_the_next(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        first = await h.start(consume, 1)
        await h.settle()
        await h.stop_worker()
        await h.emit("jobs", "precious")
        second = await h.start(consume, 1)

        await first.cancel()
        await h.start_worker()

        assert await second.result() == ["precious"]


async def test_an_event_handed_to_a_run_that_took_a_message_instead_goes_to_the_next(stage: Stage) -> None:
    """The message came first; both are there when the run wakes up."""
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        run = await h.start(choosy)
        await h.settle()
        await h.stop_worker()
        await run.send("stop", "stopped")
        await h.advance(1)
        assert await h.emit("jobs", "first") == 1
        await h.start_worker()
        await h.settle()

        assert await h.execute(consume, 1) == ["first"]

        await h.emit("jobs", "second")
        assert await run.result() == ["stopped", "second"]


@pytest.mark.parametrize("seconds", [0, 0.02], ids=["without hint", "with hint"])
async def test_an_event_that_comes_while_a_run_withdraws_its_wait_does_not_keep_it_awake(
    stage: Stage, seconds: float
) -> None:
    """T4: the checkpoint that withdraws the wait and suspends is on its way; its holder may learn of the event."""
    async with stage.harness(app, wrap=FaultyStore) as h:
        store = cast("FaultyStore", session_of(h).store)
        await h.topics.set("jobs", mode="queue")
        run = await h.start(choosy)
        await h.settle()

        async def emit_meanwhile() -> None:
            assert await h.emit("jobs", "once") == 1
            await asyncio.sleep(seconds)

        store.interpose("checkpoint", emit_meanwhile)
        await run.send("stop", "stopped")
        await h.settle()

        assert (await run.info()).state is RunState.SUSPENDED
        assert await h.execute(consume, 1) == ["once"]
        await h.emit("jobs", "twice")
        assert await run.result() == ["stopped", "twice"]


@pytest.mark.parametrize("seconds", [0, 0.02], ids=["without hint", "with hint"])
async def test_an_event_that_comes_while_its_wait_is_being_withdrawn_is_not_taken_twice(
    stage: Stage, seconds: float
) -> None:
    """The run stays held and waits for an event again later: not for the one that went to another run meanwhile."""
    local = Registry()
    local.include(app)

    async def emit_meanwhile() -> None:
        assert await h.emit("jobs", "once") == 1
        await asyncio.sleep(seconds)

    async def step() -> None:
        cast("FaultyStore", session_of(h).store).interpose("checkpoint", emit_meanwhile)

    async def other() -> None: ...

    @local.workflow("main")
    async def main(ctx: Context) -> Any:
        job = asyncio.create_task(ctx.wait_event("jobs"))
        await asyncio.sleep(0)  # it waits now
        await ctx.step("before", other)
        await ctx.step("step", step)
        job.cancel()
        await ctx.step("other", other)
        return await ctx.wait_event("jobs")

    async with stage.harness(local, wrap=FaultyStore) as h:
        await h.topics.set("jobs", mode="queue")
        run = await h.start("main")
        await h.settle()
        consumer = await h.start(consume, 1)
        await h.settle()
        await h.emit("jobs", "twice")

        assert sorted([await run.result(), *await consumer.result()]) == ["once", "twice"]


async def test_a_run_whose_event_was_given_back_stays_suspended(stage: Stage) -> None:
    """T4: an event that the run has not seen and no longer has must not keep it awake."""
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        run = await h.start(choosy)
        await h.settle()
        await h.stop_worker()
        await run.send("stop", 1)
        await h.advance(1)
        await h.emit("jobs", "x")
        await h.start_worker()
        await h.settle()

        info = await run.info()

        assert (info.state, [wait.kind.value for wait in info.waits]) == (RunState.SUSPENDED, ["time"])


async def test_a_rewound_run_gets_its_event_again_and_no_other_run_does(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        await h.emit("jobs", "mine")
        run = await h.start(consume, 1)
        await run.result()
        other = await h.start(consume, 1)
        await h.settle()

        await run.rewind("event:jobs")

        assert await run.result() == ["mine"]
        assert (await other.info()).state is RunState.SUSPENDED


async def test_a_pruned_event_goes_back_to_the_queue_when_its_rewound_run_is_cancelled(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        await h.emit("jobs", "old")
        run = await h.start(consume, 1)
        await run.result()
        await h.advance(timedelta(days=2))
        await prune(session_of(h).store)
        await h.stop_worker()
        await run.rewind("event:jobs")

        await run.cancel()
        await h.start_worker()

        assert await h.execute(consume, 1) == ["old"]


async def test_a_paused_run_is_skipped_until_it_is_resumed(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue")
        run = await h.start(consume, 1)
        await h.settle()
        await run.pause()

        assert await h.emit("jobs", 1) == 0
        await run.resume()

        assert await run.result() == [1]


async def test_the_rules_of_a_topic_can_be_set_one_by_one(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue", retention=timedelta(hours=1))
        await h.topics.set("jobs", max_pending=5)
        await h.topics.set("a*")

        assert await h.topics.list() == [
            TopicInfo(name="a*", mode="fanout", retention=timedelta(days=7), max_pending=10_000),
            TopicInfo(name="jobs", mode="queue", retention=timedelta(hours=1), max_pending=5),
        ]


@each_row(
    ("name", "options", "message"),
    [
        ("", {}, "a topic is a string of 1 to 200"),
        ("x", {"mode": "stack"}, "mode='stack': expected 'fanout' .* or 'queue'"),
        ("x", {"retention": 0}, "retention=0: expected more than 0 seconds"),
        ("x", {"retention": -5}, "retention=-5"),
        ("x", {"retention": float("nan")}, "not a length of time"),
        ("x", {"retention": "1h"}, "retention='1h': expected seconds or a timedelta"),
        ("x", {"max_pending": 0}, "max_pending=0: expected a whole number of events, at least 1"),
        ("x", {"max_pending": True}, "max_pending=True"),
        ("x", {"max_pending": 2.5}, "max_pending=2.5"),
    ],
)
async def test_invalid_rules_are_refused(stage: Stage, name: str, options: dict[str, Any], message: str) -> None:
    async with stage.harness(app) as h:
        with pytest.raises(InvalidRequest, match=message):
            await h.topics.set(name, **options)
        assert await h.topics.list() == []


# Dead letters


async def prune(store: Store) -> None:
    while (await store.prune(10)).has_more:
        pass


async def test_an_event_that_is_not_taken_in_time_becomes_a_dead_letter_and_can_be_replayed(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("jobs", mode="queue", retention=60)
        for number in range(3):
            await h.emit("jobs", {"job": number})
        await h.advance(60)
        await prune(session_of(h).store)
        run = await h.start(consume, 2)
        await h.settle()
        letters = [letter async for letter in h.dead_letters.list()]
        assert [(one.topic, one.payload, one.reason, one.at) for one in letters] == [
            ("jobs", {"job": number}, "expired", h.now) for number in range(3)
        ]

        assert await h.dead_letters.replay([letter.number for letter in letters[:2]]) == 2

        assert await run.result() == [{"job": 0}, {"job": 1}]
        assert [letter.payload async for letter in h.dead_letters.list("jo*")] == [{"job": 2}]


async def test_dead_letters_of_a_topic_are_replayed_or_purged_together(stage: Stage) -> None:
    async with stage.harness(app) as h:
        await h.topics.set("*", mode="queue", retention=60)
        for topic in ("a.1", "a.2", "b"):
            await h.emit(topic, topic)
        await h.advance(60)
        await prune(session_of(h).store)

        assert await h.dead_letters.replay(topic="a.1") == 1
        assert await h.dead_letters.purge(topic="a.*") == 1
        assert [letter.topic async for letter in h.dead_letters.list()] == ["b"]
        assert [letter.topic async for letter in h.dead_letters.list(limit=0)] == []
        assert await h.dead_letters.purge(topic="*") == 1


@each_row("choice", [{}, {"numbers": [1], "topic": "x"}, {"numbers": ["1"]}, {"topic": ""}])
async def test_an_ambiguous_choice_of_dead_letters_is_refused(stage: Stage, choice: dict[str, Any]) -> None:
    async with stage.harness(app) as h:
        for verb in (h.dead_letters.replay, h.dead_letters.purge):
            with pytest.raises(InvalidRequest):
                await verb(**choice)
