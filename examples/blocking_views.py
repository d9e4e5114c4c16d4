"""Blocking views, as in Flask or Django: many threads of a web server start runs and wait for their results.

`hf.sync` is the version of `hf` for code without an event loop. The worker is usually a separate process, `holdfast
worker shop:hf`. This example runs it in a thread, so that one program shows everything.

Run it: python -m examples.blocking_views
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

from holdfast import Context, Holdfast, RunNotFound

hf = Holdfast()


@hf.step
def pack(order: str) -> str:
    return f"parcel of {order}"


@hf.workflow("views.order.v1")
async def ordered(ctx: Context, order: str) -> str:
    parcel = await pack(order)
    return f"{parcel}, paid with {await ctx.receive('pay')}"


# With Flask: @app.post("/orders/<number>")
def post_order(number: str, order: str) -> tuple[int, str]:
    run = hf.sync.start(ordered, order, key=number)
    return (201, "accepted") if run.created else (200, "known already")


# With Flask: @app.post("/orders/<number>/payment")
def post_payment(number: str, card: str) -> tuple[int, str]:
    try:
        hf.sync.run(key=number).send("pay", card, id=f"{number}-payment")
    except RunNotFound:
        return 404, "no such order"
    return 202, "accepted"


# With Flask: @app.get("/orders/<number>")
def get_order(number: str) -> tuple[int, str]:
    try:
        return 200, hf.sync.run(key=number).result(timeout=20)
    except TimeoutError:
        return 202, "not yet"


@contextmanager
def worker() -> Iterator[None]:
    stopped = threading.Event()

    async def work() -> None:
        async with hf, hf.worker():
            await asyncio.to_thread(stopped.wait)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def customer(number: str) -> tuple[int, str]:
    post_order(number, f"{number[-1]} cups")
    post_order(number, f"{number[-1]} cups")  # the customer clicked twice
    post_payment(number, "visa")
    return get_order(number)


def main() -> None:
    day = uuid4().hex
    with worker(), ThreadPoolExecutor(4) as threads:
        for status, text in threads.map(customer, [f"{day}-{number}" for number in range(1, 5)]):
            print(status, text)
        print(*post_payment(f"{day}-9", "visa"))


if __name__ == "__main__":
    main()
