"""The inbox of a held run: arrivals not yet consumed, and which awaited operation each of them is for."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Wait, WaitKind
from holdfast.runner.operation import Batch, ChildEnd, ChildGroup, Operation, Reception

_SLACK = 64


class Inbox:
    """Pairs arrivals with operations, and yields what is due: arrivals and deadlines, by their instants.

    At one instant an arrival goes before a deadline, as it was there in time.
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
        self._waits: Sequence[Wait] | None = None
        for arrival in arrivals:
            self._keep(arrival)

    @property
    def arrivals(self) -> list[Arrival]:
        """What is there and not consumed, in order."""
        return list(self._arrivals.values())

    def add(self, arrivals: Iterable[Arrival], seen: int = 0) -> None:
        """Take in what a store told of: all there is up to `seen`. Hearing of it twice changes nothing."""
        for arrival in arrivals:
            if arrival.number > self.seen:
                self.seen = arrival.number
                if self._is_ours(arrival):
                    self._keep(arrival)
                    self._offer(arrival)
        self.seen = max(self.seen, seen)

    def registered(self, waits: Sequence[Wait]) -> None:
        """A checkpoint tells the store what the run waits for. What it has of a queue besides goes to other runs."""
        self._waits = waits
        for arrival in self.arrivals:
            if not self._is_ours(arrival):
                self.consume(arrival)

    def inherit(self, old: Inbox) -> None:
        """Take over from the inbox of an earlier turn of the same lease."""
        self._waits = old._waits

    def _is_ours(self, arrival: Arrival) -> bool:
        """Whether the store leaves it with this run: also one that came while that checkpoint was on its way."""
        if self._waits is None or not arrival.is_exclusive:
            return True
        return any(rules.accepts(wait, arrival) for wait in self._waits)

    def _keep(self, arrival: Arrival) -> None:
        self._arrivals[arrival.number] = arrival
        self._latest_at = max(self._latest_at, arrival.at)
        if arrival.kind is WaitKind.CHILD:
            self._child_ends[arrival.name] = arrival

    def ask(self, operation: Operation) -> None:
        """An operation begins to wait."""
        self.awaited[operation.serial] = operation
        if operation.deadline is not None:
            self._push(operation.deadline, None, operation)
        if isinstance(operation, ChildEnd):
            self._children[operation.child_id] = operation
        elif isinstance(operation, ChildGroup):
            self._children |= dict.fromkeys(operation.started, operation)
        self._seek(operation)

    def withdraw(self, operation: Operation) -> None:
        """An operation no longer waits, because it was answered or cancelled."""
        self.awaited.pop(operation.serial, None)
        if len(self._due) > 4 * len(self.awaited) + len(self._arrivals) + _SLACK:
            self._drop_stale()
        if isinstance(operation, ChildEnd):
            self._children.pop(operation.child_id, None)
        elif isinstance(operation, ChildGroup):
            for child_id in operation.members:
                self._children.pop(child_id, None)

    def put_off(self, length: Micros) -> None:
        """The run went back in time: what is awaited has as much time left as it had then."""
        for operation in self.awaited.values():
            operation.put_off(length)
        self._due = [(due[0] if due[-2] is not None else due[-1].deadline or 0, *due[1:]) for due in self._due]
        heapq.heapify(self._due)

    def take(self, arrival: Arrival, operation: Operation) -> list[Arrival]:
        """An arrival is fed to an operation, with as many more as that takes at once."""
        taken = [arrival]
        if isinstance(operation, Batch):
            others = (one for one in self._arrivals.values() if one is not arrival and self._fits(one, operation))
            taken += islice(others, operation.count - 1)
            taken.sort(key=lambda one: one.number)
        for one in taken:
            self.consume(one)
        return taken

    def consume(self, arrival: Arrival) -> None:
        """An arrival was fed to an operation, or will never be."""
        del self._arrivals[arrival.number]
        if arrival.kind is WaitKind.CHILD:
            self._child_ends.pop(arrival.name, None)

    def unasked_ends(self) -> list[Arrival]:
        """The ends of children that nobody waits for now."""
        return [end for child_id, end in self._child_ends.items() if child_id not in self._children]

    def had(self, topic: str) -> int:
        """The number of the last event of a topic that the run has had."""
        return self._had.get(topic, 0)

    def note_event(self, topic: str, number: int) -> None:
        """The run has had this event."""
        self._had[topic] = max(number, self.had(topic))

    def next_deadline(self) -> Micros | None:
        """When the next waiting operation is due by itself."""
        while self._due:
            at, *_, arrival, operation = self._due[0]
            if arrival is None and operation.serial in self.awaited:
                return at
            if arrival is not None and self._is_pair(arrival, operation):
                return at
            self._drop()
        return None

    def has_due(self, now: Micros) -> bool:
        """Whether something is due by `now`."""
        at = self.next_deadline()
        while self._latest_at > now and self._bring_forward(now):
            at = self.next_deadline()  # which offers anew, as it came, what was paired with an operation that is gone
        return at is not None and at <= now

    def _bring_forward(self, now: Micros) -> bool:
        """What has arrived is there now, whatever it says: the store's clock was set back since. False if all is.

        A run that took its word for it would sleep with unread mail.
        """
        if not any(due[-2] is not None and due[0] > now for due in self._due):
            return False
        self._due = [(now if due[-2] is not None and due[0] > now else due[0], *due[1:]) for due in self._due]
        heapq.heapify(self._due)
        return True

    def overdue(self) -> Operation | None:
        """After `has_due`: the operation whose own time is what is due first, if it is that."""
        *_, arrival, operation = self._due[0]
        return operation if arrival is None else None

    def pop_due(self) -> tuple[Arrival | None, Operation]:
        """After `has_due`: what is due first, an arrival with its operation, or an operation's deadline."""
        *_, arrival, operation = heapq.heappop(self._due)
        return arrival, operation

    @property
    def cursors(self) -> dict[str, int]:
        """The number of the last event the run has had, by topic."""
        return self._had

    def _drop_stale(self) -> None:
        """Forget the deadlines of what does not wait any more, far ahead though they may be."""
        self._due = [due for due in self._due if due[-2] is not None or due[-1].serial in self.awaited]
        heapq.heapify(self._due)

    def _drop(self) -> None:
        """Discard a pair that is no longer one; whichever half is left may find another."""
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
        self._pushed += 1  # decides where all else is equal, as operations do not compare
        heapq.heappush(self._due, (at, arrival is None, order, self._pushed, arrival, operation))
