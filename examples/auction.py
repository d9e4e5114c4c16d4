"""An auction: bids are messages, collected until a deadline that a late bid postpones.

Messages are stored in order and received exactly once, also those that arrive together or while no worker runs. An hour
is one second here.

Run it: python -m examples.auction
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import uuid4

from holdfast import Break, Context, Continue, Holdfast, RunFinished, WaitTimeout

HOUR = timedelta(seconds=1)

hf = Holdfast()


@dataclass(frozen=True)
class Bid:
    by: str
    cents: int


@dataclass(frozen=True)
class Auction:
    lot: str
    ends_at: datetime
    best: Bid | None = None
    bids: int = 0


async def collect(ctx: Context, auction: Auction) -> Continue[Auction] | Break[Auction]:
    """Wait for one bid, or for the end of the auction."""
    try:
        bid = await ctx.receive("bid", type=Bid, timeout=auction.ends_at - ctx.now())
    except WaitTimeout:
        return Break(auction)
    auction = replace(auction, bids=auction.bids + 1)
    if auction.best is None or bid.cents > auction.best.cents:
        # A bid shortly before the end postpones it, so that other bidders can answer.
        auction = replace(auction, best=bid, ends_at=max(auction.ends_at, ctx.now() + HOUR / 4))
        ctx.set_value("best", bid)
    ctx.set_value("bids", auction.bids)
    return Continue(auction)


@hf.step
async def send_invoice(lot: str, bid: Bid) -> str:
    return f"{lot} goes to {bid.by} for {bid.cents / 100:.2f}"


@hf.workflow("auction.lot.v1")
async def sell(ctx: Context, lot: str, length: timedelta) -> str:
    auction = await ctx.loop("bids", collect, Auction(lot, ctx.now() + length))
    if auction.best is None:
        return f"{lot} was not sold"
    ctx.emit("auction.sold", lot)  # every run that waits for this event receives it
    return f"{await send_invoice(lot, auction.best)}, {auction.bids} bids"


async def bid(lot_key: str, by: str, cents: int) -> None:
    """Send a bid, as a route of a web site would."""
    try:
        await hf.run(key=lot_key).send("bid", Bid(by, cents))
    except RunFinished:
        print(f"  {by} is too late")


async def main() -> None:
    lot_key = f"lot-{uuid4().hex[:6]}"
    async with hf:
        run = await hf.start(sell, "the painting", HOUR, key=lot_key)
        for name, cents in (("ada", 100_00), ("bob", 120_00), ("cora", 110_00)):
            await bid(lot_key, name, cents)  # no worker runs yet: the store keeps the bids
        async with hf.worker():
            while await run.value("bids", 0) < 3:
                await asyncio.sleep(0.01)
            print(f"  highest so far: {await run.value('best')}")
            await bid(lot_key, "ada", 150_00)
            result = await run.result()
            await bid(lot_key, "bob", 200_00)

    assert "ada for 150.00, 4 bids" in result
    print(result)


if __name__ == "__main__":
    asyncio.run(main())
