"""Producers in plain SQL: requests that any psql user can make, and refusals with a reason."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest

from holdfast import Context, Holdfast
from holdfast.core import audit, rules
from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, Cancellation, EmitEvents, SendMessages
from holdfast.core.model import Event, MessageToRun, Run
from holdfast.core.states import RunState
from holdfast.stores.postgres import claims, reads, sql_requests
from holdfast.stores.postgres.scripts import Calls, run_script
from holdfast.stores.postgres.sql_requests import RequestedCommand
from holdfast.testing.patience import GUARD_SECONDS
from tests.postgres import find_installation
from tests.stage import complaints
from tests.unit.stores.postgres.database import Place

INSERT = """
    insert into holdfast.intent (type, payload, idempotency_key)
    values ('content.thumbnail.v1', '{"content_id": "c_123", "width": 300}', 'content:c_123:300')
    on conflict do nothing
    returning id
"""


def psql(place: Place, statement: str) -> str:
    """Return the output of psql, or its error."""
    command = [str(find_installation().psql), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]
    command += ["--set", "ON_ERROR_STOP=1", "--command", statement, place.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD_SECONDS, check=False)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.partition("CONTEXT:")[0].strip()


def run(place: Place, run_id: str) -> Run:
    found = reads.get(place.connection, place.schema, run_id, None)
    assert found is not None
    return found.run


def user_of(place: Place) -> str:
    (user,) = place.all("select session_user")
    return str(user)


def taken(place: Place) -> list[RequestedCommand]:
    with place.connection.transaction():
        found = sql_requests.take(place.connection, place.schema, 100)
    return [one.command for one in found if one.command is not None]


def a_started_run(place: Place, run_id: str = "r") -> str:
    place.execute("insert into {schema}.intent (id, type) values (%s, 'shop')", run_id)
    place.execute("update {schema}.runs set token = 3, state = 'suspended', ready_at = null where id = %s", run_id)
    return run_id


def claimed_of(place: Place, type: str, limit: int = 5) -> list[str]:
    request = ClaimRequest(
        id=str(uuid4()), worker="w", types=(type,), limit=limit, lease=SECOND, python="3.11.0", may_suspect=True
    )
    claimed = run_script(place.connection, claims.claim_again(Calls(place.schema), request, None))
    return [lease.run.id for lease in claimed.leases]


def two_of_which_one_is_parked(place: Place) -> None:
    """Create two runs of a type with one slot: `first` has it, `second` waits."""
    place.execute("insert into {schema}.types (name, concurrency) values ('shop', 1)")
    place.execute("insert into {schema}.intent (id, type, run_at) values ('first', 'shop', '2024-01-01')")
    place.execute("insert into {schema}.intent (id, type) values ('second', 'shop')")
    assert claimed_of(place, "shop") == ["first"]


# Starting


def test_an_inserted_intent_is_a_run_like_any_other(place: Place) -> None:
    run_id = psql(place, INSERT)

    found = run(place, run_id)
    assert (found.type, found.state, found.key) == ("content.thumbnail.v1", RunState.PENDING, "content:c_123:300")
    assert (found.priority, found.token, found.tags) == (100, 0, {})
    assert msgspec.json.decode(found.payload) == {"content_id": "c_123", "width": 300}
    assert found.ready_at is not None
    assert found.start_at == found.ready_at
    assert abs(found.ready_at - found.created_at) < 1_000_000


def test_an_inserted_intent_is_claimed_like_any_other(place: Place) -> None:
    run_id = psql(place, INSERT)
    request = ClaimRequest(
        id="c", worker="w", types=("content.thumbnail.v1",), limit=5, lease=SECOND, python="3.11.0", may_suspect=True
    )

    claimed = run_script(place.connection, claims.claim_again(Calls(place.schema), request, None))

    assert [(lease.run.id, lease.run.token, lease.entries) for lease in claimed.leases] == [(run_id, 1, ())]


def test_a_second_insert_with_the_same_key_does_nothing(place: Place) -> None:
    first, second = psql(place, INSERT), psql(place, INSERT)

    assert first
    assert second == ""
    assert place.all("select count(*) from {schema}.runs") == [1]


def test_the_key_may_be_named_as_the_conflict_target(place: Place) -> None:
    named = INSERT.replace("conflict", "conflict (idempotency_key) where idempotency_key is not null")

    assert psql(place, INSERT)
    assert psql(place, named) == ""


def test_without_on_conflict_a_second_key_is_an_error_that_names_it(place: Place) -> None:
    psql(place, INSERT)

    assert "Key (key)=(content:c_123:300) already exists" in psql(place, INSERT.replace("on conflict do nothing", ""))


def test_priority_time_tags_and_id_may_be_given(place: Place) -> None:
    psql(
        place,
        """
        insert into holdfast.intent (id, type, payload, priority, run_at, tags)
        select 'mine', 'shop', json_build_object('a', 1), 5, '2031-01-01T00:00:00.123457Z', '{"customer": "c_1"}'
        """,
    )

    found = run(place, "mine")
    assert (found.priority, found.tags, found.payload) == (5, {"customer": "c_1"}, '{"a" : 1}')
    assert found.ready_at == found.start_at == 1_924_992_000_123_457


def test_an_intent_that_waits_for_a_slot_is_visible_like_any_other(place: Place) -> None:
    two_of_which_one_is_parked(place)

    assert place.all("select id, state, run_at is null from {schema}.intent order by id") == [
        ("first", "running", False),
        ("second", "pending", True),
    ]


def test_many_are_inserted_at_once_in_the_producers_own_transaction(place: Place) -> None:
    insert = "insert into holdfast.intent (type) select 'shop' from generate_series(1, 3)"

    psql(place, f"begin; {insert}; rollback")
    psql(place, f"begin; {insert}; commit")

    assert place.all("select count(*) from {schema}.runs") == [3]


REFUSED = {
    "(type, payload) values ('a', '[1]')": "payload '[1]': it is a JSON object",
    "(type, payload) values ('a', 'oops')": "payload 'oops': it is not JSON",
    "(type, payload) values ('a', repeat(' ', 3000000))": "the limit is 2 MiB",
    "(type) values ('')": "type '': it has 1 to 200 characters",
    "(type) values ('a b')": "type 'a b': it has no blanks",
    "(type) values ('~a')": "type '~a'",
    "(type) values ('a.*')": "type 'a.*'",
    "(type, priority) values ('a', 256)": "priority 256: it is a number from 0 (first) to 255 (last)",
    "(type, priority) values ('a', -1)": "priority -1",
    "(type, tags) values ('a', '{\"n\": 1}')": 'tags {"n": 1}: they are a JSON object of short strings',
    "(type, tags) values ('a', '[]')": "tags []",
    "(type, run_at) values ('a', null)": "run_at null: it is an instant in the years 1 to 9999; leave it out",
    "(type, run_at) values ('a', 'infinity')": "run_at infinity",
    "(type, idempotency_key) values ('a', '')": "idempotency_key '': it has 1 to 500",
    "(type, id) values ('a', '')": "id '': it has 1 to 200",
    "(payload) values ('{}')": "type null: it has 1 to 200 characters",
    "(type, state) values ('a', 'succeeded')": 'cannot insert into column "state"',
    "(type, result) values ('a', '1')": 'cannot insert into column "result"',
}


def test_an_impossible_intent_is_refused_with_the_reason(place: Place) -> None:
    for values, reason in REFUSED.items():
        with pytest.raises(psycopg.Error) as refused:
            place.execute("insert into {schema}.intent " + values)
        assert reason in str(refused.value), values
    assert place.all("select count(*) from {schema}.runs") == [0]


def test_values_that_python_accepts_are_visible_through_the_view(place: Place) -> None:
    place.execute(
        "insert into {schema}.runs (id, type, start_at, payload, key, tags) values (%s, %s, 0, %s, %s, %s)",
        "ü 'x'",
        "ä;{$}%",
        '{"a": "\\u0000"}',
        "k" * 500,
        '{"it\'s": "100 %"}',
    )
    place.execute("insert into {schema}.runs (type, start_at, ready_at, parent_id) values ('child', 0, null, 'r')")

    assert place.all("select count(*) from {schema}.intent") == [2]


def test_a_producer_sees_the_state_of_its_run(place: Place) -> None:
    psql(place, INSERT)
    place.execute("update {schema}.runs set token = 1, state = 'succeeded', result = '[1]', ready_at = null")

    assert psql(place, "select type, state, result from holdfast.intent") == "content.thumbnail.v1|succeeded|[1]"


# Permissions


@pytest.fixture
def producer(place: Place) -> Iterator[str]:
    """The name of a user who may only use the schema."""
    role = f"producer_{uuid4().hex[:8]}"
    place.execute(f"create role {role}")
    place.execute(f"grant usage on schema {{schema}} to {role}")
    yield role
    place.execute(f"drop owned by {role}")
    place.execute(f"drop role {role}")


def test_a_producer_needs_only_the_view_to_start_runs(place: Place, producer: str) -> None:
    place.execute(f"grant select, insert on {{schema}}.intent to {producer}")

    made = psql(place, f"set session authorization {producer}; {INSERT}")

    assert run(place, made).state is RunState.PENDING
    assert "permission denied for table runs" in psql(
        place, f"set session authorization {producer}; table holdfast.runs"
    )


CALLS = {"send": "('r', 'go', id => 'm')", "emit": "('t', id => 'e')", "cancel": "('r')"}


def test_a_producer_may_call_granted_functions_and_needs_no_table(place: Place, producer: str) -> None:
    a_started_run(place)
    for name, arguments in CALLS.items():
        call = f"set session authorization {producer}; select holdfast.{name}{arguments}"
        assert f"permission denied for function {name}" in psql(place, call)
        place.execute(f"grant execute on function {{schema}}.{name} to {producer}")
        assert psql(place, call) in ("m", "e", "t")

    assert len(taken(place)) == 3
    assert psql(place, f"set session authorization {producer}; select holdfast.notify()") == ""
    for table in ("requests", "runs", "audits"):
        assert "permission denied" in psql(place, f"set session authorization {producer}; table holdfast.{table}")


def test_a_request_records_the_session_user(place: Place, producer: str) -> None:
    """The functions run with the rights of the schema's owner, who is not the caller."""
    a_started_run(place)
    place.execute(f"grant execute on all functions in schema {{schema}} to {producer}")

    for name, arguments in CALLS.items():
        psql(place, f"set session authorization {producer}; select holdfast.{name}{arguments}")

    assert place.all("select by from {schema}.requests") == [f"sql:{producer}"] * 3


