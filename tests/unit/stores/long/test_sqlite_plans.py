"""Every statement finds its rows through an index, however many runs sleep, wait or have ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.core.questions import Query
from holdfast.core.states import RunState
from holdfast.stores.sqlite import (
    catalogue,
    claims,
    events,
    histories,
    inboxes,
    limits,
    pruning,
    reads,
    schema,
    transaction,
    transfers,
)
from holdfast.stores.sqlite.connections import open_for_writing

MODULES = (
    catalogue,
    claims,
    events,
    histories,
    inboxes,
    limits,
    pruning,
    reads,
    transaction,
    transfers,
)

# Statements that read everything on purpose.
READS_EVERYTHING = {
    "_COUNTS",
    "_ORPHANS",
    "_WORKERS",
    "_TOPICS",
    "_TYPES",
    "_RULED",
    "_SUPERSEDED_FLOWS",
    "_USES",
    "_STRAY",
    "_RETENTIONS",
    "REGISTERED",
    "_LAST_EVENT",  # SQLite's own table, with a row for each of two tables
    "_RAISE",
}

SURPLUS = dict(
    zip(
        (
            "the newest surplus open event",
            "surplus open events",
            "the newest surplus pending event",
            "surplus pending events",
        ),
        (*pruning.SURPLUS[0], *pruning.SURPLUS[1]),
        strict=True,
    )
)

STATEMENTS = (
    {drop: drop for drop in (*pruning._DROPS, *pruning._DROPS_SOME)}
    | SURPLUS
    | {
        f"{module.__name__.rpartition('.')[2]}.{name}": text
        for module in MODULES
        for name, text in vars(module).items()
        if isinstance(text, str)
        and re.match(r"\s*(select|insert|update|delete)\b", text)
        and name not in READS_EVERYTHING
    }
)

CLAIM_PLANS = {
    "claims.NEXT_TYPE": "run_queue (type>?)",
    "claims.NEXT_RANK": "run_queue (type=? AND priority=? AND rank>?)",
    "claims.NEXT_PRIORITY": "run_queue (type=? AND priority>?)",
    "claims.LANE_HEAD": "run_queue (type=? AND priority=? AND rank=? AND ready_at>?)",
    "claims.DUE_IN_LANE": "run_queue (type=? AND priority=? AND rank=? AND ready_at<?)",
    "claims.NEXT_HOLDER": "run_held (worker>?)",
    "claims.EXPIRED": "run_held (worker=? AND ready_at<?)",
    "claims.NEXT_EXPIRIES": "run_held (worker=? AND ready_at>?)",
    "claims._DUE_IN_LANE": "run_queue (type=? AND priority=? AND rank=? AND ready_at<?)",
    "claims._HELD": "run_held (worker=?)",
}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    path = tmp_path / "runs.db"
    connection = open_for_writing(path)
    schema.prepare(connection, path, schema.migrations(), print)
    yield connection
    connection.close()


def plan(connection: apsw.Connection, text: str) -> list[str]:
    numbered = [int(number) for number in re.findall(r"\?(\d)", text)]
    bindings = (None,) * (max(numbered) if numbered else text.count("?"))
    return [detail for _, _, _, detail in connection.execute(f"explain query plan {text}", bindings)]


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_scans_a_table(connection: apsw.Connection, name: str) -> None:
    scans = [step for step in plan(connection, STATEMENTS[name]) if step.startswith("SCAN")]

    assert [step for step in scans if not re.search(r"VIRTUAL TABLE|CONSTANT ROW|\(subquery-", step)] == []


@pytest.mark.parametrize("name", CLAIM_PLANS)
def test_a_claim_seeks_and_never_sorts(connection: apsw.Connection, name: str) -> None:
    steps = plan(connection, STATEMENTS[name])

    assert steps[0].endswith(CLAIM_PLANS[name])
    assert not any("TEMP B-TREE" in step for step in steps)


QUEUE_PLANS = {
    "transaction.IN_LINE": "wait_turn (topic=?)",
    "inboxes._EXCLUSIVE": "inbox_exclusive (run_id=?)",
    "transaction.FIRST_WAIT": "wait_slot (topic=?)",
    "transaction.FIRST_WAIT_AT_LEVEL": "wait_slot (topic=? AND after=?)",
    "events.PENDING": "event_pending (topic=?)",
    "pruning._NEW_EVENTS": "event_expiry (expires_at=?)",
    "pruning._EXPIRED": "event_expiry (expires_at<?)",
    "the newest surplus pending event": "event_pending (topic=?)",
    "surplus pending events": "event_pending (topic=? AND number<?)",
    "the newest surplus open event": "event_topic (topic=?)",
    "surplus open events": "event_topic (topic=?)",
    "pruning._DUE_RUNS": "run_purge (purge_at<?)",
    "pruning._DUE_RUNS_OF_TYPE": "run_ended (type=? AND finished_at>? AND finished_at<?)",
    "pruning._NEXT_TYPE": "run_ended (type>?)",
    "catalogue._DUE_SCHEDULES": "schedule_due ((next_at,name)>(?,?) AND next_at<?)",
    "catalogue._NEXT_DUE": "schedule_due (next_at>?)",
    "catalogue._FLOWS_OF_TYPE": "sqlite_autoindex_flow_1 (type=?)",
    "catalogue._FLOWS": "sqlite_autoindex_flow_1 ((type,registered_at)>(?,?))",
    "catalogue._OLDEST_RUN": "run_type (type=?)",
    "histories.LEASED": "PRIMARY KEY (run_id=?)",
    "histories._FORGET": "PRIMARY KEY (run_id=? AND location>? AND location<?)",
}


@pytest.mark.parametrize("name", QUEUE_PLANS)
def test_a_queue_is_read_in_its_order(connection: apsw.Connection, name: str) -> None:
    steps = plan(connection, STATEMENTS[name])

    assert steps[0].endswith(QUEUE_PLANS[name])
    assert not any("TEMP B-TREE" in step for step in steps)


QUERIES = {
    "everything": (Query(), "run_created"),
    "the next page": (Query(before=(1, "a")), "run_created (created_at<?)"),
    "a time": (Query(created_from=1, created_until=2), "run_created (created_at>? AND created_at<?)"),
    "a common state": (Query(states=frozenset({RunState.SUCCEEDED})), "run_created"),
    "a rare state": (Query(states=frozenset({RunState.FAILED})), "run_rare (state=?)"),
    "a rare state of a type": (Query(states=frozenset({RunState.BLOCKED}), type="shop"), "run_rare (state=?)"),
    "a type": (Query(type="shop"), "run_type (type=?)"),
    "a page of a type": (Query(type="shop", before=(1, "a")), "run_type (type=? AND created_at<?)"),
    "children": (Query(parent_id="a"), "run_parent (parent_id=?)"),
    "a tag": (Query(tags={"a": "b"}), "PRIMARY KEY (name=? AND value=?)"),
    "what was deleted": (Query(is_deleted=True), "run_deleted"),
    "a page of a tag": (Query(tags={"a": "b"}, before=(1, "a")), "PRIMARY KEY (name=? AND value=? AND created_at<?)"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_list_is_read_in_the_order_it_is_shown(connection: apsw.Connection, name: str) -> None:
    query, index = QUERIES[name]
    for conditions, hint in reads._sources(connection, query):
        steps = plan(connection, reads.statement(conditions, hint, query)[0])

        assert steps[0].endswith(index)
        assert not any("TEMP B-TREE" in step for step in steps)


def test_a_list_by_key_or_id_finds_its_few_rows(connection: apsw.Connection) -> None:
    for query, index in ((Query(key="k"), "run_key (key=?)"), (Query(id_prefix="0"), "(id>? AND id<?)")):
        for conditions, hint in reads._sources(connection, query):
            assert plan(connection, reads.statement(conditions, hint, query)[0])[0].endswith(index)


def test_statements_are_not_planned_again_for_each_value(connection: apsw.Connection) -> None:
    # With partial indexes SQLite would inspect bound values, and prepare again whenever they differ.
    assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
