"""A workload: the workflows of a simulated world, the actions of its producers, and the checks at its end."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from holdfast.core.model import Run
from holdfast.runner.registry import Registry

if TYPE_CHECKING:
    from holdfast.testing.simulation.world import World

DAY_SECONDS = 86_400.0


class Workload:
    """The content of one simulation. The world adds workers, faults and the watch."""

    callback_limit: int
    """Maximum number of callbacks of the event loop. A simulation that needs more counts as endless."""
    may_misfit: bool
    """True if a worker may have code that diverges from the history, or that does what only a step may do."""
    has_flows = True
    """False if no flow is ever registered: a simulation without looks for flows is shorter."""
    patience_seconds = 30 * DAY_SECONDS
    """Maximum virtual time that runs may take to settle after `play`."""

    def build(self, world: World) -> Registry:
        """Return the workflows. The world calls this once, before anything happens."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Set rules before anything goes wrong."""

    async def play(self) -> None:
        """Act as the producers: start runs, send messages, and so on."""
        raise NotImplementedError

    async def clock_steps_back(self) -> None:
        """Wait until the store's clock may be set back."""

    def body(self, *, is_stale: bool) -> AbstractContextManager[object]:
        """Return a context manager around a step body. A stale body belongs to a worker that has lost the run."""
        del is_stale
        return nullcontext()

    def is_settled(self, run: Run) -> bool:
        """Return True if a run has reached its final state in this workload."""
        return run.state.is_end

    def check(self) -> None:
        """Raise a violation if a result is wrong. The watch has checked its own rules by then."""
