"""Pruning of runs on Postgres: type settings apply at once, long runs go in batches, and no lock is waited for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Run
from holdfast.core.ports import Pruned
from holdfast.core.retention import ROWS_PER_RUN, RUN_RETENTION
from holdfast.stores.postgres import pruning, topics
from tests.unit.stores.postgres.database import Place

NOW = 100 * RUN_RETENTION
TABLES = ("runs", "entries", "audits", "inbox", "waits", "run_values", "receipts", "replies")

RUN = """
    insert into {schema}.runs (id, type, state, ready_at, token, created_at, start_at, finished_at, retention, purge_at,
        parent_id, key)
    values (%s, %s, 'failed', null, 1, 0, 0, %s, %s, %s, %s, %s)
"""


def a_run(
    place: Place,
    id: str,
    type: str = "t",
    age: Micros = RUN_RETENTION,
    *,
    retention: Micros | None = None,
    parent: str | None = None,
    steps: int = 1,
) -> None:
    ended = NOW - age
    purge_at = None if retention is None else ended + retention
    place.execute(RUN, id, type, ended, retention, purge_at, parent, f"key {id}")
    place.execute(
        "insert into {schema}.entries (run_id, location, kind, state, position, attempts, since, started_at, token,"
        " has_undo) select %s, 'step#' || n, 'step', 'done', n, 1, n - 1, 0, 1, false from generate_series(1, %s) as n",
        id,
        steps,
    )
    place.execute("insert into {schema}.audits (run_id, event, at) values (%s, 'failed', 0)", id)
    place.execute("insert into {schema}.run_values values (%s, 'done', '1')", id)
    place.execute("insert into {schema}.receipts values (%s, 'm', %s)", id, NOW)
    place.execute("insert into {schema}.replies values (%s, 'm', '1', %s)", id, NOW)


def keep(place: Place, type: str, retention: Micros) -> None:
    place.execute("insert into {schema}.types (name, retention) values (%s, %s)", type, retention)


def prune(place: Place, limit: int = 10, *, is_dry_run: bool = False) -> Pruned:
    return pruning.prune(place.connection, place.schema, limit, NOW, is_dry_run=is_dry_run)


def rows(place: Place) -> int:
    counts = " + ".join(f"(select count(*) from {{schema}}.{table})" for table in TABLES)  # noqa: S608 - of this file
    return int(place.all(f"select {counts}")[0])


def ids(place: Place) -> list[str]:
    return place.all("select id from {schema}.runs order by id")


def test_a_retention_of_the_type_applies_at_once(place: Place) -> None:
    a_run(place, "a", "short", SECOND)
    a_run(place, "b", "long")
    a_run(place, "c", "usual")
    a_run(place, "d", "usual", RUN_RETENTION - 1)
    keep(place, "short", SECOND)
    keep(place, "long", 2 * RUN_RETENTION)

    expected = Pruned(runs={"short": 1, "usual": 1})
    assert prune(place, is_dry_run=True) == expected
    assert prune(place) == expected
    assert ids(place) == ["b", "d"]
    place.execute("delete from {schema}.types")
    assert prune(place) == Pruned(runs={"long": 1})


def test_a_run_with_a_long_history_is_pruned_in_batches_and_hidden_at_once(place: Place) -> None:
    a_run(place, "a", steps=5 * ROWS_PER_RUN)
    a_run(place, "b", age=RUN_RETENTION - 1)

    before, told, after = rows(place), [prune(place, 2)], rows(place)
    (hidden,) = place.all("select deleted_at is not null and key is null from {schema}.runs where id = 'a'")
    while told[-1].has_more:
        told.append(prune(place, 2))

    assert (before - after, hidden) == (2 * ROWS_PER_RUN, True)
    assert told == [Pruned(has_more=True)] * 2 + [Pruned(runs={"t": 1})]
    assert (ids(place), rows(place)) == (["b"], 6)


def test_runs_locked_by_others_are_left_for_the_next_time(place: Place) -> None:
    a_run(place, "a")
    a_run(place, "b")
    a_run(place, "c", steps=50 * ROWS_PER_RUN)
    place.execute("set lock_timeout = 100")

    with place.again() as other, other.connection.transaction():
        other.execute("select from {schema}.runs where id in ('a', 'c') for no key update")
        assert prune(place, 3).runs == {"t": 1}
        assert ids(place) == ["a", "c"]
        assert prune(place, 1) == Pruned()  # an immediate second query would find the same

    assert prune(place, 1).runs == {"t": 1}


def test_a_run_that_was_reopened_since_it_was_found_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run(place, "a")
    lock = pruning._Runs._locked

    def reopened(self: pruning._Runs, runs: Sequence[Run]) -> set[str]:
        with place.again() as other:
            other.execute("update {schema}.runs set token = token + 1, finished_at = null, state = 'pending'")
        return lock(self, runs)

    monkeypatch.setattr(pruning._Runs, "_locked", reopened)

    assert prune(place).runs == {}
    assert ids(place) == ["a"]


def test_only_one_process_prunes_runs_at_a_time(place: Place) -> None:
    a_run(place, "a")

    with place.again() as other, other.connection.transaction():
        assert topics.try_turn(other.connection, other.schema, topics.PURGING)
        meanwhile = prune(place)

    assert meanwhile == Pruned()
    assert prune(place) == Pruned(runs={"t": 1})


def test_an_awaited_child_waits_for_its_parent_to_be_pruned(place: Place) -> None:
    a_run(place, "a", age=0)
    a_run(place, "b", parent="a", retention=SECOND)
    a_run(place, "c", parent="a")
    a_run(place, "d", parent="a")
    a_run(place, "e", parent="gone")
    place.execute("update {schema}.runs set parent_location = id where parent_id is not null")
    place.execute(
        "insert into {schema}.entries (run_id, location, kind, state, position, attempts, since, started_at, token,"
        " has_undo, ref) select 'a', id, 'child', 'failed', 2, case id when 'd' then 0 else 1 end, 0, 0, 1, false, id"
        " from {schema}.runs where parent_id = 'a'"
    )

    assert prune(place, is_dry_run=True) == Pruned(runs={"t": 2})
    assert prune(place) == Pruned(runs={"t": 2})
    assert ids(place) == ["a", "b", "c"]
    assert set(place.all("select purge_at from {schema}.runs where id <> 'a'")) == {NOW + 86_400 * SECOND}


def test_views_hide_deleted_runs(place: Place) -> None:
    a_run(place, "a")
    place.execute("update {schema}.runs set deleted_at = 1")

    assert place.all("select id from {schema}.run") == []
    for statement in ("select {schema}.send('a', 'go')", "select {schema}.cancel('a')"):
        with pytest.raises(Exception, match="there is no run 'a'"):
            place.execute(statement)


def test_a_run_that_is_cancelled_with_sql_keeps_its_retention(place: Place) -> None:
    place.execute("insert into {schema}.intent (id, type, retention) values ('a', 't', '5 microseconds')")

    place.execute("select {schema}.cancel('a')")

    assert place.all("select purge_at - finished_at from {schema}.runs") == [5]
