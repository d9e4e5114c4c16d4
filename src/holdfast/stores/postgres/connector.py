"""The connector: makes the connections of a store, and knows whether the server can be reached."""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import nullcontext

import psycopg

from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.outage import Outage, pauses
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import USUAL, Connection, SessionLimits, connect
from holdfast.stores.postgres.errors import is_lost, is_timeout, unavailable

FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 2.0

_log = logging.getLogger("holdfast.store")


class Connector:
    """Opens connections. During an outage it tries the server with growing pauses and fails at once in between."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._changing = threading.Lock()
        self._trying = threading.Lock()
        self._was_reached = False
        self._is_away = False
        self._back_at = 0.0
        self._next_at = 0.0
        self._pauses = pauses(FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS)
        self._reason = ""
        self._outage = Outage(
            _log, "lost the database, connecting again", f"the database is back: connected to {address.shown}"
        )

    def connect(self, limits: SessionLimits = USUAL) -> Connection:
        """Return a new connection.

        Raises:
            StoreUnavailable: The server cannot be reached or used. Driver errors are translated.

        """
        # During an outage one thread tries at a time. The others wait for its outcome, so a dead server gets one try.
        with self._trying if self._is_away else nullcontext():
            if self._is_away and time.monotonic() < self._next_at:
                raise self._noted(StoreUnavailable(self._reason))
            try:
                connection = connect(self.address, limits)
            except (psycopg.Error, HoldfastError) as error:
                told = unavailable(self.address, error)
                self._failed(told)
                self._noted(told)
                if told is error:
                    raise
                raise told from error
        self._worked()
        return connection

    def translated(self, error: BaseException) -> BaseException:
        """Return the error to raise to the caller, `from` the given one."""
        told = unavailable(self.address, error)
        return self._noted(told) if is_lost(error) and not is_timeout(error) else told

    def _noted(self, told: BaseException) -> BaseException:
        """Mark an error as already logged with its outage. Only outages after a first connection are logged."""
        if isinstance(told, StoreUnavailable):
            told.is_noted = self._was_reached
        return told

    def lost(self, error: BaseException, opened_at: float) -> None:
        """Record that a connection broke, which was opened at this instant of the monotonic clock."""
        with self._changing:
            # A connection older than the last reconnect broke in the previous outage and was not used since.
            if not self._is_away and opened_at >= self._back_at:
                self._leave(unavailable(self.address, error))

    def _failed(self, error: BaseException) -> None:
        with self._changing:
            if not self._is_away:
                self._leave(error)
            self._reason = str(error)
            self._next_at = time.monotonic() + next(self._pauses) * random.uniform(0.8, 1.2)

    def _worked(self) -> None:
        with self._changing:
            self._was_reached = True
            if self._is_away:
                self._is_away = False
                self._back_at = time.monotonic()
                self._outage.worked()

    def _leave(self, error: BaseException) -> None:
        self._is_away = True
        self._next_at = 0.0
        self._pauses = pauses(FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS)
        self._reason = str(error)
        if self._was_reached:  # before that, the caller of `open` gets the error; logging it would repeat it
            self._outage.failed(error)