def test_a_producer_can_cancel_a_run_that_has_not_started(place: Place, producer: str) -> None:
    run_id = psql(place, INSERT)
    place.execute(f"grant execute on function {{schema}}.cancel to {producer}")

    assert psql(place, f"set session authorization {producer}; select holdfast.cancel('{run_id}')") == "t"

    assert run(place, run_id).state is RunState.CANCELLED


def test_a_producer_cannot_write_requests_directly(place: Place, producer: str) -> None:
    place.execute(f"grant execute on all functions in schema {{schema}} to {producer}")
    forged = "insert into holdfast.requests (body) values ('{}')"

    assert "permission denied for table requests" in psql(place, f"set session authorization {producer}; {forged}")


def test_tables_of_a_producer_do_not_shadow_those_of_holdfast(place: Place, producer: str) -> None:
    place.execute(f"grant execute on function {{schema}}.emit to {producer}")
    false = "create temp table requests (body text)"

    psql(place, f"set session authorization {producer}; {false}; set search_path = pg_temp; select holdfast.emit('t')")

    assert len(taken(place)) == 1


# Cancelling


def test_an_unclaimed_run_is_cancelled_at_once_by_the_rules(place: Place) -> None:
    run_id = psql(place, INSERT)
    before = run(place, run_id)

    assert psql(place, f"select holdfast.cancel('{run_id}', 'not wanted')") == "t"

    after = run(place, run_id)
    assert after.finished_at is not None
    assert after == msgspec.structs.replace(
        rules.cancelled(before, "not wanted", after.finished_at), start_at=after.start_at
    )
    (fact,) = reads.audit(place.connection, place.schema, run_id)
    why = Cancellation(reason="not wanted", request=str(fact.data[audit.REQUEST]), by=f"sql:{user_of(place)}")
    assert fact == audit.of_cancel(after, why, after.finished_at)
    assert taken(place) == []


