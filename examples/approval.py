"""An approval: a person is asked, then reminded, then their superior is asked. Waiting uses no resources.

A waiting run is a row in the store: it has no task and no thread. Two days are 0.2 seconds here.

Run it: python -m examples.approval
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from holdfast import Context, Holdfast, WaitTimeout

REMINDERS = 2

hf = Holdfast()


@dataclass(frozen=True)
class Decision:
    by: str
    is_approved: bool


@hf.step
async def notify(person: str, text: str) -> None:
    print(f"  to {person}: {text}")


async def ask(ctx: Context, document: str, person: str, patience: timedelta) -> Decision | None:
    """Ask one person and send reminders. Return None if the person does not answer."""
    await notify(person, f"please approve {document}")
    for reminder in range(1, REMINDERS + 2):
        try:
            return await ctx.receive("decision", type=Decision, timeout=patience)
        except WaitTimeout:
            if reminder <= REMINDERS:
                await notify(person, f"reminder {reminder}: {document}")
                ctx.set_value("reminders", reminder)
    return None


@hf.workflow("office.approval.v2")
async def approval(ctx: Context, document: str, people: list[str], patience: timedelta) -> str:
    *most, last = people  # each person is the superior of the previous one
    for person in most:
        if decision := await ask(ctx, document, person, patience):
            break
        ctx.set_value("escalated_from", person)
    else:
        await notify(last, f"please approve {document}, nobody else does")
        decision = await ctx.receive("decision", type=Decision)  # no timeout: wait as long as it takes
    return f"{document}: {'approved' if decision.is_approved else 'refused'} by {decision.by}"


async def main() -> None:
    two_days = timedelta(seconds=0.2)
    async with hf, hf.worker():
        budget = await hf.start(approval, "the budget", ["ada", "grace"], two_days)
        while not await budget.value("reminders"):
            await asyncio.sleep(0.02)
        await budget.send("decision", Decision(by="ada", is_approved=True))
        print(await budget.result())

        holidays = await hf.start(approval, "the holidays", ["bob", "grace"], two_days)
        while not await holidays.value("escalated_from"):
            await asyncio.sleep(0.02)
        await holidays.send("decision", Decision(by="grace", is_approved=False))
        print(await holidays.result())


if __name__ == "__main__":
    asyncio.run(main())
