"""Every statement finds its rows by its index, however many runs sleep or have ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast.core.checkpoint import Checkpoint, ClaimRequest, Finish
from holdfast.core.clock import SECOND
from holdfast.core.questions import Query
from holdfast.core.states import RunState
from holdfast.stores.held import Held
from holdfast.stores.postgres import claims, pruning, reads, sql_requests
from holdfast.stores.postgres.checkpoints import Writing
from holdfast.stores.postgres.scripts import Calls, qualified, run_script
from holdfast.stores.postgres.unit_of_work import PART
from tests.postgres import Databases
from tests.unit.stores.postgres.database import Place, empty_place

RUNS = 20_000

# Twenty types: half of the runs have ended, most others sleep, a few run, are due, or have failed.
FILL = """
    insert into {schema}.runs (
        id, type, state, created_at, start_at, ready_at, worker, token, key, parent_id, tags, crashes, finished_at,
        purge_at, deleted_at
    )
    select
        lpad(to_hex(n), 12, '0'),
        'type.' || n %% 20,
        case
            when n %% 400 = 0 then 'failed'
            when n %% 2 = 0 then 'succeeded'
            when n %% 1001 = 0 then 'running'
            when n %% 1003 = 0 then 'pending'
            else 'suspended'
        end,
        1000000 + n,
        1000000 + n,
        case when n %% 2 = 1 then now() + (case when n %% 1003 = 0 then -1 else 1000 + n end) * interval '1 minute' end,
        case when n %% 2 = 1 and n %% 1001 = 0 then 'w' end,
        1,
        case when n %% 3 = 0 then 'key ' || n end,
        case when n %% 100 = 0 then lpad(to_hex(n / 100), 12, '0') end,
        case when n %% 50 = 0 then jsonb_build_object('customer', (n %% 700)::text) end,
        0,
        case when n %% 2 = 0 then 2000000 + n end,
        case when n %% 8 = 0 then 3000000 + n end,
        case when n %% 40 = 0 then 2500000 + n end
    from generate_series(1, %s) as n
"""

EVENTS = """
    insert into {schema}.events (topic, id, payload, at, reached, state, taken_at)
    select 'topic.' || n %% 20, n::text, '1', n, 0, (array['open', 'pending', 'handed', 'taken'])[1 + n / 10 %% 4], n
    from generate_series(1, %s) as n
"""

OTHERS = """
    insert into {schema}.entries (run_id, location, kind, state, position, attempts, since, started_at, token, has_undo)
    select lpad(to_hex(n), 12, '0'), 'a', 'step', 'done', 1, 1, 0, 1, 1, false from generate_series(1, %(count)s) as n;
    insert into {schema}.waits (run_id, place, location, kind, since, names, after, count)
    select lpad(to_hex(n), 12, '0'), 0, 'a', 'time', 1, '[]', 0, 0 from generate_series(1, %(count)s) as n;
    insert into {schema}.run_values
    select lpad(to_hex(n), 12, '0'), 'done', '1' from generate_series(1, %(count)s) as n;
    insert into {schema}.audits (run_id, event, at)
    select lpad(to_hex(n), 12, '0'), 'claimed', n from generate_series(1, %(count)s) as n;
    insert into {schema}.receipts select lpad(to_hex(n), 12, '0'), 'm', n from generate_series(1, %(count)s) as n;
    insert into {schema}.replies select lpad(to_hex(n), 12, '0'), 'm', '1', n from generate_series(1, %(count)s) as n;
    insert into {schema}.letters (id, topic, payload, at, reason)
    select n::text, 'topic.' || n %% 20, '1', n, 'expired' from generate_series(1, %(count)s) as n;
    insert into {schema}.requests (body) select '{}' from generate_series(1, %(count)s)
