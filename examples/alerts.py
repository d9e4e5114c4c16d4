"""Hooks: alert people when runs fail, at most once per hour and type, without delaying the work.

A hook is best effort: the process that commits a change calls it after the commit. An effect that must happen belongs
in a step.

Run it: python -m examples.alerts
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
    """Alert the people on duty. If they already know about this type, only count the failure."""
    name = signal.type or "?"
    failures[name] += 1
    last = alerted_at.get(name)
    if last is None or signal.at - last > QUIET:
        alerted_at[name] = signal.at
        print(f"  alert: {name} {signal.name} with {signal.error}; holdfast show {signal.run_id}")


@hf.on("step.retried")
def note(signal: Signal) -> None:
    """Print a retry. A plain function runs in its own thread, so it may block."""
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
