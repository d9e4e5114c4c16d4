"""The connector: makes the connections of a store, and knows whether the server can be reached."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import psycopg

from holdfast.core.errors import HoldfastError
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import USUAL, Connection, SessionLimits, connect
from holdfast.stores.postgres.errors import is_lost, is_timeout, unavailable
from holdfast.stores.reachability import Reachability

FIRST_PAUSE_SECONDS = 0.1


class Connector:
    """Opens connections. During an outage it tries the server with growing pauses and fails at once in between."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._trying = threading.Lock()
        self._reachability = Reachability("database", address.shown, first_pause_seconds=FIRST_PAUSE_SECONDS)

    def connect(self, limits: SessionLimits = USUAL) -> Connection:
        """Return a new connection.

        Raises:
            StoreUnavailable: The server cannot be reached or used. Driver errors are translated.

        """
        # During an outage one thread tries at a time. The others wait for its outcome, so a dead server gets one try.
        with self._trying if self._reachability.is_away else nullcontext():
            self._reachability.check()
            try:
                connection = connect(self.address, limits)
            except (psycopg.Error, HoldfastError) as error:
                told = self._reachability.failed(unavailable(self.address, error))
                if told is error:
                    raise
                raise told from error
        self._reachability.worked()
        return connection

    def translated(self, error: BaseException) -> BaseException:
        """Return the error to raise to the caller, `from` the given one."""
        told = unavailable(self.address, error)
        return self._reachability.noted(told) if is_lost(error) and not is_timeout(error) else told

    def lost(self, error: BaseException, opened_at: float) -> None:
        """Record that a connection broke, which was opened at this instant of the monotonic clock."""
        self._reachability.lost(unavailable(self.address, error), opened_at)
