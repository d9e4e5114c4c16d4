"""The claimer: asks the store for work when there is room for it and reason to believe there is some."""

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
from holdfast.core.clock import SECOND, Clock, Micros, Timer
from holdfast.core.ids import new_id
from holdfast.core.outage import Outage
from holdfast.core.ports import Store

BATCH_LIMIT = 200
POLL: Micros = 5 * SECOND
_OUTAGE_PAUSE: Micros = SECOND
_AGAIN_PAUSE: Micros = SECOND // 50
"""After a claim that did not get what was ready."""
_VAIN_PAUSE: Micros = SECOND // 200
"""After a claim in vain, before news of others lead to the next one."""
_STOP_SECONDS = 5.0

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

_log = logging.getLogger("holdfast.worker")


class Room(Protocol):
    """What the claimer asks of its worker."""

    @property
    def clock(self) -> Clock: ...

    def free(self) -> int:
        """How many more runs could be held."""
        ...

    def holds_suspect(self) -> bool: ...

    async def renew_if_late(self) -> None:
        """After an outage leases are renewed before anything is claimed."""
        ...


class Claimer:
    """Claims in batches, one claim at a time. Sleeps until the next run is ready, a hint comes, or the poll is due."""

    def __init__(
        self,
        store: Store,
        room: Room,
        *,
        worker_id: str,
        types: Callable[[], tuple[str, ...]],
        lease: Micros,
        poll: Micros | None,
        take: Callable[[Claimed], None],
    ) -> None:
        self._store = store
        self._room = room
        self._worker_id = worker_id
        self._types = types
        self._lease = lease
        self._poll = poll
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Claimed | None] | None = None
        self._timer: Timer | None = None
        self._timer_at: Micros | None = None
        self._repeats: deque[ClaimRequest] = deque()
        self._is_wanted = True
        self._is_stopped = False
        self._outage = Outage(_log, "cannot claim; trying again", "claiming works again")
        self.asked_at: Micros = 0
        """When the last claim was made."""
        self._is_vain = False
        self._shares = Shares()
        self._expected_at: Micros | None = None
        self._is_outdated = False
        self.was_short = False
        """Whether the last claim found less than there was room for: the queue was empty."""

    @property
    def is_idle(self) -> bool:
        """Whether the last claim found nothing, and nothing has happened since."""
        return self._task is None and not self._is_wanted

    @property
    def is_asking(self) -> bool:
        """Whether a claim is under way."""
        return self._task is not None

    def confirm(self) -> bool:
        """Whether a claim that began after the worker last let go of a run found nothing; if need be, make that claim.

        A run that was let go may have woken others, and the hint of it may come late or never.
        """
        if self._is_outdated and not self._is_stopped:
            self.wake()
        return self.is_idle

    def wake(self) -> None:
        """Something may be ready."""
        self._is_wanted = True
        self.claim()

    def wake_for_others(self) -> None:
        """Something may be ready that another process has made.

        Others are told, too, and may be quicker: after a claim in vain the next one waits a moment, so that many idle
        workers do not hinder those who write.
        """
        # Asked for in the future, it was before the clock was set back. Who does not poll has time stand still.
        is_soon = 0 <= self._room.clock.now() - self.asked_at < _VAIN_PAUSE
        if self._is_vain and is_soon and self._poll is not None:
            self._is_wanted = True
            self._sleep_until(self.asked_at + _VAIN_PAUSE)
        else:
            self.wake()

    def wake_by(self, when: Micros) -> None:
        """A run will be ready at this instant: be awake by then."""
        self._sleep_until(when)

    def recall(self, request: LeaseRequest) -> None:
        """Ask for what this worker was leased by a request whose answer got lost, and as soon as possible."""
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

    def make_room(self) -> None:
        """The worker has let go of a run: claim if there is reason."""
        self._is_outdated = True
        self.claim()

    def claim(self) -> None:
        """Claim if there is room and reason."""
        if self._is_stopped or self._task is not None or not self._is_wanted:
            return
        if self._outage.is_ongoing and self._timer is not None:
            return  # the store could not be reached a moment ago
        if not self._types():
            self._is_wanted = self._is_outdated = False
        if self._room.free() <= 0 or not self._is_wanted:
            return
        self._is_wanted = self._is_outdated = False
        self._disarm()
        self.asked_at = self._room.clock.now()
        self._task = self._loop.create_task(self._ask())
        self._task.add_done_callback(self._answered)

    async def stop(self) -> None:
        """Claim no more; a claim under way is still taken, if the store answers soon."""
        self._is_stopped = True
        self._disarm()
        if (task := self._task) is not None:
            await asyncio.wait([task], timeout=_STOP_SECONDS)
            task.cancel()
            await asyncio.wait([task])

    async def _ask(self) -> Claimed | None:
        try:
            await self._room.renew_if_late()
            request = self._repeats[0] if self._repeats else self._request()
            claimed = await self._store.claim(request)
        except Exception as error:  # noqa: BLE001 - nobody else would claim for this worker; it tries again
            self._outage.failed(error)
            return None
        self._outage.worked()
        if self._repeats:
            self._repeats.popleft()
        self.was_short = len(claimed.leases) < request.limit
        self._is_vain = not claimed.leases
        self._shares = after_claims(self._shares, [lease.run for lease in claimed.leases])
        return claimed

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
        # If the answer gets lost, the same claim is made again and gives the same leases.
        self._repeats.appendleft(replace(request, is_repeat=True))
        return request

    def _answered(self, task: asyncio.Task[Claimed | None]) -> None:
        self._task = None
        if task.cancelled():
            return
        claimed = task.result()
        if claimed is None:
            self._is_wanted = True  # what there is to claim is as unknown as before
            self._sleep_until(self._room.clock.now() + _OUTAGE_PAUSE)
            return
        if not self.was_short or claimed.has_more:
            self._is_wanted = True
        self._take(claimed)
        if self._is_wanted:
            self.claim()
        else:
            polled = None if self._poll is None else claimed.now + self._poll
            times = [at for at in (self._next_claim(claimed), polled) if at is not None]
            self._sleep_until(min(times, default=None))

    def _next_claim(self, claimed: Claimed) -> Micros | None:
        """When to claim what becomes ready next: on time, unless this claim did not get what was ready."""
        expected, self._expected_at = self._expected_at, claimed.next_ready_at
        if claimed.next_ready_at is None:
            return None
        is_withheld = claimed.next_ready_at <= claimed.now  # from a worker that holds a suspect, say
        # Every idle worker is awake for every timer, and one of them wins. Without a pause the others would claim in
        # vain for each of a thousand timers a second, and hinder the winner.
        is_beaten = not claimed.leases and expected is not None and expected <= claimed.now
        if is_withheld or is_beaten:
            return max(claimed.next_ready_at, claimed.now + _AGAIN_PAUSE)
        return claimed.next_ready_at

    def _sleep_until(self, when: Micros | None) -> None:
        """Wake at this instant, or earlier if that was the plan already."""
        if when is None or self._is_stopped or (self._timer_at is not None and self._timer_at <= when):
            return
        self._disarm()
        self._timer_at = when
        self._timer = self._room.clock.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = self._timer_at = None
        self.wake()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None
