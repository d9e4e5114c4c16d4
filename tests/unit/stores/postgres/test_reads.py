"""Reads: every answer is computed from the values, whichever index serves it."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.errors import ErrorRecord
from holdfast.core.model import (
    AuditFact,
    DeadLetter,
    Entry,
    EntryKind,
    EntryState,
    Run,
    RunOptions,
    Wait,
    WaitKind,
    WorkerRecord,
)
from holdfast.core.questions import Details, ListDeadLetters, Query
from holdfast.core.states import RunState
from holdfast.stores.postgres import reads
from tests.unit.stores.postgres.database import Place

TYPES = ("shop", "shop.order", "shop.order.v1", "shop.orders", "Shop.order", "sho%", "ä")
COUNT = 300


def a_run(number: int, chance: Random) -> Run:
    state = chance.choice(list(RunState))
    return Run(
        id=f"{number:04x}-{chance.randrange(10)}",
        type=chance.choice(TYPES),
        state=state,
        payload='{"text": "\\u0000 é \\ud800"}',
        created_at=1_000_000 + number // 3,
        start_at=1_000_000 + number // 3,
        updated_at=1_000_001,
        priority=chance.choice((0, 100, 255)),
        ready_at=chance.choice((None, 1_700_000_000_123_457)),
        key=f"key {number}" if chance.random() < 0.3 else None,
        tags={} if chance.random() < 0.5 else {"a": chance.choice("xy"), "it's": "100%"},
        worker="w" if state is RunState.RUNNING else None,
        parent_id=chance.choice((None, "0000-1", "p")),
        error=ErrorRecord(type="Oops", message='say "hi"', types=("Oops",)) if state is RunState.FAILED else None,
        options=RunOptions(max_run=5) if chance.random() < 0.2 else RunOptions(),
    )


def insert(place: Place, runs: list[Run]) -> None:
    place.many(
        """
        insert into {schema}.runs (
            id, type, state, payload, created_at, start_at, updated_at, priority, ready_at, key, tags, worker,
            parent_id, error, options
        )
        values (
            %s, %s, %s, %s, %s, %s, %s, %s, {schema}.instant(%s::bigint), %s, %s::jsonb, %s, %s, %s, %s
        )
        """,
        [
            (
                run.id,
                run.type,
                run.state,
                run.payload,
                run.created_at,
                run.start_at,
                run.updated_at,
                run.priority,
                run.ready_at,
                run.key,
                as_json(run.tags) if run.tags else None,
                run.worker,
                run.parent_id,
                as_json(run.error) if run.error else None,
                as_json(run.options) if run.options != RunOptions() else None,
            )
            for run in runs
        ],
    )


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


@pytest.fixture
def runs(place: Place) -> list[Run]:
    chance = Random(7)
    runs = [a_run(number, chance) for number in range(COUNT)]
    insert(place, runs)
    return runs


QUERIES = [
    Query(),
    Query(limit=7),
    Query(states=frozenset({RunState.SUCCEEDED})),
    Query(states=frozenset({RunState.RUNNING})),
    Query(states=frozenset({RunState.FAILED, RunState.BLOCKED, RunState.RUNNING}), limit=9),
    Query(states=frozenset({RunState.FAILED, RunState.PENDING}), limit=9),
    Query(states=frozenset({RunState.PAUSED}), type="shop.*"),
    Query(type="shop"),
    Query(type="shop.*", limit=5),
    Query(type="sho%"),
    Query(type="*"),
    Query(type="%.*"),
    Query(type="ä", states=frozenset({RunState.PENDING, RunState.SUCCEEDED})),
    Query(key="key 1"),
    Query(key="nothing"),
    Query(tags={"a": "x"}, limit=11),
    Query(tags={"a": "y", "it's": "100%"}, type="shop.*"),
    Query(tags={"it's": "%"}),
    Query(parent_id="p", limit=20),
    Query(parent_id="p", states=frozenset({RunState.FAILED})),
    Query(id_prefix="00"),
    Query(id_prefix="0", limit=3),
    Query(id_prefix="%"),
    Query(created_from=1_000_010, created_until=1_000_020),
    Query(type="shop", created_from=1_000_010),
    Query(states=frozenset({RunState.CANCELLED}), created_until=1_000_050),
]


def test_a_list_has_the_runs_a_query_admits_newest_first(place: Place, runs: list[Run]) -> None:
    newest_first = sorted(runs, key=lambda run: (run.created_at, run.id), reverse=True)
    for query in QUERIES:
        expected = [Details(run=run) for run in newest_first if query.admits(run)]

        assert reads.list_runs(place.connection, place.schema, query) == expected[: query.limit], query


PAGED = [Query(), Query(type="shop.*"), Query(states=frozenset({RunState.FAILED})), Query(tags={"a": "x"})]


def test_pages_are_the_list_in_parts(place: Place, runs: list[Run]) -> None:
    for query in PAGED:
        whole = reads.list_runs(place.connection, place.schema, replace(query, limit=COUNT))
        pages: list[Details] = []
        next_page = replace(query, limit=4)
        while page := reads.list_runs(place.connection, place.schema, next_page):
            assert len(page) <= 4
            pages += page
            next_page = replace(next_page, before=(page[-1].run.created_at, page[-1].run.id))

        assert pages == whole, query


def test_a_run_is_read_with_its_waits_in_order_and_its_values(place: Place, runs: list[Run]) -> None:
    run_id = runs[0].id
    place.many(
        "insert into {schema}.waits (run_id, place, location, kind, since, names, deadline, after, count)"
        " values (%s, %s, %s, %s, 5, %s, %s, 0, 0)",
        [(run_id, 1, "b", "message", '["go","on"]', None), (run_id, 0, "a", "time", "[]", 9)],
    )
    place.many("insert into {schema}.run_values values (%s, %s, %s)", [(run_id, "it's", '"\\u0000"')])

    found = reads.get(place.connection, place.schema, run_id, None)

    assert found == Details(
        run=runs[0],
        waits=(
            Wait(location="a", kind=WaitKind.TIME, since=5, deadline=9),
            Wait(location="b", kind=WaitKind.MESSAGE, since=5, names=("go", "on")),
        ),
        values={"it's": '"\\u0000"'},
    )


def test_missing_objects_are_none_or_empty(place: Place) -> None:
    at = (place.connection, place.schema)

    assert reads.get(*at, "x", None) is None
    assert reads.get(*at, None, "x") is None
    assert reads.history(*at, "x") == ()
    assert reads.audit(*at, "x") == ()
    assert reads.ends(*at, ["x"]) == []
    assert reads.replies(*at, [("x", "y")]) == {}
    assert reads.dead_letters(*at, ListDeadLetters()) == []
    assert reads.counts(*at) == {}
    assert reads.workers(*at) == []
    assert reads.orphans(*at, 10) == []


def test_a_key_finds_its_run(place: Place, runs: list[Run]) -> None:
    keyed = next(run for run in runs if run.key)

    found = reads.get(place.connection, place.schema, None, keyed.key)
    assert found is not None
    assert found.run.id == keyed.id


def test_ends_come_in_the_order_of_the_request_and_as_often(place: Place, runs: list[Run]) -> None:
    ended = [run for run in runs if run.state.is_end][:3]
    live = next(run for run in runs if not run.state.is_end)
    asked = [ended[2].id, "nobody", ended[0].id, live.id, ended[2].id]

    assert reads.ends(place.connection, place.schema, asked) == [ended[2], ended[0], ended[2]]


def test_runs_are_counted_by_type_and_state(place: Place, runs: list[Run]) -> None:
    counted = reads.counts(place.connection, place.schema)

    assert list(counted) == sorted(counted)
    assert sum(sum(states.values()) for states in counted.values()) == COUNT
    assert counted["shop"][RunState.FAILED] == sum((r.type, r.state) == ("shop", RunState.FAILED) for r in runs)


def test_orphans_are_neither_held_nor_ready_nor_waiting(place: Place, runs: list[Run]) -> None:
    kept = {RunState.BLOCKED, RunState.PAUSED}
    lost = [
        run.id
        for run in runs
        if run.worker is None and run.ready_at is None and not run.state.is_end and run.state not in kept
    ]
    place.many(
        "insert into {schema}.waits (run_id, place, location, kind, since, names, after, count)"
        " values (%s, 0, 'a', 'message', 5, '[]', 0, 0)",
        [(lost[0],)],
    )

    assert reads.orphans(place.connection, place.schema, COUNT) == lost[1:]
    assert reads.orphans(place.connection, place.schema, 2) == lost[1:3]


def test_a_history_is_in_the_order_of_settlement_with_open_entries_last(place: Place) -> None:
    place.many(
        "insert into {schema}.entries (run_id, location, kind, state, position, attempts, since, started_at, token,"
        " has_undo, error, result) values ('r', %s, 'step', %s, %s, 1, 0, 5, 1, %s, %s, %s)",
        [
            ("z", "started", 0, False, None, None),
            ("b", "done", 2, True, None, "[]"),
            ("Z", "retrying", 0, False, '{"type":"Oops","message":"m"}', None),
            ("a", "done", 10, False, None, "1"),
        ],
    )

    step, done = EntryKind.STEP, EntryState.DONE
    assert reads.history(place.connection, place.schema, "r") == (
        Entry(location="b", kind=step, state=done, position=2, attempts=1, started_at=5, has_undo=True, result="[]"),
        Entry(location="a", kind=step, state=done, position=10, attempts=1, started_at=5, result="1"),
        Entry(
            location="Z",
            kind=step,
            state=EntryState.RETRYING,
            attempts=1,
            started_at=5,
            error=ErrorRecord(type="Oops", message="m"),
        ),
        Entry(location="z", kind=step, state=EntryState.STARTED, attempts=1, started_at=5),
    )


def test_the_audit_keeps_the_latest_hundred_of_repeated_events(place: Place) -> None:
    facts = [("created", None), *(("claimed", f'{{"token":{number}}}') for number in range(150)), ("failed", None)]
    place.many("insert into {schema}.audits (run_id, event, at, data) values ('r', %s, 5, %s)", facts)

    told = reads.audit(place.connection, place.schema, "r")

    assert told == (
        AuditFact(run_id="r", event="created", at=5),
        *(AuditFact(run_id="r", event="claimed", at=5, data={"token": number}) for number in range(50, 150)),
        AuditFact(run_id="r", event="failed", at=5),
    )


def test_replies_are_found_by_run_and_message(place: Place) -> None:
    place.many(
        "insert into {schema}.replies values (%s, %s, %s, 1)", [("a", "1", '"x"'), ("a", "2", '"y"'), ("b", "1", "3")]
    )

    found = reads.replies(place.connection, place.schema, [("a", "1"), ("b", "1"), ("b", "2")])

    assert found == {"a": {"1": '"x"'}, "b": {"1": "3"}}


def test_dead_letters_are_listed_by_topic_or_family_oldest_first(place: Place) -> None:
    topics = ["orders.new", "orders", "orders.%", None]
    place.many(
        "insert into {schema}.letters (id, topic, run_id, name, payload, at, reason)"
        " values (%s, %s, %s, %s, '1', 7, %s)",
        [
            (f"id {n}", topic, None if topic else "r", None if topic else "go", "expired" if topic else "undelivered")
            for n, topic in enumerate(topics)
        ],
    )

    def numbers(**filters: object) -> list[int]:
        query = msgspec.convert(filters, ListDeadLetters)
        return [letter.number for letter in reads.dead_letters(place.connection, place.schema, query)]

    assert numbers() == [1, 2, 3, 4]
    assert numbers(after=1, limit=2) == [2, 3]
    assert numbers(topic="orders") == [2]
    assert numbers(topic="orders.*") == [1, 3]
    assert numbers(topic="orders.*", after=1) == [3]
    assert numbers(topic="*") == [1, 2, 3]
    assert reads.dead_letters(place.connection, place.schema, ListDeadLetters(after=3)) == [
        DeadLetter(number=4, id="id 3", payload="1", at=7, reason="undelivered", run_id="r", name="go")
    ]


def test_workers_are_found_by_id(place: Place) -> None:
    place.many(
        "insert into {schema}.workers values (%s, 'n', 'h', 4000000000, %s, 10, 1, 2)",
        [("b", '["x","y"]'), ("a", "[]")],
    )

    assert reads.workers(place.connection, place.schema) == [
        WorkerRecord(
            id=id, name="n", host="h", pid=4_000_000_000, types=types, concurrency=10, started_at=1, heartbeat_at=2
        )
        for id, types in (("a", ()), ("b", ("x", "y")))
    ]
