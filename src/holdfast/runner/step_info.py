"""Step info: what the body of a step can read about its attempt, and how it reports progress.

A body runs in a thread or on the worker's loop, and may report thousands of times a second. So it only stores its
latest report and calls `ring` once. The worker reads the latest report when it has time.
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
        """The number of times that the step was undone before, in this generation."""
        self.is_cancelled = False
        """True if this attempt no longer counts: it timed out, or its run was cancelled or taken over."""
        self.has_beaten = False
        # The body writes only `news`, the listener only `heard`, so nothing is lost between the two threads.
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
        # The effect of an earlier round is undone. A provider would answer its key with that old effect.
        return f"{key}:{self.round + 1}" if self.round else key

    def heartbeat(self) -> None:
        """Report that the body is alive. Raises `LeaseLost` if the attempt no longer counts, so that the body can stop.

        Call it now and then in a body that takes long. The audit of the run notes it about once a minute.
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
        """Let the next report call `ring` again. The listener calls this.

        Returns True if there is a new report already, which will not call `ring`.
        """
        # Reset the flag before the check: a report in between calls `ring`, or is seen here, or both.
        self._is_rung = False
        self._is_rung = self.has_beaten or self.news is not self.heard
        return self._is_rung

    def __repr__(self) -> str:
        return f"<attempt {self.attempt} at {self.location} of run {self.run_id}>"


current_step: ContextVar[StepInfo] = ContextVar("holdfast_step")


def step_info() -> StepInfo:
    """Return the attempt that executes this code. Raises `InvalidRequest` outside of the body of a step or task."""
    try:
        return current_step.get()
    except LookupError:
        raise InvalidRequest("step_info() works only inside the body of a step or task") from None
