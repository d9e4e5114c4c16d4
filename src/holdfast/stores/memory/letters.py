"""Dead letters: what could not be delivered is kept until a person replays or purges it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.model import DeadLetter, DeadReason, Event, Message
from holdfast.core.ports import LetterQuery
from holdfast.core.topics import covers
from holdfast.stores.memory import arrivals
from holdfast.stores.memory.state import Published, Record, State


def give_up_event(state: State, published: Published, reason: DeadReason, now: Micros) -> None:
    """An event of a queue that nobody took in time becomes a dead letter."""
    event = published.event
    state.events[event.topic].remove(published)
    keep(state, DeadLetter(number=0, id=event.id, topic=event.topic, payload=event.payload, at=now, reason=reason))


def give_up_messages(state: State, record: Record, now: Micros) -> None:
    """What a run that ends has not received: forgotten, or dead letters if it was started so."""
    if record.run.options.undelivered != "dead_letter":
        return
    for arrival in record.unread_messages():
        letter = DeadLetter(
            number=0,
            id=arrival.ref or "",
            run_id=record.run.id,
            name=arrival.name,
            payload=arrival.payload or "null",
            at=now,
            reason="undelivered",
        )
        keep(state, letter)


def list_letters(state: State, query: LetterQuery) -> list[DeadLetter]:
    chosen = (
        letter
        for letter in state.letters.values()
        if letter.number > query.after
        and (query.topic is None or (letter.topic is not None and covers(query.topic, letter.topic)))
    )
    return list(chosen)[: query.limit]


def replay(state: State, numbers: Sequence[int], now: Micros) -> int:
    """Deliver dead letters after all; how many. A message to a run that takes none stays where it is."""
    letters = [state.letters[number] for number in dict.fromkeys(numbers) if number in state.letters]
    return sum(_replay_one(state, letter, now) for letter in letters)


def purge(state: State, numbers: Sequence[int]) -> int:
    return sum(state.letters.pop(number, None) is not None for number in numbers)


def _replay_one(state: State, letter: DeadLetter, now: Micros) -> bool:
    if letter.topic is not None:
        event = Event(id=letter.id, topic=letter.topic, payload=letter.payload)
        arrivals.publish(state, event, now, mode="queue")  # as which it was emitted
    else:
        message = Message(id=letter.id, name=letter.name or "", payload=letter.payload, run_id=letter.run_id)
        if arrivals.send_one(state, message, now).refused is not None:
            return False
    del state.letters[letter.number]
    return True


def keep(state: State, letter: DeadLetter) -> None:
    """Have one more dead letter, under the next number."""
    number = state.next_letter()
    state.letters[number] = replace(letter, number=number)
