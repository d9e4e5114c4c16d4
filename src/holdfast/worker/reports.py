"""Reports: what bodies say while they run, taken to the checkpoints of their run, but never too often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.core.clock import SECOND, Clock, Micros, Timer
from holdfast.runner.step_info import StepInfo
from holdfast.runner.task_context import PROGRESS

LISTEN_EVERY: Micros = SECOND // 4
"""However often a body has something to say, it is listened to so often."""

BEAT_EVERY: Micros = 60 * SECOND
"""A sign of life is noted so often; the first one so long after the claim, which is one itself."""


class Scribe(Protocol):
    """Whoever writes down what is reported: the turn of the run."""

    def publish(self, name: str, value: str) -> None: ...

    def beat(self, number: int) -> None: ...


class Reports:
    """What the bodies of one held run say, from its claim on."""

    def __init__(self, clock: Clock, claimed_at: Micros) -> None:
        self._clock = clock
        self._beat_at = claimed_at
        self._beats = 0
        self._rests: dict[StepInfo, Timer] = {}

    def hear(self, info: StepInfo, scribe: Scribe, again: Callable[[StepInfo], None]) -> None:
        """A body has rung: write down what it says. Only after a rest it can ring `again`."""
        if info in self._rests:
            return  # it rang just as it was asked whether it had: it is listened to again after the rest
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
        """Write down the latest that a body has published, if that has not happened."""
        if (news := info.news) is not info.heard:
            info.heard = news
            scribe.publish(PROGRESS, news or "null")

    def forget(self, info: StepInfo) -> None:
        """A body has ended, or nobody waits for it any more."""
        if (rest := self._rests.pop(info, None)) is not None:
            rest.cancel()

    def _rested(self, info: StepInfo, again: Callable[[StepInfo], None]) -> None:
        del self._rests[info]
        if info.listen_again():
            again(info)
