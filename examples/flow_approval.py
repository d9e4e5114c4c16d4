"""An order approval as a flow, edited at run time: a run keeps its version, and new runs take the newest one.

The rules are text, so a clerk's tool can change them without a deploy. Two days of patience are 0.2 seconds here.

Run it: python -m examples.flow_approval
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Holdfast

TYPE = "orders.approve.v1"
RULES = (Path(__file__).with_name("flows") / f"{TYPE}.py").read_text(encoding="utf-8")

hf = Holdfast()


@hf.task("orders.ask.v1")
async def ask(order: str, approver: str) -> None:
    print(f"  to {approver}: please approve {order}")


async def main() -> None:
    async with hf, hf.worker():
        old = await hf.flows.register(RULES, type=TYPE, by="ada")
        small = await hf.start(TYPE, {"order": "tea", "amount": 12.5, "patience": 0.2})
        print(await small.result())

        large = await hf.start(TYPE, {"order": "a car", "amount": 20_000, "patience": 60})
        await large.send("vote-manager", "yes")  # early: it waits in the inbox until the flow asks the manager

        # Now everything needs a person. The run of the car is older than this version, and keeps its own.
        new = await hf.flows.register(RULES.replace("AT_ONCE = 100", "AT_ONCE = 0"), type=TYPE, by="ada")
        print(f"version {old.version[:8]} -> {new.version[:8]}")
        await large.send("vote-clerk", "yes")
        print(await large.result())

        again = await hf.start(TYPE, {"order": "tea", "amount": 12.5, "patience": 0.2})
        result = await again.result()
    print(f"{result['order']}: {result['state']}, {result['by']} gave {result['vote']}")


if __name__ == "__main__":
    asyncio.run(main())
