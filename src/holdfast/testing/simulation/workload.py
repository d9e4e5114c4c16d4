"""A workload: what runs in a simulated world, what producers do there, and what must come of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from holdfast.core.model import Run
from holdfast.runner.registry import Registry

if TYPE_CHECKING:
    from holdfast.testing.simulation.world import World

DAY_SECONDS = 86_400.0


class Workload:
    """What a world plays, once. The world adds workers, faults and the watch."""

    callback_limit: int
    """How many callbacks the event loop executes at most before the world says that the play never ends."""
    may_misfit: bool
    """Whether a worker may have code that does not fit what is recorded, or does what only a step may."""
    patience_seconds = 30 * DAY_SECONDS
    """How long runs may take to come to their ends after the play."""

    def build(self, world: World) -> Registry:
        """The workflows. Called once, before anything happens in this world."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Set rules before anything goes wrong."""

    async def play(self) -> None:
        """Do what producers do."""
        raise NotImplementedError

    async def clock_steps_back(self) -> None:
        """Wait until the clock of the store may be set back."""

    def body(self, *, is_stale: bool) -> AbstractContextManager[object]:
        """What surrounds the body of a step. A stale one belongs to a worker that has lost the run."""
        del is_stale
        return nullcontext()

    def is_settled(self, run: Run) -> bool:
        """Whether a run has come as far as it will in the end."""
        return run.state.is_end

    def check(self) -> None:
        """Raise a violation if something came otherwise than it must. The watch has checked its own rules by then."""
