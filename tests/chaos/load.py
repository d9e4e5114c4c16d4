"""The load: workflows that together use every feature of a run, and log what their bodies did.

Their workers die far more often than real ones, so the crash loop limit is disabled here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Context, Registry, Retry, Rollback, step_info
from tests.chaos import till
from tests.process.app import STUBBORN, errand
from tests.process.ledger import Ledger

CRASH_LIMIT = 1_000
HOPELESS_ATTEMPTS = 3
FLAKY = Retry(max_attempts=30, initial=0.3, factor=1, jitter=0)
HOPELESS = Retry(max_attempts=HOPELESS_ATTEMPTS, initial=0.05, factor=1, jitter=0)

CONCURRENCY = {"limited": 3}
"""Maximum number of held runs of a type."""
PER_KEY = {"keyed": ("tenant", 1)}
"""For a type: the tag, and the maximum number of held runs with one value of it."""
RATES = {"rated": (4, 1.0)}
"""For a type: the maximum number of runs that start in a period of this many seconds."""
TICK_SECONDS = 1.0
QUEUES = "queue.*"

workflows = Registry()


async def link(book: str, word: str, seconds: float = 0.02) -> str:
    """Take a moment, and log the arguments."""
    with Ledger(book).execution(word) as mark:
        await asyncio.sleep(seconds)
        return mark


async def falter(book: str, failures: int) -> str:
    """Fail a given number of times."""
    with Ledger(book).execution() as mark:
        if step_info().attempt <= failures:
            raise ConnectionError("not yet")
        return mark


@workflows.workflow("chain", crash_limit=CRASH_LIMIT)
async def chain(ctx: Context, book: str, steps: int, seconds: float = 0.02) -> list[str]:
    """Steps in a row, each of which gets the result of the previous one."""
    marks: list[str] = []
    for _ in range(steps):
        marks.append(await ctx.step("link", link, book, marks[-1] if marks else "-", seconds, retry=STUBBORN))
    return marks


async def short(ctx: Context, book: str) -> str:
    """A single step."""
    return await ctx.step("link", link, book, "-", 0.05, retry=STUBBORN)


# A limited type, a type limited per tenant, a type with a rate, and the type of a schedule.
limited = workflows.workflow("limited", crash_limit=CRASH_LIMIT)(short)
keyed = workflows.workflow("keyed", crash_limit=CRASH_LIMIT)(short)
rated = workflows.workflow("rated", crash_limit=CRASH_LIMIT)(short)
tick = workflows.workflow("tick", crash_limit=CRASH_LIMIT)(short)


@workflows.workflow("letters", crash_limit=CRASH_LIMIT)
async def letters(ctx: Context, count: int) -> list[tuple[str, Any]]:
    """Receive all messages, of either name."""
    return [await ctx.receive(["a", "b"]) for _ in range(count)]


@workflows.workflow("gossip", crash_limit=CRASH_LIMIT)
async def gossip(ctx: Context, book: str, run_id: str, count: int) -> int:
    """Send several messages to another run."""
    for number in range(count):
        await ctx.send(run_id, "ab"[number % 2], number // 2)
        if number % 3 == 0:
            await short(ctx, book)
    return count


@workflows.workflow("watch", crash_limit=CRASH_LIMIT)
async def watch(ctx: Context, topic: str, count: int) -> list[Any]:
    """Receive the next events of a topic."""
    return [await ctx.wait_event(topic) for _ in range(count)]


@workflows.workflow("sleeper", crash_limit=CRASH_LIMIT)
async def sleeper(ctx: Context, book: str, lengths: list[float]) -> int:
    """Sleep, and log after each sleep when it should have ended."""
    for length in lengths:
        due = ctx.now().timestamp() + length
        await ctx.sleep(length)
        await ctx.step("awake", link, book, f"{due:.6f}", 0.0, retry=STUBBORN)
    return len(lengths)


@workflows.workflow("flaky", crash_limit=CRASH_LIMIT)
async def flaky(ctx: Context, book: str, failures: int) -> str:
    """A step that fails, and succeeds in the end."""
    return await ctx.step("try", falter, book, failures, retry=FLAKY)


@workflows.workflow("hopeless", crash_limit=CRASH_LIMIT)
async def hopeless(ctx: Context, book: str) -> str:
    """A step that uses up its attempts."""
    return await ctx.step("try", falter, book, 1_000, retry=HOPELESS)


@workflows.workflow("trip", crash_limit=CRASH_LIMIT)
async def trip(ctx: Context, book: str, stages: int, waits: bool) -> None:
    """Stages that are undone, because the run fails in the end or is cancelled."""

    async def undo(mark: str) -> str:
        return await link(book, mark)

    for _ in range(stages):
        await ctx.step("stage", link, book, "-", retry=STUBBORN, undo=undo)
    if waits:
        await ctx.receive("go")
    raise Rollback("the trip is off")


@workflows.workflow("clerks", crash_limit=CRASH_LIMIT)
async def clerks(ctx: Context, book: str, url: str, count: int) -> int:
    """Deposits by steps, each of which passes its idempotency key on: for a store without transactions."""
    for number in range(count):
        await ctx.step("deposit", till.deposit, book, url, number, retry=STUBBORN)
    return count


@workflows.task("note", retry=STUBBORN, crash_limit=CRASH_LIMIT)
async def note(book: str) -> str:
    """A task for flows."""
    return await link(book, "-")


@workflows.workflow("host", crash_limit=CRASH_LIMIT)
async def host(ctx: Context, lengths: list[float]) -> Any:
    """A flow as a child."""
    return await ctx.call("flow.naps", {"lengths": lengths})


@workflows.workflow("family", crash_limit=CRASH_LIMIT)
async def family(ctx: Context, book: str, count: int) -> list[int]:
    """Children, two at a time."""
    return await ctx.map(errand, [(book, number) for number in range(count)], limit=2)
