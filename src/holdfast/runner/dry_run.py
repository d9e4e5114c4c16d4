"""A dry run: replays the code of a run against its history, to check whether it fits. Pure.

It executes no step, writes nothing, and feeds recorded entries only: no due timers and no arrivals.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from msgspec.structs import replace

from holdfast.core.checkpoint import Block, ContinueAsNew, Finish, StartRollback
from holdfast.core.clock import Micros
from holdfast.core.entries import FACTS
from holdfast.core.errors import ErrorRecord, HistoryDiverged, InvalidRequest
from holdfast.core.model import Entry, EntryKind, Lease, Run
from holdfast.core.states import RunState
from holdfast.runner.definition import Definition
from holdfast.runner.history import History
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Operation
from holdfast.runner.turn import Turn


class Fit(StrEnum):
    """Verdict of `hf.check`: says if the code fits the history of a run."""

    FITS = "fits"
    """The code fits."""
    UNDECIDED = "undecided"
    """It depends on new operations, or on an order that differs from the recorded one."""
    FAILS = "fails"
    """The code fits, and raises before it does anything new."""
    DIVERGES = "diverges"
    """The code asks for an operation that differs from the recorded one. The run would be blocked."""
    VIOLATES = "violates"
    """The code makes a call that only a step may make. The run would be blocked."""
    REFUSES = "refuses"
    """The payload does not fit the parameters of the function."""
    UNKNOWN = "unknown"
    """The type is not registered here."""

    @property
    def is_good(self) -> bool:
        """True if this code can run: the verdict is `FITS`."""
        return self is Fit.FITS


class DryRun:
    """The result of a dry run.

    `summary` is one line, `report` the full text. `fed` has the operations whose recorded outcome was fed, by
    location. They carry what only the code knows, such as the function of a step and its undo function.
    `misfit` has the two operations that differ, if the code diverges or if that is undecided.
    """

    def __init__(
        self,
        fit: Fit,
        summary: str = "",
        report: str = "",
        fed: Mapping[str, Operation] | None = None,
        misfit: HistoryDiverged | None = None,
    ) -> None:
        self.fit = fit
        self.summary = summary
        self.report = report or summary
        self.fed = fed or {}
        self.misfit = misfit

    def __repr__(self) -> str:
        return f"<DryRun {self.fit.value}: {self.summary}>" if self.summary else f"<DryRun {self.fit.value}>"


def dry_run(
    definition: Definition | None,
    run: Run,
    entries: Sequence[Entry],
    *,
    now: Micros | None = None,
    inspect: Callable[[Turn], None] | None = None,
) -> DryRun:
    """Replay a run's code up to the end of its history or, if it rolls back, up to the start of the rollback.

    `inspect` gets the turn at its last standstill, before it leaves memory.
    """
    if definition is None:
        return DryRun(Fit.UNKNOWN, f"no workflow or task {run.type!r} is registered here")
    try:
        definition.signature.decode(run.input, f"payload of {run.type!r}")
    except InvalidRequest as error:
        return DryRun(Fit.REFUSES, str(error))
    turn = _DryTurn(_lease(run, entries), definition)
    try:
        turn.begin(run.updated_at if now is None else now)
        if inspect is not None:
            inspect(turn)
        return _shown(turn, run)
    except Exception as error:  # noqa: BLE001 - an error while driving the code, which would block the run
        return DryRun(Fit.VIOLATES, f"the code cannot be driven: {type(error).__name__}: {error}", "", turn.fed)
    finally:
        turn.evict()


def before_rollback(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the history up to the start of the rollback, or all of it if the run does not roll back."""
    rollback_at = next((entry.position for entry in entries if entry.kind is EntryKind.ROLLBACK), None)
    if rollback_at is None:
        return entries
    return [
        entry for entry in entries if entry.kind is not EntryKind.UNDO and (entry.position or entry.since) < rollback_at
    ]


def _lease(run: Run, entries: Sequence[Entry]) -> Lease:
    """Return a lease that no store knows of."""
    # A token above 1 means that the run was held before, so its logger is silent. Crashes do not concern the code.
    return Lease(run=replace(run, token=max(2, run.token), crashes=0), entries=tuple(before_rollback(entries)))


