"""Order fulfilment as a flow with children: tasks, a workflow in Python, and another flow. A failure is compensated.

A flow starts a child by its type. So it does not matter in which way the child is written. Flows have no undo: the
text says with `try` and `except` what goes back.

Run it: python -m examples.flow_fulfilment
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Context, Fatal, Holdfast

FLOWS = Path(__file__).with_name("flows")
STOCK = {"cups": 3, "tea": 5, "kettle": 1}

hf = Holdfast()
ledger: list[str] = []


@hf.task("money.charge.v1")
async def charge(order: str, cents: int) -> str:
    ledger.append(f"+{cents} {order}")
    return f"{order}:{cents}"


@hf.task("money.refund.v1")
async def refund(payment: str) -> None:
    order, _, cents = payment.partition(":")
    ledger.append(f"-{cents} {order}")


@hf.step
async def take(item: str) -> str:
    if item not in STOCK:
        raise Fatal(f"{item} is sold out")
    return f"{item} from shelf {STOCK[item]}"


@hf.workflow("stock.pick.v1")
async def pick(ctx: Context, item: str) -> str:
    """Pick one item. A workflow in Python is a child like any other."""
    found = await take(item)
    await ctx.sleep(0.01)  # the robot brings it
    return found


@hf.task("parcels.label.v1")
async def label(order: str, items: list[str]) -> str:
    return f"{order}: {', '.join(items)}"


async def main() -> None:
    async with hf, hf.worker():
        for type in ("parcels.ship.v1", "orders.fulfil.v1"):
            await hf.flows.register(FLOWS / f"{type}.py", type=type)

        good = await hf.start("orders.fulfil.v1", {"order": "A-1", "cents": 4_350, "items": ["cups", "tea", "kettle"]})
        print(await good.result())
        bad = await hf.start("orders.fulfil.v1", {"order": "A-2", "cents": 900, "items": ["tea", "sugar"]})
        print(await bad.result())
    print("ledger:", ", ".join(ledger))


if __name__ == "__main__":
    asyncio.run(main())
