"""Dead letters: messages and events that could not be delivered, kept until a person replays or purges them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.clock import Micros
from holdfast.core.model import DeadLetter, Event, MessageToRun, Run
from holdfast.stores.operations import arrivals
from holdfast.stores.operations.unit_of_work import UnitOfWork


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


def replay(unit: UnitOfWork, numbers: Sequence[int], now: Micros, *, by: str = "") -> int:
    """Deliver dead letters and return how many. A message that its run refuses stays a dead letter."""
    found = [unit.dead_letters.get(number) for number in dict.fromkeys(numbers)]
    return sum(_replay_one(unit, letter, now, by) for letter in found if letter is not None)


def purge(unit: UnitOfWork, numbers: Sequence[int]) -> int:
    return sum(unit.dead_letters.remove(number) for number in numbers)


def _replay_one(unit: UnitOfWork, letter: DeadLetter, now: Micros, by: str) -> bool:
    if letter.topic is not None:
        event = Event(id=letter.id, topic=letter.topic, payload=letter.payload)
        arrivals.publish(unit, event, now, mode="queue", by=by)  # only events of queues become dead letters
    else:
        message = MessageToRun(id=letter.id, name=letter.name or "", payload=letter.payload, run_id=letter.run_id)
        if arrivals.send_one(unit, message, now, by=by).refused is not None:
            return False
    unit.dead_letters.remove(letter.number)
    return True
