"""Connections of users: with any settings, holdfast's statements are part of the user's transaction, or of none."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, scalar_row

from holdfast.core.errors import InvalidRequest
from holdfast.core.model import Event, Intent, MessageToRun
from holdfast.stores.postgres import PostgresStore


def an_intent(run_id: str = "r") -> Intent:
    return Intent(id=run_id, type="t", payload="{}")


async def is_there(store: PostgresStore, run_id: str = "r") -> bool:
    return await store.get(run_id) is not None


# Cancelled callers


async def until_it_waits_for_a_lock(connection: psycopg.Connection[Any], observer: psycopg.Connection[Any]) -> None:
    query = "select true from pg_locks where pid = %s and not granted"
    while observer.execute(query, (connection.info.backend_pid,)).fetchone() is None:
        await asyncio.sleep(0.01)


async def test_a_cancelled_caller_returns_only_when_its_connection_is_idle(
    store: PostgresStore, postgres_store_url: str
) -> None:
    url = postgres_store_url
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as own:
        await store.database.create_in(other, [an_intent()])  # holds the key, so the second start has to wait

        async def start() -> None:
            with own.transaction():
                await store.database.create_in(own, [an_intent()])

        starting = asyncio.create_task(start())
        await until_it_waits_for_a_lock(own, other)
        for _ in range(2):
            starting.cancel()
            done, _ = await asyncio.wait([starting], timeout=0.1)
            assert not done
        other.rollback()

        with pytest.raises(asyncio.CancelledError):
            await starting
        assert own.info.transaction_status == TransactionStatus.IDLE
        assert not await is_there(store)


# Settings of the connection


@pytest.mark.parametrize(
    "settings",
    [
        {"row_factory": dict_row},
        {"cursor_factory": psycopg.ClientCursor},
        {"cursor_factory": psycopg.RawCursor},
        {"cursor_factory": psycopg.RawCursor, "row_factory": scalar_row, "prepare_threshold": 0},
    ],
)
async def test_a_connection_may_have_any_row_and_cursor_factories(
    store: PostgresStore, postgres_store_url: str, settings: dict[str, Any]
) -> None:
    with psycopg.connect(postgres_store_url, **settings) as connection:
        created = await store.database.create_in(connection, [an_intent()])

    assert created.runs[0].created
    assert await is_there(store)


async def test_an_async_connection_may_have_any_factories_too(store: PostgresStore, postgres_store_url: str) -> None:
    connecting = psycopg.AsyncConnection.connect(
        postgres_store_url, row_factory=dict_row, cursor_factory=psycopg.AsyncRawCursor
    )
    async with await connecting as connection:
        created = await store.database.create_in(connection, [an_intent()])

    assert created.runs[0].created
    assert await is_there(store)


# Isolation


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
async def test_a_transaction_that_does_not_see_the_commits_of_others_is_refused(
    store: PostgresStore, postgres_store_url: str, level: IsolationLevel
) -> None:
    told = f"level of this transaction is '{level.name.lower().replace('_', ' ')}'; it must be 'read committed'"
    with psycopg.connect(postgres_store_url) as connection:
        connection.isolation_level = level
        for doing in (
            store.database.create_in(connection, [an_intent()]),
            store.database.send_in(connection, [MessageToRun(id="m", name="go", payload="1", run_id="r")]),
            store.database.emit_in(connection, [Event(id="e", topic="rates", payload="1")]),
        ):
            with pytest.raises(InvalidRequest, match=told):
                await doing
        assert connection.info.transaction_status == TransactionStatus.INTRANS  # the user has to end it

    assert not await is_there(store)


async def test_a_read_committed_transaction_is_accepted_whatever_the_default_is(
    store: PostgresStore, postgres_store_url: str
) -> None:
    with psycopg.connect(postgres_store_url, autocommit=True) as connection:
        connection.execute("set default_transaction_isolation = 'serializable'")
        connection.execute("begin isolation level read committed")
        await store.database.create_in(connection, [an_intent()])
        connection.execute("commit")

    assert await is_there(store)
