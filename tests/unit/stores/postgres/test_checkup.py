"""The checks of the doctor: a healthy server has no findings, and each problem is named with advice."""

from __future__ import annotations

import pytest

from holdfast.core.ports import Finding
from holdfast.stores.postgres import checkup
from holdfast.testing.patience import wait_until
from tests.unit.stores.postgres.database import Place


def findings(place: Place, subject: str) -> list[Finding]:
    return [one for one in checkup.findings(place.connection, place.schema) if one.subject == subject]


def told(place: Place, subject: str) -> str:
    """Return the findings about a subject that has problems."""
    return "\n".join(f"{one.level}: {one.text}" for one in findings(place, subject) if one.level != "ok")


def test_a_healthy_server_has_no_findings(place: Place) -> None:
    found = checkup.findings(place.connection, place.schema)

    assert [one for one in found if one.level != "ok"] == []
    assert [one.subject for one in found] == [
        "server",
        "schema",
        "durability",
        "connections",
        "transactions",
        "replication",
        "vacuum",
        "requests",
        "slots",
    ]


def test_an_open_idle_transaction_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "LONG_TRANSACTION_SECONDS", 0)

    with place.again() as other, other.connection.transaction():
        other.all("select 1")
        pid = other.connection.info.backend_pid
        text = told(place, "transactions")

    assert text.startswith(f"warning: process {pid} (")
    assert text.endswith("end it")


def test_a_session_that_does_not_wait_for_the_disk_is_a_warning(place: Place) -> None:
    place.execute("set synchronous_commit = off")

    assert told(place, "durability").startswith("warning: synchronous_commit is off")


def test_too_many_connections_are_reported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "FULL_SHARE", 0.0)

    assert "connections are in use; raise max_connections" in told(place, "connections")


def test_a_schema_of_another_version_is_a_problem(place: Place) -> None:
    place.execute("update {schema}.meta set value = '1' where name = 'schema'")

    assert "problem: schema number 1, made by an older version" in told(place, "schema")


def test_a_schema_without_later_additions_is_reported_all_the_same(place: Place) -> None:
    place.execute("drop table {schema}.slots cascade")
    place.execute("update {schema}.meta set value = '5' where name = 'schema'")

    assert "problem: schema number 5, made by an older version" in told(place, "schema")
    assert findings(place, "slots") == []


@pytest.mark.parametrize(
    "damage",
    [
        "delete from {schema}.slots",
        "insert into {schema}.slots values ('type:x', 'nobody')",
        "insert into {schema}.slots values ('type:x', 'r')",
        "update {schema}.runs set worker = null, ready_at = null, state = 'succeeded', finished_at = 1",
    ],
)
def test_slots_that_do_not_match_the_runs_are_a_problem(place: Place, damage: str) -> None:
    place.execute(
        "insert into {schema}.runs (id, type, state, worker, slots) values ('r', 'x', 'running', 'w', '[\"type:y\"]')"
    )
    place.execute("insert into {schema}.slots values ('type:y', 'r')")
    assert told(place, "slots") == ""

    place.execute(damage)

    assert "problem: 1 slots do not agree" in told(place, "slots")


def test_a_request_that_no_worker_executes_is_reported(place: Place) -> None:
    place.execute("select {schema}.emit('orders')")
    place.execute("update {schema}.requests set at = at - 3600000000")

    assert "1 requests of SQL producers are not carried out yet, the oldest for 3,6" in told(place, "requests")


def test_a_table_full_of_dead_rows_is_reported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "DEAD_ROWS", 10)
    place.execute("alter table {schema}.runs set (autovacuum_enabled = off)")
    with place.again() as other:
        other.execute("insert into {schema}.runs (type) select 'shop' from generate_series(1, 50)")
        other.execute("delete from {schema}.runs")
        pid = other.connection.info.backend_pid
    # A session reports its counts a second late, or at its end. After `analyze` they would be added to the result.
    wait_until("the session has ended", lambda: not place.all("select 1 from pg_stat_activity where pid = %s", pid))
    place.execute("analyze {schema}.runs")

    assert "holdfast.runs has 50 dead rows beside 0 live ones" in told(place, "vacuum")
