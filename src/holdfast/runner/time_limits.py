"""Time limits of a run: `max_run` for the whole run, and `max_suspend` for one suspension without an arrival."""

from __future__ import annotations

from holdfast.core import rules
from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Run, Wait, WaitKind
from holdfast.runner.open_operations import OpenOperations


class TimeLimits:
    """The `max_run` and `max_suspend` of a run. Most runs have neither, and a run that rolls back has none."""

    __slots__ = ("_max_suspend", "_run", "end_by")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._max_suspend = run.options.max_suspend
        self.end_by = run.end_by
        """Instant by which the run must end."""

    @staticmethod
    def of(run: Run) -> TimeLimits | None:
        """Return the limits of a run, or None if it has none. A rollback has no limit."""
        if run.rollback is not None or (run.options.max_suspend is None and run.end_by is None):
            return None
        return TimeLimits(run)

    def exceeded(self, now: Micros, open_operations: OpenOperations, *, fed: int, stamp: Micros) -> str | None:
        """Return the reason to cancel the run, if it took too long or was suspended for too long."""
        if self.end_by is not None and now >= self.end_by:
            return f"it ran longer than its max_run of {(self._run.options.max_run or 0) / SECOND:g} s"
        since = self._suspended_since(fed, stamp)
        if self._max_suspend is None or since is None or now < since + self._max_suspend:
            return None
        if not open_operations.has_nothing_due(now):
            return None
        return f"it was suspended longer than its max_suspend of {self._max_suspend / SECOND:g} s"

    def waits(self, now: Micros, *, fed: int, stamp: Micros) -> tuple[Wait, ...]:
        """Return the waits that end a suspension, or the run, even if nothing arrives."""
        length, since = self._max_suspend, self._suspended_since(fed, stamp) or now
        limits = (
            (rules.MAX_RUN_LOCATION, self._run.start_at, self.end_by),
            (rules.MAX_SUSPEND_LOCATION, since, None if length is None else since + length),
        )
        return tuple(
            Wait(location=location, kind=WaitKind.TIME, since=since, deadline=deadline)
            for location, since, deadline in limits
            if deadline is not None
        )

    def earliest(self, deadline: Micros | None) -> Micros | None:
        """Return the earlier of a deadline and the instant by which the run must end."""
        return deadline if self.end_by is None or (deadline is not None and deadline < self.end_by) else self.end_by

    def _suspended_since(self, fed: int, stamp: Micros) -> Micros | None:
        """Return the start of the current suspension. A wake-up does not end a suspension if nothing arrived."""
        since = self._run.suspended_at
        return since if since is not None and fed == 0 and stamp <= since else None
