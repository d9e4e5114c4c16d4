"""Schedules: one declared in code that fires every second, and one set by a program and triggered by hand.

Run it: python -m examples.reminders
"""

from __future__ import annotations

import asyncio

from holdfast import Context, Holdfast

hf = Holdfast()
rang = asyncio.Event()


@hf.schedule(every=1, name="clock", overlap="skip")
@hf.task("reminders.tick.v1")
async def tick() -> str:
    rang.set()
    return "tick"


@hf.workflow("reminders.remind.v1")
async def remind(ctx: Context, who: str, what: str) -> str:
    return f"{who}, {what}! ({ctx.run.tags.get('slot', 'asked for by hand')})"


async def main() -> None:
    async with hf, hf.worker():
        schedule = await hf.schedules.put(
            "ada's tea", remind, "ada", "your tea is ready", cron="0 16 * * mon-fri", zone="Europe/London"
        )
        print(f"{schedule.name}: next {schedule.upcoming[0]:%a %H:%M} in {schedule.zone}")
        await rang.wait()
        print("the clock ticks")
        run = await hf.schedules.trigger("ada's tea")
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
