"""Scripts on a user's connection, in the transaction that is open there. Several kinds of connection are supported."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.core.errors import InvalidRequest
from holdfast.stores.postgres.connections import SEEING_LEVELS
from holdfast.stores.postgres.scripts import AsyncConnection, Connection, Script, run_script, run_script_async

T = TypeVar("T")

_KINDS = "a psycopg connection, or a SQLAlchemy connection or session on one"


async def run_on_user_connection(connection: object, script: Script[T]) -> T:
    """Run a script in the transaction that is open on a user's connection, of any supported kind."""
    own = await _driver_connection(connection)
    _check_transaction(own)
    script = _checked(script)
    if isinstance(own, psycopg.AsyncConnection):
        return await run_script_async(own, script)
    return await _in_thread(own, script)


async def _in_thread(connection: Connection, script: Script[T]) -> T:
    """Run a blocking script in a thread, so that it does not block the event loop.

    A caller that is cancelled meanwhile still waits for the end. The script uses the caller's connection: if the caller
    rolled back before the end, the remaining statements would be committed one by one.
    """
    # Not a task: a loop that shuts down cancels all tasks, and a cancelled task would not say when the thread ends.
    running = asyncio.get_running_loop().run_in_executor(None, run_script, connection, script)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # retrieved, or asyncio would log it as never retrieved
        raise cancelled
    return running.result()


async def _driver_connection(connection: Any) -> Connection | AsyncConnection:
    """Return the driver's connection, also from inside a SQLAlchemy connection or session."""
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        return connection
    if not _is_of_sqlalchemy(connection):
        raise InvalidRequest(f"{connection!r} is not a supported connection; pass {_KINDS}")
    if hasattr(connection, "bind") and hasattr(connection, "connection"):  # a session, which has a transaction at once
        connection = connection.connection()
        if asyncio.iscoroutine(connection):
            connection = await connection
    if not connection.in_transaction():
        raise InvalidRequest(
            "no transaction is open on this connection; begin one (`with connection.begin():`): the write takes effect "
            "when you commit it"
        )
    raw = await connection.get_raw_connection() if hasattr(connection, "get_raw_connection") else connection.connection
    own = raw.driver_connection
    if not isinstance(own, (psycopg.Connection, psycopg.AsyncConnection)):
        kind = f"{type(own).__module__}.{type(own).__qualname__}"
        raise InvalidRequest(f"this SQLAlchemy engine uses the driver of {kind}; use a postgresql+psycopg://… engine")
    return own


def _checked(script: Script[T]) -> Script[T]:
    """Check the isolation level, then run a script. At another level it would miss runs that have begun to wait."""
    level = yield b"select current_setting('transaction_isolation')", ()
    if level not in SEEING_LEVELS:
        raise InvalidRequest(
            f"the isolation level of this transaction is {level!r}; it must be 'read committed': begin the transaction "
            "with `begin isolation level read committed`, which overrides any default. At another level it cannot "
            "see runs that have begun to wait meanwhile, and they would not be woken"
        )
    return (yield from script)


def _is_of_sqlalchemy(connection: object) -> bool:
    families = (kind.__module__.partition(".")[0] for kind in type(connection).__mro__)
    return "sqlalchemy" in families


def _check_transaction(connection: Connection | AsyncConnection) -> None:
    if connection.closed:
        raise InvalidRequest("this connection is closed")
    match connection.pgconn.transaction_status:
        case TransactionStatus.INERROR:
            raise InvalidRequest("the transaction on this connection has failed; roll it back first")
        case TransactionStatus.IDLE if connection.autocommit:
            raise InvalidRequest(
                "no transaction is open on this connection; begin one (`with connection.transaction():`): the write "
                "takes effect when you commit it"
            )
        case _:  # without autocommit the driver begins a transaction by itself
            pass
