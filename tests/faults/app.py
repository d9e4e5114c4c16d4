"""Runs for tests with broken databases or connections: they use every feature, and log each effect.

No worker dies here. So every effect happens exactly once, whatever happens to connections.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from holdfast import Context, Holdfast, Registry, RunHandle, RunState, StoreUnavailable, step_info
from holdfast.app import session_of
from holdfast.core.questions import CountRuns, FindOrphans
from holdfast.testing.patience import guard

workflows = Registry()

T = TypeVar("T")


class Book:
    """The effects of step bodies, counted by run and location."""

    def __init__(self) -> None:
        self.effects: Counter[tuple[str, str]] = Counter()
        self.rest: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)
        """An awaitable that a body awaits after its effect."""

    def note(self) -> int:
        info = step_info()
        self.effects[info.run_id, info.location] += 1
        return info.attempt


BOOK = Book()
"""The log of the workers in this process."""


async def work(number: int) -> int:
    BOOK.note()
    await BOOK.rest()
    return number


@workflows.workflow("parcel")
async def parcel(ctx: Context, number: int) -> list[Any]:
    """Steps, a message, an event, a child and a message to it, and a sleep that suspends."""
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
    """Receive all messages, in order."""
    return [await ctx.receive("word", type=str) for _ in range(count)]


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that is safe to repeat until the store answers, as a careful producer does."""
    async with guard("the store accepts what is asked for"):
        while True:
            try:
                return await act()
            except StoreUnavailable:
                await asyncio.sleep(0.02)


def expected(number: int) -> list[Any]:
    """Return the expected result of the parcel of this number."""
    return [number, f"word {number}", number * 2, number]


class Post:
    """Sends parcels, continuously or up to a number, until it is stopped; then checks their outcomes."""

    def __init__(self, hf: Holdfast, count: float = math.inf) -> None:
        self._hf = hf
        self._count = count
        self._earlier = Counter(BOOK.effects)
        self._is_over = False
        self.runs: list[RunHandle[list[Any]]] = []

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send during the block; afterwards, wait for all results."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send())
            try:
                yield
            finally:
                self._is_over = True
        async with guard(f"{len(self.runs)} runs have ended"):
            results = await asyncio.gather(*(insist(run.result) for run in self.runs))
        assert results == [expected(number) for number in range(len(results))]

    async def _send(self) -> None:
        while not self._is_over and len(self.runs) < self._count:
            number = len(self.runs)
            run = await insist(partial(self._hf.start, parcel, number, key=f"parcel {number}"))
            self.runs.append(run)
            await insist(partial(run.send, "word", f"word {number}", id=f"message {number}"))
            await asyncio.sleep(0.002)

    async def check(self, *, may_be_late: bool = False) -> None:
        """Check that each run ended once, none was lost or started twice, and each effect happened exactly once.

        Unless it `may_be_late`, no run was ever taken over from a live worker.
        """
        children: list[str] = []
        for run in self.runs:
            assert [fact.event for fact in await run.audit()].count("succeeded") == 1
            (child,) = [info async for info in self._hf.list(parent_id=run.id)]
            children.append(child.id)
            for info in (await run.info(), child):
                assert info.state is RunState.SUCCEEDED
                assert info.attempt == 1 or may_be_late
        wanted = Counter({(run.id, place): 1 for run in self.runs for place in ("first", "last")})
        wanted.update({(child, "there"): 1 for child in children})
        assert BOOK.effects - self._earlier == wanted
        assert (await session_of(self._hf).store.stats(CountRuns()))["parcel"] == {RunState.SUCCEEDED: len(self.runs)}
        assert await session_of(self._hf).store.stats(FindOrphans(limit=10)) == []
