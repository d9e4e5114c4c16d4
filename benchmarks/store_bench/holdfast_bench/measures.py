"""Measures: workloads that measure a store on this machine and disk.

Each workload returns samples. The caller decides how many samples to take and how to report them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from holdfast.app import Holdfast
from holdfast.runner.context import Context
from holdfast.runner.registry import Registry

FIVE = 5

_AT_ONCE = 400
_IN_BULK = 1_000
_IN_A_ROW = 40
_WAITING = 10
_POLL_SECONDS = 0.01
_LATER = timedelta(days=1)

Work = Callable[[Holdfast], Awaitable[list[float]]]

registry = Registry()


@registry.step
async def count_up(number: int) -> int:
    return number + 1


@registry.workflow("bench.one.v1")
async def one_step(ctx: Context) -> int:
    return await count_up(0)


@registry.workflow("bench.many.v1")
async def many_steps(ctx: Context, count: int) -> int:
    number = 0
    while number < count:
        number = await count_up(number)
    return number


@registry.workflow("bench.wait.v1")
async def wait_for_message(ctx: Context) -> None:
    await ctx.receive("go")


@dataclass(frozen=True)
class Measure:
    """A measurement: in seconds, or for a rate in units per second."""

    name: str
    what: str
    work: Work
    is_rate: bool = False

    @property
    def unit(self) -> str:
        return "a second" if self.is_rate else "ms"

    def text_of(self, value: float) -> str:
        """Format a figure in that unit."""
        return f"{value:,.0f}" if self.is_rate else f"{value * 1e3:,.2f}"


@dataclass(frozen=True)
class Figure:
    """The result of a measurement: the median, the best and the worst of all samples."""

    measure: Measure
    samples: Sequence[float]

    @property
    def middle(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return (max if self.measure.is_rate else min)(self.samples)

    @property
    def worst(self) -> float:
        return (min if self.measure.is_rate else max)(self.samples)


async def steps_at_once(hf: Holdfast) -> list[float]:
    """Measure the steps per second of many workflows of five steps, from the first start to the last result."""
    started = time.perf_counter()
    runs = await hf.start_many(many_steps, [(FIVE,) for _ in range(_AT_ONCE)])
    await asyncio.gather(*(run.result() for run in runs))
    return [_AT_ONCE * FIVE / (time.perf_counter() - started)]


async def steps_in_a_row(hf: Holdfast) -> list[float]:
    """Measure one step after another in one run."""
    return [await seconds(hf.execute(many_steps, _IN_A_ROW)) / _IN_A_ROW]


async def starts(hf: Holdfast) -> list[float]:
    """Measure the time from the start of a one-step run to its result."""
    return [await seconds(hf.execute(one_step)) for _ in range(_WAITING)]


async def messages(hf: Holdfast) -> list[float]:
    """Measure the time from a message to the result of the suspended run that waited for it."""
    runs = await hf.start_many(wait_for_message, [() for _ in range(_WAITING)])
    await all_suspended(hf, wait_for_message.type)

    async def go(number: int) -> None:
        await runs[number].send("go")
        await runs[number].result()

    return [await seconds(go(number)) for number in range(_WAITING)]


async def starts_in_bulk(hf: Holdfast) -> list[float]:
    """Measure the number of runs per second that one call starts."""
    took = await seconds(hf.start_many(one_step, [() for _ in range(_IN_BULK)], delay=_LATER))
    return [_IN_BULK / took]


MEASURES = (
    Measure("steps_per_second", "steps of many workflows at once", steps_at_once, is_rate=True),
    Measure("step_seconds", "one step after another", steps_in_a_row),
    Measure("start_seconds", "start to result of a one-step run", starts),
    Measure("message_seconds", "message to result of a waiting run", messages),
    Measure("starts_per_second", "starts, a thousand per call", starts_in_bulk, is_rate=True),
)


async def take_samples(hf: Holdfast, measure: Measure, length: float) -> Figure:
    """Take samples for about `length` seconds, after one round of warm-up."""
    await measure.work(hf)
    samples: list[float] = []
    for _ in until(time.perf_counter() + length):
        samples += await measure.work(hf)
    return Figure(measure, samples)


def until(end: float) -> Iterator[None]:
    """Yield once, and then until the time is over."""
    yield
    while time.perf_counter() < end:
        yield


async def seconds(work: Awaitable[object]) -> float:
    """Return the duration of an awaitable, in seconds."""
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def all_suspended(hf: Holdfast, type: str) -> None:
    """Wait until all runs of a type are suspended."""
    # Poll, because nothing reports it.
    while [run async for run in hf.list(type=type, state=["pending", "running"], limit=1)]:
        await asyncio.sleep(_POLL_SECONDS)
