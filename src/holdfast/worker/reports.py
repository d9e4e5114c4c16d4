"""Reports: progress and heartbeats of running step bodies, passed to the run's checkpoints at a limited rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.core.clock import SECOND, Clock, Micros, Timer
from holdfast.runner.step_info import StepInfo
from holdfast.runner.task_context import PROGRESS

LISTEN_EVERY: Micros = SECOND // 4
"""Minimum interval between two progress reports taken from one step."""

BEAT_EVERY: Micros = 60 * SECOND
"""Minimum interval between two recorded heartbeats of a run. The claim counts as the first one."""


class Scribe(Protocol):
    """A receiver of reports: the turn of the run, which records them."""

    def publish(self, name: str, value: str) -> None: ...

    def beat(self, number: int) -> None: ...


class Reports:
    """Takes the reports of one held run's bodies, from its claim on."""

    def __init__(self, clock: Clock, claimed_at: Micros) -> None:
        self._clock = clock
        self._beat_at = claimed_at
        self._beats = 0
        self._rests: dict[StepInfo, Timer] = {}

    def hear(self, info: StepInfo, scribe: Scribe, again: Callable[[StepInfo], None]) -> None:
        """Record the report that a body has signalled. The body can signal `again` only after a rest."""
        if info in self._rests:
            return  # it signalled while its last report was taken; the end of the rest takes this one
        now = self._clock.now()
        self._rests[info] = self._clock.call_at(now + LISTEN_EVERY, lambda: self._rested(info, again))
        self.take(info, scribe)
        if info.has_beaten:
            info.has_beaten = False
            if now >= self._beat_at + BEAT_EVERY:
                self._beat_at = now
                self._beats += 1
                scribe.beat(self._beats)

    @staticmethod
    def take(info: StepInfo, scribe: Scribe) -> None:
        """Record the latest value that a body has published, unless it is recorded already."""
        if (news := info.news) is not info.heard:
            info.heard = news
            scribe.publish(PROGRESS, news or "null")

    def forget(self, info: StepInfo) -> None:
        """Stop listening to a body that has ended or was abandoned."""
        if (rest := self._rests.pop(info, None)) is not None:
            rest.cancel()

    def _rested(self, info: StepInfo, again: Callable[[StepInfo], None]) -> None:
        del self._rests[info]
        if info.listen_again():
            again(info)
