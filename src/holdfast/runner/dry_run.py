"""A dry run: the code of a run replayed against its history, to see whether it fits. Pure.

It executes no step, writes nothing, and feeds nothing beyond what is recorded: not what is due, nor what has arrived.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from msgspec.structs import replace

from holdfast.core.checkpoint import Block, ContinueAsNew, Finish, StartRollback
from holdfast.core.clock import Micros
from holdfast.core.consequences import FACTS
from holdfast.core.errors import ErrorRecord, HistoryDiverged, InvalidRequest
from holdfast.core.model import Entry, EntryKind, Lease, Run
from holdfast.core.states import RunState
from holdfast.runner.definition import Definition
from holdfast.runner.history import History
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Operation
from holdfast.runner.turn import Turn


class Fit(StrEnum):
    """How code and history fit together: the verdict of `hf.check`."""

    FITS = "fits"
    """The code fits."""
    UNDECIDED = "undecided"
    """It depends on new operations, or on an order that differs from the recorded one."""
    FAILS = "fails"
    """The code fits, and raises before it does anything new."""
    DIVERGES = "diverges"
    """The code asks for something else than what was recorded. The run would be blocked."""
    VIOLATES = "violates"
    """The code does what only a step may do. The run would be blocked."""
    REFUSES = "refuses"
    """The payload does not fit the parameters of the function."""
    UNKNOWN = "unknown"
    """The type is not registered here."""

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against running this code."""
        return self is Fit.FITS


class DryRun:
    """What a dry run showed.

    `summary` says it in a line, `report` in as many as it takes. `told` are the operations whose recorded outcome the
    code was told, by location, with what only the code knows: the function of a step, say, or how it is undone.
    `misfit` has the two operations that differ, if the code diverges or that is undecided.
    """

    def __init__(
        self,
        fit: Fit,
        summary: str = "",
        report: str = "",
        told: Mapping[str, Operation] | None = None,
        misfit: HistoryDiverged | None = None,
    ) -> None:
        self.fit = fit
        self.summary = summary
        self.report = report or summary
        self.told = told or {}
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
    """Replay a run's code up to the end of its history or, if it rolls back, to where it started to roll back.

    `inspect` sees the turn at its last standstill, before it leaves memory.
    """
    if definition is None:
        return DryRun(Fit.UNKNOWN, f"there is no workflow or task {run.type!r} here")
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
    except Exception as error:  # noqa: BLE001 - an error of driving it, which would block the run
        return DryRun(Fit.VIOLATES, f"it cannot be driven: {type(error).__name__}: {error}", "", turn.told)
    finally:
        turn.evict()


def before_rollback(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The history of a run up to where it began to roll back; all of it, if it did not."""
    rollback_at = next((entry.position for entry in entries if entry.kind is EntryKind.ROLLBACK), None)
    if rollback_at is None:
        return entries
    return [
        entry for entry in entries if entry.kind is not EntryKind.UNDO and (entry.position or entry.since) < rollback_at
    ]


def _lease(run: Run, entries: Sequence[Entry]) -> Lease:
    """A lease on nothing: whatever is done with it, no store hears of it."""
    # A token above 1 says that the run was held before, so its logger is silent; crashes are no matter of the code.
    return Lease(run=replace(run, token=max(2, run.token), crashes=0), entries=tuple(before_rollback(entries)))


def _shown(turn: _DryTurn, run: Run) -> DryRun:
    fit, summary, report = Fit.FITS, "", ""
    match turn.outcome:
        case Block() if turn.misfit is not None:
            return _differs(Fit.DIVERGES, turn, turn.misfit)
        case Block(error=error):
            fit, summary, report = Fit.VIOLATES, error.message, error.traceback or error.message
        case _ if run.rollback is not None:
            pass  # its code was over when the rollback started
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
    return DryRun(fit, summary, report, turn.told)


def _differs(fit: Fit, turn: _DryTurn, misfit: HistoryDiverged) -> DryRun:
    return DryRun(fit, misfit.what, misfit.report, turn.told, misfit)


class _DryTurn(Turn):
    """A turn that is told what is recorded and nothing else."""

    _history: _DryHistory

    def __init__(self, lease: Lease, definition: Definition) -> None:
        super().__init__(replace(lease, arrivals=()), definition)
        self.told: dict[str, Operation] = {}
        self._limits = None

    def _history_of(self, lease: Lease) -> History:
        return _DryHistory(lease, self._open, is_strict=self.definition.is_strict)

    @property
    def misfit(self) -> HistoryDiverged | None:
        return self._history.diverged

    def undecided(self) -> HistoryDiverged | None:
        """What is new, if that comes before the rest of the history."""
        if not self._history.unreached:
            return None
        new = ", ".join(list(self._open.by_location)[:5])
        return self._history.diverge(f"new before the rest of the history: {new}")

    def reordered(self) -> HistoryDiverged | None:
        """What was asked for earlier than the first time, if anything: the results are told in another order."""
        if self._history.early is None:
            return None
        before, operation = self._history.early
        what = f"{operation.location!r} is asked for before {before.location!r}, which was recorded first"
        return self._history.diverge(what, {operation.location: operation.kind}, recorded=before)

    def _tell(self, operation: Operation, entry: Entry) -> None:
        self.told[operation.location] = operation
        super()._tell(operation, entry)

    def _pop_due(self, now: Micros) -> None:
        return None

    def _check_stuck(self, now: Micros) -> None:
        deadline = self._open.next_deadline()
        if deadline is None or deadline > now:
            super()._check_stuck(now)
        # Else its time would have come by now in earnest, and the code would go on.

    def evict(self) -> None:
        self._loop.evict(is_over=False)  # quietly: it is not over, whatever the code did here
        super().evict()


class _DryHistory(History):
    """A history that notes which operation was asked for earlier than the first time.

    `early` is the first such operation, with the entry that was recorded before it was asked for.
    """

    def __init__(self, lease: Lease, open_operations: OpenOperations, *, is_strict: bool) -> None:
        super().__init__(lease.run, lease.entries, open_operations, is_strict=is_strict)
        self.early: tuple[Entry, Operation] | None = None
        self._facts = sorted(entry.position for entry in lease.entries if entry.is_settled and entry.kind in FACTS)

    def schedule(self, operation: Operation, recorded: Entry) -> None:
        super().schedule(operation, recorded)
        if self.early is not None or recorded.location != operation.location:
            return  # one is enough; and a group of children is asked for after all of them
        if recorded.kind is EntryKind.LOOP:
            return  # a loop is resumed at a mark, without what led to it
        # Strict code has diverged by now, or will.
        known, then = bisect_right(self._facts, operation.since), bisect_right(self._facts, recorded.since)
        if known < then:
            before = next(entry for entry in self.entries if entry.position == self._facts[then - 1])
            self.early = (before, operation)
