"""A workflow without `async`: a plain function that sleeps and waits for people without holding a thread.

Needs the extra: pip install holdfast[sync]

Run it: python -m examples.sync_workflow
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from holdfast import Holdfast, SyncContext, WaitTimeout

hf = Holdfast()


@dataclass
class Order:
    """An order of a customer."""

    number: int
    card: str
    cents: int


@hf.step
def charge(card: str, cents: int) -> str:
    return f"{cents} from {card}"  # a step body runs in a thread, so it may use any blocking library


@hf.step
def refund(payment: str) -> None:
    print(f"  refunded: {payment}")


@hf.workflow("kiosk.parcel.v1")
def parcel(ctx: SyncContext, number: int) -> str:
    ctx.sleep(0.05)
    return f"parcel-{number}"


@hf.workflow("kiosk.checkout.v1")
def checkout(ctx: SyncContext, order: Order, patience: timedelta) -> str:
    payment = charge.blocking(order.card, order.cents)  # charge(…) does the same; `.blocking` is for the type checker
    try:
        answer = ctx.receive("approve", type=str, timeout=patience)
    except WaitTimeout:
        refund.blocking(payment)
        return f"order {order.number}: nobody approved"
    child = ctx.start(parcel, order.number)
    ctx.set_value("progress", "packing")
    return f"order {order.number}: {payment}, {answer}, {child.result()}"


async def main() -> None:
    async with hf, hf.worker():
        approved = await hf.start(checkout, Order(1, "visa", 1_999), timedelta(hours=1))
        forgotten = await hf.start(checkout, Order(2, "visa", 5), timedelta(seconds=0.05))
        await approved.send("approve", "by ada")
        print(await forgotten.result())
        print(await approved.result())


if __name__ == "__main__":
    asyncio.run(main())
