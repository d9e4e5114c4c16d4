"""Signals: what happens to runs, steps and workers, told in the process that wrote it, once it is written.

They are not durable: a process that dies between the write and the call has told nobody. They never carry what
belongs to users: no payload, no result, no text of an error. While nobody listens, nothing is made and nothing called.
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

SIGNALS = {
    "run.started": "a run was created",
    "run.claimed": "a worker took a run, for the first time or again",
    "run.suspended": "a run waits, and no worker holds it any more",
    "run.continued": "a run began anew, as its next generation",
    "run.released": "a worker that stops gave a run back",
    "run.lost": "a worker lost a run: it was cancelled, rewound or taken over",
    "run.blocked": "a run cannot go on by itself",
    "run.rolling_back": "a run begins to undo what it did",
    "run.succeeded": "a run returned",
    "run.failed": "a run raised",
    "run.cancelled": "a run was cancelled, or took too long",
    "run.paused": "a run was paused",
    "run.resumed": "a paused run may go on",
    "run.woken": "somebody had a run look again",
    "run.recovered": "a run got another chance at what it failed at",
    "run.rewound": "a run was taken back to a location",
    "run.forked": "another run was made from the history of a run",
    "run.deleted": "a run was taken out of sight",
    "step.started": "an attempt at a step begins",
    "step.succeeded": "the result of a step is recorded",
    "step.failed": "the failure of a step is recorded, and it is not tried again",
    "step.retried": "an attempt at a step failed, and another one follows",
    "worker.started": "a worker begins to claim",
    "worker.flushed": "a worker has written what a number of runs gained",
    "worker.stopped": "a worker has stopped in an orderly way",
}
"""Every signal there is, and when it is given."""

_log = logging.getLogger("holdfast.signals")


class Signal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that has happened. Whatever does not apply to it is None.

    `state` is that of the run afterwards, `location`, `kind` and `attempt` are those of the step (of `run.claimed`, the
    attempt at the run), `error` is the name of the error's class, `count` how many runs a flush wrote. `seconds` is how
    long it took: an attempt at a step, a whole run that ends, a flush; of `run.claimed`, how long the run was ready.
    """

    name: str
    at: datetime
    run_id: str | None = None
    type: str | None = None
    state: RunState | None = None
    location: str | None = None
    kind: str | None = None
    attempt: int | None = None
    seconds: float | None = None
    error: str | None = None
    worker: str | None = None
    parent_id: str | None = None
    trace: str | None = None
    count: int | None = None


Tap = Callable[[Signal], object]
"""What is called at once, on the event loop, for each signal it is there for: it must be quick."""


class Tracing(Protocol):
    """What knows the trace that code belongs to, as a `traceparent` of W3C Trace Context."""

    def of_start(self, type: str, run_id: str) -> str | None:
        """The trace that a run carries on which is about to be started here."""
        ...

    def of_run(self, run_id: str) -> str | None:
        """The trace that children of a run carry on which is held here."""
        ...


class Signals:
    """Where signals are given, and to whom they go. `is_used` is all that is looked at while nobody listens."""

    def __init__(self) -> None:
        self.is_used = False
        self.tracing: Tracing | None = None
        self._taps: dict[str, tuple[Tap, ...]] = {}
        self._lock = threading.RLock()

    def wants(self, name: str) -> bool:
        """Whether anybody listens to a signal, so that it is worth making."""
        return name in self._taps

    def tap(self, tap: Tap, *patterns: str) -> Callable[[], None]:
        """Have something called once for each signal that one of the patterns names; undone by what is returned."""
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

    def give(self, signal: Signal) -> None:
        """Tell everybody who listens. What one of them makes of it is no concern of whoever gives it."""
        with self._lock:  # event loops of several threads may give them, and those who listen count
            for tap in self._taps.get(signal.name, ()):
                try:
                    tap(signal)
                except Exception:  # noqa: BLE001 - it must not change what becomes of a run
                    _log.exception("something that listens to %s failed", signal.name, extra={"run_id": signal.run_id})


def named(pattern: str) -> tuple[str, ...]:
    """The signals a pattern names: one, or with `.*` at its end a family, or with `*` all."""
    family = pattern.removesuffix("*")
    is_family = pattern.endswith(".*") or pattern == "*"
    names = tuple(name for name in SIGNALS if name == pattern or (is_family and name.startswith(family)))
    if not names:
        raise InvalidRequest(
            f"there is no signal {pattern!r}; there are {', '.join(SIGNALS)}, and run.*, step.*, worker.*"
        )
    return names
