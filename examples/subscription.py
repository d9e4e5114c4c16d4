"""A subscription, charged every month for years: one run that starts over each month.

`continue_as_new` drops the history and keeps the id, the key and the unread messages. A run that lasts ten years is
therefore as small and as quick to resume as one that lasts a month. A month is a tenth of a second here.

Run it: python -m examples.subscription
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

from holdfast import Context, Holdfast, Retry, WaitTimeout

MONTH = timedelta(seconds=0.1)

hf = Holdfast()


@dataclass(frozen=True)
class Subscription:
    customer: str
    monthly_cents: int
    month: int = 1
    paid_cents: int = 0


@hf.step(retry=Retry(max_attempts=10, initial=60, max_delay=86_400))
async def charge(subscription: Subscription) -> int:
    print(f"  month {subscription.month}: {subscription.monthly_cents / 100:.2f}")
    return subscription.monthly_cents


@hf.workflow("billing.subscription.v1")
async def subscribe(ctx: Context, subscription: Subscription) -> str:
    month_ends = ctx.now() + MONTH
    paid = subscription.paid_cents + await charge(subscription)
    subscription = replace(subscription, month=subscription.month + 1, paid_cents=paid)
    ctx.set_value("paid_cents", paid)
    while True:
        try:
            name, cents = await ctx.receive(["change_plan", "cancel"], timeout=month_ends - ctx.now())
        except WaitTimeout:
            return await ctx.continue_as_new(subscription)
        if name == "cancel":
            return f"{subscription.customer} paid {paid / 100:.2f}"
        subscription = replace(subscription, monthly_cents=cents)


async def main() -> None:
    customer = f"customer-{uuid4().hex[:6]}"
    async with hf, hf.worker():
        run = await hf.start(subscribe, Subscription(customer, monthly_cents=1_000), key=customer)
        while await run.value("paid_cents", 0) < 3_000:
            await asyncio.sleep(0.01)
        await hf.run(key=customer).send("change_plan", 500)  # the shop knows the customer, not the run
        while await run.value("paid_cents", 0) < 4_500:
            await asyncio.sleep(0.01)
        await run.send("cancel")
        result = (await run.result()).replace(customer, "the customer")
        info, history = await run.info(), await run.history()

    assert info.generation >= 5
    assert len(history) <= 4, "the history of earlier months is gone"
    print(result)


if __name__ == "__main__":
    asyncio.run(main())
