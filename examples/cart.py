"""A shopping cart that answers: requests change it or query it, and each request gets a reply.

The run is the cart. It serves one request at a time, so two simultaneous clicks cannot corrupt it. If an answer was
lost, the client sends the request again with the same `id`: the cart does not change, and the reply is the same.

Run it: python -m examples.cart
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

from holdfast import Break, Context, Continue, Holdfast, RunFinished, WaitTimeout

PRICES = {"tea": 450, "cup": 1_200, "pot": 3_900}

hf = Holdfast()


@dataclass(frozen=True)
class Cart:
    goods: list[str] = field(default_factory=list)

    @property
    def cents(self) -> int:
        return sum(PRICES[good] for good in self.goods)


@hf.step
async def charge(cents: int) -> str:
    return f"receipt for {cents / 100:.2f}"


async def serve(ctx: Context, cart: Cart) -> Continue[Cart] | Break[str]:
    """Serve one request."""
    try:
        request = await ctx.receive_message(["add", "show", "pay"], timeout=timedelta(days=7))
    except WaitTimeout:
        return Break("abandoned")
    match request.name, request.payload:
        case "add", good if good in PRICES:
            cart = Cart([*cart.goods, good])
            request.reply(f"{cart.cents / 100:.2f} so far")
        case "add", good:
            request.reply(f"we have no {good}")
        case "show", _:
            request.reply(cart.goods)
        case _:  # "pay"
            receipt = await charge(cart.cents)
            request.reply(receipt)  # sent by the checkpoint that ends the run
            return Break(receipt)
    return Continue(cart)


@hf.workflow("shop.cart.v1")
async def shop(ctx: Context) -> str:
    return await ctx.loop("serve", serve, Cart())


async def main() -> None:
    key = f"cart-{uuid4().hex[:6]}"
    async with hf, hf.worker():
        await hf.start(shop, key=key)
        cart = hf.run(key=key)  # a web session stores only the key of its cart
        print(await cart.request("add", "tea"))
        print(await cart.request("add", "yacht"))
        print(await cart.request("add", "pot", id=f"{key}-click-3"))
        print(await cart.request("add", "pot", id=f"{key}-click-3"), "(the same click again)")
        print(await cart.request("show"))
        receipt = await cart.request("pay", timeout=10)
        try:
            await cart.request("add", "cup")
        except RunFinished:
            print("too late for a cup")

    assert receipt == "receipt for 43.50", receipt
    print(receipt)


if __name__ == "__main__":
    asyncio.run(main())
