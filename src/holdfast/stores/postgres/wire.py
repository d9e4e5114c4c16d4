"""The wire: carries talks out on the event loop itself, on a connection that belongs to it.

To hand a job to a thread and back costs as much as a small statement takes, and far more on a busy machine. So what
is short is said here. Whatever cannot be done here and now, or goes wrong in a way that is worth repeating, is left to
the sessions: they know how to wait and to repeat.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import psycopg

from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.stores.postgres.connections import USUAL, Connection, Limits, disown
from holdfast.stores.postgres.connector import Connector
from holdfast.stores.postgres.link import Link
from holdfast.stores.postgres.sessions import Sessions, Work
from holdfast.stores.postgres.talks import Chain, Talk, Trip, hold
from holdfast.stores.postgres.trouble import is_cancelled, is_conflict, is_lost, is_overdue, is_timeout, unavailable

STOP_SECONDS = 5.0
RETRY_SECONDS = 1.0

# What is longer would hold up the loop while it is copied.
ARGUMENTS_LIMIT_CHARACTERS = 64 * 1024

T = TypeVar("T")


class Wire:
    """One connection, one talk at a time; it is opened by the first talk, apart from the loop."""

    def __init__(self, connector: Connector, sessions: Sessions, *, limits: Limits = USUAL) -> None:
        self._connector = connector
        self._sessions = sessions
        self._limits = limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None
        self._holding: _Holding[Any] | None = None
        self._is_opening = False
        self._is_stopped = False
        self._retry_at = 0.0

    def hold(self, talk: Callable[[], Talk[T]], *, again: Callable[[], Talk[T]] | None = None) -> asyncio.Future[T]:
        """Carry a talk out; `talk` makes it, once for each time it is tried, on this loop or in a session's thread.

        After a lost connection `again` is held instead, if given: the first attempt may have been applied.
        """
        loop = asyncio.get_running_loop()
        link = self._link
        if link is not None and loop is self._loop and link.is_free and self._holding is None:
            holding = _Holding(self, link, talk, again, loop.create_future())
            self._holding = holding
            holding.begin()
            return holding.future
        self._open(loop)
        return self._sessions.run(_job(talk), again=None if again is None else _job(again))

    # Its life

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Wait for the answer that is due, if any, and close."""
        self._is_stopped = True
        if self._holding is not None and self._loop is asyncio.get_running_loop():
            await asyncio.wait([self._holding.future], timeout=seconds)
        self.close()

    def close(self) -> None:
        """Close at once. On its loop, or when that runs no longer."""
        self._is_stopped = True
        link, self._link = self._link, None
        holding, self._holding = self._holding, None
        if link is not None:
            link.end()
        if holding is not None and not holding.future.done() and self._loop is not None and not self._loop.is_closed():
            shown = self._connector.address.shown
            holding.future.set_exception(StoreUnavailable(f"the store {shown} was closed before it could answer"))

    def abandon(self) -> None:
        """In a forked child: use and close nothing of the parent's."""
        self._is_stopped = True
        link, self._link = self._link, None
        if link is not None:
            disown(link.connection)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_stopped or self._is_opening:
            return
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                return  # it is in use there
            if self._link is not None:
                self._link.end()  # whoever waited was on a loop that is gone
            self._loop = loop
            self._link, self._holding, self._retry_at = None, None, 0.0
        if self._link is None and time.monotonic() >= self._retry_at:
            self._is_opening = True
            threading.Thread(target=self._connect, args=(loop,), name="holdfast-postgres-wire", daemon=True).start()

    def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread, because it takes a while, or for ever."""
        connection = None
        with suppress(HoldfastError):  # the sessions meet it too, and tell whoever asks
            connection = self._connector.connect(self._limits)
        try:
            loop.call_soon_threadsafe(self._connected, loop, connection)
        except RuntimeError:  # the loop is closed
            self._is_opening = False
            if connection is not None:
                connection.close()

    def _connected(self, loop: asyncio.AbstractEventLoop, connection: Connection | None) -> None:
        self._is_opening = False
        if connection is None:
            self._retry_at = time.monotonic() + RETRY_SECONDS
        elif self._is_stopped or self._loop is not loop:
            connection.close()
        else:
            is_prepared = self._connector.address.is_prepared
            self._link = Link(loop, connection, is_prepared=is_prepared, broke=self._broke)

    def _broke(self, error: psycopg.Error) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._connector.lost(error, link.opened_at)

    # For the talk that is held

    def ended(self, holding: _Holding[Any]) -> None:
        """The wire is free for another one. A transaction that was left open is undone first."""
        link = holding.link
        if link.is_free and not link.is_idle:
            link.ask((b"rollback", ()), lambda *_: self._free(holding))
        else:
            self._free(holding)

    def _free(self, holding: _Holding[Any]) -> None:
        if self._holding is holding:
            self._holding = None

    def hand_on(self, holding: _Holding[Any], error: BaseException | None) -> None:
        """Have the sessions do what could not be done here; or tell what went wrong, if that would not help."""
        if holding.future.done():
            return
        if error is None or is_conflict(error) or is_cancelled(error, holding.seconds, self._limits):
            work = _job(holding.talk)
        elif is_overdue(error) or (is_lost(error) and not is_timeout(error)):  # overdue: this process stood still
            work = _job(holding.again)
        else:
            _fail(holding.future, unavailable(self._connector.address, error), error)
            return
        try:
            done = self._sessions.run(work, again=_job(holding.again))
        except StoreUnavailable as closed:
            holding.future.set_exception(closed)
        else:
            done.add_done_callback(holding.settle_like)


class _Holding(Generic[T]):
    """A talk under way, and who waits for what comes of it."""

    def __init__(
        self,
        wire: Wire,
        link: Link,
        talk: Callable[[], Talk[T]],
        again: Callable[[], Talk[T]] | None,
        future: asyncio.Future[T],
    ) -> None:
        self.link = link
        self.talk = talk
        self.again = again or talk
        self.future = future
        self._wire = wire
        self._began_at = time.monotonic()
        self._talk = talk()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_at

    def begin(self) -> None:
        self._say(lambda: next(self._talk), is_first=True)

    def _answered(self, value: Any, error: psycopg.Error | None) -> None:
        if error is None:
            self._say(lambda: self._talk.send(value))
        else:
            self._say(lambda: self._talk.throw(error))

    def _say(self, go_on: Callable[[], Trip | Chain], *, is_first: bool = False) -> None:
        try:
            trip = go_on()
            if is_first and not _is_short(trip):
                self._talk.close()
                self._wire.ended(self)
                self._wire.hand_on(self, None)
                return
            self.link.ask(trip, self._answered)
        except StopIteration as end:
            self._wire.ended(self)
            if not self.future.done():
                self.future.set_result(end.value)
        except BaseException as error:  # noqa: BLE001 - an error of any kind is the caller's; the loop goes on
            self._wire.ended(self)
            self._wire.hand_on(self, error)

    def settle_like(self, other: asyncio.Future[T]) -> None:
        """Pass on what the sessions answered."""
        if other.cancelled() or self.future.done():
            self.future.cancel()
        elif (error := other.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(other.result())


def _is_short(trip: Trip | Chain) -> bool:
    if isinstance(trip, Chain):
        return all(map(_is_short, trip.trips))
    characters = 0
    for one in trip[1]:  # each time something is said, so nothing shorter that takes longer
        if type(one) is str:
            characters += len(one)
    return characters <= ARGUMENTS_LIMIT_CHARACTERS


def _job(talk: Callable[[], Talk[T]]) -> Work[T]:
    return lambda connection: hold(connection, talk())


def _fail(future: asyncio.Future[Any], translated: BaseException, error: BaseException) -> None:
    if translated is not error:
        translated.__cause__ = error
    future.set_exception(translated)
