"""Code requests: the operations that workflow code asks for through its context, inside its loop.

This is the only way from workflow code into its turn. `turn` decides when a request is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.clock import NEVER_SECONDS, SECOND, Micros
from holdfast.core.codec import Codec
from holdfast.core.entries import ROUNDS_LOCATION, UNDO_PREFIX, received_in, rounds_in
from holdfast.core.errors import InvalidRequest
from holdfast.core.location import iteration_of
from holdfast.core.model import Entry, EntryKind, EntryState, Intent, Run
from holdfast.runner.context import Context, version_in
from holdfast.runner.history import History
from holdfast.runner.loop import LoopTimer, RunLoop
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import (
    MISSING,
    ChildEnd,
    ChildGroup,
    Operation,
    Sleep,
    StepCall,
    StepOptions,
    asked_since,
    check_call,
    with_keywords,
)
from holdfast.runner.pending_checkpoint import PendingCheckpoint, RunCommand

if TYPE_CHECKING:
    from holdfast.runner.definition import Definition


class CodeRequests:
    """Accepts the requests of a run's code, and is the host of the loop that executes the code."""

    def __init__(
        self,
        run: Run,
        definition: Definition,
        history: History,
        open_operations: OpenOperations,
        pending: PendingCheckpoint,
        *,
        has_database: bool,
    ) -> None:
        self.run = run
        self.definition = definition
        self.has_database = has_database
        self.abandoned: list[str] = []
        """The locations of steps that the code no longer waits for."""
        self.continued: str | None = None
        """The payload of the next generation, if the code continues as new."""
        self._history = history
        self._open = open_operations
        self._pending = pending
        self._inbox = open_operations.inbox
        self._timers: dict[LoopTimer, Sleep] = {}
        self._serial = 0
        self._rounds = rounds_in(history.get(ROUNDS_LOCATION))
        self.loop = RunLoop(run.id, self, now=history.stamp / SECOND)
        self.context = Context(self)

    @property
    def stamp(self) -> Micros:
        """The instant of the last fact fed to the code."""
        return self._history.stamp

    @property
    def token(self) -> int:
        """The token of the lease under which the code runs."""
        return self._pending.token

    # Operations

    async def perform(self, operation: Operation) -> Any:
        """Ask for an operation and wait for its outcome."""
        future = self._ask(operation)
        try:
            entry = await future
        except asyncio.CancelledError:
            self.withdraw(operation)
            raise
        if isinstance(operation, StepCall) and operation.value is MISSING:
            return await self._remembered(operation.outcome, entry)
        return operation.outcome(entry)

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        codec: Codec[Any],
        options: StepOptions,
        *,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that executes a step. The step gets its location now and is requested when awaited."""
        check_call(function, name, args, kwargs)
        if kwargs:
            function = with_keywords(function, kwargs)
        return self.perform(StepCall(self.loop.scope.locate(name), function, args, codec, options))

    @staticmethod
    def on(loop: RunLoop) -> CodeRequests:
        """Return the requests of the run that a loop belongs to."""
        requests: CodeRequests = loop.host  # type: ignore[assignment]  # the loop of a run has no other host
        return requests

    async def recall(self, codec: Codec[Any], text: str | None, what: str) -> Any:
        """Decode and return a recorded value."""
        return await self._remembered(codec.decode, text or "null", what)

    async def _remembered(self, decode: Callable[..., Any], *recorded: Any) -> Any:
        """Decode a recorded value. A value that no longer fits its type is a divergence."""
        try:
            return decode(*recorded)
        except InvalidRequest as error:
            self._history.misread(str(error))
        return await self.never()

    async def never(self) -> Any:
        """Wait forever, because the turn is over."""
        return await asyncio.Future(loop=self.loop)

    async def perform_shared(self, operation: Operation) -> Any:
        """Like `perform`, for an operation that several tasks may await at once."""
        if operation.future is None or operation.future.cancelled():
            self._ask(operation)
        assert operation.future is not None
        return operation.outcome(await asyncio.shield(operation.future))

    def _ask(self, operation: Operation) -> asyncio.Future[Entry]:
        self.loop.check_inside()
        future: asyncio.Future[Entry] = asyncio.Future(loop=self.loop)
        operation.future = future
        self._enter(operation)
        return future

    def _enter(self, operation: Operation) -> None:
        """Add an operation to the open ones. A recorded outcome is fed when its position is next."""
        if self.loop.is_evicting:
            return
        self._serial += 1
        operation.serial = self._serial
        operation.asked_at = self._history.stamp
        operation.since = self._history.position
        operation.after = self._pending.fed_count
        if self._rounds and isinstance(operation, StepCall):
            operation.round = self._rounds.get(operation.location.removeprefix(UNDO_PREFIX), 0)
        if isinstance(operation, ChildGroup):
            self._enter_group(operation)
            return
        recorded = self._history.reach(operation.location, operation.kind)
        if self._history.diverged is not None:
            return
        is_recorded = recorded is not None and recorded.is_settled
        if recorded is not None and is_recorded:
            self._history.schedule(operation, recorded)
        elif recorded is not None:
            operation.resume(recorded)
            if not recorded.attempts and isinstance(operation, ChildEnd):
                self._note_awaited(recorded)
        self._open.add(operation, is_recorded=is_recorded)

    def _note_awaited(self, child: Entry) -> None:
        """Record that the code awaits a child which it had only started.

        Such a child is recovered together with this run, and not pruned before it.
        """
        awaited = msgspec.structs.replace(child, attempts=1)
        self._history.remember([awaited])
        self._pending.amend(awaited)

    def _enter_group(self, group: ChildGroup) -> None:
        """Ask for the ends of many children. Recorded ends are fed by position; the run waits for the others."""
        for child_id, location in group.members.items():
            recorded = self._history.get(location)
            assert recorded is not None, "the children of a group are created before the group is requested"
            if recorded.is_settled:
                self._history.schedule(group, recorded)
            else:
                since = asked_since(recorded, group.since)
                group.started[child_id] = msgspec.structs.replace(recorded, since=since)
        self._open.add(group, is_recorded=not group.started)

    def withdraw(self, operation: Operation) -> None:
        """Remove an operation that the code no longer waits for. A running body is abandoned."""
        if self.loop.is_evicting or not self._open.holds(operation):
            return
        self._open.remove(operation)
        if isinstance(operation, StepCall):
            self.abandoned.append(operation.location)

    def command(
        self,
        kind: EntryKind,
        location: str,
        *,
        ref: str | None = None,
        command: RunCommand | None = None,
        cancels: Sequence[str] = (),
        is_awaited: bool = False,
    ) -> Entry | None:
        """Let the next checkpoint start, cancel, send, emit or reply, exactly once.

        Returns the entry if an earlier turn recorded the command. `is_awaited` means that the code waits for the end
        of the child that it starts.
        """
        if self.loop.is_evicting or self._history.diverged is not None:
            return None
        recorded = self._history.reach(location, kind)
        if recorded is not None:
            if kind is not EntryKind.CHILD:  # the position of a child is that of its end
                self._history.mark_fed(recorded)
            return recorded
        is_open = isinstance(command, Intent)
        entry = self._entry(kind, location, ref=ref, is_open=is_open, attempts=int(is_awaited))
        self._pending.request(entry)
        self._pending.command(command, cancels=cancels)
        return None

    def continue_as_new(self, payload: str) -> None:
        """Begin the next generation of the run with this payload."""
        self.continued = payload

    # Loops

    def recorded(self, location: str) -> Entry | None:
        """Return the entry at a location, if there is one."""
        return self._history.get(location)

    def marks(self, location: str) -> dict[int, Entry]:
        """Return the recorded marks of a loop, by the iteration that begins with each."""
        numbers = self._history.iterations.numbers(location)
        found = {number: self._history.get(iteration_of(location, number)) for number in numbers}
        return {number: entry for number, entry in found.items() if entry is not None}

    def has_ahead(self, location: str) -> bool:
        """True if a loop has entries that the code has not reached."""
        return self._history.get(location) is not None or self._history.has_unvisited(f"{location}/")

    def skip_iterations(self, location: str, number: int | None) -> None:
        """Skip the entries before the iteration at which a loop resumes, or all of them (None) if it has ended."""
        self._history.skip(self._history.iterations.inside(location, before=number))

    def may_undo(self, location: str) -> bool:
        """True if a rollback would undo an entry inside a loop."""
        inside = map(self._history.get, self._history.iterations.inside(location))
        return any(entry is not None and entry.has_undo for entry in inside)

    def prune(self, iterations: Sequence[str]) -> None:
        """Drop the entries of loop iterations, and the ends of children started there."""
        self._history.forget(iterations)
        if self._history.diverged is not None:
            return  # the run is blocked, and code that fits will need these entries
        self._pending.prune(iterations)
        for end in self._inbox.unasked_ends():
            if not self._history.has_child(end.name):  # the child was started in a pruned iteration
                self._inbox.consume(end)
                self._pending.consume((end.number,))

    # Changing code

    def version(self, location: str, path: str, latest: int) -> int:
        """Return the version of a code change: the recorded one, else 1 if this scope has unvisited entries."""
        if self.loop.is_evicting or self._history.diverged is not None:
            return latest
        recorded = self._history.reach(location, EntryKind.VERSION)
        if recorded is None:
            chosen = 1 if self._history.has_unvisited(path) else latest
            self._note(EntryKind.VERSION, location, str(chosen))
            return chosen
        chosen = version_in(recorded)
        if not 1 <= chosen <= latest:  # `misread` keeps an earlier divergence, if there is one
            self._history.misread(
                f"at {location!r} the history has version {recorded.result}, but the code knows versions 1 to {latest}"
            )
        return chosen

    def removed(self, location: str, kind: EntryKind | None) -> None:
        """Accept the entries of an operation that the code no longer has, or record a placeholder if there are none."""
        if self.loop.is_evicting or self._history.diverged is not None:
            return
        accepted = self._history.accept(location, kind)
        if not accepted and self._history.get(location) is None:
            self._note(EntryKind.REMOVED, location)
        for entry in accepted:
            if entry.kind is EntryKind.EVENT and entry.state is EntryState.DONE:
                for received in received_in(entry):
                    self._inbox.note_event(received.name, int(received.ref or 0))
            if self._history.mark_accepted(entry):
                # Keep the time of later operations as it was, for example of a deadline after a removed sleep.
                self._history.stamp = max(self._history.stamp, entry.finished_at or 0)
                self.loop.now = self._history.stamp / SECOND

    def _note(self, kind: EntryKind, location: str, result: str | None = None) -> None:
        """Record an entry about the code with the next checkpoint. It is not a fact, so nothing waits for it."""
        entry = self._entry(kind, location, result=result)
        self._pending.request(entry, is_lazy=True)

    def _entry(
        self,
        kind: EntryKind,
        location: str,
        *,
        ref: str | None = None,
        result: str | None = None,
        is_open: bool = False,
        attempts: int = 0,
    ) -> Entry:
        """Add and return the entry of a request. It is open if it is the start of a child, which ends later."""
        since = self._history.position
        entry = Entry(
            location=location,
            kind=kind,
            state=EntryState.STARTED if is_open else EntryState.DONE,
            position=0 if is_open else self._history.next_position(),
            attempts=attempts,
            result=result,
            started_at=self._history.stamp,
            finished_at=None if is_open else self._history.stamp,
            ref=ref,
            since=since,
        )
        self._history.remember([entry])
        return entry

    # Values and timers

    def publish(self, name: str, value: str) -> None:
        """Set a named value, unless the code is still behind its history: the value was set then, and may be newer."""
        if not self._history.is_behind and not self.loop.is_evicting:
            self._pending.publish(name, value)

    def timer_started(self, timer: LoopTimer) -> None:
        """Make a timer of plain asyncio durable."""
        deadline = round(min(timer.deadline, NEVER_SECONDS) * SECOND)
        sleep = Sleep(timer.location, deadline=deadline, fire=lambda: self.loop.fire(timer))
        self._timers[timer] = sleep
        self._enter(sleep)

    def timer_cancelled(self, timer: LoopTimer) -> None:
        """Remove a timer that plain asyncio no longer needs."""
        sleep = self._timers.pop(timer, None)
        if sleep is not None:
            self.withdraw(sleep)

    @property
    def is_replaying(self) -> bool:
        """True while the code repeats what it did before: nothing new was fed yet, or the run leaves memory.

        This includes the code after the last recorded fact. It ran to its next standstill before that fact was written.
        """
        return not self._history.has_news or self.loop.is_evicting

    def evict(self, *, is_over: bool) -> None:
        """Close every coroutine of the code. `is_over` means that the run will not be claimed again."""
        self.loop.evict(is_over=is_over)
        self._timers.clear()
        # Breaks the reference cycle between these requests and the context, so that the memory of the run is freed at
        # once, without garbage collection.
        del self.context
