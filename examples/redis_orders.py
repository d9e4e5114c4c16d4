"""Orders on Redis: each order takes its pieces from the stock once, although answers of the stock get lost.

Needs Redis or Valkey. A store on Redis cannot include your own keys in its writes, as `ctx.tx` includes your rows on
SQLite and Postgres. So the step passes its idempotency key on: one script takes the pieces and remembers the key, and
an attempt that comes again gets the answer of the first one.

Run it: HOLDFAST_URL=redis://localhost python -m examples.redis_orders
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit
from uuid import uuid4

from redis.asyncio import Redis

from holdfast import Context, Holdfast, Retry, step_info
from holdfast.app import session_of

hf = Holdfast()

DAY_SECONDS = 86_400
"""How long an answer is remembered: longer than a step is retried."""

TAKE = """
    local known = redis.call('GET', KEYS[2])
    if known then
        return tonumber(known)
    end
    local left = tonumber(redis.call('GET', KEYS[1])) - ARGV[1]
    if left >= 0 then
        redis.call('SET', KEYS[1], left)
    end
    redis.call('SET', KEYS[2], left, 'EX', ARGV[2])
    return left
"""


def stock() -> Redis:
    """Return a client for your own keys: the server of the store, whose options are for holdfast only."""
    return Redis.from_url(urlsplit(session_of(hf).url)._replace(query="").geturl())


@hf.step(retry=Retry(max_attempts=5, initial=0.05))
async def take(item: str, pieces: int) -> int:
    """Take pieces from the stock. Return how many are left, or a negative number if there are not enough."""
    step = step_info()
    async with stock() as client:
        keys = f"shop:stock:{item}", f"shop:taken:{step.idempotency_key}"
        left = await client.register_script(TAKE)(keys, (pieces, DAY_SECONDS))
    if step.attempt == 1:
        raise ConnectionError("the pieces are taken, but the answer is lost")
    return int(left)


@hf.workflow("shop.order.v1")
async def order(ctx: Context, item: str, pieces: int) -> str:
    if await take(item, pieces) < 0:
        return "sold out"
    paid = await ctx.receive("paid", timeout=3_600)
    return f"{pieces} for {paid}"


async def main() -> None:
    item = f"tea-{uuid4().hex[:6]}"
    async with stock() as client, hf, hf.worker():
        await client.set(f"shop:stock:{item}", 10)
        runs = await hf.start_many(order, [(item, 2)] * 3, keys=[f"{item}-{number}" for number in range(3)])
        for run in runs:
            await run.send("paid", "12.00", id="payment")  # safe to repeat: the same id is one message
        print("orders:", await asyncio.gather(*(run.result() for run in runs)))
        print("9 more:", await hf.execute(order, item, 9))
        left = await client.getdel(f"shop:stock:{item}")
    print(f"{int(left or 0)} of 10 are left: 3 orders of 2, each taken once")


if __name__ == "__main__":
    if not session_of(hf).url.startswith("redis"):
        raise SystemExit("this example needs Redis or Valkey: HOLDFAST_URL=redis://localhost")
    asyncio.run(main())
