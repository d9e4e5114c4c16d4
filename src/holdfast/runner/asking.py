"""Asking: the side of a turn that workflow code sees. What it calls here, from inside the loop, becomes a request.

It decides nothing about when a request is answered; that is the driver's side, `turn`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.core.clock import NEVER_SECONDS, SECOND
from holdfast.core.codec import Codec
from holdfast.core.entries import EVENTS_LOCATION, UNDO_PREFIX
from holdfast.core.errors import InvalidRequest
from holdfast.core.location import iteration_of
from holdfast.core.model import Entry, EntryKind, EntryState, Event, Intent, Lease, MessageToRun, Reply
from holdfast.core.received import received_in
from holdfast.core.rounds import ROUNDS_LOCATION, rounds_in
from holdfast.runner.context import Context
from holdfast.runner.history import History
from holdfast.runner.inbox import Inbox
from holdfast.runner.loop import LoopTimer, RunLoop
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import MISSING, ChildEnd, ChildGroup, Operation, Sleep, StepCall, asked_since
from holdfast.runner.registry import Definition
from holdfast.runner.stepping import Stepping
from holdfast.runner.version import version_in


class Asking(Stepping):
    """What a run has asked for, and how its code asks."""

    def __init__(self, lease: Lease, definition: Definition, inbox: Inbox, *, has_database: bool) -> None:
        super().__init__(lease, definition, inbox, OpenOperations(inbox), has_database=has_database)
        self.loop = RunLoop(self.run.id, self, now=self.stamp / SECOND)
        self.context = Context(self)

        self._history = History(lease.run, lease.entries, self._asked, is_strict=definition.is_strict)
        self._has_undo = self._history.has_undo
        self._timers: dict[LoopTimer, Sleep] = {}
        self._serial = 0
        self._renewal: str | None = None
        self._cursor_count = 0
        self._take_over_cursors()
        self._rounds = rounds_in(self._history.get(ROUNDS_LOCATION))

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

    async def recall(self, codec: Codec[Any], text: str | None, what: str) -> Any:
        """A value as it was recorded."""
        return await self._remembered(codec.decode, text or "null", what)

    async def _remembered(self, decode: Callable[..., Any], *recorded: Any) -> Any:
        """What was recorded, decoded; what no longer fits its type is a divergence."""
        try:
            return decode(*recorded)
        except InvalidRequest as error:
            self._history.misread(str(error))
        return await self.never()

    async def never(self) -> Any:
        """Wait for ever: the turn is over."""
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
        """Make an operation one of those asked for; what is recorded for it is fed in its turn."""
        if self.loop.is_evicting:
            return
        self._serial += 1
        operation.serial = self._serial
        operation.asked_at = self.stamp
        operation.since = self._history.position
        operation.after = self._fed
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
        self._asked.add(operation, is_recorded=is_recorded)

    def _note_awaited(self, child: Entry) -> None:
        """The code waits for a child that it has only started: it is recovered with this run, and kept as long."""
        awaited = msgspec.structs.replace(child, attempts=1)
        self._history.remember([awaited])
        self._gains.amend(awaited)

    def _enter_group(self, group: ChildGroup) -> None:
        """Ask for the ends of many children: those recorded are told in their turn, the others are waited for."""
        for child_id, location in group.members.items():
            recorded = self._history.get(location)
            assert recorded is not None, "a group is asked for after its children were created"
            if recorded.is_settled:
                self._history.schedule(group, recorded)
            else:
                since = asked_since(recorded, group.since)
                group.started[child_id] = msgspec.structs.replace(recorded, since=since)
        self._asked.add(group, is_recorded=not group.started)

    def withdraw(self, operation: Operation) -> None:
        """Workflow code no longer waits for an operation; a body that runs for it is abandoned."""
        if self.loop.is_evicting or not self._asked.holds(operation):
            return
        self._asked.remove(operation)
        if isinstance(operation, StepCall):
            self.abandoned.append(operation.location)

    def command(
        self,
        kind: EntryKind,
        location: str,
        *,
        ref: str | None = None,
        child: Intent | None = None,
        message: MessageToRun | None = None,
        event: Event | None = None,
        cancels: Sequence[str] = (),
        reply: Reply | None = None,
        is_awaited: bool = False,
    ) -> Entry | None:
        """Do something to the world with the next checkpoint, once. Gives the record if it was done before.

        `is_awaited`: the code waits for the end of the child that it starts.
        """
        if self.loop.is_evicting or self._history.diverged is not None:
            return None
        recorded = self._history.reach(location, kind)
        if recorded is not None:
            if kind is not EntryKind.CHILD:  # whose position is that of its end
                self._history.passed(recorded)
            return recorded
        self._fed += 1
        is_open = child is not None
        since = self._history.position
        entry = Entry(
            location=location,
            kind=kind,
            state=EntryState.STARTED if is_open else EntryState.DONE,
            position=0 if is_open else self._history.next_position(),
            attempts=int(is_awaited),
            started_at=self.stamp,
            finished_at=None if is_open else self.stamp,
            ref=ref,
            since=since,
        )
        self._history.remember([entry])
        self._gains.request(entry)
        self._gains.command(child=child, message=message, event=event, cancels=cancels, reply=reply)
        return None

    def renew(self, payload: str) -> None:
        """The workflow wants to begin anew, with this payload."""
        self._renewal = payload

    # Loops

    def recorded(self, location: str) -> Entry | None:
        """What is recorded at a location, if anything."""
        return self._history.get(location)

    def marks(self, location: str) -> dict[int, Entry]:
        """The recorded marks of a loop, by the iteration that begins with each."""
        numbers = self._history.iterations.numbers(location)
        found = {number: self._history.get(iteration_of(location, number)) for number in numbers}
        return {number: entry for number, entry in found.items() if entry is not None}

    def has_ahead(self, location: str) -> bool:
        """Whether something of a loop is recorded that the code has not come to."""
        return self._history.get(location) is not None or self._history.has_unvisited(f"{location}/")

    def skip_iterations(self, location: str, number: int | None) -> None:
        """A loop is resumed at this iteration, or has ended: the code does not come to what was before."""
        self._history.skip(self._history.iterations.inside(location, before=number))

    def may_undo(self, location: str) -> bool:
        """Whether something inside a loop would have to be undone."""
        inside = map(self._history.get, self._history.iterations.inside(location))
        return any(entry is not None and entry.has_undo for entry in inside)

    def prune(self, iterations: Sequence[str]) -> None:
        """Let go of what is recorded in iterations of a loop."""
        self._history.forget(iterations)
        if self._history.diverged is not None:
            return  # the run is blocked, and the code that fits needs them
        self._gains.prune(iterations)
        for end in self.inbox.unasked_ends():
            if not self._history.has_child(end.name):  # it was started in an iteration that is gone
                self.inbox.consume(end)
                self._gains.consume((end.number,))

    def keep_cursors(self) -> None:
        """Record which events the run has had, for when the entries that tell it are gone or not replayed."""
        text = msgspec.json.encode(self.inbox.cursors, order="sorted").decode()
        known = self._history.get(EVENTS_LOCATION)
        if not self.inbox.cursors or (known is not None and known.result == text):
            return
        self._cursor_count += 1
        entry = Entry(
            location=EVENTS_LOCATION,
            kind=EntryKind.EVENT,
            state=EntryState.STARTED,
            attempts=self._cursor_count,
            result=text,
            started_at=self.stamp,
        )
        self._history.remember([entry])
        self._gains.add(entry, is_lazy=True)

    def _take_over_cursors(self) -> None:
        known = self._history.get(EVENTS_LOCATION)
        if known is not None:
            self._cursor_count = known.attempts
            for topic, number in msgspec.json.decode(known.result or "{}", type=dict[str, int]).items():
                self.inbox.note_event(topic, number)

    # Changing code

    def version(self, location: str, path: str, latest: int) -> int:
        """The version of a change: what is recorded, else 1 for a run that was here before in this scope."""
        if self.loop.is_evicting or self._history.diverged is not None:
            return latest
        recorded = self._history.reach(location, EntryKind.VERSION)
        if recorded is None:
            chosen = 1 if self._history.has_unvisited(path) else latest
            self._note(EntryKind.VERSION, location, str(chosen))
            return chosen
        chosen = version_in(recorded)
        if not 1 <= chosen <= latest:  # the first misfit is the one that is told, should it be of another kind
            self._history.misread(
                f"at {location!r} the history has version {recorded.result}, the code knows those from 1 to {latest}"
            )
        return chosen

    def removed(self, location: str, kind: EntryKind | None) -> None:
        """Accept what is recorded of an operation that the code no longer has, or note that it has none here."""
        if self.loop.is_evicting or self._history.diverged is not None:
            return
        accepted = self._history.accept(location, kind)
        if not accepted and self._history.get(location) is None:
            self._note(EntryKind.REMOVED, location)
        for entry in accepted:
            if entry.kind is EntryKind.EVENT and entry.state is EntryState.DONE:
                for received in received_in(entry):
                    self.inbox.note_event(received.name, int(received.ref or 0))
            if self._history.let_go(entry):
                # So that the time of what follows is as it was: a deadline after a sleep that was removed, say.
                self.stamp = max(self.stamp, entry.finished_at or 0)
                self.loop.now = self.stamp / SECOND

    def _note(self, kind: EntryKind, location: str, result: str | None = None) -> None:
        """Record something about the code, with the next checkpoint. It is no fact that anything has to wait for."""
        since = self._history.position
        entry = Entry(
            location=location,
            kind=kind,
            state=EntryState.DONE,
            position=self._history.next_position(),
            result=result,
            started_at=self.stamp,
            finished_at=self.stamp,
            since=since,
        )
        self._history.remember([entry])
        self._gains.request(entry, is_lazy=True)

    # Values and timers

    def publish(self, name: str, value: str) -> None:
        """Set a named value. Before the last recorded fact it was set already, and may be newer by now."""
        if not self._history.is_behind and not self.loop.is_evicting:
            super().publish(name, value)

    def timer_started(self, timer: LoopTimer) -> None:
        """Plain asyncio asked for a timer: it is durable like any other."""
        deadline = round(min(timer.deadline, NEVER_SECONDS) * SECOND)
        sleep = Sleep(timer.location, deadline=deadline, fire=lambda: self.loop.fire(timer))
        self._timers[timer] = sleep
        self._enter(sleep)

    def timer_cancelled(self, timer: LoopTimer) -> None:
        """Plain asyncio no longer needs a timer."""
        sleep = self._timers.pop(timer, None)
        if sleep is not None:
            self.withdraw(sleep)

    @property
    def is_replaying(self) -> bool:
        """Whether what the code does now is old news: it has not been told anything new yet, or leaves memory.

        That includes what follows the last recorded fact: code runs to its next standstill before a fact is written.
        """
        return not self._is_new or self.loop.is_evicting
