"""Retry: how often a step is tried and how long is waited in between."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from holdfast.core.clock import Micros, micros
from holdfast.core.errors import ErrorRecord, Fatal, InvalidRequest, NotSerializable, PayloadTooLarge, Rollback

_Kinds = type[BaseException] | tuple[type[BaseException], ...]

_FINAL = (Fatal, Rollback, NotSerializable, PayloadTooLarge)
"""Errors of which another attempt would make nothing better, whatever the policy."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A policy: `max_attempts` tries in total; seconds `initial * factor**n`, at most `max_delay`, ± `jitter`.

    `retry_on` names the errors worth another attempt (default: every `Exception`), `give_up_on` those
    that are not. `Fatal` and `Rollback` are never retried. `delay`, a function of the attempt just made, replaces the
    growing delay altogether; to what it says jitter is only added, so an attempt never comes earlier.
    """

    max_attempts: int = 4
    initial: float = 0.1
    factor: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.1
    retry_on: _Kinds = Exception
    give_up_on: _Kinds = ()
    delay: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise InvalidRequest(f"Retry(max_attempts={self.max_attempts}): a step has at least one attempt")
        if min(self.initial, self.factor, self.max_delay, self.jitter) < 0:
            raise InvalidRequest("Retry: initial, factor, max_delay and jitter are not negative")

    def allows(self, error: BaseException, attempts: int) -> bool:
        """Whether the error of attempt number `attempts` is worth another one."""
        return (
            attempts < self.max_attempts
            and isinstance(error, self.retry_on)
            and not isinstance(error, _FINAL)
            and not isinstance(error, self.give_up_on)
        )

    def pause(self, attempts: int) -> Micros:
        """How long to wait after attempt number `attempts`. The jitter need not replay: what is drawn is stored."""
        if self.delay is not None:
            return micros(self.delay(attempts) * (1 + random.uniform(0, self.jitter)))
        # The exponent is capped: factor ** 2000 is an OverflowError, and far beyond any max_delay.
        seconds = min(self.max_delay, self.initial * self.factor ** min(attempts - 1, 64))
        return micros(seconds * (1 + random.uniform(-self.jitter, self.jitter)))


NO_RETRY = Retry(max_attempts=1)
TASK_RETRY = Retry(max_attempts=3, delay=lambda attempt: attempt**2 * 60.0, jitter=0.1)
"""The default of a task: three attempts, attempt² minutes apart and up to a tenth more."""


def worker_lost(attempts: int) -> ErrorRecord:
    """The error of a step whose attempts were used up by workers that died in it."""
    return ErrorRecord(
        type="WorkerLost",
        message="the worker died while this step ran; no attempt is left",
        types=("holdfast.WorkerLost",),
        attempts=attempts,
    )
