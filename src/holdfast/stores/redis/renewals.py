"""Renewals: extend leases and record the heartbeat, from another thread and on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from holdfast.core.clock import Clock, Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Holding
from holdfast.core.verbs import StopRequest
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import Renewed
from holdfast.stores.redis.connections import BlockingConnection, scripted
from holdfast.stores.redis.connector import RedisConnector
from holdfast.stores.redis.epochs import Epochs
from holdfast.stores.redis.errors import ConnectionLost, ServerError, Silence
from holdfast.stores.redis.scripts import Keys, LuaScript

RUNS_AT_ONCE = 1_000
"""Maximum number of leases that one call renews, so that a call does not stop the server for long."""
ATTEMPTS = 3
"""Number of times that a renewal is tried, if the connection breaks or the epoch has changed."""

_LOST = 0


class Renewals:
    """Renews leases. Any thread may call it; the calls run one after the other."""

    def __init__(
        self, connector: RedisConnector, epochs: Epochs, keys: Keys, script: LuaScript, clock: Clock | None
    ) -> None:
        self._connector = connector
        self._epochs = epochs
        self._keys = keys
        self._script = script
        self._clock = clock
        self._turn = threading.Lock()
        self._connection: BlockingConnection | None = None
        self._is_closed = False

    def open(self) -> None:
        """Accept calls. The first one connects."""
        self._is_closed = False

    def close(self) -> None:
        """End the connection. A call in another thread fails."""
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            connection.close()

    def renew(
        self, worker: str, record: bytes, holdings: Sequence[Holding], lease: Micros
    ) -> tuple[Micros, list[Renewed | None]]:
        """Renew the leases that are still held, and record the worker's heartbeat."""
        with self._turn:
            now, verdicts = self._renewed(worker, record, holdings[:RUNS_AT_ONCE], lease)
            for first in range(RUNS_AT_ONCE, len(holdings), RUNS_AT_ONCE):
                now, more = self._renewed(worker, record, holdings[first : first + RUNS_AT_ONCE], lease)
                verdicts += more
        return now, verdicts

    def _renewed(
        self, worker: str, record: bytes, holdings: Sequence[Holding], lease: Micros
    ) -> tuple[Micros, list[Renewed | None]]:
        keys = [self._keys.meta, self._keys.of(names.WORKERS)]
        keys += [self._keys.of(names.head(holding.run_id)) for holding in holdings]
        words = [word for holding in holdings for word in (holding.run_id, holding.token, holding.seen)]
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            connection = self._connected()
            at = "" if self._clock is None else self._clock.now()
            arguments = (self._keys.prefix, self._epochs.number, at, lease, worker, record, *words)
            try:
                reply = connection.converse(scripted(self._script, keys, arguments))
            except ConnectionLost as error:
                self._lose(connection, error)
                failure = error
                continue
            except (Silence, ServerError) as error:
                self._lose(connection, error)
                raise self._connector.translated(error) from error
            if not isinstance(reply, int):
                return reply[0], [_verdict(item) for item in reply[1:]]
            # The epoch has changed. A new connection finds out to what.
            connection.close()
            failure = StoreUnavailable(f"{self._connector.address.shown} is beginning a new epoch; try again")
        assert failure is not None
        raise self._connector.translated(failure) from failure

    def _connected(self) -> BlockingConnection:
        if self._is_closed:
            raise StoreUnavailable(f"the store {self._connector.address.shown} is closed; open it first")
        if self._connection is None or not self._connection.is_open:
            self._connection = self._connector.connect_blocking()
        return self._connection

    def _lose(self, connection: BlockingConnection, error: Exception) -> None:
        connection.close()
        if not self._is_closed and not isinstance(error, ServerError):
            self._connector.lost(error, connection.opened_at)


def _verdict(item: Any) -> Renewed | None:
    if item == _LOST:
        return None
    arrivals, stop, newer = item
    return Renewed(arrivals, StopRequest(stop.decode()) if stop else None, tuple(newer))
