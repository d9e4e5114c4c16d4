"""The views for people: readable, complete, and documented in the database itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.unit.stores.postgres.database import Place

VIEWS = {"run", "entry", "message", "event", "wait", "audit", "worker", "intent", "type", "slot", "schedule"}
INSTANT = datetime(2024, 2, 29, 12, 30, 0, 123457, tzinfo=UTC)
MICROS = round((INSTANT - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


def row(place: Place, statement: str) -> dict[str, object]:
    """Return the one row of a statement, by column names."""
    cursor = place.execute(statement)
    (found,) = cursor.fetchall()
    return dict(zip((column.name for column in cursor.description or ()), found, strict=True))


def test_every_view_for_people_has_a_singular_name_and_exists(place: Place) -> None:
    views = place.all(
        "select relname from pg_class where relkind = 'v' and relnamespace = %s::regnamespace", place.schema
    )

    assert {view for view in views if not view.endswith("_read")} == VIEWS


def test_every_table_and_view_and_every_column_of_a_view_has_a_comment(place: Place) -> None:
    silent = place.all(
        """
        select relname, attname
        from pg_class
        join pg_attribute on attrelid = pg_class.oid
        where relnamespace = %s::regnamespace
          and relkind = 'v'
          and relname not like '%%\\_read'
          and attnum > 0
          and col_description(pg_class.oid, attnum) is null
        union all
        select relname, null
        from pg_class
        where relnamespace = %s::regnamespace
          and relkind in ('r', 'v')
          and relname not like '%%\\_read'
          and obj_description(pg_class.oid, 'pg_class') is null
        """,
        place.schema,
        place.schema,
    )

    assert silent == []


def test_a_run_is_shown_with_instants_and_json(place: Place) -> None:
    place.execute(
        "insert into {schema}.runs (id, type, state, start_at, payload, result, error, tags, created_at,"
        " finished_at, ready_at) values "
        "('r', 'shop', 'failed', 0, '{\"a\": \"\\u0000\"}', null, %s, '{\"a\": \"b\"}', %s, %s, null)",
        '{"type": "Oops", "message": "m"}',
        MICROS,
        MICROS,
    )

    shown = row(place, "select *, payload::text as text from {schema}.run")

    assert (shown["created_at"], shown["finished_at"], shown["ready_at"]) == (INSTANT, INSTANT, None)
    assert (shown["error"], shown["tags"]) == ({"type": "Oops", "message": "m"}, {"a": "b"})
    assert shown["text"] == '{"a": "\\u0000"}'


def test_a_run_that_continued_is_shown_with_the_payload_of_its_last_generation(place: Place) -> None:
    place.execute("insert into {schema}.runs (type, payload, continued) values ('shop', '{\"n\": 1}', '{\"n\": 2}')")

    assert place.all("select payload from {schema}.run") == [{"n": 2}]


def test_the_message_view_has_only_unread_messages(place: Place) -> None:
    place.many(
        "insert into {schema}.inbox (run_id, number, kind, name, at, is_exclusive, ref, payload)"
        " values ('r', %s, %s, 'go', %s, false, %s, '1')",
        [(1, "message", MICROS, "m1"), (2, "event", MICROS, "7"), (3, "child", MICROS, None)],
    )

    assert place.all("select run_id, number, name, id, payload, sent_at from {schema}.message") == [
        ("r", 1, "go", "m1", 1, INSTANT)
    ]


def test_the_other_views_show_the_stored_rows(place: Place) -> None:
    place.execute(
        "insert into {schema}.entries (run_id, location, kind, state, position, attempts, since, started_at, token,"
        " has_undo, result) values ('r', 'charge', 'step', 'done', 1, 2, 0, %s, 1, false, '[1]')",
        MICROS,
    )
    place.execute(
        "insert into {schema}.events (topic, id, payload, at, reached, state, taken_at)"
        " values ('orders', 'e1', '1', %s, 3, 'open', 0)",
        MICROS,
    )
    place.execute(
        "insert into {schema}.waits (run_id, place, location, kind, since, names, after, count)"
        " values ('r', 0, 'go', 'message', %s, '[\"go\"]', 0, 0)",
        MICROS,
    )
    place.execute("insert into {schema}.audits (run_id, event, at) values ('r', 'woken', %s)", MICROS)
    place.execute("insert into {schema}.workers values ('w', 'n', 'h', 1, '[\"shop\"]', 5, %s, %s)", MICROS, MICROS)

    place.execute(
        "insert into {schema}.types (name, per_key, rate, retention, seen_at)"
        " values ('shop', '{\"tenant\": 2}', '{\"count\": 5, \"period\": 60000000}', 1500000, %s)",
        MICROS,
    )
    place.execute("insert into {schema}.slots values ('type:shop tenant=a', 'r')")

    assert row(place, "select location, attempts, result, started_at, finished_at from {schema}.entry") == {
        "location": "charge",
        "attempts": 2,
        "result": [1],
        "started_at": INSTANT,
        "finished_at": None,
    }
    assert place.all("select topic, id, reached, emitted_at, taken_at from {schema}.event") == [
        ("orders", "e1", 3, INSTANT, None)
    ]
    assert place.all("select kind, names, since, deadline from {schema}.wait") == [("message", ["go"], INSTANT, None)]
    assert place.all("select run_id, event, data, at from {schema}.audit") == [("r", "woken", {}, INSTANT)]
    assert place.all("select types, heartbeat_at from {schema}.worker") == [(["shop"], INSTANT)]
    assert place.all(
        "select name, is_enabled, concurrency, per_key, rate_count, rate_period, retention, seen_at from {schema}.type"
    ) == [
        ("shop", True, None, {"tenant": 2}, 5, timedelta(minutes=1), timedelta(seconds=1.5), INSTANT),
    ]
    assert place.all("select name, run_id from {schema}.slot") == [("type:shop tenant=a", "r")]
