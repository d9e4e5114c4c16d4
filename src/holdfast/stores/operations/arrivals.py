"""Arrivals: delivery of messages and events to the inboxes of runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Sent
from holdfast.core.model import Arrival, Event, MessageToRun, Run, TopicMode, Wait, WaitKind
from holdfast.core.topics import topic_of
from holdfast.stores.operations import inboxes, queues
from holdfast.stores.operations.unit_of_work import OddRow, UnitOfWork

_log = logging.getLogger("holdfast.store")


def send(unit: UnitOfWork, messages: Sequence[MessageToRun], now: Micros, *, by: str = "") -> list[Sent]:
    return [send_one(unit, message, now, by=by) for message in messages]


def send_one(unit: UnitOfWork, message: MessageToRun, now: Micros, *, by: str = "") -> Sent:
    """Deliver a message. A repeated send with the same message id delivers nothing more."""
    run_id = message.run_id if message.key is None else unit.runs.with_key(message.key)
    run = unit.runs.get(run_id) if run_id is not None else None
    if run is None or run.deleted_at is not None:
        return Sent(run_id=run_id, refused="unknown")
    if run.arrivals and unit.inboxes.knows_message(run, message.id, now):
        return Sent(run_id=run_id)  # a repeat after a lost answer succeeds, even if the run has ended since
    if run.state.is_end:
        return Sent(run_id=run_id, refused="finished")
    inboxes.deliver(unit, run, rules.message_arrival(message, run, now), now, by=by)
    return Sent(run_id=run_id)


def consume(unit: UnitOfWork, run_id: str, numbers: Sequence[int], now: Micros) -> None:
    """Take arrivals out of an inbox. Message ids are kept as receipts, so that a repeated send is recognised."""
    for number in numbers:
        taken = unit.inboxes.take(run_id, number)
        if taken is None:
            continue
        kind, name, ref, is_exclusive = taken
        if kind == WaitKind.MESSAGE and ref is not None:
            unit.inboxes.keep_receipts(run_id, {ref: now})
        elif is_exclusive:
            unit.events.take(name, int(ref or 0), run_id, now)


def emit(unit: UnitOfWork, events: Sequence[Event], now: Micros, *, by: str = "") -> list[int]:
    return [publish(unit, event, now, by=by) for event in events]


def publish(unit: UnitOfWork, event: Event, now: Micros, mode: TopicMode | None = None, *, by: str = "") -> int:
    """Keep an event and deliver it to every run that waits for it, or to one run if the topic is a queue.

    Return the number of runs reached. A repeat (same topic and id) gets the first answer and reaches no other run,
    unless it repeats a fan-out event that has expired.
    """
    topic = topic_of(event.topic, unit.events.topics())
    known = unit.events.find(event.topic, event.id)
    if known is not None:
        if known.state != "open" or known.at > now - topic.retention:
            return known.reached
        unit.events.drop(event.topic, known.number)
    is_queue = (mode or topic.mode) == "queue"
    arrival = unit.events.add(event, now, is_queue=is_queue)
    reached = int(queues.pass_on(unit, arrival, now, by=by)) if is_queue else _spread(unit, arrival, now, by)
    if reached:
        unit.events.count(arrival, reached)
    return reached


def _spread(unit: UnitOfWork, arrival: Arrival, now: Micros, by: str) -> int:
    """Deliver an event to every run that waits for one and has none yet. Return the number of runs."""
    reached = 0
    for run in _waiting(unit, arrival):
        inboxes.deliver(unit, run, replace(arrival, number=run.arrivals + 1), now, by=by)
        reached += 1
    return reached


def _waiting(unit: UnitOfWork, arrival: Arrival) -> Iterator[Run]:
    for run_id, waits in unit.waits.for_event(arrival.name):
        accepting = [wait for wait in waits if rules.accepts(wait, arrival)]
        try:
            run = unit.runs.get(run_id) if accepting else None
        except OddRow as error:
            _log.warning("event of topic %s passes over run %s: %s", arrival.name, run_id, error)
            continue
        if run is not None and not all(inboxes.is_satisfied(unit, run, wait) for wait in accepting):
            yield run


def collect_missed(unit: UnitOfWork, run: Run, waits: Sequence[Wait], now: Micros) -> None:
    """Deliver the first missed or pending event of each topic that a run has begun to wait for.

    A missed event is open to all runs, and came after the run was created. A pending event is in a queue, and no run
    has it. Of the two, the event with the lower number is delivered.
    """
    for wait in waits:
        if wait.kind is not WaitKind.EVENT:
            continue
        run = unit.runs.get(run.id) or run  # the delivery for an earlier wait has changed it
        if inboxes.is_satisfied(unit, run, wait):
            continue
        (name,) = wait.names
        oldest = max(run.created_at, now - topic_of(name, unit.events.topics()).retention + 1)
        missed = unit.events.first_missed(name, oldest, wait.after)
        pending = unit.events.first_pending(name)
        if pending is not None and (missed is None or _number(pending) < _number(missed)):
            queues.hand(unit, run, pending, now)
        elif missed is not None:
            inboxes.deliver(unit, run, replace(missed, number=run.arrivals + 1), now)


def _number(arrival: Arrival) -> int:
    """Return the number of the event that an arrival carries."""
    return int(arrival.ref or 0)
