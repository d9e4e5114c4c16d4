"""The host of run drivers: what they need of their worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.core.checkpoint import Finish
from holdfast.core.clock import Clock, Micros
from holdfast.runner.operation import StepCall
from holdfast.worker.committer import Committer
from holdfast.worker.executor import Executor
from holdfast.worker.signals import SignalSender
from holdfast.worker.transactor import Transactor

if TYPE_CHECKING:
    from holdfast.worker.run_driver import RunDriver


class DriverHost(Protocol):
    """A worker as its run drivers see it."""

    name: str
    leased_until: Micros
    """When the leases end that the last heartbeat renewed, by the store's clock."""

    @property
    def clock(self) -> Clock: ...

    committer: Committer
    executor: Executor
    signal_sender: SignalSender
    transactor: Transactor | None
    is_draining: bool
    always_replay: bool
    body_of: Callable[[StepCall], Callable[..., Any]] | None

    def is_crowded(self) -> bool:
        """Whether another run needs the slot of a run that only waits."""
        ...

    def linger(self, driver: RunDriver, is_lingering: bool) -> None:  # noqa: FBT001 - what it says
        """A run begins, or ceases, to wait in memory for something near; it gives up its slot if others need it."""
        ...

    def let_go(self, driver: RunDriver, end: Finish | None, ready_at: Micros | None) -> None:
        """The run is no longer held here; `end` if it ended, `ready_at` if it is known when it can go on."""
        ...
