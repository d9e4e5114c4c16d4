"""A step of an isolated run costs about as much as one on the memory store. `benchmarks.isolated` has instructions."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from holdfast import Context, Holdfast, isolated

LIMIT = 1.3


def application() -> Holdfast:
    hf = Holdfast("memory://")

    @hf.step
    async def one(number: int) -> int:
        return number

    @hf.workflow("steps")
    async def steps(ctx: Context, count: int) -> int:
        for number in range(count):
            await one(number)
        return count

    return hf


async def in_a_namespace(count: int) -> None:
    await isolated.advance(isolated.DictionaryNamespace(), application(), "run", type="steps", payload={"count": count})


async def in_memory(count: int) -> None:
    hf = application()
    async with hf, hf.worker():
        await hf.execute("steps", {"count": count})


async def calls(play: Any, count: int) -> int:
    """Return the number of Python and C functions that a play calls in this thread."""
    number = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        await play(count)
    finally:
        sys.setprofile(before)
    return number


async def test_a_step_calls_at_most_a_third_more_functions_than_on_the_memory_store() -> None:
    costs = []
    for play in (in_a_namespace, in_memory):
        few, many = await calls(play, 20), await calls(play, 220)
        costs.append((many - few) / 200)
    assert costs[0] <= LIMIT * costs[1], f"{costs[0]} calls per step, on the memory store {costs[1]}"
