"""The cost of `asyncio.gather` over thousands of children: it grows with their number, not with its square."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, Registry
from tests.figures.stores import STORES, url_of

FEW, MANY = 2_000, 5_000
MOST_TIMES_DEARER = 3.0

families = Registry()


@families.workflow
async def child(ctx: Context, number: int) -> int:
    return number


@families.workflow
async def parent(ctx: Context, count: int) -> int:
    return sum(await asyncio.gather(*(ctx.call(child, number) for number in range(count))))


@pytest.mark.parametrize("store", STORES)
async def test_a_gather_over_children_is_linear(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    hf = Holdfast(url_of(store, tmp_path, request))
    hf.include(families)
    async with hf, hf.worker():
        await seconds_of(hf, 100)  # one-time costs do not count
        few, many = [min([await seconds_of(hf, count) for _ in range(2)]) for count in (FEW, MANY)]

    ratio = many / few
    sys.stdout.write(f"figure: {MANY:,} children {many:.2f} s of the processor, {ratio:.1f} x {FEW:,}\n")
    assert ratio <= MOST_TIMES_DEARER


async def seconds_of(hf: Holdfast, count: int) -> float:
    """Return the CPU time of this process for this many children."""
    begun = time.process_time()
    assert await (await hf.start(parent, count)).result() == sum(range(count))
    return time.process_time() - begun
