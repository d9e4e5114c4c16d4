"""A webhook finds its run by key: the payment provider knows the order, not the run.

Run it: python -m examples.webhook
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from holdfast import Context, Holdfast, RunFinished, RunNotFound, WaitTimeout

hf = Holdfast()


@dataclass(frozen=True)
class Paid:
    cents: int


@hf.step
async def deliver(order_id: str) -> str:
    return f"download link for {order_id}"


@hf.workflow("shop.sale.v1")
async def sale(ctx: Context, order_id: str, cents: int) -> str:
    open_cents = cents
    while open_cents > 0:
        try:
            paid = await ctx.receive("paid", type=Paid, timeout=timedelta(days=7))
        except WaitTimeout:
            return "never paid"
        open_cents -= paid.cents
    return await deliver(order_id)


async def on_webhook(order_id: str, delivery_id: str, cents: int) -> int:
    """Handle a delivery, as a route of a web framework would; return the HTTP status.

    Providers deliver at least once. The delivery id is the message id, so a second copy is ignored.
    """
    try:
        await hf.run(key=f"order:{order_id}").send("paid", Paid(cents), id=delivery_id)
    except RunNotFound:
        return 404
    except RunFinished:
        return 200  # a late copy; no run waits for it
    return 202


async def main() -> None:
    order_id = uuid4().hex[:6]
    async with hf, hf.worker():
        run = await hf.start(sale, order_id, 1_000, key=f"order:{order_id}")
        print(await on_webhook(order_id, "delivery-1", 400))
        print(await on_webhook(order_id, "delivery-1", 400), "(the same delivery again)")
        print(await on_webhook("unknown", "delivery-2", 400))
        print(await on_webhook(order_id, "delivery-3", 600))
        print((await run.result()).replace(order_id, "your order"))


if __name__ == "__main__":
    asyncio.run(main())