def _shown(turn: _DryTurn, run: Run) -> DryRun:
    fit, summary, report = Fit.FITS, "", ""
    match turn.outcome:
        case Block() if turn.misfit is not None:
            return _differs(Fit.DIVERGES, turn, turn.misfit)
        case Block(error=error):
            fit, summary, report = Fit.VIOLATES, error.message, error.traceback or error.message
        case _ if run.rollback is not None:
            pass  # the code had ended when the rollback started
        case _ if (reordered := turn.reordered()) is not None:
            return _differs(Fit.UNDECIDED, turn, reordered)
        case Finish(state=RunState.FAILED, error=ErrorRecord() as error) | StartRollback(error=error):
            fit, summary, report = Fit.FAILS, f"the code raises {error}", error.traceback
        case Finish(state=state):
            summary = f"the run ends as {state.value} when it is claimed"
        case ContinueAsNew():
            summary = "the run continues as new when it is claimed"
        case None if (undecided := turn.undecided()) is not None:
            return _differs(Fit.UNDECIDED, turn, undecided)
        case None:
            pass
    return DryRun(fit, summary, report, turn.fed)


def _differs(fit: Fit, turn: _DryTurn, misfit: HistoryDiverged) -> DryRun:
    return DryRun(fit, misfit.what, misfit.report, turn.fed, misfit)


class _DryTurn(Turn):
    """A turn that feeds only recorded entries."""

    _history: _DryHistory

    def __init__(self, lease: Lease, definition: Definition) -> None:
        super().__init__(replace(lease, arrivals=()), definition)
        self.fed: dict[str, Operation] = {}
        self._limits = None

    def _history_of(self, lease: Lease) -> History:
        return _DryHistory(lease, self._open, self.definition)

    @property
    def misfit(self) -> HistoryDiverged | None:
        return self._history.diverged

    def undecided(self) -> HistoryDiverged | None:
        """Return the divergence if the code asks for new operations before the rest of the history."""
        if not self._history.unreached:
            return None
        new = ", ".join(list(self._open.by_location)[:5])
        return self._history.diverge(f"new operations before the rest of the history: {new}")

    def reordered(self) -> HistoryDiverged | None:
        """Return the divergence if the code asks for an operation earlier than the first time.

        Its results would then be fed in another order.
        """
        if self._history.early is None:
            return None
        before, operation = self._history.early
        what = f"{operation.location!r} is asked for before {before.location!r}, which was recorded first"
        return self._history.diverge(what, {operation.location: operation.kind}, recorded=before)

    def _feed_entry(self, operation: Operation, entry: Entry) -> None:
        self.fed[operation.location] = operation
        super()._feed_entry(operation, entry)

    def _pop_due(self, now: Micros) -> None:
        return None

    def _check_stuck(self, now: Micros) -> None:
        deadline = self._open.next_deadline()
        if deadline is None or deadline > now:
            super()._check_stuck(now)
        # Otherwise something is due by `now`: in a real turn the code would continue.

    def evict(self) -> None:
        self._loop.evict(is_over=False)  # logs nothing, because the run itself is not over
        super().evict()


class _DryHistory(History):
    """A history that notes the first operation that the code asks for earlier than the first time.

    `early` is that operation, with the entry that was recorded before the operation was requested the first time.
    """

    def __init__(self, lease: Lease, open_operations: OpenOperations, definition: Definition) -> None:
        super().__init__(
            lease.run, lease.entries, open_operations, is_strict=definition.is_strict, hints=definition.hints
        )
        self.early: tuple[Entry, Operation] | None = None
        self._facts = sorted(entry.position for entry in lease.entries if entry.is_settled and entry.kind in FACTS)

    def schedule(self, operation: Operation, recorded: Entry) -> None:
        super().schedule(operation, recorded)
        if self.early is not None or recorded.location != operation.location:
            return  # one is enough, and a group of children has other locations than its children
        if recorded.kind is EntryKind.LOOP:
            return  # a loop resumes at a mark and skips the iterations before it
        # Only code that is not strict gets further than this: strict code has diverged by now, or will.
        known, then = bisect_right(self._facts, operation.since), bisect_right(self._facts, recorded.since)
        if known < then:
            before = next(entry for entry in self.entries if entry.position == self._facts[then - 1])
            self.early = (before, operation)
