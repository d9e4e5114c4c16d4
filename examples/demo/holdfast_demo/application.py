"""The application of `holdfast demo`: an order on its way from the cart to the customer.

Each step writes to a ledger when it begins and when it ends. So the ledger proves which steps were executed.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast import Context, Holdfast, Retry, step_info
from holdfast_demo.step_log import StepLog

LEDGER_VARIABLE = "HOLDFAST_DEMO_LEDGER"
PACE_VARIABLE = "HOLDFAST_DEMO_PACE"

CHECKOUT = "demo.checkout.v1"
LABEL = "demo.label.v1"
STEPS = ("reserve", "charge", "print", "pack", "ship", "notify")
"""The steps of one order, in order; `print` is the step of the child run."""

_RETRY = Retry(initial=0.3, jitter=0)

hf = Holdfast()


async def _work(step: str, order: str, seconds: float) -> None:
    """Simulate work that takes a while, and write it to the ledger."""
    ledger = StepLog(Path(os.environ[LEDGER_VARIABLE]))
    ledger.write(order, step, "begin")
    await asyncio.sleep(seconds * float(os.environ.get(PACE_VARIABLE, "1")))
    if step == "charge" and step_info().attempt == 1:
        raise ConnectionError("the card gateway timed out")
    ledger.write(order, step, "end")


@hf.step
async def reserve(order: str) -> str:
    await _work("reserve", order, 0.5)
    return f"1 item for {order}"


@hf.step(retry=_RETRY)
async def charge(order: str) -> str:
    await _work("charge", order, 0.5)
    return f"payment of {order}"


@hf.step
async def pack(order: str) -> str:
    await _work("pack", order, 1.0)
    return f"parcel for {order}"


@hf.step
async def ship(order: str) -> str:
    await _work("ship", order, 0.6)
    return f"tracking number of {order}"


@hf.step
async def notify(order: str) -> None:
    await _work("notify", order, 0.3)


@hf.workflow(LABEL)
async def label(ctx: Context, order: str) -> str:
    """Print the label in a child run, which has a history of its own."""
    await ctx.step("print", _work, "print", order, 0.6)
    return f"label for {order}"


@hf.workflow(CHECKOUT)
async def checkout(ctx: Context, order: str, cooling_seconds: float) -> str:
    """Process an order. Between its steps the workflow may sleep and wait for any time."""
    await reserve(order)
    await charge(order)
    await ctx.sleep(cooling_seconds)
    approval: dict[str, str] = await ctx.receive("approve")
    await ctx.call(label, order)
    await pack(order)
    tracking = await ship(order)
    await notify(order)
    return f"{order} is on its way ({tracking}), approved by {approval['by']}"
