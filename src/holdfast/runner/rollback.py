"""Rollback: the code of a run is over, and what its steps did is undone, last first.

Which function undoes a step is known only to the code. So it is replayed, without executing anything, up to where the
rollback started; then the undo functions it named are called with the recorded results. Each call is an operation
like a step: recorded, retried, and never repeated once it is done.
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
from holdfast.core.codec import Codec
from holdfast.core.entries import UNDO_PREFIX
from holdfast.core.errors import ErrorRecord, HistoryDiverged, StepFailed
from holdfast.core.location import without_iterations
from holdfast.core.model import Entry, EntryKind, EntryState, Lease
from holdfast.core.rules import ROLLBACK_LOCATION
from holdfast.runner.context import Context, requests_of
from holdfast.runner.definition import Definition
from holdfast.runner.dry_run import before_rollback, dry_run
from holdfast.runner.operation import Operation, StepCall, UndoCall
from holdfast.runner.outcome import error_of

_ANY: Codec[Any] = Codec(Any)
_COUNT = re.compile(r"#\d+$")
_ABOUT_UNDOING = frozenset({EntryKind.UNDO, EntryKind.ROLLBACK, EntryKind.ROUNDS})


class Undoing(Definition):
    """What a run does while it rolls back: an operation for each step that is to be undone."""

    is_strict = False  # the order in which steps are undone is that of their positions, whatever the code does

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
        """What of a lease concerns the undoing: the start of the rollback, what is undone already, and the rounds."""
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
            # Its record stays: whoever recovers the run sees what failed, and lets it be tried again.
            return Block(error=replace(ErrorRecord.of(error), type="UndoFailed"))
        count, pause = rules.blocked_retry(self._run.error if self._run.error != self.reason else None)
        return Block(error=ErrorRecord.of(error, attempts=count), retry_at=now + pause)

    def _undo_functions(self) -> list[tuple[Entry, StepCall]]:
        """What is to be undone, last first, each with the call that tells how. Raises if the code does not for all."""
        done = [e for e in before_rollback(self._entries) if e.has_undo and e.state is EntryState.DONE]
        replayed = dry_run(self._definition, self._run, self._entries)
        # Code that diverges tells how to undo what it was told before: it was the same up to there.
        calls = _Calls(replayed.told.values())
        found: list[tuple[Entry, StepCall]] = []
        for entry in sorted(done, key=lambda entry: entry.position, reverse=True):
            call = calls.find(entry.location)
            if call is None:
                why = f" ({replayed.summary})" if replayed.summary else ""
                raise HistoryDiverged(
                    f"the code of {self.type!r} does not tell any more how to undo {entry.location!r}, which this run "
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
            await requests.perform(UndoCall(f"{UNDO_PREFIX}{entry.location}", undo, (value,), _ANY, options))


class _Calls:
    """The calls of a replay that tell how they are undone, by location.

    An iteration that is not replayed any more is undone as others of its loop are: by the location without the number
    of the iteration, and if it did something more often than they, by the name without its count.
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
        # Only if there is no doubt: steps of one name may be undone in different ways.
        ways = {getattr(call.options.undo, "__code__", call.options.undo) for call in alike}
        return alike[0] if len(ways) == 1 else None
