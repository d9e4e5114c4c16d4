"""The scheduler: fires the schedules whose slots have come.

Every worker has one, whatever types it handles. They do not agree on who fires: the store takes each firing once, and
whoever comes second learns that it was done. While nothing is due it sleeps until the next slot, and looks now and then
whether that is still the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from holdfast.core.clock import SECOND, Clock, Micros, Timer, moment
from holdfast.core.commands import Fired, FireSchedules
from holdfast.core.errors import InvalidRequest
from holdfast.core.hint import Hint
from holdfast.core.model import Firing, Schedule
from holdfast.core.outage import Outage
from holdfast.core.ports import Store
from holdfast.core.questions import ListDueSchedules
from holdfast.core.schedules import SLOTS_LIMIT, firing
from holdfast.worker.signals import SignalSender

PAGE = 200
"""So many schedules are looked at together; what is to be done for them may be split."""

RUNS_LIMIT = 1_000
"""So many runs are made at most in one transaction."""

_PAUSE: Micros = SECOND
"""After an outage, and before looking again at what somebody else was quicker with."""

_ELSEWHERE_SECONDS = 1.0
"""Hints from other processes come in streams, and few of them are about schedules."""

_log = logging.getLogger("holdfast.scheduler")


class Scheduler:
    """Fires until stopped. Sleeps until the next slot, a hint, or the poll; `poll=None`: only the first two.

    `told` is called with the time of each answer of the store and when it was asked for, `looked` after each look with
    whether runs were made.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        poll: Micros | None,
        told: Callable[[Micros, Micros], None],
        looked: Callable[[bool], None],
        signal_sender: SignalSender | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._poll = poll
        self._tell_time = told
        self._tell = looked
        self._signal_sender = signal_sender
        self._has_made_runs = False
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Micros | None] | None = None
        self._timer: Timer | None = None
        self._deaf_until = 0.0
        self._is_wanted = False
        self._is_stopped = False
        self._outage = Outage(_log, "cannot fire schedules; trying again", "firing schedules works again")
        self._unknown: set[str] = set()

    @property
    def is_looking(self) -> bool:
        """Whether it is at it."""
        return self._task is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing was due at the last look, and nothing has happened since."""
        return self._task is None and not self._is_wanted

    def start(self) -> None:
        """Begin with a look."""
        self.wake()

    def wake(self) -> None:
        """Something may be due."""
        if self._is_stopped:
            return
        self._is_wanted = True
        if self._task is None and not (self._outage.is_ongoing and self._timer is not None):
            self._begin()

    def hear(self, hint: Hint) -> None:
        """A schedule was changed, or something was by another process."""
        if hint.is_rescheduled:
            self.wake()
        elif hint.is_elsewhere and self._loop.time() >= self._deaf_until:
            self._deaf_until = self._loop.time() + (_ELSEWHERE_SECONDS if self._poll is not None else 0.0)
            self.wake()

    async def stop(self) -> None:
        """Fire no more. A firing under way is either done or not; the next scheduler finds out."""
        self._is_stopped = True
        self._disarm()
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    # One look

    def _begin(self) -> None:
        self._is_wanted = False
        self._disarm()
        self._task = self._loop.create_task(self._look())
        self._task.add_done_callback(self._looked)

    async def _look(self) -> Micros | None:
        """Fire all that is due; when to look again."""
        after: tuple[Micros, str] = (0, "")
        times: list[Micros] = []
        while True:
            asked_at = self._clock.now()
            due = await self._store.catalog(ListDueSchedules(limit=PAGE, after=after))
            self._tell_time(due.now, asked_at)
            for batch in _batches(self._firings(due.schedules, due.now)):
                times += self._told(batch, await self._store.apply(FireSchedules(firings=batch)), due.now)
            if len(due.schedules) < PAGE or self._is_stopped:
                break
            last = due.schedules[-1]
            after = (last.next_at or 0, last.name)
        if due.next_at is not None:
            times.append(due.next_at)
        if self._poll is not None:
            times.append(due.now + self._poll)
        return min(times, default=None)

    def _firings(self, schedules: Sequence[Schedule], now: Micros) -> Iterator[Firing]:
        for schedule in schedules:
            try:
                yield firing(schedule, now, SLOTS_LIMIT)
            except InvalidRequest as error:  # its zone is known where it was set, and not here
                if schedule.name not in self._unknown:
                    self._unknown.add(schedule.name)
                    _log.warning("schedule %s is left to other workers: %s", schedule.name, error)

    def _told(self, firings: Sequence[Firing], answers: Sequence[Fired], now: Micros) -> Iterator[Micros]:
        """Take note of what was fired; the instants at which there is more to do."""
        for asked, fired in zip(firings, answers, strict=True):
            name = asked.schedule.name
            if fired.is_stale:
                yield now + _PAUSE
                continue
            if asked.next_at is not None:
                yield asked.next_at
            self._has_made_runs |= bool(fired.run_ids)
            if self._signal_sender is not None:
                for run_id in fired.run_ids:
                    self._signal_sender.started(run_id, asked.schedule.type, now)
            _log.debug("schedule %s fired: %d runs", name, len(fired.run_ids))
            for slot in fired.skipped:
                when = moment(slot).isoformat()
                _log.info("schedule %s leaves out %s: an earlier run of it has not ended", name, when)
            if not asked.slots:
                _log.warning("schedule %s: nobody fired it in time; its missed slots are left out", name)

    def _looked(self, task: asyncio.Task[Micros | None]) -> None:
        self._task = None
        if task.cancelled() or self._is_stopped:
            return
        if (error := task.exception()) is not None:
            self._failed(error)
        else:
            self._succeeded(task.result())
        has_made_runs, self._has_made_runs = self._has_made_runs, False
        self._tell(has_made_runs)

    def _succeeded(self, when: Micros | None) -> None:
        self._outage.worked()
        if self._is_wanted:
            self._begin()
        elif when is not None:
            self._sleep_until(when)

    def _failed(self, error: BaseException) -> None:
        """Whatever it was, it is tried again: nobody else would fire for this worker."""
        self._outage.failed(error)
        self._is_wanted = True  # what is due is as unknown as before
        self._sleep_until(self._clock.now() + _PAUSE)

    def _sleep_until(self, when: Micros) -> None:
        self._disarm()
        self._timer = self._clock.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.wake()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _batches(firings: Iterator[Firing]) -> Iterator[list[Firing]]:
    """Firings together that make not too many runs."""
    batch: list[Firing] = []
    runs = 0
    for one in firings:
        if batch and runs + len(one.slots) > RUNS_LIMIT:
            yield batch
            batch, runs = [], 0
        batch.append(one)
        runs += len(one.slots)
    if batch:
        yield batch
