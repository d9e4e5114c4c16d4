"""Reachability: whether the server of a store can be reached, and when to try it again during an outage."""

from __future__ import annotations

import logging
import random
import threading
import time

from holdfast.core.errors import StoreUnavailable
from holdfast.core.outage import Outage, pauses

LAST_PAUSE_SECONDS = 2.0
_JITTER = 0.2

_log = logging.getLogger("holdfast.store")


class Reachability:
    """What the connections of a store know of their server, together. Any thread may report.

    During an outage the pauses between attempts grow, and calls fail at once in between. The beginning and the end of
    an outage are logged, but only after a first connection: before that, the caller of `open` gets the error.
    """

    def __init__(self, server: str, shown: str, *, first_pause_seconds: float) -> None:
        self._first_pause_seconds = first_pause_seconds
        self._changing = threading.Lock()
        self._was_reached = False
        self._is_away = False
        self._back_at = 0.0
        self._next_at = 0.0
        self._pauses = pauses(first_pause_seconds, LAST_PAUSE_SECONDS)
        self._reason = ""
        self._outage = Outage(
            _log, f"lost the {server}, connecting again", f"the {server} is back: connected to {shown}"
        )

    @property
    def is_away(self) -> bool:
        """True during an outage."""
        return self._is_away

    def check(self) -> None:
        """Raise `StoreUnavailable` if an outage goes on and the next attempt is not due."""
        if self._is_away and time.monotonic() < self._next_at:
            raise self.noted(StoreUnavailable(self._reason))

    def noted(self, error: BaseException) -> BaseException:
        """Return the error, marked as already logged if its outage is logged here."""
        if isinstance(error, StoreUnavailable):
            error.is_noted = self._was_reached
        return error

    def failed(self, error: BaseException) -> BaseException:
        """Record a failed attempt to connect, and return the error as `noted` does."""
        with self._changing:
            if not self._is_away:
                self._leave(error)
            self._reason = str(error)
            self._next_at = time.monotonic() + next(self._pauses) * random.uniform(1 - _JITTER, 1 + _JITTER)
        return self.noted(error)

    def worked(self) -> None:
        """Record a new connection."""
        with self._changing:
            self._was_reached = True
            if self._is_away:
                self._is_away = False
                self._back_at = time.monotonic()
                self._outage.worked()

    def lost(self, error: BaseException, opened_at: float) -> None:
        """Record that a connection broke, which was opened at this instant of the monotonic clock."""
        with self._changing:
            # A connection older than the last reconnect broke in the previous outage and was not used since.
            if not self._is_away and opened_at >= self._back_at:
                self._leave(error)

    def _leave(self, error: BaseException) -> None:
        self._is_away = True
        self._next_at = 0.0
        self._pauses = pauses(self._first_pause_seconds, LAST_PAUSE_SECONDS)
        self._reason = str(error)
        if self._was_reached:
            self._outage.failed(error)
