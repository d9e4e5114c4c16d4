"""News of what happened: hints wake listeners of a store, signals notify functions of users.

A lost hint costs only latency. Signals are sent in the process that wrote the change, after the write. They are not
durable: if the process dies between the write and the call, the signal is lost. They never carry user data: no payload,
no result, no error text. Without listeners, no signal is created and nothing is called.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

import msgspec

from holdfast.core.errors import InvalidRequest
from holdfast.core.states import RunState
from holdfast.core.verbs import VERBS

_NONE: frozenset[str] = frozenset()


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effects of a transaction that other parts may wait for.

    `ready` are types that have runs which became ready. The other sets are run ids: held runs that got arrivals, runs
    that ended, runs taken from their holders, and runs that replied. `is_rescheduled`: a schedule was set or changed.
    `is_foreign`: another process did all this. `is_elsewhere`: another process wrote something; query the store.
    """

    ready: frozenset[str] = _NONE
    arrived: frozenset[str] = _NONE
    ended: frozenset[str] = _NONE
    taken: frozenset[str] = _NONE
    replied: frozenset[str] = _NONE
    is_rescheduled: bool = False
    is_foreign: bool = False
    is_elsewhere: bool = False


class News:
    """Collects the effects of a transaction while it runs, for its hint."""

    __slots__ = ("arrived", "ended", "is_rescheduled", "ready", "replied", "taken")

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.arrived: set[str] = set()
        self.ended: set[str] = set()
        self.taken: set[str] = set()
        self.replied: set[str] = set()
        self.is_rescheduled = False

    def add(self, other: News | Hint) -> None:
        """Add the effects of another one."""
        self.ready |= other.ready
        self.arrived |= other.arrived
        self.ended |= other.ended
        self.taken |= other.taken
        self.replied |= other.replied
        self.is_rescheduled |= other.is_rescheduled

    def hint(self) -> Hint | None:
        """Return the hint to send after the commit; None if it would be empty."""
        if not (self.ready or self.arrived or self.ended or self.taken or self.replied or self.is_rescheduled):
            return None
        return Hint(
            # `or _NONE`: only the default object itself is omitted when a hint is encoded for other processes.
            ready=frozenset(self.ready) or _NONE,
            arrived=frozenset(self.arrived) or _NONE,
            ended=frozenset(self.ended) or _NONE,
            taken=frozenset(self.taken) or _NONE,
            replied=frozenset(self.replied) or _NONE,
            is_rescheduled=self.is_rescheduled,
        )


SIGNALS = {
    "run.started": "a run was created",
    "run.claimed": "a worker took a run, for the first time or again",
    "run.suspended": "a run waits, and no worker holds it",
    "run.continued": "a run began its next generation",
    "run.released": "a worker released a run, because it stops or the run was evicted",
    "run.lost": "a worker lost a run: it was cancelled, rewound or taken over",
    "run.blocked": "a run cannot continue by itself",
    "run.rolling_back": "a run begins to undo its steps",
    "run.succeeded": "a run returned",
    "run.failed": "a run raised",
    **{f"run.{verb.event}": verb.signal for verb in VERBS.values()},
    "run.forked": "a new run was started with the history of this one",
    "step.started": "an attempt at a step begins",
    "step.succeeded": "the result of a step is recorded",
    "step.failed": "the failure of a step is recorded, and it is not tried again",
    "step.retried": "an attempt at a step failed, and another one follows",
    "worker.started": "a worker begins to claim",
    "worker.flushed": "a worker has written a batch of checkpoints",
    "worker.stopped": "a worker has stopped in an orderly way",
}
"""Every signal, with a description of when it is sent."""

_log = logging.getLogger("holdfast.signals")


class Signal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened to a run, a step or a worker: the argument of a function that `@hf.on` registered.

    A field that does not apply is None.
    """

    name: str
    """The name of the signal, such as `run.failed`."""
    at: datetime
    """The time at which it happened."""
    run_id: str | None = None
    """The run."""
    type: str | None = None
    """The type of the run."""
    state: RunState | None = None
    """The state of the run afterwards."""
    location: str | None = None
    """The location of the step."""
    kind: str | None = None
    """The kind of the operation, such as `step` or `tx`."""
    attempt: int | None = None
    """The number of the attempt at the step; of `run.claimed`, at the run."""
    seconds: float | None = None
    """How long it took: the attempt at a step, the whole run, the flush.

    Of `run.claimed`, how long the run was ready before.
    """
    error: str | None = None
    """The name of the error's class."""
    worker: str | None = None
    """The name of the worker."""
    parent_id: str | None = None
    """The parent of the run."""
    trace: str | None = None
    """The trace that the run belongs to, as a `traceparent` of W3C Trace Context."""
    count: int | None = None
    """Number of runs that a flush wrote."""


Tap = Callable[[Signal], object]
"""A listener. It is called at once, on the event loop, for each signal it listens to, so it must be quick."""


class Tracing(Protocol):
    """A source of trace contexts, as a `traceparent` of W3C Trace Context."""

    def of_start(self, type: str, run_id: str) -> str | None:
        """Return the trace for a run that is about to be started here."""
        ...

    def of_run(self, run_id: str) -> str | None:
        """Return the trace for children of a run that is held here."""
        ...


class Signals:
    """Sends signals to listeners. Without listeners, `is_used` is False, and callers check nothing else."""

    def __init__(self) -> None:
        self.is_used = False
        self.tracing: Tracing | None = None
        self._taps: dict[str, tuple[Tap, ...]] = {}
        self._lock = threading.RLock()

    def wants(self, name: str) -> bool:
        """True if a signal has a listener, so that it has to be created."""
        return name in self._taps

    def tap(self, tap: Tap, *patterns: str) -> Callable[[], None]:
        """Call `tap` once for each signal that matches a pattern. The returned function removes it."""
        names = tuple(dict.fromkeys(name for pattern in patterns for name in named(pattern)))
        for name in names:
            self._taps[name] = (*self._taps.get(name, ()), tap)
        self.is_used = True

        def untap() -> None:
            for name in names:
                self._taps[name] = tuple(one for one in self._taps.get(name, ()) if one is not tap)
                if not self._taps[name]:
                    del self._taps[name]
            self.is_used = bool(self._taps)

        return untap

    def send(self, signal: Signal) -> None:
        """Call the listeners of a signal. An error in a listener is logged and does not reach the caller."""
        with self._lock:  # event loops of several threads may send signals, and listeners keep counts
            for tap in self._taps.get(signal.name, ()):
                try:
                    tap(signal)
                except Exception:  # noqa: BLE001 - a listener must not affect the run
                    _log.exception("a listener for the signal %s failed", signal.name, extra={"run_id": signal.run_id})


def named(pattern: str) -> tuple[str, ...]:
    """Return the signals that match a pattern: one name, a family such as `run.*`, or `*` for all."""
    family = pattern.removesuffix("*")
    is_family = pattern.endswith(".*") or pattern == "*"
    names = tuple(name for name in SIGNALS if name == pattern or (is_family and name.startswith(family)))
    if not names:
        raise InvalidRequest(
            f"unknown signal {pattern!r}; the signals are {', '.join(SIGNALS)}, and run.*, step.*, worker.*"
        )
    return names