def test_a_run_that_has_started_is_left_for_a_worker_to_cancel(place: Place) -> None:
    run_id = a_started_run(place)

    assert psql(place, f"select holdfast.cancel('{run_id}', 'not ''wanted''')") == "t"

    (request,) = taken(place)
    assert isinstance(request, Cancel)
    assert (request.run_id, request.reason, request.force) == (run_id, "not 'wanted'", False)
    assert request.id
    assert run(place, run_id).state is RunState.SUSPENDED


def test_a_run_with_dependents_is_left_for_a_worker_to_cancel(place: Place) -> None:
    place.many(
        "insert into {schema}.runs (id, type, arrivals, parent_location, state) values (%s, 'shop', %s, %s, %s)",
        [("has mail", 1, None, "pending"), ("is a child", 0, "c", "pending"), ("is paused", 0, None, "paused")],
    )

    assert place.all("select {schema}.cancel(id) from {schema}.runs") == [True, True, True]
    assert {one.run_id for one in taken(place) if isinstance(one, Cancel)} == {
        "has mail",
        "is a child",
        "is paused",
    }


def test_cancelling_an_ended_run_does_nothing_and_an_unknown_one_is_an_error(place: Place) -> None:
    run_id = psql(place, INSERT)
    psql(place, f"select holdfast.cancel('{run_id}')")

    assert psql(place, f"select holdfast.cancel('{run_id}')") == "f"
    assert psql(place, "select holdfast.cancel('nobody')") == "ERROR:  there is no run 'nobody'"
    assert taken(place) == []


