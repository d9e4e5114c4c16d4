"""The inbox of a held run: arrivals not yet consumed, each paired with the operation that waits for it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.entries import EVENTS_LOCATION
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Wait, WaitKind
from holdfast.runner.operation import Batch, ChildEnd, ChildGroup, Operation, Reception

if TYPE_CHECKING:
    from holdfast.runner.history import History, ShortHistory
    from holdfast.runner.pending_checkpoint import PendingCheckpoint

_SLACK = 64


class Inbox:
    """Pairs arrivals with operations, and returns arrivals and deadlines that are due, by their instants.

    At the same instant an arrival comes before a deadline, because it arrived in time.
    """

    def __init__(self, arrivals: Iterable[Arrival], seen: int) -> None:
        self.seen = seen
        self._arrivals: dict[int, Arrival] = {}
        self.awaited: dict[int, Operation] = {}
        """The operations that wait for an arrival or a deadline, by their serial numbers."""
        self._children: dict[str, ChildEnd | ChildGroup] = {}
        self._child_ends: dict[str, Arrival] = {}
        self._due: list[tuple[Micros, bool, int, int, Arrival | None, Operation]] = []
        self._pushed = 0
        self._latest_at: Micros = 0
        self._had: dict[str, int] = {}
        self._cursor_count = 0
        self._waits: Sequence[Wait] | None = None
        for arrival in arrivals:
            self._keep(arrival)

    @property
    def arrivals(self) -> list[Arrival]:
        """Arrivals not yet consumed, in order."""
        return list(self._arrivals.values())

    def add(self, arrivals: Iterable[Arrival], seen: int = 0) -> None:
        """Add arrivals from the store: all up to number `seen`. An arrival that is known already changes nothing."""
        for arrival in arrivals:
            if arrival.number > self.seen:
                self.seen = arrival.number
                if self._is_ours(arrival):
                    self._keep(arrival)
                    self._offer(arrival)
        self.seen = max(self.seen, seen)

    def register(self, waits: Sequence[Wait]) -> None:
        """Note the waits that a checkpoint writes. Queue events that match none of them go to other runs."""
        self._waits = waits
        for arrival in self.arrivals:
            if not self._is_ours(arrival):
                self.consume(arrival)

    def inherit(self, old: Inbox) -> None:
        """Take over the registered waits of an earlier turn of the same lease."""
        self._waits = old._waits

    def _is_ours(self, arrival: Arrival) -> bool:
        """True if the store leaves an arrival with this run, even if it came while the checkpoint was in flight."""
        if self._waits is None or not arrival.is_exclusive:
            return True
        return any(rules.accepts(wait, arrival) for wait in self._waits)

    def _keep(self, arrival: Arrival) -> None:
        self._arrivals[arrival.number] = arrival
        self._latest_at = max(self._latest_at, arrival.at)
        if arrival.kind is WaitKind.CHILD:
            self._child_ends[arrival.name] = arrival

    def ask(self, operation: Operation) -> None:
        """Add an operation that begins to wait."""
        self.awaited[operation.serial] = operation
        if operation.deadline is not None:
            self._push(operation.deadline, None, operation)
        if isinstance(operation, ChildEnd):
            self._children[operation.child_id] = operation
        elif isinstance(operation, ChildGroup):
            self._children |= dict.fromkeys(operation.started, operation)
        self._seek(operation)

    def withdraw(self, operation: Operation) -> None:
        """Remove an operation that no longer waits, because it was answered or cancelled."""
        self.awaited.pop(operation.serial, None)
        if len(self._due) > 4 * len(self.awaited) + len(self._arrivals) + _SLACK:
            # Drop the deadlines of operations that no longer wait. Far deadlines would otherwise pile up.
            self._due = [due for due in self._due if due[-2] is not None or due[-1].serial in self.awaited]
            heapq.heapify(self._due)
        if isinstance(operation, ChildEnd):
            self._children.pop(operation.child_id, None)
        elif isinstance(operation, ChildGroup):
            for child_id in operation.members:
                self._children.pop(child_id, None)

    def put_off(self, length: Micros) -> None:
        """Move all deadlines by `length` after a rewind, so that each wait has as much time left as it had then."""
        for operation in self.awaited.values():
            operation.put_off(length)
        self._due = [(due[0] if due[-2] is not None else due[-1].deadline or 0, *due[1:]) for due in self._due]
        heapq.heapify(self._due)

    def take(self, arrival: Arrival, operation: Operation) -> list[Arrival]:
        """Consume an arrival for an operation. A batch takes more arrivals with it, up to its count."""
        taken = [arrival]
        if isinstance(operation, Batch):
            others = (one for one in self._arrivals.values() if one is not arrival and self._fits(one, operation))
            taken += islice(others, operation.count - 1)
            taken.sort(key=lambda one: one.number)
        for one in taken:
            self.consume(one)
        return taken

    def consume(self, arrival: Arrival) -> None:
        """Remove an arrival that was fed to an operation, or never will be."""
        del self._arrivals[arrival.number]
        if arrival.kind is WaitKind.CHILD:
            self._child_ends.pop(arrival.name, None)

    def unasked_ends(self) -> list[Arrival]:
        """Return the ends of children that no operation waits for now."""
        return [end for child_id, end in self._child_ends.items() if child_id not in self._children]

    def had(self, topic: str) -> int:
        """Return the number of the last event of a topic that the run has received."""
        return self._had.get(topic, 0)

    def note_event(self, topic: str, number: int) -> None:
        """Note that the run has received this event."""
        self._had[topic] = max(number, self.had(topic))

    def next_deadline(self) -> Micros | None:
        """Return the instant at which the next arrival or deadline is due. None if there is none."""
        while self._due:
            at, *_, arrival, operation = self._due[0]
            if arrival is None and operation.serial in self.awaited:
                return at
            if arrival is not None and self._is_pair(arrival, operation):
                return at
            self._drop()
        return None

    def has_due(self, now: Micros) -> bool:
        """True if an arrival or a deadline is due by `now`."""
        at = self.next_deadline()
        while self._latest_at > now and self._bring_forward(now):
            # `next_deadline` may pair an arrival again, with its old instant, if its operation no longer waits.
            at = self.next_deadline()
        return at is not None and at <= now

    def _bring_forward(self, now: Micros) -> bool:
        """Make arrivals with an instant after `now` due at once. Returns False if there are none.

        Their instant lies in the future because the store's clock was set back since. Without this, the run would
        sleep until then with an unread message.
        """
        if not any(due[-2] is not None and due[0] > now for due in self._due):
            return False
        self._due = [(now if due[-2] is not None and due[0] > now else due[0], *due[1:]) for due in self._due]
        heapq.heapify(self._due)
        return True

    def overdue(self) -> Operation | None:
        """Return the operation whose deadline is due first, or None if an arrival is. Call it after `has_due`."""
        *_, arrival, operation = self._due[0]
        return operation if arrival is None else None

    def pop_due(self) -> tuple[Arrival | None, Operation]:
        """Remove and return the first due arrival with its operation, or the operation of the first due deadline.

        Call it after `has_due`.
        """
        *_, arrival, operation = heapq.heappop(self._due)
        return arrival, operation

    # Cursors: the number of the last event received per topic. They are an entry of the history, because the entries
    # that contain them may be pruned or not replayed.

    def restore_cursors(self, history: History | ShortHistory) -> None:
        """Restore the cursors that the history has."""
        known = history.get(EVENTS_LOCATION)
        if known is not None:
            self._cursor_count = known.attempts
            for topic, number in msgspec.json.decode(known.result or "{}", type=dict[str, int]).items():
                self.note_event(topic, number)

    def keep_cursors(
        self, history: History | ShortHistory, pending: PendingCheckpoint, *, is_anew: bool = False
    ) -> None:
        """Record the cursors if they changed. Record them always if the history so far is dropped (`is_anew`)."""
        text = msgspec.json.encode(self._had, order="sorted").decode()
        known = None if is_anew else history.get(EVENTS_LOCATION)
        if not self._had or (known is not None and known.result == text):
            return
        self._cursor_count += 1
        entry = Entry(
            location=EVENTS_LOCATION,
            kind=EntryKind.EVENT,
            state=EntryState.STARTED,
            attempts=self._cursor_count,
            result=text,
            started_at=history.stamp,
        )
        history.remember([entry])
        pending.add(entry, is_lazy=True)

    def _drop(self) -> None:
        """Discard the first pair, which no longer fits, and pair the half that is left again."""
        *_, arrival, operation = heapq.heappop(self._due)
        if arrival is not None and arrival.number in self._arrivals:
            self._offer(arrival)
        elif arrival is not None and operation.serial in self.awaited:
            self._seek(operation)

    def _offer(self, arrival: Arrival) -> None:
        """Find the operation that has waited longest for this arrival."""
        if arrival.kind is WaitKind.CHILD:
            child = self._children.get(arrival.name)
            if child is not None:
                self._push(arrival.at, arrival, child)
            return
        for operation in self.awaited.values():
            if self._fits(arrival, operation):
                self._push(arrival.at, arrival, operation)
                return

    def _seek(self, operation: Operation) -> None:
        """Find the earliest arrival that this operation waits for."""
        if isinstance(operation, (ChildEnd, ChildGroup)):
            ids = (operation.child_id,) if isinstance(operation, ChildEnd) else operation.started
            for child_id in ids:
                end = self._child_ends.get(child_id)
                if end is not None and end.number in self._arrivals:
                    self._push(end.at, end, operation)
        elif isinstance(operation, Reception):
            for arrival in self._arrivals.values():
                if self._fits(arrival, operation):
                    self._push(arrival.at, arrival, operation)
                    return

    def _is_pair(self, arrival: Arrival, operation: Operation) -> bool:
        return arrival.number in self._arrivals and operation.serial in self.awaited and self._fits(arrival, operation)

    def _fits(self, arrival: Arrival, operation: Operation) -> bool:
        if isinstance(operation, ChildEnd):
            return arrival.kind is WaitKind.CHILD and arrival.name == operation.child_id
        if isinstance(operation, ChildGroup):
            return arrival.kind is WaitKind.CHILD and arrival.name in operation.started
        if not isinstance(operation, Reception) or arrival.kind is not operation.wait_kind:
            return False
        if (
            arrival.kind is WaitKind.EVENT
            and not arrival.is_exclusive
            and int(arrival.ref or 0) <= self.had(arrival.name)
        ):
            return False
        return not operation.names or arrival.name in operation.names

    def _push(self, at: Micros, arrival: Arrival | None, operation: Operation) -> None:
        order = operation.serial if arrival is None else arrival.number
        self._pushed += 1  # breaks ties, because operations do not compare
        heapq.heappush(self._due, (at, arrival is None, order, self._pushed, arrival, operation))