"""


@pytest.fixture(scope="module")
def full(postgres_databases: Databases) -> Iterator[Place]:
    """A place with thousands of rows in each table."""
    with postgres_databases.lend() as url, empty_place(url) as place:
        place.prepared()
        place.execute(FILL, RUNS)
        place.execute(EVENTS, RUNS)
        for statement in OTHERS.split(";"):
            place.connection.execute(qualified(statement, place.schema), {"count": RUNS})
        place.execute("analyze")
        yield place


def plan(place: Place, text: str, values: Any) -> str:
    found = place.connection.execute(b"explain (costs off) " + qualified(text, place.schema), values)
    return "\n".join(line for (line,) in found)


def indexes(text: str) -> set[str]:
    """Return the indexes that a plan reads."""
    return set(re.findall(r"Index (?:Only )?Scan (?:Backward )?(?:using|on) (\w+)", text))


def scans(text: str) -> list[str]:
    """Return the tables that a plan scans sequentially. Topic rules are excluded, because they are few."""
    return [name for name in re.findall(r"Seq Scan on (\w+)", text) if name != "topics"]


LISTS = {
    "everything": (Query(), "runs_listed"),
    "the next page": (Query(before=(1_010_000, "a")), "runs_listed"),
    "a time": (Query(created_from=1_010_000, created_until=1_010_100), "runs_listed"),
    "a common state": (Query(states=frozenset({RunState.SUCCEEDED}), limit=20), "runs_listed"),
    "a family": (Query(type="type.*", limit=20), "runs_listed"),
    "a rare state": (Query(states=frozenset({RunState.FAILED}), limit=20), "runs_rare"),
    "rare states": (Query(states=frozenset({RunState.FAILED, RunState.BLOCKED}), limit=20), "runs_rare"),
    "a rare state of a type": (Query(states=frozenset({RunState.BLOCKED}), type="type.1"), "runs_rare"),
    "what runs": (Query(states=frozenset({RunState.RUNNING})), "runs_held"),
    "a type": (Query(type="type.1", limit=20), "runs_listed"),
    "what was deleted": (Query(is_deleted=True, limit=20), "runs_deleted"),
    "a page of a type": (Query(type="type.1", before=(1_010_000, "a"), limit=20), "runs_listed"),
    "children": (Query(parent_id="0000000000aa"), "runs_parent"),
    "a tag": (Query(tags={"customer": "100"}), "runs_tags"),
    "a key": (Query(key="key 3"), "runs_key"),
    "the beginning of an id": (Query(id_prefix="00000000aa"), "runs_pkey"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_read_from_its_index(full: Place, name: str) -> None:
    query, index = LISTS[name]

    found = plan(full, *reads.list_statement(query))

    assert index in indexes(found), found
    assert scans(found) == [], found


IN_ORDER = ["everything", "the next page", "a rare state", "a type", "a page of a type"]


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_list_sorts_only_the_rows_it_shows(full: Place, name: str) -> None:
    text, values = reads.list_statement(LISTS[name][0])

    done = full.connection.execute(b"explain (analyze, costs off, format json) " + qualified(text, full.schema), values)
    (((told,),),) = done.fetchall()

    assert max(rows_sorted(told["Plan"]), default=0) <= 20 * 100


def rows_sorted(node: dict[str, Any]) -> Iterator[int]:
    """Return the number of rows that each sort of a plan receives."""
    parts = node.get("Plans", [])
    if node["Node Type"] == "Sort":
        yield max(part["Actual Rows"] * part["Actual Loops"] for part in parts)
    for part in parts:
        yield from rows_sorted(part)


AGES = {"now": 100, "shortest": 10, "taken_until": 50, "limit": 20}
LOOKED_AT = {"topics": ["topic.1"], "kept": [10], "limit": 20}
OF_TOPIC = {"topic": "topic.1", "after": 5, "limit": 10}

READS: dict[str, tuple[str, Any, str]] = {
    "get": (reads._GET, ("a",), "runs_pkey"),
    "find": (reads._FIND, ("key 3",), "runs_key"),
    "history": (reads._HISTORY, ("a",), "entries_pkey"),
    "audit": (reads._AUDIT, {"run_id": "a", "routine": ["claimed"], "kept": 100}, "audits_run"),
    "ends": (reads._ENDED, ('["a", "b"]',), "runs_pkey"),
    "few ends": (reads._FEW_ENDED, ('["a", "b"]',), "runs_pkey"),
    "replies": (reads._REPLIES, (["a"], ["b"]), "replies_pkey"),
    "letters": (reads._LETTERS, {"after": 5, "limit": 10}, "letters_pkey"),
    "letters of a topic": (reads._LETTERS_OF_TOPIC, OF_TOPIC, "letters_topic"),
    "letters of a family": (reads._LETTERS_OF_FAMILY, OF_TOPIC, "letters_pkey"),
    "requests": (sql_requests._TAKE, (100,), "requests_pkey"),
    "expired events": (pruning._EXPIRED, AGES, "events_age"),
    "taken events": (pruning._EXPIRED, AGES, "events_taken"),
    "topics of new events": (pruning._TO_LOOK_AT, (19_000, 19_100), "events_pkey"),
    "topics of pending events": (pruning._TO_LOOK_AT, (19_000, 19_100), "events_pending"),
    "too many open events": (pruning._TOO_MANY, LOOKED_AT, "events_open"),
    "too many pending events": (
        pruning._TOO_MANY,
        LOOKED_AT,
        "events_pending",
    ),
    "events to remove": (
        pruning._REMOVE,
        {"numbers": [1, 2], "states": ["open", "open"], "now": 1, "reason": "expired", "is_dry_run": False},
        "events_pkey",
    ),
    "oldest run of a flow": (pruning._OLDEST_RUN, ("type.1",), "runs_listed"),
    "old receipts": (pruning._DROP_RECEIPTS, (50, 20), "receipts_age"),
    "old replies": (pruning._DROP_REPLIES, (50, 20), "replies_age"),
}


@pytest.mark.parametrize("name", READS)
def test_a_statement_finds_its_few_rows_by_an_index(full: Place, name: str) -> None:
    text, values, index = READS[name]

    found = plan(full, text, values)

    assert index in indexes(found), found
    assert scans(found) == [], found


IDS = [f"{number:012x}" for number in range(1, 201)]

DROPPED = ("runs_pkey", "entries_pkey", "audits_run", "receipts_pkey", "replies_pkey", "inbox_pkey", "waits_pkey")

ENDED = {"types": ["type.1", "type.2"], "until": [2_000_990, 2_000_990]}

PURGES: dict[str, tuple[str, Any, str]] = {
    "runs at their instant": (pruning._DUE, {**ENDED, "now": 3_001_000, "limit": 20}, "runs_purge"),
    "runs of types": (pruning._DUE, {**ENDED, "now": 2_001_000, "limit": 20}, "runs_ended"),
    "about runs": (pruning._ABOUT, {"ids": IDS, "room": 2_000}, "runs_pkey"),
    "runs to lock": (pruning._LOCK, {"ids": IDS, "tokens": [1] * len(IDS)}, "runs_pkey"),
    "runs for later": (pruning._DEFER, (1, IDS), "runs_pkey"),
    **{f"drop from {index}": (pruning._DROP, {"ids": IDS}, index) for index in DROPPED},
    **{drop: (drop, (IDS[0], 9), "audits_run" if "audits" in drop else "_pkey") for drop in pruning._DROPS_SOME},
}


@pytest.mark.parametrize("name", PURGES)
def test_a_batch_of_runs_is_pruned_by_indexes(full: Place, name: str) -> None:
    text, values, index = PURGES[name]

    with full.connection.transaction(force_rollback=True):
        full.execute(pruning._PLANNING)
        found = plan(full, text, values)

    assert any(one.endswith(index) for one in indexes(found)), found
    assert scans(found) == [], found


def test_a_query_on_the_producer_view_costs_the_same_as_on_the_table(full: Place) -> None:
    by_id = plan(full, "select state, result from {schema}.intent where id = 'a'", None)
    by_key = plan(full, "select state, result from {schema}.intent where idempotency_key = 'key 3'", None)

    assert (indexes(by_id), indexes(by_key)) == ({"runs_pkey"}, {"runs_key"})


TOUCHED = """
    select coalesce(sum(seq_scan), 0)::bigint, coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)::bigint
    from pg_stat_xact_user_tables
    where schemaname = %s
      and relname <> 'topics'