def test_a_run_that_waits_for_a_slot_is_left_for_a_worker_who_removes_it_from_the_queue(place: Place) -> None:
    two_of_which_one_is_parked(place)

    assert psql(place, "select holdfast.cancel('second')") == "t"

    assert run(place, "second").state is RunState.PENDING
    sql_requests.carry_out(place.connection, Calls(place.schema), None)
    assert run(place, "second").state is RunState.CANCELLED
    assert place.all("select count(*) from {schema}.waits") == [0]


def test_a_run_that_has_a_slot_is_left_for_a_worker_who_hands_the_slot_on(place: Place) -> None:
    two_of_which_one_is_parked(place)
    place.execute("insert into {schema}.intent (id, type) values ('third', 'shop')")
    assert claimed_of(place, "shop") == []
    psql(place, "select holdfast.cancel('first')")
    sql_requests.carry_out(place.connection, Calls(place.schema), None)
    assert place.all("select run_id from {schema}.slots") == ["second"]

    assert psql(place, "select holdfast.cancel('second')") == "t"
    sql_requests.carry_out(place.connection, Calls(place.schema), None)

    assert place.all("select run_id from {schema}.slots") == ["third"]
    assert claimed_of(place, "shop") == ["third"]


# Sending and emitting


def test_a_message_is_left_for_a_worker_to_deliver(place: Place) -> None:
    run_id = a_started_run(place)

    given = psql(place, f"""select holdfast.send('{run_id}', 'approve', '{{"by": "\\u0000 é"}}', 'm1')""")
    made = psql(place, f"select holdfast.send('{run_id}', 'approve')")

    by = f"sql:{user_of(place)}"
    assert given == "m1"
    assert taken(place) == [
        SendMessages(
            messages=(MessageToRun(id="m1", name="approve", payload='{"by": "\\u0000 é"}', run_id=run_id),), by=by
        ),
        SendMessages(messages=(MessageToRun(id=made, name="approve", payload="null", run_id=run_id),), by=by),
    ]


