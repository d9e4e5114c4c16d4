"""The till: deposits in keys of the test itself, on the server of the store.

A store without transactions cannot commit them together with a step. So each deposit carries the idempotency key of
its step, and a script makes it once, however often the step is executed.
"""

from __future__ import annotations

from typing import Any

from redis import asyncio as aioredis
from redis.asyncio.retry import Retry as ClientRetry
from redis.backoff import NoBackoff

from holdfast import step_info
from holdfast.testing.patience import GUARD_SECONDS
from tests.process.ledger import Ledger
from tests.redis import connect

_DONE, _LIST, _TOTAL = "till:done:", "till:list", "till:total"

_DEPOSIT = """
    if redis.call('SET', KEYS[1], 1, 'NX') then
        redis.call('RPUSH', KEYS[2], ARGV[1])
        redis.call('INCR', KEYS[3])
    end
"""


async def deposit(book: str, url: str, number: int) -> str:
    """Make a deposit for the current step, unless an earlier attempt has made it."""
    with Ledger(book).execution() as mark:
        await _deposit(url, number)
        return mark


async def _deposit(url: str, number: int) -> None:
    info = step_info()
    address = url.partition("?")[0]  # the options of a store are for the store only
    # One attempt: a repetition is the task of the step.
    retry = ClientRetry(NoBackoff(), 0)
    limits: dict[str, Any] = {"socket_timeout": GUARD_SECONDS, "socket_connect_timeout": GUARD_SECONDS}
    async with aioredis.Redis.from_url(address, retry=retry, **limits) as client:
        keys = (f"{_DONE}{info.idempotency_key}", _LIST, _TOTAL)
        await client.register_script(_DEPOSIT)(keys, (f"{info.run_id} {number}",))


def deposits(url: str) -> tuple[list[tuple[str, int]], int]:
    """Return all deposits as runs and numbers, and their count as kept by the script."""
    with connect(url, decode_responses=True) as client:
        lines: Any = client.lrange(_LIST, 0, -1)
        total: Any = client.get(_TOTAL)
    pairs = [line.split(" ") for line in lines]
    return [(run_id, int(number)) for run_id, number in pairs], int(total or 0)