"""  # a small table that may be scanned


def touched(place: Place, work: Callable[[], object]) -> tuple[int, int]:
    """Return the number of tables that a call scans, and the number of rows it reads."""
    with place.connection.transaction(force_rollback=True):
        before = place.execute(TOUCHED, place.schema).fetchone()
        work()
        after = place.execute(TOUCHED, place.schema).fetchone()
    assert before is not None
    assert after is not None
    return after[0] - before[0], after[1] - before[1]


def a_claim(limit: int = 5, types: Sequence[str] = ("type.1", "type.3", "type.19")) -> ClaimRequest:
    return ClaimRequest(id="c", worker="w1", types=tuple(types), limit=limit, lease=SECOND, python="3.11.0")


def test_a_claim_reads_only_due_rows_however_many_runs_sleep_or_have_ended(full: Place) -> None:
    def claim() -> None:
        claimed = run_script(full.connection, claims.claim(Calls(full.schema), a_claim(), None))
        assert len(claimed.leases) == 3

    scanned, rows = touched(full, claim)

    assert scanned == 0
    assert rows < 200


def test_a_claim_of_a_thousand_types_seeks_only_existing_ones(full: Place) -> None:
    offered = [f"offered.{number}" for number in range(500)] + [f"type.0.{number}" for number in range(500)]

    def seeks(types: Sequence[str]) -> int:
        request = a_claim(types=types)
        return seeks_of(full, lambda: run_script(full.connection, claims.claim(Calls(full.schema), request, None)))

    nothing, few = seeks(["offered.0"]), seeks(["type.1"])

    assert seeks(offered) < nothing + 5
    assert seeks([*offered, "type.1"]) < few + 10


SEEKS = """
    select coalesce(sum(idx_scan), 0)::bigint
    from pg_stat_xact_user_tables
    where schemaname = %s
