"""What a step body may know about itself while it runs, and say.

A body runs in a thread or on the worker's loop, and may say something thousands of times a second. So it only puts down
what it has to say and rings once; whoever listens takes the latest when it suits him.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from holdfast.core.errors import InvalidRequest, LeaseLost


class StepInfo:
    """One attempt at a step, as its body sees it."""

    __slots__ = (
        "_is_rung",
        "_ring",
        "attempt",
        "generation",
        "has_beaten",
        "heard",
        "is_cancelled",
        "location",
        "news",
        "round",
        "run_id",
    )

    def __init__(
        self,
        run_id: str,
        generation: int,
        location: str,
        attempt: int,
        ring: Callable[[StepInfo], None] | None = None,
        *,
        round: int = 0,
    ) -> None:
        self.run_id = run_id
        """The id of the run."""
        self.generation = generation
        """The generation of the run."""
        self.location = location
        """The location of the step, such as `charge`."""
        self.attempt = attempt
        """The number of this attempt, beginning with 1."""
        self.round = round
        """How often the step was undone before, in this generation."""
        self.is_cancelled = False
        """Whether this attempt no longer counts: it timed out, or its run was cancelled or taken over."""
        self.has_beaten = False
        # The body writes only the first, who listens only the second: nothing is lost between two threads.
        self.news: str | None = None
        self.heard: str | None = None
        self._ring = ring
        self._is_rung = False

    @property
    def idempotency_key(self) -> str:
        """A key to pass to the systems you call, so that a repeated attempt has no second effect.

        It is the same on every attempt. It changes only after the step was undone.
        """
        key = f"{self.run_id}:{self.generation}:{self.location}"
        # The effect of an earlier round is undone: its key would be answered with what is no more.
        return f"{key}:{self.round + 1}" if self.round else key

    def heartbeat(self) -> None:
        """Tell that the body is alive. Raises `LeaseLost` when the attempt no longer counts, so that the body can stop.

        Call it now and then in a body that takes long. About once a minute it is noted in the audit of the run.
        """
        if self.is_cancelled:
            raise LeaseLost(
                f"attempt {self.attempt} at {self.location!r} of run {self.run_id} no longer counts: it timed out, "
                "or the run was cancelled or taken over; stop here"
            )
        self.has_beaten = True
        if not self._is_rung and self._ring is not None:
            self._is_rung = True
            self._ring(self)

    def listen_again(self) -> bool:
        """For who listens: let the next word ring again. True if there was one meanwhile, which need not."""
        # First the bell, then the look: whatever is put down in between rings, or is seen, or both.
        self._is_rung = False
        self._is_rung = self.has_beaten or self.news is not self.heard
        return self._is_rung

    def __repr__(self) -> str:
        return f"<attempt {self.attempt} at {self.location} of run {self.run_id}>"


current_step: ContextVar[StepInfo] = ContextVar("holdfast_step")


def step_info() -> StepInfo:
    """Return the attempt that executes this code. Only inside the body of a step or task; else `InvalidRequest`."""
    try:
        return current_step.get()
    except LookupError:
        raise InvalidRequest("step_info() is only known inside the body of a step or task") from None
