"""A clock that advances only when a test advances it."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.clock import SECOND, Micros

START: Micros = 1_800_000_000 * SECOND
"""The instant at which every test begins."""


class _ClockCall:
    def __init__(self, when: Micros, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SettableClock:
    """A clock for tests of stores, in microseconds. It moves only by `advance`. Reading it is thread-safe."""

    def __init__(self, now: Micros = START) -> None:
        self._now = now
        self._calls: list[_ClockCall] = []

    def now(self) -> Micros:
        """The time, in microseconds since 1970."""
        return self._now

    def call_at(self, when: Micros, callback: Callable[[], object]) -> _ClockCall:
        """Call a function when the clock reaches an instant. `cancel()` on the result takes that back."""
        call = _ClockCall(when, callback)
        self._calls.append(call)
        return call

    def advance(self, length: Micros) -> None:
        """Let microseconds pass, and make the calls that became due, earliest first."""
        assert length >= 0, "time does not run backwards"
        self._now += length
        due = [call for call in self._calls if call.when <= self._now]
        self._calls = [call for call in self._calls if call.when > self._now]
        for call in sorted(due, key=lambda call: call.when):
            if not call.is_cancelled:
                call.callback()
