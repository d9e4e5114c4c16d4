"""A worker on a store that accepts several batches at once and answers in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from holdfast import Context, Holdfast
from holdfast.core.checkpoint import Checkpoint, Verdicts
from holdfast.stores.memory import MemoryStore

RUNS = 150
STEPS = 6


class SlowStore(MemoryStore):
    """A memory store that is slow to write a batch, and slow to answer."""

    concurrent_checkpoints = 3

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._random = random.Random(7)
        self._in_flight: list[set[str]] = []

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        runs = {checkpoint.run_id for checkpoint in checkpoints}
        assert len(runs) == len(checkpoints)
        assert all(runs.isdisjoint(others) for others in self._in_flight), "two checkpoints of one run"
        self._in_flight.append(runs)
        self.most = max(self.most, len(self._in_flight))
        try:
            await asyncio.sleep(self._random.uniform(0, 0.004))
            answer = await super().checkpoint(checkpoints)
            await asyncio.sleep(self._random.uniform(0, 0.004))
            return answer
        finally:
            self._in_flight.remove(runs)


async def test_runs_continue_in_order_whatever_the_order_of_the_answers() -> None:
    store = SlowStore()
    hf = Holdfast("memory://", store=store)

    @hf.workflow("count")
    async def count(ctx: Context, number: int) -> list[int]:
        counted = []
        for index in range(STEPS):
            counted.append(await ctx.step("count", counting, number, index))
            if index == number % STEPS:
                await ctx.sleep(0.01)
        return counted

    async def counting(number: int, index: int) -> int:
        await asyncio.sleep(0.001 * (number % 4))
        return number + index

    async with hf:
        runs = await hf.start_many(count, [(number,) for number in range(RUNS)])
        await hf.worker().run_until_idle()

        for number, run in enumerate(runs):
            assert await run.result() == [number + index for index in range(STEPS)]
            assert [entry.attempts for entry in await run.history() if entry.kind == "step"] == [1] * STEPS
    assert store.most > 1
