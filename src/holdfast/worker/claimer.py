"""The claimer: asks the store for runs while the worker has free slots and a run may be ready."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from holdfast.core.checkpoint import Claimed, ClaimRequest, LeaseRequest
from holdfast.core.claim_order import Shares, after_claims
from holdfast.core.clock import SECOND, Clock, Micros
from holdfast.core.model import new_id
from holdfast.core.outage import Outage
from holdfast.core.ports import Store
from holdfast.worker.background import BackgroundJob

BATCH_LIMIT = 200
POLL: Micros = 5 * SECOND
_OUTAGE_PAUSE: Micros = SECOND
_AGAIN_PAUSE: Micros = SECOND // 50
"""Pause after a claim that left a ready run behind."""
_VAIN_PAUSE: Micros = SECOND // 200
"""Pause after an empty claim, before a hint from another process causes the next claim."""
_STOP_SECONDS = 5.0

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

_log = logging.getLogger("holdfast.worker")


class Room(Protocol):
    """The worker, as the claimer sees it."""

    @property
    def clock(self) -> Clock: ...

    def free(self) -> int:
        """Return the number of runs that the worker can still take."""
        ...

    def holds_suspect(self) -> bool: ...

    async def renew_if_late(self) -> None:
        """Renew the leases if the last renewal is too long ago, as it is after an outage."""
        ...


class Claimer(BackgroundJob[Claimed | None]):
    """Claims runs in batches, one claim at a time.

    Between claims it sleeps until the next run is ready, a hint comes, or the poll is due.
    """

    def __init__(
        self,
        store: Store,
        room: Room,
        *,
        worker_id: str,
        types: Callable[[], tuple[str, ...]],
        lease: Micros,
        poll: Micros | None,
        accept: Callable[[Claimed], None],
    ) -> None:
        super().__init__(room.clock)
        self._store = store
        self._room = room
        self._worker_id = worker_id
        self._types = types
        self._lease = lease
        self._poll = poll
        self._accept = accept
        self._repeats: deque[ClaimRequest] = deque()
        self._is_wanted = True
        self._outage = Outage(_log, "cannot claim; trying again", "claiming works again")
        self.asked_at: Micros = 0
        """Time of the last claim."""
        self._is_vain = False
        self._shares = Shares()
        self._expected_at: Micros | None = None
        self._is_outdated = False
        self.was_short = False
        """True if the last claim returned fewer runs than it asked for: the queue was empty."""

    def confirm(self) -> bool:
        """Return True if a claim made after the worker last released a run found nothing. Make that claim if needed.

        The released run may have woken other runs, and the hint about it may come late or never.
        """
        if self._is_outdated and not self._is_stopped:
            self.wake()
        return self.is_idle

    def wake(self) -> None:
        """Claim soon, because a run may be ready."""
        self._is_wanted = True
        self.claim()

    def wake_for_others(self) -> None:
        """Claim soon, because another process may have made a run ready.

        Every worker gets this hint, and another one may be quicker. After an empty claim the next one waits a moment,
        so that many idle workers do not slow down the processes that write.
        """
        # A negative age means that the clock was set back since the claim. Without a poll (tests) time may stand
        # still, so a pause would never end.
        is_soon = 0 <= self._clock.now() - self.asked_at < _VAIN_PAUSE
        if self._is_vain and is_soon and self._poll is not None:
            self._is_wanted = True
            self.wake_by(self.asked_at + _VAIN_PAUSE)
        else:
            self.wake()

    def recall(self, request: LeaseRequest) -> None:
        """Fetch the run that was leased to this worker by a request whose answer got lost, as soon as possible."""
        self._repeats.append(
            ClaimRequest(
                id=request.claim_id,
                worker=request.worker,
                types=self._types(),
                limit=1,
                lease=request.lease,
                python=request.python,
                may_suspect=False,
                is_repeat=True,
            )
        )
        self.wake()

    def claim(self, *, is_outdated: bool = False) -> None:
        """Claim now if the worker has a free slot and a run may be ready.

        The last answer `is_outdated` if the worker has released a run since, because that may have woken others.
        """
        self._is_outdated = self._is_outdated or is_outdated
        if self._is_stopped or self._task is not None or not self._is_wanted or self._must_pause():
            return
        if not self._types():
            self._is_wanted = self._is_outdated = False
        elif self._room.free() > 0:
            self._is_outdated = False
            self.asked_at = self._clock.now()
            self._begin()

    async def stop(self, patience_seconds: float = _STOP_SECONDS) -> None:
        """Stop claiming. Runs of a claim in flight are still accepted if the store answers within a few seconds."""
        await super().stop(patience_seconds)

    async def _round(self) -> Claimed | None:
        try:
            await self._room.renew_if_late()
            request = self._repeats[0] if self._repeats else self._request()
            claimed = await self._store.claim(request)
        except Exception as error:  # noqa: BLE001 - without claims the worker would be dead, so it tries again
            self._outage.failed(error)
            return None
        self._outage.worked()
        if self._repeats:
            self._repeats.popleft()
        if request.types != self._types():
            self._is_wanted = True  # a repeated claim has the types of the first one, and there are new ones
        self.was_short = len(claimed.leases) < request.limit
        self._is_vain = not claimed.leases
        self._shares = after_claims(self._shares, [lease.run for lease in claimed.leases])
        return claimed

    def _must_pause(self) -> bool:
        return self._timer is not None and self._outage.is_ongoing

    def _request(self) -> ClaimRequest:
        request = ClaimRequest(
            id=new_id(),
            worker=self._worker_id,
            types=self._types(),
            limit=min(max(1, self._room.free()), BATCH_LIMIT),
            lease=self._lease,
            python=PYTHON,
            may_suspect=not self._room.holds_suspect(),
            shares=self._shares,
        )
        # If the answer gets lost, the claimer repeats the same claim, and the store returns the same leases.
        self._repeats.appendleft(replace(request, is_repeat=True))
        return request

    def _on_end(self, task: asyncio.Task[Claimed | None]) -> None:
        claimed = task.result()
        if claimed is None:
            self._is_wanted = True  # the failed claim has answered nothing, so the reason to claim remains
            self.wake_by(self._clock.now() + _OUTAGE_PAUSE)
            return
        if not self.was_short or claimed.has_more:
            self._is_wanted = True
        self._accept(claimed)
        if self._is_wanted:
            self.claim()
        else:
            polled = None if self._poll is None else claimed.now + self._poll
            times = [at for at in (self._next_claim(claimed), polled) if at is not None]
            self.wake_by(min(times, default=None))

    def _next_claim(self, claimed: Claimed) -> Micros | None:
        """Return the time of the next claim: when the next run is ready, or later if this claim left it behind."""
        expected, self._expected_at = self._expected_at, claimed.next_ready_at
        if claimed.next_ready_at is None:
            return None
        # The store has a ready run but did not hand it out. Example: the run is a suspect, and this worker holds one.
        is_withheld = claimed.next_ready_at <= claimed.now
        # Every idle worker wakes up for every timer, and one of them wins. Without a pause the others would make an
        # empty claim for each of a thousand timers a second, and slow down the winner.
        is_beaten = not claimed.leases and expected is not None and expected <= claimed.now
        if is_withheld or is_beaten:
            return max(claimed.next_ready_at, claimed.now + _AGAIN_PAUSE)
        return claimed.next_ready_at
