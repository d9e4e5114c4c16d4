"""Pruning: it removes what the memory store would, waits for no lock, and takes no event from a concurrent delivery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from random import Random

import pytest

from holdfast.core.clock import DAY, SECOND
from holdfast.core.model import Event, Run, Topic
from holdfast.core.ports import Pruned
from holdfast.core.questions import ListDeadLetters
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.states import RunState
from holdfast.core.topics import EventState
from holdfast.stores.memory.state import Published, Record, State
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import pruning as operations
from holdfast.stores.postgres import pruning, reads, topics
from holdfast.stores.postgres.scripts import run_script
from tests.unit.stores.postgres.database import Place

NOW = 100 * DAY
RULES = [
    Topic(name="jobs", mode="queue", retention=DAY, max_pending=5),
    Topic(name="jobs.*", mode="queue", max_pending=3),
    Topic(name="jobs.long*", mode="queue", retention=30 * DAY),
    Topic(name="few", max_pending=2),
]
NAMES = ("jobs", "jobs.a", "jobs.b", "jobs.longer", "few", "usual", "it's %")
STATES: tuple[EventState, ...] = ("open", "pending", "handed", "taken")


def set_topics(place: Place, wanted: Sequence[Topic]) -> None:
    with place.connection.transaction():
        run_script(place.connection, topics.put(place.schema, wanted))


def a_state(chance: Random) -> State:
    state = State(topics={topic.name: topic for topic in RULES})
    ages = sorted(chance.choices((0, DAY - 1, DAY, 7 * DAY, 31 * DAY), k=120), reverse=True)
    for number, age in enumerate(ages, 1):
        topic, at = chance.choice(NAMES), NOW - age
        kind: EventState = chance.choice(STATES) if topic.startswith("jobs") else "open"
        taken_at = at if kind == "taken" else 0
        event = Event(id=f"e{number}", topic=topic, payload=f"{number}")
        state.events[topic].append(Published(number, event, at, state=kind, taken_at=taken_at))
    run = Run(id="r", type="t", state=RunState.PENDING, payload="{}", created_at=0, start_at=0, updated_at=0)
    receipts = {f"m{number}": NOW - chance.choice((0, DAY - 1, DAY, 2 * DAY)) for number in range(20)}
    replies = {id: ("1", at) for id, at in receipts.items()}
    state.records["r"] = Record(run, receipts=receipts, replies=replies)
    return state


def insert(place: Place, state: State) -> None:
    set_topics(place, list(state.topics.values()))
    emit(place, (published for kept in state.events.values() for published in kept))
    record = state.records["r"]
    place.many("insert into {schema}.receipts values ('r', %s, %s)", list(record.receipts.items()))
    place.many(
        "insert into {schema}.replies values ('r', %s, %s, %s)", [(id, *reply) for id, reply in record.replies.items()]
    )


def emit(place: Place, published: Iterable[Published]) -> None:
    place.many(
        "insert into {schema}.events (number, topic, id, payload, at, reached, state, taken_at)"
        " values (%s, %s, %s, %s, %s, 0, %s, %s)",
        [
            (one.number, one.event.topic, one.event.id, one.event.payload, one.at, one.state, one.taken_at)
            for one in published
        ],
    )


def some_events(topic: str, count: int, state: EventState = "pending", first: int = 1) -> list[Published]:
    return [
        Published(number, Event(id=f"e{number}", topic=topic, payload="1"), NOW, state=state)
        for number in range(first, first + count)
    ]


def prune(place: Place, limit: int = 1_000, *, is_dry_run: bool = False) -> Pruned:
    return pruning.prune(place.connection, place.schema, limit, NOW, is_dry_run=is_dry_run)


def numbers(place: Place) -> list[int]:
    return place.all("select number from {schema}.events order by number")


@pytest.mark.parametrize("limit", [1_000, 20, 7])
def test_pruning_removes_what_the_memory_store_removes(place: Place, limit: int) -> None:
    state = a_state(Random(limit))
    insert(place, state)

    for _ in range(3):
        told, expected = prune(place, limit), operations.prune(StateUnit(state), limit, RUN_RETENTION, NOW)

        assert told == expected
        assert numbers(place) == sorted(one.number for kept in state.events.values() for one in kept)
        letters = reads.dead_letters(place.connection, place.schema, ListDeadLetters(limit=1_000))
        assert letters == list(state.letters.values())
    record = state.records["r"]
    assert sorted(place.all("select message_id from {schema}.receipts")) == sorted(record.receipts)
    assert sorted(place.all("select message_id from {schema}.replies")) == sorted(record.replies)


def test_a_dry_run_of_a_prune_reports_and_removes_nothing(place: Place) -> None:
    state = a_state(Random(5))
    insert(place, state)
    expected = operations.prune(StateUnit(deepcopy(state)), 50, RUN_RETENTION, NOW)

    assert prune(place, 50, is_dry_run=True) == expected
    assert len(numbers(place)) == 120
    assert prune(place, 50) == expected


def test_without_a_given_time_the_clock_of_the_server_counts(place: Place) -> None:
    emit(place, some_events("old", 1, "open"))

    assert pruning.prune(place.connection, place.schema, 10, is_dry_run=False) == Pruned(events=1)


def test_a_topic_is_searched_again_after_an_event_a_return_or_new_rules(place: Place) -> None:
    set_topics(place, [Topic(name="jobs", mode="queue", max_pending=2)])
    emit(
        place, [*some_events("jobs", 2), *some_events("jobs", 1, "handed", first=3), *some_events("few", 3, "open", 4)]
    )
    found = [prune(place)]
    emit(place, some_events("jobs", 1, first=7))
    found.append(prune(place))
    place.execute("update {schema}.events set state = 'pending' where state = 'handed'")
    found.append(prune(place))
    set_topics(place, [Topic(name="few", max_pending=1)])
    found.append(prune(place))
    found.append(prune(place))

    assert found == [Pruned(), Pruned(dead_letters=1), Pruned(dead_letters=1), Pruned(events=2), Pruned()]
    assert numbers(place) == [3, 6, 7]


def test_many_new_events_are_searched_in_several_steps(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "LOOK_AHEAD", 4)
    set_topics(place, [Topic(name="*", max_pending=1)])
    emit(place, [*some_events("a", 4, "open"), *some_events("b", 4, "open", 5), *some_events("c", 2, "open", 9)])

    assert [prune(place), prune(place), prune(place), prune(place)] == [
        Pruned(events=3, has_more=True),
        Pruned(events=3, has_more=True),
        Pruned(events=1),
        Pruned(),
    ]


def test_a_queue_event_is_given_up_only_when_no_other_transaction_uses_its_topic(place: Place) -> None:
    set_topics(place, [Topic(name="jobs", mode="queue", retention=SECOND)])
    place.execute(
        "insert into {schema}.events (topic, id, payload, at, reached, state, taken_at)"
        " values ('jobs', 'e', '1', 0, 0, 'pending', 0)"
    )
    place.execute("set lock_timeout = 100")

    with place.again() as other, other.connection.transaction():
        topics.lock(other.connection, other.schema, ["jobs"])
        with pytest.raises(Exception, match="lock timeout"):
            prune(place)
        other.execute("update {schema}.events set state = 'handed'")

    assert prune(place) == Pruned()
    assert numbers(place) == [1]


def test_locked_events_are_left_for_the_next_time(place: Place) -> None:
    insert(place, a_state(Random(5)))
    place.execute("set lock_timeout = 100")

    with place.again() as other, other.connection.transaction():
        other.execute("select from {schema}.events for update")
        other.execute("select from {schema}.receipts for update")
        other.execute("select from {schema}.replies for update")
        meanwhile = prune(place)

    assert meanwhile == Pruned()
    assert prune(place).dead_letters > 0
