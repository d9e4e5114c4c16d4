"""An order: a person approves it if it is large, a step charges the card, and a child run ships it.

Run it: python -m examples.checkout
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from holdfast import Context, Fatal, Holdfast, Retry, WaitTimeout, step_info

APPROVAL_FROM_CENTS = 100_000

hf = Holdfast()


@dataclass(frozen=True)
class Order:
    id: str
    card: str
    cents: int


@dataclass(frozen=True)
class Receipt:
    order_id: str
    outcome: str
    payment: str | None = None
    parcel: str | None = None


@hf.step(retry=Retry(max_attempts=5), timeout=10)
async def charge(order: Order) -> str:
    if order.card == "stolen":
        raise Fatal("the bank refuses this card")  # Fatal: a retry would not help
    # The key is the same on every attempt, so the bank charges the card once, even if this body runs again.
    return await ask_bank(order.card, order.cents, idempotency_key=step_info().idempotency_key)


async def ask_bank(card: str, cents: int, *, idempotency_key: str) -> str:
    """Simulate the client of a payment provider."""
    assert idempotency_key.endswith(":charge")
    return f"{cents / 100:.2f} from {card}"


@hf.step
def print_label(order_id: str) -> str:
    return f"parcel-{order_id}"  # a plain function runs in a thread, so it may block


@hf.workflow("shop.shipping.v1")
async def shipping(ctx: Context, order_id: str) -> str:
    label = await print_label(order_id)
    await ctx.sleep(timedelta(milliseconds=200))  # wait for the courier
    return label


@hf.workflow("shop.checkout.v1")
async def checkout(ctx: Context, order: Order) -> Receipt:
    if order.cents >= APPROVAL_FROM_CENTS:
        try:
            is_approved = await ctx.receive("approval", type=bool, timeout=timedelta(days=2))
        except WaitTimeout:
            is_approved = False
        if not is_approved:
            return Receipt(order.id, "declined")
    payment = await charge(order)
    parcel = await ctx.call(shipping, order.id)
    return Receipt(order.id, "shipped", payment, parcel)


async def main() -> None:
    async with hf, hf.worker():
        small = Order(id=f"small-{uuid4().hex[:6]}", card="visa", cents=1_999)
        large = Order(id=f"large-{uuid4().hex[:6]}", card="visa", cents=250_000)
        first = await hf.start(checkout, small, key=small.id, tags={"shop": "north"})
        second = await hf.start(checkout, large, key=large.id, tags={"shop": "north"})

        print(await first.result())
        print(await second.explain())
        await second.send("approval", payload=True)
        print(await second.result())


if __name__ == "__main__":
    asyncio.run(main())
