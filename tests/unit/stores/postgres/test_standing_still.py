"""A process that freezes inside a holdfast transaction: no other process waits for it, and it continues later."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.commands import ChangeTypes, SendMessages
from holdfast.core.model import TypeChange
from holdfast.core.questions import ListTypes
from holdfast.stores.operations import types
from holdfast.stores.postgres import store as store_module
from holdfast.stores.postgres import unit_of_work
from holdfast.stores.postgres.connections import OWN, SessionLimits
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.unit_of_work import decide
from holdfast.stores.workspace.reads import RulingRead, TypeRead
from holdfast.stores.workspace.row_unit import RowUnit
from holdfast.testing.patience import wait_for

CHANGE = TypeChange(name="t", concurrency=1)

IS_KEPT = """
select exists (
    select
    from pg_stat_activity
    where datname = current_database()
      and application_name like 'holdfast%'
      and state = 'idle in transaction'
)
"""


class Sleeper:
    """Changes a type, and freezes the first time, with the row of the type locked."""

    def __init__(self, url: str) -> None:
        self.stands = threading.Event()
        self.goes_on = threading.Event()
        self.times = 0
        self._url = url

    def change(self, *, is_small: bool) -> None:
        asyncio.run(self._change(is_small=is_small))

    async def _change(self, *, is_small: bool) -> None:
        store = PostgresStore(self._url)
        await store.open()
        while is_small and store._loop_session._connection is None:  # the first scripts open the connection
            await store.apply(SendMessages(messages=[]))
            await asyncio.sleep(0.01)
        reads = [TypeRead("t"), RulingRead()]
        await store._write(lambda: decide(store._calls, reads, self._decide, None), is_small=is_small)
        await store.close()

    def _decide(self, unit: RowUnit, now: Micros) -> None:
        self.times += 1
        if self.times == 1:
            self.stands.set()
            wait_for("the sleeper may go on", self.goes_on)
        types.change(unit, [replace(CHANGE, concurrency=3)], now)


@pytest.mark.parametrize("is_small", [True, False], ids=["on the loop", "in a thread"])
async def test_other_processes_continue_and_so_does_a_frozen_process_when_it_wakes_up(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    monkeypatch.setattr(store_module, "OWN", SessionLimits(idle_seconds=0.3))
    sleeper = Sleeper(postgres_store_url)
    store = PostgresStore(postgres_store_url)
    await store.open()
    await store.apply(ChangeTypes(changes=[CHANGE]))
    sleeping = asyncio.create_task(asyncio.to_thread(sleeper.change, is_small=is_small))
    await asyncio.to_thread(wait_for, "the sleeper stands still", sleeper.stands)

    await store.apply(ChangeTypes(changes=[replace(CHANGE, concurrency=2)]))
    sleeper.goes_on.set()
    await sleeping

    assert sleeper.times > 1  # the first attempt was rolled back
    assert [rule.concurrency for rule in await store.catalog(ListTypes())] == [3]
    await store.close()


async def test_a_transaction_with_much_work_gets_enough_time(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch, outsider: psycopg.Connection[Any]
) -> None:
    monkeypatch.setattr(store_module, "OWN", SessionLimits(idle_seconds=0.2))
    monkeypatch.setattr(unit_of_work, "MUCH_CHARACTERS", 0)
    slow = Sleeper(postgres_store_url)
    deciding_slowly = asyncio.create_task(asyncio.to_thread(slow.change, is_small=False))
    await asyncio.to_thread(wait_for, "the sleeper stands still", slow.stands)

    await asyncio.sleep(0.5)
    is_kept = outsider.execute(IS_KEPT).fetchone()
    slow.goes_on.set()
    await deciding_slowly

    assert is_kept == (True,)


def test_a_frozen_transaction_is_ended_before_a_heartbeat_is_missed() -> None:
    assert OWN.idle_seconds < store_module.HEART_LIMITS.lock_seconds
