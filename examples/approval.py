"""A person has to approve something, and is reminded until they do. Waiting costs nothing: no task, no thread.

python -m examples.approval
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast import Context, Holdfast, WaitTimeout

REMINDERS = 3

hf = Holdfast()


@hf.step
async def notify(person: str, text: str) -> None:
    print(f"  to {person}: {text}")


@hf.workflow("office.approval.v1")
async def approval(ctx: Context, document: str, person: str, remind_after: timedelta) -> str:
    await notify(person, f"please approve {document}")
    for reminder in range(1, REMINDERS + 1):
        try:
            answer = await ctx.receive("answer", type=str, timeout=remind_after)
        except WaitTimeout:
            ctx.set_value("reminders", reminder)
            await notify(person, f"reminder {reminder}: {document} waits for you")
        else:
            return f"{document}: {answer}"
    return f"{document}: nobody answered"


async def main() -> None:
    async with hf, hf.worker():
        run = await hf.start(approval, "the budget", "ada", timedelta(seconds=0.2))
        while await run.value("reminders", 0) < 2:
            await asyncio.sleep(0.05)
        await run.send("answer", "yes, but less")
        print(await run.result())
        print(await hf.execute(approval, "the holidays", "bob", timedelta(seconds=0.05)))


if __name__ == "__main__":
    asyncio.run(main())
