"""Hooks: somebody is told when runs fail, at most once for each type in a while, and the work never waits for it.

A hook is best effort: it is called after the fact, in the process that wrote it. What must happen belongs in a step.

python -m examples.alerts
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta

from holdfast import Context, Fatal, Holdfast, RunFailed, Signal

QUIET = timedelta(hours=1)

hf = Holdfast()
failures: Counter[str] = Counter()
alerted_at: dict[str, datetime] = {}


@hf.on("run.failed", "run.blocked")
async def alert(signal: Signal) -> None:
    """Tell the people on duty; of a type of which they know already, only count."""
    name = signal.type or "?"
    failures[name] += 1
    last = alerted_at.get(name)
    if last is None or signal.at - last > QUIET:
        alerted_at[name] = signal.at
        print(f"  alert: {name} {signal.name} with {signal.error}; holdfast show {signal.run_id}")


@hf.on("step.retried")
def note(signal: Signal) -> None:
    """A plain function may block: it has a thread of its own."""
    print(f"  {signal.location} failed with {signal.error}, attempt {signal.attempt}")


@hf.step
async def charge(card: str) -> str:
    if card == "flaky" and not failures["seen"]:
        failures["seen"] = 1
        raise ConnectionError("no route to the bank")
    if card == "stolen":
        raise Fatal("the card is stolen")
    return f"charged {card}"


@hf.workflow("shop.pay.v1")
async def pay(ctx: Context, card: str) -> str:
    return await charge(card)


async def main() -> None:
    async with hf, hf.worker():
        print(await hf.execute(pay, "flaky"))
        for _ in range(3):
            try:
                await hf.execute(pay, "stolen")
            except RunFailed as failed:
                print(f"the customer sees: {failed}")
    print(f"{failures['shop.pay.v1']} runs failed, {len(alerted_at)} alert was given")


if __name__ == "__main__":
    asyncio.run(main())