def test_an_event_is_left_for_a_worker_to_publish(place: Place) -> None:
    made = psql(place, "select holdfast.emit('orders', '{\"n\": 1}')")
    psql(place, "select holdfast.emit(topic => 'orders', id => 'e1', payload => json_build_array(1))")

    by = f"sql:{user_of(place)}"
    assert taken(place) == [
        EmitEvents(events=(Event(id=made, topic="orders", payload='{"n": 1}'),), by=by),
        EmitEvents(events=(Event(id="e1", topic="orders", payload="[1]"),), by=by),
    ]


REFUSED_CALLS = {
    "send('nobody', 'go')": "there is no run 'nobody'",
    "send(null, 'go')": "there is no run null",
    "send('r', '')": "name '': it has 1 to 200",
    "send('r', 'go', 'oops')": "invalid input syntax for type json",
    "send('r', 'go', id => '')": "id '': it has 1 to 200",
    "cancel('r', repeat('x', 3000000))": "reason has 3000002 bytes; the limit is 2 MiB",
    "emit('')": "topic '': it has 1 to 200",
    "emit(null)": "topic null",
    "emit('t', to_json(repeat('x', 3000000)))": "the limit is 2 MiB",
}


def test_an_impossible_call_is_refused_with_the_reason(place: Place) -> None:
    a_started_run(place)

    for call, reason in REFUSED_CALLS.items():
        with pytest.raises(psycopg.Error) as refused:
            place.execute("select {schema}." + call)
        assert reason in str(refused.value), call
    assert taken(place) == []


def test_a_message_to_a_run_that_has_ended_is_refused(place: Place) -> None:
    run_id = psql(place, INSERT)
    psql(place, f"select holdfast.cancel('{run_id}')")

    refused = psql(place, f"select holdfast.send('{run_id}', 'go')")

    assert refused == f"ERROR:  run '{run_id}' has ended (cancelled) and takes no more messages"


def test_a_request_is_rolled_back_with_the_transaction_of_the_producer(place: Place) -> None:
    run_id = a_started_run(place)

    psql(place, f"begin; select holdfast.send('{run_id}', 'go'), holdfast.cancel('{run_id}'); rollback")

    assert taken(place) == []


# Notifying workers


@pytest.mark.parametrize(
    ("call", "types"),
    [("notify()", [""]), ("notify('shop')", ["shop"]), ("send('r', 'go')", ["shop"]), ("emit('t')", [""])],
)
def test_workers_that_listen_are_notified_at_once(place: Place, call: str, types: list[str]) -> None:
    a_started_run(place)
    with place.again() as listener:
        listener.execute("listen holdfast")
        place.execute("select {schema}." + call)

        (told,) = listener.connection.notifies(timeout=GUARD_SECONDS, stop_after=1)

    assert msgspec.json.decode(told.payload) == ["", *types]


# Taking requests


def test_requests_are_taken_oldest_first_and_return_if_the_taker_fails(place: Place) -> None:
    for number in range(5):
        place.execute("select {schema}.emit('t', %s::text::json)", str(number))

    with place.connection.transaction(force_rollback=True):
        sql_requests.take(place.connection, place.schema, 3)
    with place.connection.transaction():
        first = sql_requests.take(place.connection, place.schema, 3)

    assert [one.command.events[0].payload for one in first if isinstance(one.command, EmitEvents)] == ["0", "1", "2"]
    assert len(taken(place)) == 2


