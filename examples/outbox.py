"""A transactional outbox: an order and its run are created in one transaction, from Python or from plain SQL.

Needs Postgres.

Run it: HOLDFAST_URL=postgresql://… python -m examples.outbox
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg

from holdfast import Context, Holdfast
from holdfast.app import session_of

hf = Holdfast()

SCHEMA = """
    create table if not exists shop_order (
        number text primary key,
        item text not null,
        parcels int not null default 0
    )
"""

PLACE = "insert into shop_order (number, item) values (%s, %s)"

# The statement that a program in another language executes in its own transaction. No worker needs to be running.
INTENT = """
    insert into holdfast.intent (type, payload, idempotency_key)
    values ('shop.fulfil.v1', json_build_object('number', %(number)s::text), 'order:' || %(number)s)
    on conflict do nothing
"""


def pack(connection: psycopg.Connection[Any], number: str) -> int:
    """Count a parcel in the transaction that records this step: one parcel per order, even if workers crash."""
    statement = "update shop_order set parcels = parcels + 1 where number = %s returning parcels"
    found = connection.execute(statement, (number,)).fetchone()
    assert found is not None, "there is no run without its order"
    return int(found[0])


@hf.workflow("shop.fulfil.v1")
async def fulfil(ctx: Context, number: str) -> str:
    parcels = await ctx.tx("pack", pack, number)
    await ctx.receive("paid")
    return f"{parcels} parcel"


async def place_order(number: str, item: str, *, is_card_good: bool = True) -> None:
    """Create the order, its run and the payment message in one transaction."""
    async with await psycopg.AsyncConnection.connect(os.environ["HOLDFAST_URL"]) as connection:
        await connection.execute(PLACE, (number, item))
        run = await hf.start_in(connection, fulfil, number, key=f"order:{number}")
        await run.send_in(connection, "paid")
        if not is_card_good:
            raise ValueError("the card was declined")


def place_order_elsewhere(number: str, item: str) -> None:
    """Place an order with SQL only, as a program without holdfast's Python package would."""
    with psycopg.connect(os.environ["HOLDFAST_URL"]) as connection:
        connection.execute(PLACE, (number, item))
        connection.execute(INTENT, {"number": number})
        connection.execute(INTENT, {"number": number})  # the key already exists, so this creates no second run
        found = connection.execute("select id from holdfast.intent where idempotency_key = %s", (f"order:{number}",))
        connection.execute("select holdfast.send(%s, 'paid')", found.fetchone())


async def main() -> None:
    tea, cake, cups = (f"{name}-{uuid4().hex[:6]}" for name in ("tea", "cake", "cups"))
    async with hf, hf.worker():
        with hf.connection() as connection:
            connection.execute(SCHEMA)
        await place_order(tea, "tea")
        with suppress(ValueError):
            await place_order(cake, "cake", is_card_good=False)
        await asyncio.to_thread(place_order_elsewhere, cups, "cups")

        print("tea:", await hf.run(key=f"order:{tea}").result())
        print("cups:", await hf.run(key=f"order:{cups}").result())
        with hf.connection(readonly=True) as connection:
            orders = connection.execute(
                "select item, parcels from shop_order where number = any(%s)", ([tea, cake, cups],)
            )
            print("orders:", sorted(orders))


if __name__ == "__main__":
    if not session_of(hf).url.startswith("postgres"):
        raise SystemExit("this example needs Postgres: HOLDFAST_URL=postgresql://user@host/database")
    asyncio.run(main())
