"""A rehearsal: the code of a run played against its history, to see whether it fits. Pure.

It executes no step, writes nothing, and feeds nothing beyond what is recorded: not what is due, nor what has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from msgspec.structs import replace

from holdfast.core.checkpoint import Block, Finish, Renew, TurnAround
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.core.model import Entry, EntryKind, Lease, Run
from holdfast.core.states import RunState
from holdfast.runner.operation import Operation
from holdfast.runner.registry import Definition
from holdfast.runner.stepping import Outcome
from holdfast.runner.turn import Turn


class Fit(StrEnum):
    """How code and history go together.

    `undecided`: the code does something new before it comes to the rest of the history, and what follows depends on
    that. `fails`: it fits, and raises before anything new happens. `refuses`: the payload is not that of the function.
    """

    FITS = "fits"
    UNDECIDED = "undecided"
    FAILS = "fails"
    DIVERGES = "diverges"
    VIOLATES = "violates"
    REFUSES = "refuses"
    UNKNOWN = "unknown"

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against running this code."""
        return self in (Fit.FITS, Fit.UNDECIDED)


class Rehearsal:
    """What a rehearsal showed.

    `summary` says it in a line, `report` in as many as it takes. `operations` are those the code asked for, by
    location, with what only the code knows: the function of a step, say, or how it is undone.
    """

    def __init__(
        self, fit: Fit, summary: str = "", report: str = "", operations: Mapping[str, Operation] | None = None
    ) -> None:
        self.fit = fit
        self.summary = summary
        self.report = report or summary
        self.operations = operations or {}

    def __repr__(self) -> str:
        return f"<Rehearsal {self.fit.value}: {self.summary}>" if self.summary else f"<Rehearsal {self.fit.value}>"


def rehearse(
    definition: Definition | None,
    run: Run,
    entries: Sequence[Entry],
    *,
    now: Micros | None = None,
    is_strict: bool | None = None,
    inspect: Callable[[Turn], None] | None = None,
) -> Rehearsal:
    """Replay a run's code up to the end of its history or, if it rolls back, to where it turned around.

    `is_strict`: whether it must follow the recorded order; by default if its workflow is strict. `inspect` sees the
    turn at its last standstill, before it leaves memory.
    """
    if definition is None:
        return Rehearsal(Fit.UNKNOWN, f"there is no workflow or task {run.type!r} here")
    try:
        definition.signature.decode(run.input, f"payload of {run.type!r}")
    except InvalidRequest as error:
        return Rehearsal(Fit.REFUSES, str(error))
    turn = _DryTurn(_lease(run, entries), definition, is_strict=definition.is_strict if is_strict is None else is_strict)
    try:
        turn.begin(run.updated_at if now is None else now)
        if inspect is not None:
            inspect(turn)
        return _rehearsal(turn, run)
    except Exception as error:  # noqa: BLE001 - an error of driving it, which would block the run
        return Rehearsal(Fit.VIOLATES, f"it cannot be driven: {type(error).__name__}: {error}", "", turn.operations)
    finally:
        turn.evict()


def before_turning_around(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The history of a run up to where it began to roll back; all of it, if it did not."""
    turn_around = next((entry.position for entry in entries if entry.kind is EntryKind.ROLLBACK), None)
    if turn_around is None:
        return entries
    return [
        entry for entry in entries if entry.kind is not EntryKind.UNDO and (entry.position or entry.since) < turn_around
    ]


def _lease(run: Run, entries: Sequence[Entry]) -> Lease:
    """A lease on nothing: whatever is done with it, no store hears of it."""
    # A token above 1 says that the run was held before, so its logger is silent; crashes are no matter of the code.
    return Lease(run=replace(run, token=max(2, run.token), crashes=0), entries=tuple(before_turning_around(entries)))


def _rehearsal(turn: _DryTurn, run: Run) -> Rehearsal:
    fit, summary, report = Fit.FITS, "", ""
    match turn.outcome:
        case Block(error=error):
            fit = Fit.DIVERGES if error.type == "HistoryDiverged" else Fit.VIOLATES
            summary, report = error.message, _long(error)
        case _ if run.rollback is not None:
            pass  # its code was over when it turned around
        case Finish(state=RunState.FAILED, error=ErrorRecord() as error) | TurnAround(error=error):
            fit, summary, report = Fit.FAILS, f"the code raises {error}", error.traceback
        case Finish(state=state):
            summary = f"the run ends as {state.value} when it is claimed"
        case Renew():
            summary = "the run continues as new when it is claimed"
        case None if turn.unreached:
            fit = Fit.UNDECIDED
            summary = f"new before the rest of the history: {', '.join(turn.news[:5])}"
        case None:
            pass
    return Rehearsal(fit, summary, report, turn.operations)


def _long(error: ErrorRecord) -> str:
    return error.traceback or error.message


class _DryTurn(Turn):
    """A turn that is told what is recorded and nothing else."""

    def __init__(self, lease: Lease, definition: Definition, *, is_strict: bool) -> None:
        super().__init__(replace(lease, arrivals=()), definition)
        self._history.must_follow = self._history.must_follow and is_strict
        self.operations: dict[str, Operation] = {}

    @property
    def unreached(self) -> bool:
        return self._history.has_unreached

    @property
    def news(self) -> list[str]:
        """The locations of what is asked for and not recorded."""
        return list(self._asked)

    def _enter(self, operation: Operation) -> None:
        self.operations[operation.location] = operation
        super()._enter(operation)

    def _expired(self, now: Micros) -> None:
        return None

    def _pop_due(self, now: Micros) -> None:
        return None

    def _stuck(self, now: Micros) -> Outcome | None:
        deadline = self._asked.next_deadline()
        if deadline is not None and deadline <= now:
            return None  # in earnest its time would have come by now, and the code would go on
        return super()._stuck(now)

    def evict(self) -> None:
        self.loop.evict(is_over=False)  # quietly: it is not over, whatever the code did here
        super().evict()