"""


def seeks_of(place: Place, work: Callable[[], object]) -> int:
    """Return the number of index lookups of a call."""
    with place.connection.transaction(force_rollback=True):
        (before,) = place.all(SEEKS, place.schema)
        work()
        (after,) = place.all(SEEKS, place.schema)
    return int(after - before)


HEADS = "select id from heads_v1(array['type.1', 'type.3'], now(), 10, 56, 1)"


def test_the_function_for_lanes_is_inlined_and_reads_them_in_order(full: Place) -> None:
    """Otherwise they would be planned again at each claim."""
    with full.connection.transaction(force_rollback=True):
        settings = full.all("select unnest(proconfig) from pg_proc where proname = 'claim_v1'")
        for name, _, value in (setting.partition("=") for setting in settings):
            full.execute("select set_config(%s, %s, true)", name, value)
        found = plan(full, HEADS, None)

    assert indexes(found) == {"runs_queue", "runs_held", "runs_crashed"}, found
    assert scans(found) == [], found
    assert not re.search(r"Filter: .*CASE", found), found
    assert found.count("Sort Key:") == 2, found  # of the heads of lanes, and of suspects


def test_the_function_for_instants_is_inlined(full: Place) -> None:
    """Otherwise each of them would be planned again at each claim."""
    lines = full.all(
        "explain verbose select {schema}.micros(ready_at), {schema}.instant(created_at) from {schema}.runs"
    )

    (output,) = [line for line in lines if "Output:" in line]
    assert "micros(" not in output
    assert "instant(" not in output


def test_a_query_of_the_backlog_reads_only_due_or_held_rows(full: Place) -> None:
    def look() -> None:
        assert sum(one.count for one in reads.backlog(full.connection, full.schema, None)) == 10
        assert reads.held(full.connection, full.schema) == {"w": 10}

    scanned, rows = touched(full, look)

    assert scanned == 0
    assert rows < 200


def test_a_claim_that_finds_nothing_reads_almost_nothing(full: Place) -> None:
    def claim() -> None:
        claimed = run_script(full.connection, claims.claim(Calls(full.schema), a_claim(types=["type.0"]), None))
        assert claimed.leases == ()

    scanned, rows = touched(full, claim)

    assert scanned == 0
    assert rows < 20


PARKED = """
    with parked as (
        update {schema}.runs
        set ready_at = null
        where type = 'type.1' and state = 'suspended'
        returning id
    )
    insert into {schema}.waits (run_id, place, location, kind, since, names, after, count, topic)
    select id, 1, '~limit', 'slot', 1, '["type:type.1"]', 300, 0, 'type:type.1'
    from parked
"""
HELD = """
    with held as (
        update {schema}.runs
        set worker = 'w', token = 7, state = 'running',
            ready_at = now() + interval '1 hour',
            slots = '["type:type.1"]'
        where id = (select max(id) from {schema}.runs where type = 'type.1' and state = 'pending')
        returning id
    ),
    taken as (
        insert into {schema}.slots
        select 'type:type.1', id
        from held
    )
    select id
    from held
"""


def limit(place: Place) -> str:
    """Let about a thousand runs wait for a slot that one run has. Return the id of that run."""
    place.execute("insert into {schema}.types (name, concurrency) values ('type.1', 1)")
    place.execute(PARKED)
    ((run_id,),) = place.execute(HELD).fetchall()
    return str(run_id)


def test_a_claim_of_a_limited_type_reads_only_due_rows_however_many_wait_for_a_slot(full: Place) -> None:
    calls = Calls(full.schema)

    def claim() -> None:
        found = run_script(full.connection, claims.claim(calls, a_claim(), None))
        claimed = found.claimed or run_script(
            full.connection, claims.claim_limited(calls, a_claim(), found, None, PART)
        )
        assert {lease.run.type for lease in claimed.leases} <= {"type.3", "type.19"}

    with full.connection.transaction(force_rollback=True):
        limit(full)
        parking = touched(full, claim)
        claim()
        nothing_due = touched(full, claim)

    assert (parking[0], nothing_due[0]) == (0, 0)
    assert parking[1] < 300
    assert nothing_due[1] < 100


LATER = """
    with later as (
        update {schema}.runs
        set token = 0
        where id in (select run_id from {schema}.waits where topic = 'type:type.1' order by run_id desc limit 100)
        returning id
    )
    update {schema}.waits
    set after = 302
    from later
    where run_id = later.id and topic is not null
"""


@pytest.mark.parametrize("others", ["", LATER], ids=["one rank", "several ranks"])
def test_giving_a_slot_back_reads_only_the_first_waiting_runs(full: Place, others: str) -> None:
    writing = Writing(Calls(full.schema), Held(), at=None, now=1)

    with full.connection.transaction(force_rollback=True):
        run_id = limit(full)
        if others:
            full.execute(others)
        end = Checkpoint(run_id=run_id, token=7, seen=0, next=Finish(state=RunState.SUCCEEDED))

        def give_back() -> None:
            (verdict,) = run_script(full.connection, writing.decide([end], PART)).verdicts
            assert not verdict.is_lost

        scanned, rows = touched(full, give_back)

    assert scanned == 0
    assert rows < 200
