"""Retry policies: the number of attempts of a step, and the delays between them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import msgspec
from msgspec.structs import force_setattr

from holdfast.core.clock import Micros, in_seconds, micros
from holdfast.core.errors import ErrorRecord, Fatal, InvalidRequest, NotSerializable, PayloadTooLarge, Rollback
from holdfast.core.intent import is_count

_Kinds = type[BaseException] | tuple[type[BaseException], ...]

ErrorKinds = _Kinds | list[type[BaseException]]
"""Error classes as users name them: one, or several."""

_FINAL = (Fatal, Rollback, NotSerializable, PayloadTooLarge)
"""Errors that no policy retries, because another attempt would not help."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A policy for retries: how many attempts a step has, how far apart, and after which errors.

    `Fatal`, `Rollback` and values that cannot be stored are never retried.
    """

    max_attempts: int = 4
    """Number of attempts in total."""
    initial: float | timedelta = 0.1
    """Seconds or a timedelta between the first two attempts."""
    factor: float = 2.0
    """The delay is multiplied by this after each attempt."""
    max_delay: float | timedelta = 30.0
    """The longest delay between two attempts, in seconds or as a timedelta; at least `initial`."""
    jitter: float = 0.1
    """Random variation of the delay, as a fraction: 0.1 is up to 10 percent more or less."""
    retry_on: ErrorKinds = Exception
    """The errors that are tried again: a class, or several. Default: every `Exception`."""
    give_up_on: ErrorKinds = ()
    """The errors that are not tried again, even if `retry_on` has them."""
    delay: Callable[[int], float | timedelta] | None = None
    """A function from the number of the attempt just made to the delay in seconds.

    It replaces the growing delay; jitter only makes it longer.
    """

    def __post_init__(self) -> None:
        if not is_count(self.max_attempts):
            raise InvalidRequest(f"Retry(max_attempts={self.max_attempts!r}): expected a whole number of at least 1")
        for name in ("initial", "max_delay"):
            force_setattr(self, name, _checked_number(name, in_seconds(getattr(self, name), f"Retry: {name}")))
        for name in ("factor", "jitter"):
            _checked_number(name, getattr(self, name))
        for name in ("retry_on", "give_up_on"):
            force_setattr(self, name, checked_kinds(f"Retry({name}=…)", getattr(self, name)))
        if self.delay is not None and not callable(self.delay):
            raise InvalidRequest(
                f"Retry(delay={self.delay!r}): expected a function that takes the number of the attempt just made and "
                "returns seconds; for a first delay of some seconds use initial="
            )

    def allows(self, error: BaseException, attempts: int) -> bool:
        """True if the error of attempt number `attempts` is retried."""
        return (
            attempts < self.max_attempts
            and isinstance(error, cast("_Kinds", self.retry_on))
            and not isinstance(error, _FINAL)
            and not isinstance(error, cast("_Kinds", self.give_up_on))
        )

    def pause(self, attempts: int) -> Micros:
        """Return the delay after attempt number `attempts`. Jitter need not replay: the result is stored."""
        if self.delay is not None:
            seconds = in_seconds(self.delay(attempts), f"Retry: delay({attempts})")
            return micros(seconds * (1 + random.uniform(0, self.jitter)))
        # `__post_init__` has converted both to seconds. The exponent is capped, because factor ** 2000 would be an
        # OverflowError, and is far beyond any max_delay.
        initial, max_delay = cast("float", self.initial), cast("float", self.max_delay)
        # `Retry(initial=600)` does not mean 30 seconds, the default of `max_delay`.
        seconds = min(max(max_delay, initial), initial * self.factor ** min(attempts - 1, 64))
        return micros(seconds * (1 + random.uniform(-self.jitter, self.jitter)))


def _checked_number(name: str, number: object) -> float:
    if isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number < math.inf:
        return number
    raise InvalidRequest(f"Retry({name}={number!r}): expected a number that is not negative")


def checked_kinds(option: str, given: object) -> Any:
    """Return error classes in the form that `isinstance` takes: a class or a (nested) tuple."""
    if isinstance(given, (list, tuple, set, frozenset)):
        return tuple(checked_kinds(option, each) for each in given)
    if isinstance(given, type) and issubclass(given, BaseException):
        return given
    raise InvalidRequest(
        f"{option}: {given!r} is not an exception class; pass one, such as ConnectionError, or a tuple of them"
    )


TASK_RETRY = Retry(max_attempts=3, delay=lambda attempt: attempt**2 * 60.0, jitter=0.1)
"""The default of a task: three attempts, attempt² minutes apart plus up to 10 % jitter."""


def worker_lost(attempts: int) -> ErrorRecord:
    """The error of a step that has no attempt left, because workers died in it."""
    return ErrorRecord(
        type="WorkerLost",
        message="the worker died while this step ran; no attempt is left",
        types=("holdfast.WorkerLost",),
        attempts=attempts,
    )
