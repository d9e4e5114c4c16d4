"""What runs do while the database, or the way to it, breaks: a little of everything, each effect in a book.

Nobody's worker dies here. So every effect happens exactly once, whatever becomes of connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from holdfast import Context, Holdfast, Registry, RunHandle, RunState, StoreUnavailable, step_info

LIMIT_SECONDS = 30.0
"""How long anything may take, on a machine that is busy with other things too."""

workflows = Registry()

T = TypeVar("T")


class Book:
    """The effects of step bodies, counted by run and location."""

    def __init__(self) -> None:
        self.effects: Counter[tuple[str, str]] = Counter()

    def note(self) -> int:
        info = step_info()
        self.effects[info.run_id, info.location] += 1
        return info.attempt


BOOK = Book()
"""Of the workers in this process."""


async def work(number: int) -> int:
    BOOK.note()
    await asyncio.sleep(0)
    return number


@workflows.workflow("parcel")
async def parcel(ctx: Context, number: int) -> list[Any]:
    """Steps, a message, an event, a child and a word to it, and a sleep that suspends."""
    first = await ctx.step("first", work, number)
    word = await ctx.receive("word", type=str)
    child = await ctx.call(errand, number)
    await ctx.emit(f"passed-{number % 7}", number)
    last = await ctx.step("last", work, number)
    return [first, word, child, last]


@workflows.workflow("errand")
async def errand(ctx: Context, number: int) -> int:
    """One step for a parent."""
    return await ctx.step("there", work, number) * 2


@workflows.workflow("watch")
async def watch(ctx: Context, topic: str) -> Any:
    """Wait for an event."""
    return await ctx.wait_event(topic)


@workflows.workflow("letters")
async def letters(ctx: Context, count: int) -> list[str]:
    """All that it is sent, in order."""
    return [await ctx.receive("word", type=str) for _ in range(count)]


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """What a producer does that must not lose anything: the same again, with the same key, until it is accepted."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            try:
                return await act()
            except StoreUnavailable:
                await asyncio.sleep(0.02)


async def until(is_so: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.005)


def expected(number: int) -> list[Any]:
    """What the parcel of this number comes to."""
    return [number, f"word {number}", number * 2, number]


async def check_parcels(hf: Holdfast, runs: Sequence[RunHandle[list[Any]]], before: Counter[tuple[str, str]]) -> None:
    """Each ended once, was never lost, and had each effect exactly once; and nothing else was ever started."""
    effects = BOOK.effects - before
    children: list[str] = []
    for run in runs:
        info = await run.info()
        assert (info.state, info.attempt) == (RunState.SUCCEEDED, 1), [
            (f.event, f.at.isoformat(), f.data) for f in await run.audit()
        ]
        facts = [fact.event for fact in await run.audit()]
        assert facts.count("succeeded") == 1
        (child,) = [info async for info in hf.list(parent_id=run.id)]
        assert (child.state, child.attempt) == (RunState.SUCCEEDED, 1)
        children.append(child.id)
    wanted = Counter({(run.id, place): 1 for run in runs for place in ("first", "last")})
    wanted.update({(child, "there"): 1 for child in children})
    assert effects == wanted
    assert await hf.store.orphans(10) == []
