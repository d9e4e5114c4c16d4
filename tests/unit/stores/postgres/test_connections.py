"""Connecting: settings of a session, refused servers, and timeouts everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
import pytest

from holdfast.core.errors import HoldfastError, SchemaOutOfDate, StoreUnavailable
from holdfast.stores.postgres import connections
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import (
    Connection,
    Connector,
    SessionLimits,
    Unanswered,
    connect,
    is_conflict,
    is_lost,
    is_timeout,
    unavailable,
)
from tests.postgres import PostgresProxy


def _with(url: str, **options: str) -> str:
    joint = "&" if "?" in url else "?"
    return url + joint + "&".join(f"{name}={value}" for name, value in options.items())


def _setting(connection: Connection, name: str) -> str:
    row = connection.execute("select current_setting(%s)", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def test_sessions_have_limits_and_a_name(postgres_url: str) -> None:
    with connect(
        PostgresAddress.of(postgres_url), SessionLimits(statement_seconds=3, lock_seconds=2, idle_seconds=4)
    ) as connection:
        assert _setting(connection, "statement_timeout") == "3s"
        assert _setting(connection, "lock_timeout") == "2s"
        assert _setting(connection, "idle_in_transaction_session_timeout") == "4s"
        assert _setting(connection, "jit") == "off"
        assert _setting(connection, "application_name") == "holdfast"
        assert connection.autocommit


def test_session_settings_of_the_url_win(postgres_url: str) -> None:
    url = _with(postgres_url, application_name="shop", options="-c%20lock_timeout%3D7s")

    with connect(PostgresAddress.of(url)) as connection:
        assert _setting(connection, "lock_timeout") == "7s"
        assert _setting(connection, "jit") == "off"
        assert _setting(connection, "application_name") == "shop"


def test_behind_a_pooler_nothing_is_set_and_nothing_prepared(postgres_url: str) -> None:
    with connect(PostgresAddress.of(_with(postgres_url, prepare="off"))) as connection:
        for _ in range(5):
            assert _setting(connection, "statement_timeout") == "0"
        assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
        assert _setting(connection, "application_name") == "holdfast"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_sessions_see_the_commits_of_others_whatever_the_default_isolation(
    postgres_url: str, observer: Connection, level: str
) -> None:
    given = f"-c%20default_transaction_isolation%3D{level.replace(' ', '%5C%20')}%20-c%20lock_timeout%3D7s"

    with _usual_level(observer, level), connect(PostgresAddress.of(_with(postgres_url, options=given))) as connection:
        assert _setting(connection, "transaction_isolation") == "read committed"
        assert _setting(connection, "lock_timeout") == "7s"


def test_where_the_isolation_cannot_be_set_another_level_is_refused(postgres_url: str, observer: Connection) -> None:
    address = PostgresAddress.of(_with(postgres_url, prepare="off"))
    connect(address).close()

    told = "at the isolation level 'repeatable read'.* run: alter role .* set default_transaction_isolation"
    with _usual_level(observer, "repeatable read"), pytest.raises(StoreUnavailable, match=told):
        connect(address)


@contextmanager
def _usual_level(observer: Connection, level: str) -> Iterator[None]:
    """Set the default isolation of transactions in the test's database."""
    database = observer.info.dbname
    observer.execute(f"alter database {database} set default_transaction_isolation = '{level}'".encode())
    yield
    observer.execute(f"alter database {database} reset default_transaction_isolation".encode())


def test_any_text_is_stored_and_read_unchanged(postgres_url: str) -> None:
    with connect(PostgresAddress.of(postgres_url)) as connection:
        assert connection.execute("select %s::text || 'é'", ("✓",)).fetchone() == ("✓é",)


def test_a_server_that_is_too_old_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "OLDEST_VERSION", 99)

    with pytest.raises(StoreUnavailable, match="holdfast needs 99 or newer: upgrade"):
        connect(PostgresAddress.of(postgres_url))


def test_a_session_that_cannot_write_is_refused(postgres_url: str) -> None:
    url = _with(postgres_url, options="-c%20default_transaction_read_only%3Don")

    with pytest.raises(StoreUnavailable, match="cannot be written: it is a standby, or was set read-only"):
        Connector(PostgresAddress.of(url)).connect()


def test_a_database_that_cannot_store_all_text_is_refused(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:  # without the time limit of a store's session
        name = f"{connection.info.dbname}_latin"
        connection.execute(f"create database {name} template template0 encoding 'LATIN1' locale 'C'")
        try:
            url = psycopg.conninfo.make_conninfo(PostgresAddress.of(postgres_url).conninfo, dbname=name)
            with pytest.raises(StoreUnavailable, match="LATIN1"):
                connect(PostgresAddress(conninfo=url, shown="the database"))
        finally:
            connection.execute(f"drop database {name}")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda parts: parts | {"dbname": "nowhere_at_all"}, "has no such database; create it"),
        (lambda parts: parts | {"user": "nobody_at_all"}, "rejects this user|refuses the password"),
        (lambda parts: parts | {"host": "127.0.0.1", "port": "1"}, "no server listens there"),
        (lambda parts: parts | {"host": "no-such-host.invalid"}, "the host name is unknown"),
    ],
)
def test_a_connection_that_fails_says_why_and_what_to_do(
    address: PostgresAddress, change: Callable[[dict[str, str]], dict[str, str]], told: str
) -> None:
    parts = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(address.conninfo).items()}
    wrong = PostgresAddress(
        conninfo=psycopg.conninfo.make_conninfo("", **change(parts)), shown="postgresql://the-database"
    )

    with pytest.raises(StoreUnavailable, match=told) as refused:
        Connector(wrong).connect()

    assert str(refused.value).startswith("postgresql://the-database ")


