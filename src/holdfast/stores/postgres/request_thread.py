"""The request thread: carries out requests of SQL producers while this process has a worker, busy or not.

A claim carries them out as well, so that a worker with a free slot finds the runs that they make ready. This thread
does not depend on free slots, on the types of the worker, or on its event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from holdfast.core.clock import Clock
from holdfast.core.news import News
from holdfast.core.outage import Outage
from holdfast.stores.postgres import sql_requests
from holdfast.stores.postgres.hints import Hints
from holdfast.stores.postgres.scripts import Connection
from holdfast.stores.postgres.sessions import Sessions
from holdfast.stores.postgres.sql import Calls

POLL_SECONDS = 7.0
"""Maximum time between two polls. It exceeds the claimer's poll, because the claims of a free worker also poll."""
POLL_WITHOUT_HINTS_SECONDS = 2.0
"""Maximum time between two polls of a store without notifications."""

_APART_SECONDS = 0.02
"""Minimum time between two polls, because notifications of SQL producers may come in a stream."""
_RETRY_SECONDS = 1.0
_STOP_SECONDS = 1.0

_log = logging.getLogger("holdfast.store")


class RequestThread:
    """Carries out requests after a notification, and polls for them, while this process has a worker."""

    def __init__(self, calls: Calls, writers: Sessions, hints: Hints, clock: Clock | None, *, has_hints: bool) -> None:
        self._calls = calls
        self._writers = writers
        self._hints = hints
        self._clock = clock
        self._has_hints = has_hints
        hints.on_request(self.wake)
        self._changing = threading.Lock()
        self._working = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._servers: set[object] = set()
        self._is_open = False
        self._looked_at = 0.0
        self._outage = Outage(
            _log,
            "cannot carry out requests of SQL producers; trying again",
            "carrying out requests of SQL producers works again",
        )
        self._errand: asyncio.Future[bool] | None = None
        self.batches = 0
        """Number of batches that this process has carried out."""

    # Lifetime

    def start(self) -> None:
        """Mark the store as open."""
        self._is_open = True

    def stop(self) -> None:
        """End the thread. Call this after the writers have stopped, so that the thread waits for no answer."""
        self._is_open = False
        thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None:
            thread.join(_STOP_SECONDS)

    def abandon(self) -> None:
        """Reset in a forked child, which has no such thread. It takes no lock, because the thread may have held it."""
        self._is_open = False
        self._changing, self._working, self._wake = threading.Lock(), threading.Lock(), threading.Event()
        self._thread = self._errand = None
        self._servers = set()

    def serve(self) -> Callable[[], None]:
        """Carry out requests until the returned function is called. Several workers of a process may call this."""
        server = object()
        with self._changing:
            self._servers.add(server)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-postgres-requests", daemon=True)
                self._thread.start()
        self.wake()
        return lambda: self._servers.discard(server)

    # From other threads

    def wake(self) -> None:
        """Make the thread look for requests. Callable from any thread."""
        if self._servers:
            self._wake.set()

    def looked(self) -> None:
        """Record that a claim has just looked for requests."""
        self._looked_at = time.monotonic()

    def begin(self) -> asyncio.Future[bool]:
        """Carry out a batch of requests for a claim. The future is done when the batch is."""
        if self._errand is None:
            self._errand = self._writers.run(self._carry_out)
            self._errand.add_done_callback(self._done)
        return self._errand

    def _done(self, errand: asyncio.Future[bool]) -> None:
        self._errand = None
        if not errand.cancelled():
            self._note(errand.exception())

    # In its own thread

    def _run(self) -> None:
        while self._is_open:
            is_woken = self._wake.wait(self._patience())
            self._wake.clear()
            if self._servers and (is_woken or self._patience() == 0.0):
                self._look()
                time.sleep(_APART_SECONDS)

    def _patience(self) -> float | None:
        """Seconds until the next poll; None if this process has no worker."""
        if not self._servers:
            return None
        poll = POLL_SECONDS if self._has_hints else POLL_WITHOUT_HINTS_SECONDS
        poll = min(poll, _RETRY_SECONDS) if self._outage.is_ongoing else poll
        return max(0.0, self._looked_at + poll - time.monotonic())

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        try:
            while self._writers.run_blocking(self._carry_out_waiting):
                pass
        except Exception as error:  # noqa: BLE001 - after any error the next poll tries again
            self._note(error)
        else:
            self._note(None)

    def _note(self, error: BaseException | None) -> None:
        if error is None:
            self._outage.worked()
        elif self._is_open:  # otherwise the error comes from closing the store
            self._outage.failed(error)

    # In the thread of a session

    def _carry_out_waiting(self, connection: Connection) -> bool:
        """Carry out a batch if there are requests. The check costs one round trip and takes no lock."""
        return sql_requests.are_waiting(connection, self._calls.schema) and self._carry_out(connection)

    def _carry_out(self, connection: Connection) -> bool:
        """Carry out a batch. Return False if there was none, or if another process is carrying it out."""
        with self._working:
            at = None if self._clock is None else self._clock.now()
            news = sql_requests.carry_out(connection, self._calls, at)
            if news is not None:
                self.batches += 1
        self._hints.announce(news or News())
        return news is not None
