"""Databases for tests: each starts empty, or with an empty schema, whatever the previous test left."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.postgres import Databases

LITTER = """
create table public.litter (id int generated always as identity primary key);
create schema holdfast;
create type holdfast.mood as enum ('glad');
create table holdfast.runs (mood holdfast.mood, litter int references public.litter);
create function holdfast.claim() returns int language sql as 'select 1';
create view holdfast.run as select * from holdfast.runs;
"""

CONTENT = """
select nspname
from pg_namespace
where nspname not like 'pg\\_%' and nspname <> 'information_schema'
union all
select relname
from pg_class
where relnamespace = 'public'::regnamespace
"""

SCHEMA = """
select pronargs::text, prosrc
from pg_proc
where pronamespace = 'holdfast'::regnamespace
union all
select attrelid::regclass::text, attname
from pg_attribute
where attrelid in (select oid from pg_class where relnamespace = 'holdfast'::regnamespace)
union all
select 'trigger', tgname
from pg_trigger
union all
select name, value
from holdfast.meta
order by 1, 2
"""

END_OTHERS = """
select pg_terminate_backend(pid)
from pg_stat_activity
where datname = current_database()
  and pid <> pg_backend_pid()
"""


@pytest.fixture
def databases(postgres_databases: Databases) -> Iterator[Databases]:
    with Databases(postgres_databases.url) as databases:
        yield databases


def test_a_database_is_empty_whatever_was_left_in_it(databases: Databases) -> None:
    with databases.lend() as first, psycopg.connect(first) as connection:
        connection.execute(LITTER)

    with databases.lend() as second, psycopg.connect(second) as connection:
        assert second == first
        assert connection.execute(CONTENT).fetchall() == [("public",)]


def test_sessions_that_were_left_open_are_ended(databases: Databases) -> None:
    with databases.lend() as url:
        left = psycopg.connect(url)
        left.execute("create table locked (id int)")

    with pytest.raises(psycopg.OperationalError):
        left.execute("select 1")


def test_databases_lent_at_the_same_time_are_different(databases: Databases) -> None:
    with databases.lend() as one, databases.lend() as other:
        assert one != other


def test_a_migrated_database_has_the_schema_and_no_rows_whatever_was_left_in_it(databases: Databases) -> None:
    with databases.lend(is_migrated=True) as first, psycopg.connect(first) as connection:
        connection.execute("insert into holdfast.runs (type) values ('shop')")
        connection.execute("insert into holdfast.requests (body) values ('{}')")
        connection.execute("create table accounts (id int)")
        connection.execute("create schema mine create table accounts (id int)")

    with databases.lend(is_migrated=True) as second, psycopg.connect(second) as connection:
        assert second == first
        assert sorted(connection.execute(CONTENT).fetchall()) == [("holdfast",), ("public",)]
        assert connection.execute("select count(*) from holdfast.runs").fetchone() == (0,)
        number = connection.execute("insert into holdfast.requests (body) values ('{}') returning number")
        assert number.fetchone() == (1,)


@pytest.mark.parametrize(
    "change",
    [
        "drop table holdfast.waits cascade",
        "alter table holdfast.waits add column mood text",
        "create index waits_mood on holdfast.waits (kind)",
        "create or replace function holdfast.micros(moment timestamptz) returns bigint language sql as 'select 1'",
        "create trigger slow before update on holdfast.runs execute function suppress_redundant_updates_trigger()",
        "update holdfast.meta set value = '99'",
        "drop schema holdfast cascade",
    ],
)
def test_a_schema_that_was_changed_is_created_again(databases: Databases, change: str) -> None:
    with databases.lend(is_migrated=True) as url, psycopg.connect(url) as connection:
        before = connection.execute(SCHEMA).fetchall()
        connection.execute(change)
    with databases.lend(is_migrated=True) as url, psycopg.connect(url) as connection:
        after = connection.execute(SCHEMA).fetchall()

    assert after == before


def test_a_transaction_of_an_ended_session_is_invisible_to_the_next_test(databases: Databases) -> None:
    with databases.lend(is_migrated=True) as url:
        left = psycopg.connect(url)
        left.execute("insert into holdfast.runs (type) values ('shop')")

    with databases.lend(is_migrated=True) as url, psycopg.connect(url) as connection:
        assert connection.execute("select count(*) from holdfast.runs").fetchone() == (0,)
    with pytest.raises(psycopg.OperationalError):
        left.execute("select 1")


def test_a_database_is_cleaned_even_if_a_test_has_ended_all_sessions(databases: Databases) -> None:
    with databases.lend(is_migrated=True) as first, psycopg.connect(first) as connection:
        connection.execute(END_OTHERS)

    with databases.lend(is_migrated=True) as second:
        assert second == first


def test_databases_are_dropped_at_the_end(postgres_databases: Databases) -> None:
    with Databases(postgres_databases.url) as databases, databases.lend() as url:
        pass

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
