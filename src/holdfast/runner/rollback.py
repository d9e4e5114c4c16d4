"""Rollback: the code of a run is over, and what its steps did is undone, last first.

Which function undoes a step is known only to the code. So it is replayed, without executing anything, up to where the
run turned around; then the undo functions it named are called with the recorded results. Each call is an operation
like a step: recorded, retried, and never repeated once it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Block, Finish
from holdfast.core.clock import Micros
from holdfast.core.codec import Codec
from holdfast.core.errors import ErrorRecord, HistoryDiverged, StepFailed
from holdfast.core.location import without_iterations
from holdfast.core.model import Entry, EntryKind, EntryState, Lease
from holdfast.core.revision import UNDO_PREFIX
from holdfast.core.rules import ROLLBACK_LOCATION
from holdfast.runner.asking import Undo
from holdfast.runner.context import Context
from holdfast.runner.operation import UndoCall
from holdfast.runner.outcome import error_of
from holdfast.runner.registry import Definition
from holdfast.runner.rehearsal import Fit, before_turning_around, rehearse

_ANY: Codec[Any] = Codec(Any)


class Undoing(Definition):
    """What a run does that has turned around: an operation for each step that is to be undone."""

    def __init__(self, definition: Definition, lease: Lease) -> None:
        super().__init__(definition.type, definition.function, skip=definition.skip, crash_limit=definition.crash_limit)
        self._definition = definition
        self._run = lease.run
        (self._around,) = (entry for entry in lease.entries if entry.kind is EntryKind.ROLLBACK)
        self._entries = lease.entries
        self._later = tuple(entry for entry in lease.entries if entry.kind in (EntryKind.UNDO, EntryKind.ROLLBACK))

    @property
    def reason(self) -> ErrorRecord | None:
        return self._around.error

    def lease(self, lease: Lease) -> Lease:
        """What of a lease concerns the undoing: the turn-around, and what is undone already."""
        return replace(lease, entries=self._later, arrivals=())

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        return self._undo_all(context, self._undo_functions())

    def finish(self, root: asyncio.Task[Any], now: Micros) -> Finish | Block:
        error = error_of(root)
        if error is None:
            state = self._run.rollback
            assert state is not None
            return Finish(state=state, error=self._around.error)  # type: ignore[arg-type]  # an end, and no success
        if isinstance(error, StepFailed):
            # Its record stays: whoever recovers the run sees what failed, and lets it be tried again.
            return Block(error=replace(ErrorRecord.of(error), type="UndoFailed"))
        count, pause = rules.blocked_retry(self._run.error if self._run.error != self.reason else None)
        return Block(error=ErrorRecord.of(error, attempts=count), retry_at=now + pause)

    def _undo_functions(self) -> list[tuple[Entry, Undo]]:
        """What is to be undone, last first, each with how. Raises if the code does not tell for all of it."""
        before = before_turning_around(self._entries)
        done = [entry for entry in before if entry.has_undo and entry.state is EntryState.DONE]
        undos = self._replayed_undos()
        found: list[tuple[Entry, Undo]] = []
        for entry in sorted(done, key=lambda entry: entry.position, reverse=True):
            undo = undos.get(entry.location) or undos.get(without_iterations(entry.location))
            if undo is None:
                raise HistoryDiverged(
                    f"the code of {self.type!r} does not tell any more how to undo {entry.location!r}, which this run "
                    "has done; deploy code that has its undo=, or cancel the run by force"
                )
            found.append((entry, undo))
        return found

    def _replayed_undos(self) -> dict[str, Undo]:
        undos: dict[str, Undo] = {}
        rehearsal = rehearse(self._definition, self._run, self._entries, inspect=lambda turn: undos.update(turn.undos))
        if rehearsal.fit in (Fit.DIVERGES, Fit.VIOLATES, Fit.REFUSES):
            raise HistoryDiverged(rehearsal.summary)
        return undos

    async def _undo_all(self, context: Context, undos: Sequence[tuple[Entry, Undo]]) -> None:
        turn = context.turn
        turn.command(EntryKind.ROLLBACK, ROLLBACK_LOCATION)
        for entry, undo in undos:
            value = await turn.recall(undo.codec, entry.result, f"result of step {entry.location!r}")
            location = f"{UNDO_PREFIX}{entry.location}"
            await turn.perform(UndoCall(location, undo.function, (value,), _ANY, undo.options))
