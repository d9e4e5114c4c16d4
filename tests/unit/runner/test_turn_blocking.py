"""The checkpoint of a block writes every fact that was fed, and no request of the code after the last fact."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Break, Context, Continue, Retry
from holdfast.core.checkpoint import Block, Checkpoint, Hold
from holdfast.core.model import Entry, EntryKind, EntryState
from tests.unit.runner.turn_rig import Rig, event, evict_turns, message, step

__all__ = ["evict_turns"]
pytestmark = pytest.mark.usefixtures("evict_turns")


def nothing() -> Any:
    """A body; the rig never calls it."""


async def violate() -> None:
    await asyncio.to_thread(print)


def blocking(rig: Rig) -> Checkpoint:
    """Return the checkpoint of a run that is blocked."""
    assert isinstance(rig.turn.outcome, Block), rig.turn.outcome
    checkpoint = rig.commit()
    assert checkpoint.next == rig.turn.outcome
    return checkpoint


def places(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    return [(entry.location, entry.position) for entry in checkpoint.entries]


def test_an_arrival_is_consumed_and_the_requests_after_it_are_dropped() -> None:
    async def shop(ctx: Context) -> None:
        await ctx.receive("x")
        ctx.version("way", 2)
        ctx.send("somebody", "x")
        ctx.emit("news")
        ctx.start("child.v1")
        (await ctx.start("child.v1")).cancel()
        ctx.set_value("v", 1)
        await violate()

    checkpoint = blocking(Rig(shop, arrivals=(message(1, "x"),)).begin())
    assert (places(checkpoint), checkpoint.consumed) == ([("receive:x", 1)], (1,))
    assert (checkpoint.messages, checkpoint.events, checkpoint.children) == ((), (), ())
    assert (checkpoint.cancels, checkpoint.replies, checkpoint.values) == ((), (), {})
    assert checkpoint.waits == ()


def test_a_reply_since_the_last_fact_is_dropped() -> None:
    async def shop(ctx: Context) -> None:
        (await ctx.receive_message("x")).reply(1)
        await violate()

    checkpoint = blocking(Rig(shop, arrivals=(message(1, "x"),)).begin())
    assert (places(checkpoint), checkpoint.replies) == ([("receive:x", 1)], ())


def test_requests_before_the_last_fact_are_kept() -> None:
    async def shop(ctx: Context) -> None:
        async def after(name: str) -> None:
            await ctx.step(name, nothing)
            ctx.send("somebody", name)
            ctx.start("child.v1")
            ctx.set_value("last", name)
            if name == "b":
                await violate()

        await asyncio.gather(after("a"), after("b"), ctx.step("c", nothing))

    rig = Rig(shop).begin()
    rig.start()
    rig.finish("+1/a").finish("+2/b")
    checkpoint = blocking(rig)
    assert places(checkpoint) == [("+1/a", 1), ("+1/send:a", 2), ("+1/child.v1", 0), ("+2/b", 3)]
    assert [(one.name, len(checkpoint.children)) for one in checkpoint.messages] == [("a", 1)]
    assert checkpoint.values == {"last": '"a"'}


def test_a_failed_attempt_is_recorded() -> None:
    async def shop(ctx: Context) -> None:
        async def risky() -> None:
            await ctx.step("b", nothing)
            await violate()

        await asyncio.gather(ctx.step("a", nothing, retry=Retry(max_attempts=3)), risky())

    rig = Rig(shop).begin()
    rig.start()
    rig.fail("a", OSError("busy")).finish("+2/b")
    checkpoint = blocking(rig)
    told = {entry.location: (entry.state, entry.attempts) for entry in checkpoint.entries}
    assert told == {"a": (EntryState.RETRYING, 1), "+2/b": (EntryState.DONE, 1)}


def test_a_crash_is_charged_together_with_later_facts() -> None:
    async def shop(ctx: Context) -> None:
        async def risky() -> None:
            await ctx.receive("x")
            await violate()

        await asyncio.gather(ctx.step("a", nothing), risky())

    rig = Rig(shop, token=2, crashes=1).begin()
    rig.arrive(message(1, "x"))
    checkpoint = blocking(rig)
    assert checkpoint.charged
    assert {entry.location: entry.attempts for entry in checkpoint.entries} == {"a": 1, "+2/receive:x": 1}


def test_requests_during_the_replay_are_dropped() -> None:
    async def shop(ctx: Context) -> None:
        ctx.emit("news")
        await ctx.step("a", nothing)
        await violate()

    checkpoint = blocking(Rig(shop, entries=(step("a", 1),), token=2).begin())
    assert (checkpoint.entries, checkpoint.events) == ((), ())


def test_the_mark_of_a_loop_is_written_with_its_pruning_and_the_received_events() -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        await ctx.wait_event("news")
        if count == 2:
            await violate()
        return Continue(count + 1)

    async def shop(ctx: Context) -> None:
        await ctx.loop("loop", body, 0, keep=1, every=1)

    rig = Rig(shop).begin()
    rig.arrive(event(1, "news", 1))
    rig.arrive(event(2, "news", 2))
    rig.arrive(event(3, "news", 3))
    checkpoint = blocking(rig)
    assert [location for location, _ in places(checkpoint)] == [
        "loop/~1/event:news",
        "loop/~2",
        "~events",
        "loop/~2/event:news",
        "loop/~3",
        "loop/~3/event:news",
    ]
    assert checkpoint.pruned == ("loop/~1",)
    assert checkpoint.consumed == (1, 2, 3)


def test_nothing_is_pruned_where_the_code_skipped_an_entry() -> None:
    async def body(ctx: Context, count: int) -> Continue[int]:
        await ctx.receive("go")
        return Continue(count + 1)

    async def shop(ctx: Context) -> None:
        await ctx.loop("loop", body, 0, keep=1, every=1)

    entries = (
        step("loop/~1/charge", 1),
        Entry(location="loop/~1/receive:go", kind=EntryKind.MESSAGE, state=EntryState.TIMED_OUT, position=2),
    )
    rig = Rig(shop, entries=entries, token=2, strict=False).begin()
    rig.arrive(message(1, "go"))
    assert blocking(rig).pruned == ()


def test_more_children_than_one_checkpoint_takes_are_written_before_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runner.pending_checkpoint.CHILDREN_AT_ONCE", 3)

    async def shop(ctx: Context) -> None:
        async def many() -> None:
            await ctx.step("a", nothing)
            for _ in range(5):
                ctx.start("child.v1")

        async def risky() -> None:
            await ctx.step("b", nothing)
            ctx.start("child.v1")
            await violate()

        await asyncio.gather(many(), risky())

    rig = Rig(shop).begin()
    rig.start()
    rig.finish("+1/a").finish("+2/b")
    first = rig.commit()
    assert (type(first.next), len(first.children)) == (Hold, 3)
    assert {"+1/a", "+2/b"} < {entry.location for entry in first.entries}
    assert len(blocking(rig).children) == 2
