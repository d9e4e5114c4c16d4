"""The turn of a task: a run that is one step. No code of it is replayed, so it needs no loop and no coroutine.

It does what `Turn` would do, in a fraction of the time; a test holds one against the other. A run that has more of a
history than attempts at this one step (it was a workflow once, or was forked with a result) is left to `Turn`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, Finish
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, InvalidRequest, Unreadable
from holdfast.core.model import Entry, EntryKind, EntryState, Lease, Wait
from holdfast.core.states import RunState
from holdfast.runner.history import History
from holdfast.runner.inbox import Inbox
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Operation, StepCall
from holdfast.runner.registry import Task
from holdfast.runner.stepping import Stepping


class TaskTurn(Stepping):
    """The live side of a held task."""

    def __init__(
        self, lease: Lease, definition: Task[Any, Any], *, seen: int | None = None, has_database: bool = True
    ) -> None:
        inbox = Inbox(lease.arrivals, lease.run.arrivals if seen is None else seen)  # nothing in it is ever read
        self._only = _OnlyCall()
        super().__init__(lease, definition, inbox, self._only, has_database=has_database)
        self._task = definition
        self._entries = lease.entries

    @staticmethod
    def suits(definition: Task[Any, Any], entries: Sequence[Entry]) -> bool:
        """Whether a history is that of a task: attempts at its step, and nothing else."""
        return not entries or (len(entries) == 1 and _is_attempt(entries[0], definition.type))

    def begin(self, now: Micros) -> None:
        self.outcome = self._crash_loop()
        if self.outcome is not None:
            return
        try:
            call = self._task.call(self.run.input)
        except Unreadable as error:
            self.outcome = self._blocked(error, now)
            return
        except InvalidRequest as error:
            self._refuse(error, now)
            return
        for attempt in self._entries:
            call.resume(attempt)
        call.asked_at = self.stamp
        self._only.ask(call)
        self.settle(now)

    def _refuse(self, error: InvalidRequest, now: Micros) -> None:
        """The payload is not that of the function: the task was started wrongly, or the function has changed since."""
        if self._entries:
            misfit = History(self.run, self._entries, self._asked).misread(str(error))
            self.outcome = self._blocked(misfit, now)
        else:
            self.outcome = Finish(state=RunState.FAILED, error=ErrorRecord.of(error))

    def settle(self, now: Micros) -> None:
        if self.outcome is not None:
            return
        if (why := self._expired(now)) is not None:
            self.outcome = self._cancelled(why)
        else:
            self._charge_crashes(now)

    def _feed(self, call: StepCall, entry: Entry) -> None:
        """The outcome of its step is that of the task."""
        self._asked.remove(call)
        if entry.state is EntryState.DONE:
            self.outcome = Finish(state=RunState.SUCCEEDED, result=entry.result)
        else:
            assert entry.error is not None, "a step that failed tells why"
            self.outcome = Finish(state=RunState.FAILED, error=replace(entry.error, locations=(entry.location,)))

    def _next_position(self) -> int:
        return 1

    def remember(self, written: Checkpoint) -> None:
        self._entries = written.entries or self._entries

    @property
    def history(self) -> tuple[Entry, ...]:
        return self._entries


class _OnlyCall(OpenOperations):
    """What a task asks for: its one step, and never anything else."""

    def __init__(self) -> None:
        self._call: StepCall | None = None
        self._is_executing = False

    def __bool__(self) -> bool:
        return self._call is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds())

    def kinds(self) -> dict[str, EntryKind]:
        return {} if self._call is None else {self._call.location: self._call.kind}

    def holds(self, operation: Operation) -> bool:
        return self._call is operation

    def ask(self, call: StepCall) -> None:
        """The task is to be executed."""
        self._call = call

    def remove(self, operation: Operation) -> None:
        self._call = None

    def started(self, call: StepCall) -> None:
        call.is_started = self._is_executing = True

    def retried(self, call: StepCall) -> None:
        call.is_started = self._is_executing = False

    @property
    def idle_steps(self) -> list[StepCall]:
        return [] if self._call is None or self._is_executing else [self._call]

    def startable(self, now: Micros, committed: int, *, may_carry: bool = True) -> list[StepCall]:
        call = self._call
        if call is None or self._is_executing or call.after > committed:
            return []
        return [call] if call.retry_at is None or call.retry_at <= now else []

    def is_waiting(self, now: Micros) -> bool:
        if self._call is None:
            return True
        return not self._is_executing and self._call.retry_at is not None and self._call.retry_at > now

    def next_deadline(self) -> Micros | None:
        return None if self._call is None or self._is_executing else self._call.retry_at

    @property
    def child_count(self) -> int:
        return 0

    @property
    def has_only_children(self) -> bool:
        return True  # as it waits for nothing by name

    def named_waits(self) -> tuple[Wait, ...]:
        return ()

    def waits(self) -> tuple[Wait, ...]:
        wait = None if self._call is None else self._call.wait(0)
        return () if wait is None else (wait,)

    def clear(self) -> None:
        self._call = None


def _is_attempt(entry: Entry, location: str) -> bool:
    return entry.location == location and entry.kind is EntryKind.STEP and entry.state is EntryState.RETRYING