def test_a_wrong_password_is_named_but_not_shown() -> None:
    address = PostgresAddress.of("postgresql://ann:tr0ub4dor@db/shop")
    error = psycopg.OperationalError('FATAL: password authentication failed for user "ann" (not "tr0ub4dor")')

    told = unavailable(address, error)

    assert isinstance(told, StoreUnavailable)
    assert "refuses the password; check user and password" in str(told)
    assert "tr0ub4dor" not in str(told)


@pytest.mark.parametrize(
    ("statement", "kind", "told"),
    [
        ("select * from holdfast.runs", SchemaOutOfDate, "holdfast migrate"),
        ("select holdfast.claim()", SchemaOutOfDate, "holdfast migrate"),
        ("select missing()", SchemaOutOfDate, "holdfast migrate"),
        ("select pg_read_file('/etc/passwd')", StoreUnavailable, "grant execute on all functions in schema holdfast"),
        ("create schema mine", StoreUnavailable, "grant create on database .* to bystander"),
        ("select * from secret.things", StoreUnavailable, "grant usage on schema holdfast to bystander"),
        ("select * from things", StoreUnavailable, "grant select, insert, update, delete on all tables in schema"),
        ("drop table things", StoreUnavailable, "have the owner of the schema 'holdfast' do this"),
        ("select chr(0)", HoldfastError, "a value cannot be stored in Postgres"),
    ],
)
def test_an_error_of_the_server_has_advice(
    address: PostgresAddress, observer: Connection, statement: str, kind: type[HoldfastError], told: str
) -> None:
    role = f"bystander_{uuid4().hex}"  # roles belong to the whole server
    observer.execute(f"create role {role}")
    observer.execute("create schema secret")
    observer.execute("create table secret.things ()")
    observer.execute("create table things ()")
    bystander = PostgresAddress(conninfo=address.conninfo, shown=address.shown, user="bystander", database="shop")
    try:
        observer.execute(f"set role {role}")
        with pytest.raises(psycopg.Error) as raised:
            observer.execute(statement.encode())
    finally:
        observer.execute("reset role")
        observer.execute(f"drop owned by {role}")
        observer.execute(f"drop role {role}")

    error = unavailable(bystander, raised.value)

    assert isinstance(error, kind)
    assert not is_lost(raised.value)
    with pytest.raises(kind, match=told):
        raise error


def test_a_statement_that_takes_too_long_is_ended_and_its_setting_named(address: PostgresAddress) -> None:
    with (
        connect(address, SessionLimits(statement_seconds=0.2)) as connection,
        pytest.raises(psycopg.errors.QueryCanceled) as raised,
    ):
        connection.execute("select pg_sleep(20)")

    assert is_timeout(raised.value)
    assert "statement_timeout" in str(unavailable(address, raised.value))


def test_a_lock_that_is_not_granted_is_given_up_and_its_setting_named(
    address: PostgresAddress, observer: Connection
) -> None:
    observer.execute("create table things ()")
    with observer.transaction(), connect(address, SessionLimits(lock_seconds=0.2)) as connection:
        observer.execute("lock table things")
        with pytest.raises(psycopg.errors.LockNotAvailable) as raised:
            connection.execute("select * from things")

    assert is_timeout(raised.value)
    assert "lock_timeout" in str(unavailable(address, raised.value))


def test_a_server_that_does_not_answer_is_not_waited_for(far: PostgresAddress, proxy: PostgresProxy) -> None:
    connection = connect(far)
    connection.answer_seconds = 0.3
    proxy.black_hole()
    began = time.monotonic()

    with pytest.raises(Unanswered) as raised:
        connection.execute("select 1")

    assert time.monotonic() - began >= 0.3
    assert is_lost(raised.value)
    assert "does not answer" in str(unavailable(far, raised.value))
    connection.close()


@pytest.mark.parametrize(
    ("code", "lost", "conflict"),
    [
        ("57P01", True, False),
        ("57P03", True, False),
        ("08006", True, False),
        ("53300", True, False),
        ("25006", True, False),
        ("57014", True, False),
        ("55P03", True, False),
        ("40P01", False, True),
        ("40001", False, True),
        ("53100", False, False),
        ("23505", False, False),
    ],
)
def test_errors_are_classified_by_their_remedy(code: str, lost: bool, conflict: bool) -> None:
    error = psycopg.errors.lookup(code)("something")

    assert (is_lost(error), is_conflict(error)) == (lost, conflict)


def test_an_error_of_a_caller_is_left_alone(address: PostgresAddress) -> None:
    error = KeyError("theirs")

    assert unavailable(address, error) is error
    assert not is_lost(error)
