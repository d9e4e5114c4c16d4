"""The host of run drivers: the part of the worker that they use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.checkpoint import Finish
from holdfast.core.clock import Clock, Micros
from holdfast.runner.operation import StepCall
from holdfast.worker.committer import CheckpointSource
from holdfast.worker.executor import Executor
from holdfast.worker.signals import SignalSender
from holdfast.worker.transactor import Transactor

if TYPE_CHECKING:
    from holdfast.worker.run_driver import RunDriver


class WorkerClock(Clock, Protocol):
    """A clock that follows the clock of the store."""

    def told(self, now: Micros, asked_at: Micros | None = None) -> None: ...


class CheckpointSink(Protocol):
    """Writes the checkpoints of run drivers. The committer of a worker is one."""

    def add(self, source: CheckpointSource, /) -> None:
        """Write a run's checkpoint soon. The answer may arrive before this method returns."""
        ...


class DriverHost(Protocol):
    """A worker as its run drivers see it."""

    name: str
    leased_until: Micros
    """End of the leases that the last heartbeat renewed, by the store's clock."""

    @property
    def clock(self) -> Clock: ...

    @property
    def committer(self) -> CheckpointSink: ...

    grace_seconds: float
    """The time that a body gets to end, when its worker stops or its run is evicted."""
    gathers: bool
    """True if a run that waits for many children stays in memory for a while after one has ended."""
    executor: Executor
    signal_sender: SignalSender
    transactor: Transactor | None
    is_draining: bool
    always_replay: bool
    body_of: Callable[[StepCall], Callable[..., Any]] | None

    def is_crowded(self) -> bool:
        """Return True if another run needs the slot of a run that only waits."""
        ...

    def linger(self, driver: RunDriver, is_lingering: bool) -> None:  # noqa: FBT001 - the name says it
        """Note that a run begins or stops to wait in memory for a near deadline. It gives up its slot if needed."""
        ...

    def let_go(self, driver: RunDriver, end: Finish | None, ready_at: Micros | None) -> None:
        """Forget a run that is no longer held here.

        `end` is set if the run ended, `ready_at` if the time at which it can continue is known.
        """
        ...
