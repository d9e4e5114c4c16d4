"""The heartbeat: renews leases from its own thread, so that a busy event loop does not lose its runs.

If the event loop has been silent for several leases, the heartbeat takes it for dead and stops renewing. The leases
end, and another worker continues the runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.core.checkpoint import Verdicts
from holdfast.core.clock import SECOND, Clock, Micros
from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.model import Holding, WorkerRecord
from holdfast.core.outage import Outage
from holdfast.core.ports import Store
from holdfast.core.questions import VerdictsOn
from holdfast.worker.background import BackgroundJob

BEATS_PER_LEASE = 3
SILENT_LEASES = 4

LONGEST_PAUSE_SECONDS = 20.0
"""Maximum pause between two beats, for any lease: a worker silent for a minute counts as dead elsewhere."""

_log = logging.getLogger("holdfast.worker")


class Heartbeat:
    """Renews leases until stopped. It passes every answer of the store to the loop, with the time of the request."""

    def __init__(
        self,
        store: Store,
        info: Callable[[], WorkerRecord],
        lease: Micros,
        *,
        holdings: Callable[[], Sequence[Holding]],
        now: Callable[[], Micros],
        on_renewed: Callable[[Sequence[Holding], Micros, Verdicts], None],
    ) -> None:
        self._store = store
        self._current_info = info
        self._info = info()
        self._lease = lease
        self._holdings = holdings
        self._now = now
        self._on_renewed = on_renewed
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._pulse = time.monotonic()
        self._outage = Outage(_log, "cannot renew leases; trying again", "renewing leases works again")
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the heartbeat thread."""
        self._thread = threading.Thread(target=self._beat_on, name="holdfast-heart", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing, and wait up to five seconds for a renewal in flight."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    def _beat_on(self) -> None:
        seconds = min(self._lease / SECOND / BEATS_PER_LEASE, LONGEST_PAUSE_SECONDS)
        while not self._stopping.wait(seconds):
            try:
                self._loop.call_soon_threadsafe(self._note_pulse)
            except RuntimeError:
                return  # the loop is closed
            if time.monotonic() - self._pulse > SILENT_LEASES * self._lease / SECOND:
                _log.error(
                    "the event loop has been silent for %d leases; other workers take over its runs", SILENT_LEASES
                )
                continue
            self._beat()

    def _note_pulse(self) -> None:
        """Note that the loop is alive, and refresh the worker record for the next beat.

        Runs on the loop, because types are registered there.
        """
        self._pulse = time.monotonic()
        self._info = self._current_info()

    def _beat(self) -> None:
        try:
            holdings, asked_at = self._holdings(), self._now()
            answer = self._store.renew(self._info, holdings, self._lease)
            self._loop.call_soon_threadsafe(self._on_renewed, holdings, asked_at, answer)
        except Exception as error:  # noqa: BLE001 - without renewals the worker loses every run, so it tries again
            if not self._loop.is_closed():
                self._outage.failed(error)
        else:
            self._outage.worked()


_PAUSE_SECONDS = 0.02


class LeaseCheck(BackgroundJob[None]):
    """Asks the store about held runs after a hint that one of them may have changed.

    `accept` gets the answers. `on_end` is called after each request, with the error if there was one.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        holdings: Callable[[], Sequence[Holding]],
        accept: Callable[[Sequence[Holding], Verdicts], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__(clock)
        self._store = store
        self._holdings = holdings
        self._accept = accept
        self._report_end = on_end
        self._pause_seconds = 0.0

    def check(self, *, is_elsewhere: bool) -> None:
        """Ask soon. Hints from another process say only that something happened, and may come in a stream."""
        self._pause_seconds = _PAUSE_SECONDS if is_elsewhere else 0.0
        self.wake()

    async def _round(self) -> None:
        """Ask about the held runs. Hints from another process add a pause."""
        # The next heartbeat gets the same answer, and logs the outage.
        with suppress(StoreUnavailable, SchemaOutOfDate):
            holdings = self._holdings()
            answer = await self._store.changes(VerdictsOn(holdings=holdings))
            self._loop.call_soon(self._accept, holdings, answer)
        await asyncio.sleep(self._pause_seconds)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._report_end(task.exception())
        if self._is_wanted:
            self._begin()
