"""Rollback: calls the undo functions (compensations) of a run's steps in reverse order, after its code has ended.

Only the code knows which function undoes a step. So a dry run replays the code up to the start of the rollback. Then
the undo functions that it named are called with the recorded results. Each call is an operation like a step: it is
recorded, retried, and never repeated once it is done.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Block, Finish
from holdfast.core.clock import Micros
from holdfast.core.codec import ANY
from holdfast.core.entries import UNDO_PREFIX
from holdfast.core.errors import ErrorRecord, HistoryDiverged, StepFailed
from holdfast.core.location import without_iterations
from holdfast.core.model import Entry, EntryKind, EntryState, Lease
from holdfast.core.rules import ROLLBACK_LOCATION
from holdfast.runner.context import Context, requests_of
from holdfast.runner.definition import Definition, error_of
from holdfast.runner.dry_run import before_rollback, dry_run
from holdfast.runner.operation import Operation, StepCall, UndoCall

_COUNT = re.compile(r"#\d+$")
_ABOUT_UNDOING = frozenset({EntryKind.UNDO, EntryKind.ROLLBACK, EntryKind.ROUNDS})


class Undoing(Definition):
    """The definition of a run while it rolls back: one operation for each step that is to be undone."""

    is_strict = False  # positions alone decide the order of undoing, so a change in the code is no divergence

    def __init__(self, definition: Definition, lease: Lease) -> None:
        super().__init__(definition.type, definition.function, skip=definition.skip, crash_limit=definition.crash_limit)
        self._definition = definition
        self._run = lease.run
        (self._start,) = (entry for entry in lease.entries if entry.kind is EntryKind.ROLLBACK)
        self._entries = lease.entries
        self._later = tuple(entry for entry in lease.entries if entry.kind in _ABOUT_UNDOING)

    @property
    def reason(self) -> ErrorRecord | None:
        return self._start.error

    def lease(self, lease: Lease) -> Lease:
        """Return the lease with the entries of the rollback only: its start, the undos done so far, and the rounds."""
        return replace(lease, entries=self._later, arrivals=())

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        return self._undo_all(context, self._undo_functions())

    def finish(self, root: asyncio.Task[Any], now: Micros) -> Finish | Block:
        error = error_of(root)
        if error is None:
            state = self._run.rollback
            assert state is not None
            return Finish(state=state, error=self._start.error)  # type: ignore[arg-type]  # an end, and no success
        if isinstance(error, StepFailed):
            # The entry of the failed undo stays: it shows what failed, and `recover` lets it be tried again.
            return Block(error=replace(ErrorRecord.of(error), type="UndoFailed"))
        count, pause = rules.blocked_retry(self._run.error if self._run.error != self.reason else None)
        return Block(error=ErrorRecord.of(error, attempts=count), retry_at=now + pause)

    def _undo_functions(self) -> list[tuple[Entry, StepCall]]:
        """Return the entries to undo, last first, each with the call that has its undo function.

        Raises `HistoryDiverged` if the code has no undo function for one of them.
        """
        done = [e for e in before_rollback(self._entries) if e.has_undo and e.state is EntryState.DONE]
        replayed = dry_run(self._definition, self._run, self._entries)
        # Code that diverges still has the undo functions of the steps before the divergence.
        calls = _Calls(replayed.fed.values())
        found: list[tuple[Entry, StepCall]] = []
        for entry in sorted(done, key=lambda entry: entry.position, reverse=True):
            call = calls.find(entry.location)
            if call is None:
                why = f" ({replayed.summary})" if replayed.summary else ""
                raise HistoryDiverged(
                    f"the code of {self.type!r} no longer has an undo function for {entry.location!r}, which this run "
                    f"has done{why}; deploy code that has its undo=, or cancel the run by force"
                )
            found.append((entry, call))
        return found

    async def _undo_all(self, context: Context, calls: Sequence[tuple[Entry, StepCall]]) -> None:
        requests = requests_of(context)
        requests.command(EntryKind.ROLLBACK, ROLLBACK_LOCATION)
        for entry, call in calls:
            value = await requests.recall(call.codec, entry.result, f"result of step {entry.location!r}")
            undo, options = call.options.undo, replace(call.options, undo=None, ephemeral=False)
            assert undo is not None
            await requests.perform(UndoCall(f"{UNDO_PREFIX}{entry.location}", undo, (value,), ANY, options))


class _Calls:
    """The calls of a replay that have an undo function, by location.

    A pruned iteration is not replayed. Its undo functions are those of other iterations of the loop, found by the
    location without the iteration number. If it called a step more often than they did, the name without its count
    decides.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._exact: dict[str, StepCall] = {}
        self._alike: dict[str, list[StepCall]] = defaultdict(list)
        for call in operations:
            if isinstance(call, StepCall) and call.options.undo is not None:
                anywhere = without_iterations(call.location)
                self._exact[call.location] = self._exact[anywhere] = call
                self._alike[_COUNT.sub("", anywhere)].append(call)

    def find(self, location: str) -> StepCall | None:
        anywhere = without_iterations(location)
        found = self._exact.get(location) or self._exact.get(anywhere)
        if found is not None or anywhere == location:
            return found
        alike = self._alike.get(_COUNT.sub("", anywhere), [])
        # Use it only if it is unambiguous: steps of one name may have different undo functions.
        ways = {getattr(call.options.undo, "__code__", call.options.undo) for call in alike}
        return alike[0] if len(ways) == 1 else None