def test_only_one_worker_takes_requests_at_a_time(place: Place) -> None:
    place.execute("select {schema}.emit('t')")
    place.execute("select {schema}.emit('t')")

    with place.again() as other, other.connection.transaction():
        first = sql_requests.take(other.connection, other.schema, 1)
        meanwhile = taken(place)

    assert (len(first), meanwhile, len(taken(place))) == (1, [], 1)


def test_an_unknown_request_does_not_block_the_others(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for body in (
        '{"kind": "dance"}',
        "oops",
        '{"kind": "emit", "event": {"id": "e", "topic": "t", "payload": "no json"}}',
        '{"kind": "send", "message": {"id": "m", "name": "n", "payload": "{", "run_id": "r"}}',
    ):
        place.execute("insert into {schema}.requests (body) values (%s)", body)
    place.execute("select {schema}.emit('t')")

    assert len(taken(place)) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4
    assert place.all("select count(*) from {schema}.requests") == [0]


# Executing requests


NUL_IN_A_NAME = r'{"kind": "send", "message": {"id": "m1", "name": "a\u0000b", "payload": "1", "run_id": "r"}}'
NUL_IN_A_TOPIC = r'{"kind": "emit", "event": {"id": "e1", "topic": "a\u0000b", "payload": "1"}}'


@pytest.mark.parametrize("body", [NUL_IN_A_NAME, NUL_IN_A_TOPIC])
def test_an_impossible_request_is_dropped_and_the_others_are_executed(
    place: Place, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    run_id = a_started_run(place)
    place.execute("select {schema}.send(%s, 'before', id => 'b')", run_id)
    (number,) = place.all("insert into {schema}.requests (body) values (%s) returning number", body)
    place.execute("select {schema}.send(%s, 'after', id => 'a')", run_id)

    sql_requests.carry_out(place.connection, Calls(place.schema), None)

    assert place.all("select id from {schema}.message order by number") == ["b", "a"]
    assert place.all("select count(*) from {schema}.requests") == [0]
    (warning,) = complaints(caplog)
    assert warning.startswith(f"request {number} is dropped: it cannot be carried out")


def test_a_request_that_fails_for_a_while_is_left_for_later(place: Place) -> None:
    run_id = a_started_run(place)
    place.execute("select {schema}.send(%s, 'go')", run_id)
    place.execute("alter table {schema}.inbox rename to elsewhere")

    with pytest.raises(psycopg.errors.UndefinedTable):
        sql_requests.carry_out(place.connection, Calls(place.schema), None)

    assert place.all("select count(*) from {schema}.requests") == [1]


async def test_a_worker_is_not_idle_before_it_has_executed_the_requests(place: Place) -> None:
    hf = Holdfast(place.url)

    @hf.workflow("shop")
    async def shop(ctx: Context) -> Any:
        return await ctx.receive("go")

    async with hf:
        for number in range(20):
            run_id = f"r{number}"
            place.execute("insert into {schema}.intent (id, type) values (%s, 'shop')", run_id)
            psql(place, f"select holdfast.send('{run_id}', 'go', '{number}')")
            await hf.worker().run_until_idle()
            assert (await hf.run(run_id).info()).result == number


async def test_more_than_a_batch_of_requests_is_executed_before_a_worker_is_idle(place: Place) -> None:
    place.execute("insert into {schema}.intent (id, type) values ('r', 'shop')")
    count = 2 * sql_requests.BATCH_LIMIT + 1
    place.all("select {schema}.send('r', 'go', to_json(n)) from generate_series(1, %s) as n", count)

    hf = Holdfast(place.url)

    @hf.workflow("shop")
    async def shop(ctx: Context) -> int:
        return sum([await ctx.receive("go") for _ in range(count)])

    async with hf:
        await hf.worker().run_until_idle()
        assert (await hf.run("r").info()).result == count * (count + 1) // 2
