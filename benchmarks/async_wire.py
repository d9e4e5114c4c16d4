"""The alternative to the hand-written connection: a wire on the driver's own `AsyncConnection`.

Everything that does not touch the connection is inherited. It is as quick as the driver's public interface allows: one
cursor for each statement, which keeps what it has learned of it; values read from the result, without row factories;
one timer for the limit on answers, not one for each.
"""

# It is put in the place of a private part.
# ruff: noqa: BLE001, C901, SLF001
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus

from holdfast.stores.postgres import wire
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.link import _value
from holdfast.stores.postgres.talks import Chain, Talk, Trip
from holdfast.stores.postgres.trouble import is_lost, is_timeout

T = TypeVar("T")


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """The driver's connection, with the connector's settings: it takes over one that was opened in a thread."""

    def __init__(self, opened: Connection, *, is_prepared: bool) -> None:
        super().__init__(opened.pgconn)
        self.opened = opened  # else it would be collected, and complain
        self._autocommit = True
        self.prepare_threshold = 0 if is_prepared else None
        self._answer_seconds = opened.answer_seconds or 3600.0
        self._cursors: dict[bytes, psycopg.AsyncCursor[Any]] = {}

    def wait(self, gen: PQGen[T], interval: float = 0, timeout: float | None = None) -> Awaitable[T]:  # type: ignore[override]
        # Without the driver's handling of cancellation: nobody cancels the task that waits here.
        return waiting.wait_async(gen, self.pgconn.socket, interval=self._answer_seconds)

    async def ask(self, said: Trip | Chain) -> Any:
        if isinstance(said, Chain):
            return await self._ask_chain(said)
        statement, arguments = said
        cursor = self._cursors.get(statement)
        if cursor is None:
            cursor = self._cursors[statement] = psycopg.AsyncCursor(self)
        await cursor.execute(statement, arguments)
        assert cursor.pgresult is not None
        return _value(cursor.pgresult)

    async def _ask_chain(self, chain: Chain) -> Any:
        statement = b"; ".join(trip[0] for trip in chain.trips)
        arguments = [argument for trip in chain.trips for argument in trip[1]]
        cursor = psycopg.AsyncClientCursor(self)
        await cursor.execute(statement, arguments)
        value = None
        while True:
            if cursor.pgresult is not None and cursor.pgresult.nfields:
                value = _value(cursor.pgresult)
            if not cursor.nextset():
                return value


class _Carried(Generic[T]):
    """A talk under way, as `Wire.hand_on` wants it."""

    def __init__(
        self, talk: Callable[[], Talk[T]], again: Callable[[], Talk[T]] | None, future: asyncio.Future[T]
    ) -> None:
        self.talk = talk
        self.again = again or talk
        self.future = future
        self.began_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_at

    settle_like = wire._Holding.settle_like


class AsyncWire(wire.Wire):
    """A wire that carries each talk out in a task, on an `AsyncConnection`."""

    _connection: AsyncConnection | None = None
    _carried: _Carried[Any] | None = None

    def hold(self, talk: Callable[[], Talk[T]], *, again: Callable[[], Talk[T]] | None = None) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        connection = self._connection
        if connection is not None and loop is self._loop and self._carried is None:
            self._carried = carried = _Carried(talk, again, loop.create_future())
            carried.task = loop.create_task(self._carry(connection, carried))
            return carried.future
        self._open(loop)
        return self._sessions.run(wire._job(talk), again=None if again is None else wire._job(again))

    async def stop(self, seconds: float = wire.STOP_SECONDS) -> None:
        if self._carried is not None:
            await asyncio.wait([self._carried.future], timeout=seconds)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        self._is_stopped = True

    def _connected(self, loop: asyncio.AbstractEventLoop, connection: Connection | None) -> None:
        assert connection is not None
        self._connection = AsyncConnection(connection, is_prepared=self._connector.address.is_prepared)

    async def _carry(self, connection: AsyncConnection, carried: _Carried[T]) -> None:
        error: BaseException | None = None
        try:
            talk = carried.talk()
            said = next(talk)
            if not wire._is_short(said):
                self._carried = None
                self.hand_on(carried, None)
                return
            while True:
                try:
                    value = await connection.ask(said)
                except BaseException as failed:  # noqa: BLE001 - whatever it is, the talk has to undo its part
                    said = talk.throw(failed)
                else:
                    said = talk.send(value)
        except StopIteration as end:
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:
                await connection.rollback()
            self._carried = None
            if not carried.future.done():
                carried.future.set_result(end.value)
            return
        except BaseException as failed:
            error = failed
        if is_lost(error) and not is_timeout(error):
            await connection.close()
            self._connection = None
            self._is_opening = False
        elif connection.pgconn.transaction_status != TransactionStatus.IDLE:
            await connection.rollback()
        self._carried = None
        self.hand_on(carried, error)
