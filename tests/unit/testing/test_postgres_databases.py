"""Databases for tests: each begins empty, whatever the one before has left."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from holdfast.testing.postgres import Databases

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


def test_databases_are_dropped_at_the_end(postgres_databases: Databases) -> None:
    with Databases(postgres_databases.url) as databases, databases.lend() as url:
        pass

    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
