"""The scheduler: fires the schedules whose slots are due.

Every worker has one, for all types. Schedulers need no coordination: the store accepts each firing once, and tells the
second scheduler that the firing is done. While nothing is due, a scheduler sleeps until the next slot. It asks the
store regularly whether that is still the next slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from holdfast.core.clock import SECOND, Clock, Micros, moment
from holdfast.core.commands import Fired, FireSchedules, PutSchedules
from holdfast.core.errors import InvalidRequest
from holdfast.core.model import Firing, Schedule
from holdfast.core.news import Hint
from holdfast.core.outage import Outage
from holdfast.core.ports import Store
from holdfast.core.questions import PAGE_LIMIT, ListDueSchedules
from holdfast.core.schedules import SLOTS_LIMIT, firing
from holdfast.runner.registry import Registry
from holdfast.worker.background import BackgroundJob
from holdfast.worker.signals import SignalSender

PAGE = 200
"""Maximum number of schedules read at once. Their firings may go into several transactions."""

RUNS_LIMIT = 1_000
"""Maximum number of runs created in one transaction."""

_PAUSE: Micros = SECOND
"""Pause after an outage, and before reading again a schedule that another worker fired first."""

_ELSEWHERE_SECONDS = 1.0
"""Minimum interval between two hints heeded: other processes send streams of them, few about schedules."""

_log = logging.getLogger("holdfast.scheduler")


async def declare_schedules(store: Store, registry: Registry) -> None:
    """Write the schedules declared in code to the store. The store ignores unchanged ones."""
    declared = list(registry.schedules())
    for start in range(0, len(declared), PAGE_LIMIT):
        await store.apply(PutSchedules(schedules=declared[start : start + PAGE_LIMIT]))


class Scheduler(BackgroundJob[Micros | None]):
    """Fires schedules until stopped. Sleeps until the next slot, a hint or the poll; `poll=None` means no poll.

    It calls `sync` with the time of each answer of the store and the time of the request. After each round it calls
    `on_end` with True if it created runs.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        poll: Micros | None,
        sync: Callable[[Micros, Micros], None],
        on_end: Callable[[bool], None],
        signal_sender: SignalSender | None = None,
    ) -> None:
        super().__init__(clock)
        self._store = store
        self._poll = poll
        self._sync = sync
        self._report_end = on_end
        self._signal_sender = signal_sender
        self._has_made_runs = False
        self._ignores_until = 0.0
        self._outage = Outage(_log, "cannot fire schedules; trying again", "firing schedules works again")
        self._unknown: set[str] = set()

    def on_hint(self, hint: Hint) -> None:
        """Wake up if a hint says that a schedule changed, or that another process changed something."""
        if hint.is_rescheduled:
            self.wake()
        elif hint.is_elsewhere and self._loop.time() >= self._ignores_until:
            self._ignores_until = self._loop.time() + (_ELSEWHERE_SECONDS if self._poll is not None else 0.0)
            self.wake()

    async def _round(self) -> Micros | None:
        """Fire everything that is due. Return the time of the next round."""
        after: tuple[Micros, str] = (0, "")
        times: list[Micros] = []
        while True:
            asked_at = self._clock.now()
            due = await self._store.catalog(ListDueSchedules(limit=PAGE, after=after))
            self._sync(due.now, asked_at)
            for batch in _batches(self._firings(due.schedules, due.now)):
                times += self._report(batch, await self._store.apply(FireSchedules(firings=batch)), due.now)
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
            except InvalidRequest as error:  # this machine does not know the schedule's time zone
                if schedule.name not in self._unknown:
                    self._unknown.add(schedule.name)
                    _log.warning("this worker cannot fire schedule %s; other workers can: %s", schedule.name, error)

    def _report(self, firings: Sequence[Firing], answers: Sequence[Fired], now: Micros) -> Iterator[Micros]:
        """Report the firings, and yield the times at which more is to do."""
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
                    self._signal_sender.send_started(run_id, asked.schedule.type, now)
            _log.debug("schedule %s fired: %d runs", name, len(fired.run_ids))
            for slot in fired.skipped:
                when = moment(slot).isoformat()
                _log.info("schedule %s skips slot %s: an earlier run of it has not ended", name, when)
            if not asked.slots:
                _log.warning("schedule %s: no worker fired it in time; its missed slots are skipped", name)

    def _must_pause(self) -> bool:
        return self._timer is not None and self._outage.is_ongoing

    def _on_end(self, task: asyncio.Task[Micros | None]) -> None:
        if self._is_stopped:
            return
        if (error := task.exception()) is not None:  # of any kind: a scheduler that gives up would fire nothing
            self._outage.failed(error)
            self._is_wanted = True  # the failed round has answered nothing, so the reason for it remains
            self.wake_by(self._clock.now() + _PAUSE)
        else:
            self._outage.worked()
            if self._is_wanted:
                self._begin()
            else:
                self.wake_by(task.result())
        has_made_runs, self._has_made_runs = self._has_made_runs, False
        self._report_end(has_made_runs)


def _batches(firings: Iterator[Firing]) -> Iterator[list[Firing]]:
    """Group firings so that each group creates at most `RUNS_LIMIT` runs."""
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
