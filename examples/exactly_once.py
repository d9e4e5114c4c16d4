"""Money moves exactly once: the transfer and its record commit in one transaction, even if workers crash.

Run it: python -m examples.exactly_once
"""

from __future__ import annotations

import asyncio
import os
from uuid import uuid4

import apsw

from holdfast import Context, Holdfast, StepFailed, step_info

hf = Holdfast()

SCHEMA = """
    create table if not exists account (name text primary key, cents integer not null check (cents >= 0));
    create table if not exists booking (name text not null references account (name), cents integer not null, why text);
"""


def book(connection: apsw.Connection, name: str, cents: int) -> int:
    """Change a balance and log the booking, both in one transaction."""
    connection.execute("update account set cents = cents + ? where name = ?", (cents, name))
    connection.execute("insert into booking values (?, ?, ?)", (name, cents, step_info().idempotency_key))
    return int(connection.execute("select cents from account where name = ?", (name,)).get)


@hf.workflow("bank.transfer.v1")
async def transfer(ctx: Context, sender: str, receiver: str, cents: int) -> str:
    try:
        await ctx.tx("take", book, sender, -cents)
    except StepFailed as failure:
        return f"refused: {failure.message}"
    await ctx.sleep(0.1)  # a slow bank: the money has left one account, and the record says so
    await ctx.tx("give", book, receiver, cents)
    return "moved"


async def open_account(name: str, cents: int) -> None:
    """Create an account and the run that greets its owner, in one transaction."""
    with hf.connection() as connection:
        connection.execute("insert into account values (?, ?)", (name, cents))
        await hf.start_in(connection, greet, name, key=f"greet:{name}")


async def close_account(name: str) -> None:
    """Delete an account and notify its run, in one transaction."""
    with hf.connection() as connection:
        connection.execute("delete from account where name = ?", (name,))
        await hf.send_in(connection, hf.run(key=f"greet:{name}"), "closed")


@hf.workflow("bank.greet.v1")
async def greet(ctx: Context, name: str) -> str:
    await ctx.step("welcome", lambda: f"welcome, {name}")
    await ctx.receive("closed")
    return await ctx.step("farewell", lambda: f"farewell, {name}")


async def main() -> None:
    ada, bob, eve = (f"{name}-{os.getpid()}-{uuid4().hex[:4]}" for name in ("ada", "bob", "eve"))
    async with hf, hf.worker():
        with hf.connection() as connection:
            connection.execute(SCHEMA).fetchall()
        await open_account(ada, 500)
        await open_account(bob, 0)
        await open_account(eve, 0)
        await close_account(eve)
        print((await hf.run(key=f"greet:{eve}").result()).partition("-")[0])
        print(await asyncio.gather(*(hf.execute(transfer, ada, bob, cents) for cents in (100, 200))))
        print(await hf.execute(transfer, ada, bob, 1_000))
        with hf.connection(readonly=True) as connection:
            balances = connection.execute("select cents from account where name in (?, ?) order by name", (ada, bob))
            print("ada has {}, bob has {}".format(*(cents for (cents,) in balances)))


if __name__ == "__main__":
    asyncio.run(main())
