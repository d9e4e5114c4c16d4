"""Limits: a provider allows three calls at once and ten per second, and each customer gets a fair share.

The store enforces the limits across all workers. Here are two workers, independent of each other. Runs beyond a limit
are parked and continue in their order.

Run it: python -m examples.limits
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

from holdfast import Holdfast

AT_ONCE = 3
PER_CUSTOMER = 2
A_SECOND = 10
MAILS = 24

hf = Holdfast()
busy: Counter[str] = Counter()
most: Counter[str] = Counter()


@hf.task("mail.send.v1")
async def send(customer: str, number: int) -> str:
    """Hand a mail to the provider."""
    busy.update(["provider", customer])
    for name in ("provider", customer):
        most[name] = max(most[name], busy[name])
    await asyncio.sleep(0.02)
    busy.subtract(["provider", customer])
    return f"{customer}-{number}"


async def main() -> None:
    async with hf:
        await hf.types.set(send.type, concurrency=AT_ONCE, per_key={"customer": PER_CUSTOMER}, rate=(A_SECOND, 1))
        customers = ["big"] * (MAILS - 4) + ["small"] * 4
        runs = [await hf.start(send, who, n, tags={"customer": who}) for n, who in enumerate(customers)]
        began = datetime.now(UTC)
        async with hf.worker(name="one"), hf.worker(name="two"):
            small = await asyncio.gather(*(run.result() for run in runs[-4:]))
            print(f"{small[-1]} was not kept waiting by all the others")
            sent = await asyncio.gather(*(run.result() for run in runs))
        seconds = (datetime.now(UTC) - began).total_seconds()

    assert len(set(sent)) == MAILS, "each mail is sent exactly once"
    assert most["provider"] <= AT_ONCE
    assert most["big"] <= PER_CUSTOMER
    assert seconds >= (MAILS - 1) // A_SECOND, "the rate limit holds"
    print(f"{MAILS} mails, at most {AT_ONCE} at once and {PER_CUSTOMER} for one customer, {A_SECOND} a second")


if __name__ == "__main__":
    asyncio.run(main())
