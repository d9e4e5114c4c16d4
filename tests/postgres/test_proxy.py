"""The fault proxy in front of Postgres: connections cut exactly around a commit, in all variants of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.postgres import PostgresProxy

Connection = psycopg.Connection[Any]

SETUP = """
create table notes (number int primary key);
create function note(number int) returns int language sql as 'insert into notes values (number) returning number';
"""


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[PostgresProxy]:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(SETUP)
    with PostgresProxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: PostgresProxy) -> Iterator[Connection]:
    with psycopg.connect(proxy.url, autocommit=True) as client:
        yield client


@pytest.fixture
def noted(postgres_url: str) -> Callable[[], list[int]]:
    """Return the committed rows, read without the proxy."""

    def noted() -> list[int]:
        with psycopg.connect(postgres_url) as connection:
            return [number for (number,) in connection.execute("select number from notes order by 1")]

    return noted


def _simply(client: Connection, number: int) -> None:
    client.execute(f"select note({number})")


def _with_parameters(client: Connection, number: int) -> None:
    client.execute("select note(%s)", [number], prepare=False)


def _prepared(client: Connection, number: int) -> None:
    client.execute("select note(%s)", [number], prepare=True)


def _in_a_pipeline(client: Connection, number: int) -> None:
    with client.pipeline():
        client.execute("select note(%s)", [number])


def _in_a_transaction(client: Connection, *numbers: int) -> None:
    with client.transaction():
        for number in numbers:
            _with_parameters(client, number)


WAYS = [_simply, _with_parameters, _prepared, _in_a_pipeline]


@pytest.mark.parametrize("note", WAYS)
@pytest.mark.parametrize("before", [True, False])
def test_a_statement_is_cut_before_or_after_its_execution(
    proxy: PostgresProxy,
    client: Connection,
    noted: Callable[[], list[int]],
    note: Callable[[Connection, int], None],
    before: bool,
) -> None:
    note(client, 1)
    rule = proxy.cut_around_commit(r"note\(", before=before)

    with pytest.raises(psycopg.OperationalError):
        note(client, 2)

    rule.wait()
    assert rule.hits == 1
    assert noted() == ([1] if before else [1, 2])


@pytest.mark.parametrize("before", [True, False])
def test_a_transaction_is_cut_before_or_after_its_commit(
    proxy: PostgresProxy, client: Connection, noted: Callable[[], list[int]], before: bool
) -> None:
    proxy.cut_around_commit(before=before)

    with pytest.raises(psycopg.OperationalError):
        _in_a_transaction(client, 1, 2)

    assert noted() == ([] if before else [1, 2])


def test_a_commit_as_a_query_is_cut_too(
    proxy: PostgresProxy, client: Connection, noted: Callable[[], list[int]]
) -> None:
    proxy.cut_around_commit(before=False)
    client.execute("begin")
    _simply(client, 1)

    with pytest.raises(psycopg.OperationalError):
        client.execute("commit")

    assert noted() == [1]


def test_only_the_requested_number_of_commits_is_cut(
    proxy: PostgresProxy, client: Connection, noted: Callable[[], list[int]]
) -> None:
    rule = proxy.cut_around_commit(r"note\(", before=True, skip=1, count=2)
    _prepared(client, 1)

    for number in (2, 3):
        with psycopg.connect(proxy.url, autocommit=True) as other, pytest.raises(psycopg.OperationalError):
            _prepared(other, number)

    rule.wait()
    _prepared(client, 4)
    assert noted() == [1, 4]


def test_waiting_for_a_rule_without_a_match_times_out(proxy: PostgresProxy) -> None:
    rule = proxy.cut_around_commit(before=True)

    with pytest.raises(TimeoutError, match=r"1 commits are still to be cut after 0\.01 seconds"):
        rule.wait(0.01)


def test_a_function_may_choose_the_statement(
    proxy: PostgresProxy, client: Connection, noted: Callable[[], list[int]]
) -> None:
    proxy.cut_around_commit(lambda statement: statement.endswith("note(2)"), before=True)
    _simply(client, 1)

    with pytest.raises(psycopg.OperationalError):
        _simply(client, 2)

    assert noted() == [1]


def test_other_connections_are_not_affected(proxy: PostgresProxy, client: Connection) -> None:
    proxy.cut_around_commit(r"note\(", before=False)
    with psycopg.connect(proxy.url, autocommit=True) as other, pytest.raises(psycopg.OperationalError):
        _simply(other, 1)

    assert client.execute("select 1").fetchone() == (1,)


def test_earlier_answers_arrive(proxy: PostgresProxy, client: Connection) -> None:
    proxy.cut_around_commit(r"note\(", before=False)
    with suppress(psycopg.OperationalError), client.pipeline() as pipeline:
        early = client.execute("select 'early'")
        pipeline.sync()
        _with_parameters(client, 1)

    assert early.fetchall() == [("early",)]


def test_a_rule_ends_with_heal(proxy: PostgresProxy, client: Connection, noted: Callable[[], list[int]]) -> None:
    rule = proxy.cut_around_commit(r"note\(", before=True)

    proxy.heal()

    _simply(client, 1)
    assert (noted(), rule.hits) == ([1], 0)


def test_a_client_that_asks_for_encryption_continues_without(proxy: PostgresProxy) -> None:
    wishing = proxy.url.replace("sslmode=disable", "sslmode=prefer").replace("gssencmode=disable", "gssencmode=prefer")

    with psycopg.connect(wishing) as client:
        assert not client.pgconn.ssl_in_use


def test_a_large_statement_and_a_large_answer_pass(client: Connection) -> None:
    large = "x" * 3_000_000

    assert client.execute("select %s", [large]).fetchone() == (large,)


def test_a_cancel_request_passes(client: Connection) -> None:
    timer = threading.Timer(0.2, client.cancel_safe)
    timer.start()

    with pytest.raises(psycopg.errors.QueryCanceled):
        client.execute("select pg_sleep(20)")
    timer.join()
