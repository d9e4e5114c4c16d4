"""What a step body may know about itself while it runs."""

from __future__ import annotations

from contextvars import ContextVar

from holdfast.core.errors import InvalidRequest, LeaseLost


class StepInfo:
    """One attempt at a step. The idempotency key is the same on every attempt, after recovery too."""

    __slots__ = ("attempt", "generation", "is_cancelled", "location", "run_id")

    def __init__(self, run_id: str, generation: int, location: str, attempt: int) -> None:
        self.run_id = run_id
        self.generation = generation
        self.location = location
        self.attempt = attempt
        self.is_cancelled = False
        """Whether nobody waits for this attempt any more: it timed out, or its run was cancelled or taken over."""

    @property
    def idempotency_key(self) -> str:
        """Give it to the systems you call, so that a repeated attempt has no second effect."""
        return f"{self.run_id}:{self.generation}:{self.location}"

    def heartbeat(self) -> None:
        """Call it now and then in a long sync body: it raises `LeaseLost` once the attempt no longer counts."""
        if self.is_cancelled:
            raise LeaseLost(
                f"attempt {self.attempt} at {self.location!r} of run {self.run_id} no longer counts: it timed out, "
                "or the run was cancelled or taken over; stop here"
            )

    def __repr__(self) -> str:
        return f"<attempt {self.attempt} at {self.location} of run {self.run_id}>"


current_step: ContextVar[StepInfo] = ContextVar("holdfast_step")


def step_info() -> StepInfo:
    """The attempt that is running this code; only inside a step body."""
    try:
        return current_step.get()
    except LookupError:
        raise InvalidRequest("step_info() is only known inside the body of a step or task") from None
