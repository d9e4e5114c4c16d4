"""Polling a system without callbacks: the workflow asks repeatedly, at growing intervals.

`ctx.loop` keeps its state, not its past: it prunes the records of old rounds, so a job can be watched for weeks. A
minute is a hundredth of a second here.

Run it: python -m examples.polling
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast import Break, Context, Continue, Holdfast, Retry

MINUTE = timedelta(seconds=0.01)
LONGEST = 16 * MINUTE
PATIENCE = 24 * 60 * MINUTE

hf = Holdfast()


class RenderFarm:
    """Simulate an external service: the film is ready at the seventh query."""

    def __init__(self) -> None:
        self.times_asked = 0

    async def status(self, job: str) -> str:
        self.times_asked += 1
        status = f"{job}.mp4" if self.times_asked == 7 else "rendering"
        print(f"  asked for the {self.times_asked}. time: {status}")
        return status


farm = RenderFarm()


@hf.step
async def submit(film: str) -> str:
    return f"job-{film}"


@hf.step(retry=Retry(max_attempts=5), timeout=10)
async def ask(job: str) -> str:
    return await farm.status(job)


@dataclass(frozen=True)
class Watch:
    """The state that one round passes to the next. A variable outside the body would be lost when the run resumes."""

    job: str
    give_up_at: datetime
    pause: timedelta = MINUTE
    rounds: int = 1


async def watch(ctx: Context, state: Watch) -> Continue[Watch] | Break[str]:
    status = await ask(state.job)
    if status != "rendering":
        return Break(f"{status} after {state.rounds} rounds")
    if ctx.now() >= state.give_up_at:
        return Break("given up")
    await ctx.sleep(state.pause * ctx.random.uniform(0.9, 1.1))  # the same on every replay, different in each round
    return Continue(Watch(state.job, state.give_up_at, min(2 * state.pause, LONGEST), state.rounds + 1))


@hf.workflow("film.render.v1")
async def render(ctx: Context, film: str) -> str:
    job = await submit(film)
    return await ctx.loop("watch", watch, Watch(job, ctx.now() + PATIENCE), keep=2, every=2)


async def main() -> None:
    async with hf, hf.worker():
        run = await hf.start(render, "cats")
        result = await run.result()
        rounds = [entry.location for entry in await run.history() if entry.location.endswith("/ask")]

    assert farm.times_asked == 7
    assert len(rounds) < 7, f"the first rounds are pruned: {rounds}"
    print(result)


if __name__ == "__main__":
    asyncio.run(main())
