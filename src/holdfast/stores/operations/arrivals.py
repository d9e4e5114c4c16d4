"""Arrivals: deliver messages and events to the inboxes of runs, and keep what could not be delivered.

An arrival wakes its run if the run is suspended on a matching wait. An event of a queue goes to one waiting run, and
returns to the queue if that run stops waiting for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.core import audit, limits, rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Sent
from holdfast.core.model import Arrival, DeadLetter, Event, MessageToRun, Run, TopicMode, Wait, WaitKind
from holdfast.core.topics import may_be_handed, topic_of
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
    deliver(unit, run, rules.message_arrival(message, run, now), now, by=by)
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
    reached = 0
    if is_queue:
        reached = int(pass_on(unit, arrival, now, by=by))
    else:
        for run in _waiting(unit, arrival):
            deliver(unit, run, replace(arrival, number=run.arrivals + 1), now, by=by)
            reached += 1
    if reached:
        unit.events.count(arrival, reached)
    return reached


def _waiting(unit: UnitOfWork, arrival: Arrival) -> Iterator[Run]:
    """Yield every run that waits for an event and has none yet."""
    for run_id, waits in unit.waits.for_event(arrival.name):
        accepting = [wait for wait in waits if rules.accepts(wait, arrival)]
        try:
            run = unit.runs.get(run_id) if accepting else None
        except OddRow as error:
            _log.warning("event of topic %s passes over run %s: %s", arrival.name, run_id, error)
            continue
        if run is not None and not all(is_satisfied(unit, run, wait) for wait in accepting):
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
        if is_satisfied(unit, run, wait):
            continue
        (name,) = wait.names
        oldest = max(run.created_at, now - topic_of(name, unit.events.topics()).retention + 1)
        missed = unit.events.first_missed(run.id, name, oldest, wait.after)
        pending = unit.events.first_pending(name)
        if pending is not None and (missed is None or _number(pending) < _number(missed)):
            hand(unit, run, pending, now)
        elif missed is not None:
            deliver(unit, run, replace(missed, number=run.arrivals + 1), now)


def _number(arrival: Arrival) -> int:
    """Return the number of the event that an arrival carries."""
    return int(arrival.ref or 0)


# Inboxes


def deliver(unit: UnitOfWork, run: Run, arrival: Arrival, now: Micros, *, by: str = "") -> None:
    """Put an arrival into a run's inbox, and wake the run if it is suspended on a matching wait. `by` is the sender."""
    if run.state.is_end:
        return
    unit.inboxes.add(run.id, arrival)
    is_awaited = False
    if rules.is_asleep(run, now):
        before = unit.waits.of(run.id)
        waits, is_over = rules.counted_down(before, arrival)
        # A run that a limit has parked was woken before. It finds the arrival when it gets its slot.
        is_awaited = is_over and limits.parked_at(waits) is None
        if waits is not before:
            unit.waits.put(run.id, waits)
    after = rules.delivered(run, now, is_awaited=is_awaited)
    unit.runs.put(after)
    if after.is_held:
        unit.news.arrived.add(run.id)
    elif after.ready_at != run.ready_at:
        unit.audit.note_often(audit.of_wake(after, arrival, by, now), after.arrivals)
        unit.news.ready.add(after.type)


def is_satisfied(unit: UnitOfWork, run: Run, wait: Wait) -> bool:
    """Return True if an event for this wait is already in the inbox. A wait takes one event; the next wait the next."""
    if not run.arrivals:
        return False
    return any(rules.accepts(wait, arrival) for arrival in unit.inboxes.events(run, wait.names[0]))


# Queues


def pass_on(unit: UnitOfWork, arrival: Arrival, now: Micros, *, by: str = "") -> bool:
    """Hand a pending event to the run that has waited longest. Return False, and keep it pending, if no run waits."""
    run = _next_in_line(unit, arrival)
    if run is not None:
        hand(unit, run, arrival, now, by=by)
    return run is not None


def _next_in_line(unit: UnitOfWork, arrival: Arrival) -> Run | None:
    """Return the run that has waited longest for an event."""
    for run_id, wait in unit.waits.in_line(arrival.name):
        try:
            run = unit.runs.get(run_id)
        except OddRow as error:
            _log.warning("event of topic %s passes over run %s: %s", arrival.name, run_id, error)
            continue
        if run is None or not may_be_handed(run) or not rules.accepts(wait, arrival):
            continue
        if not is_satisfied(unit, run, wait):
            return run
    return None


def hand(unit: UnitOfWork, run: Run, arrival: Arrival, now: Micros, *, by: str = "") -> None:
    """Hand an event to a run. No other run gets it while this run waits for it."""
    unit.events.hand(arrival, run.id)
    deliver(unit, run, replace(arrival, number=run.arrivals + 1), now, by=by)


def give_back(unit: UnitOfWork, run: Run, waits: Sequence[Wait], now: Micros) -> None:
    """Take back each queue event in a run's inbox that the run no longer waits for, and pass it on."""
    for arrival in unit.inboxes.exclusive(run):
        if any(rules.accepts(wait, arrival) for wait in waits):
            continue
        unit.inboxes.take(run.id, arrival.number)
        unit.events.give_back(arrival)
        pass_on(unit, arrival, now)


# Dead letters: kept until a person replays or purges them


def give_up_messages(unit: UnitOfWork, run: Run, now: Micros) -> None:
    """Keep the unread messages of an ending run as dead letters, if the run was started with that option."""
    if unit.runs.options(run).undelivered != "dead_letter":
        return
    for arrival in unit.inboxes.messages(run):
        letter = DeadLetter(
            number=0,
            id=arrival.ref or "",
            run_id=run.id,
            name=arrival.name,
            payload=arrival.payload or "null",
            at=now,
            reason="undelivered",
        )
        unit.dead_letters.add(letter)


def replay_letters(unit: UnitOfWork, numbers: Sequence[int], now: Micros, *, by: str = "") -> int:
    """Deliver dead letters and return how many. A message that its run refuses stays a dead letter."""
    found = [unit.dead_letters.get(number) for number in dict.fromkeys(numbers)]
    return sum(_replay_one(unit, letter, now, by) for letter in found if letter is not None)


def _replay_one(unit: UnitOfWork, letter: DeadLetter, now: Micros, by: str) -> bool:
    if letter.topic is not None:
        event = Event(id=letter.id, topic=letter.topic, payload=letter.payload)
        publish(unit, event, now, mode="queue", by=by)  # only events of queues become dead letters
    else:
        message = MessageToRun(id=letter.id, name=letter.name or "", payload=letter.payload, run_id=letter.run_id)
        if send_one(unit, message, now, by=by).refused is not None:
            return False
    unit.dead_letters.remove(letter.number)
    return True
