"""User functions in transactions of runs: changes to their session affect no other function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from psycopg.rows import dict_row

from holdfast import Context, Holdfast, Retry, StepFailed
from holdfast.stores.postgres import store as store_module

Function = Callable[[psycopg.Connection[Any]], Any]


@pytest_asyncio.fixture
async def hf(postgres_store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Holdfast]:
    """An application whose functions all use the same session."""
    monkeypatch.setattr(store_module, "TRANSACTORS", 1)
    async with Holdfast(postgres_store_url) as hf:
        yield hf


async def carried_out(hf: Holdfast, *functions: Function) -> list[Any]:
    """Return the results of functions, each executed in a transaction of one run."""

    @hf.workflow
    async def work(ctx: Context) -> list[Any]:
        results = []
        for number, function in enumerate(functions):
            try:
                results.append(await ctx.tx(f"{number}", function, retry=Retry(max_attempts=1)))
            except StepFailed as failure:
                results.append(failure.message)
        return results

    async with hf.worker():
        return list(await hf.execute(work))


def look(connection: psycopg.Connection[Any]) -> list[Any]:
    """Session state that a function may leave behind."""
    cursor = connection.execute(
        """
        select current_user = session_user,
            current_setting('search_path'),
            current_setting('statement_timeout'),
            current_setting('synchronous_commit'),
            to_regclass('pg_temp.scratch')::text,
            (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
            (select count(*) from pg_listening_channels())
        """
    )
    return list(cursor.fetchone() or ())


def make_dictionaries(connection: psycopg.Connection[Any]) -> None:
    connection.row_factory = dict_row
    connection.cursor_factory = psycopg.RawCursor


def make_a_mess(connection: psycopg.Connection[Any]) -> None:
    connection.execute("set search_path = nowhere")
    connection.execute("set statement_timeout = '1min'")
    connection.execute("set synchronous_commit = off")
    connection.execute("create temp table scratch (id int)")
    connection.execute("declare open cursor with hold for select * from scratch")
    connection.execute("select pg_advisory_lock(17)")
    connection.execute("listen gossip")


def make_a_mess_and_fail(connection: psycopg.Connection[Any]) -> None:
    make_a_mess(connection)
    raise LookupError("after all")


def make_a_mess_and_commit(connection: psycopg.Connection[Any]) -> None:
    make_a_mess(connection)
    connection.execute("commit")


@pytest.mark.parametrize("function", [make_dictionaries, make_a_mess, make_a_mess_and_fail, make_a_mess_and_commit])
async def test_a_session_is_restored_after_a_function(hf: Holdfast, function: Function) -> None:
    before, _, after = await carried_out(hf, look, function, look)

    assert after == before


@pytest.mark.parametrize("scope", ["", "local"])
async def test_a_role_set_by_a_function_does_not_outlive_it(hf: Holdfast, scope: str) -> None:
    role = f"tenant_{uuid4().hex[:8]}"
    with hf.connection() as connection:
        connection.execute(f"create role {role}")

    def be_somebody(connection: psycopg.Connection[Any]) -> str:
        connection.execute(f"set {scope} role {role}".encode())
        row = connection.execute("select current_user::text").fetchone()
        assert row is not None
        return str(row[0])

    try:
        before, somebody, after = await carried_out(hf, look, be_somebody, look)
    finally:
        with hf.connection() as connection:
            connection.execute(f"drop role {role}")

    assert (somebody, after) == (role, before)


async def test_a_function_that_rolls_back_through_the_driver_has_failed(hf: Holdfast) -> None:
    def change_its_mind(connection: psycopg.Connection[Any]) -> None:
        connection.execute("create table never (id int)")
        raise psycopg.Rollback

    (told,) = await carried_out(hf, change_its_mind)

    assert "the function raised psycopg.Rollback" in told
    with hf.connection() as connection:
        assert connection.execute("select to_regclass('never')").fetchone() == (None,)


# Constraints


def card(connection: psycopg.Connection[Any]) -> None:
    connection.execute("insert into card values ('nobody')")


async def test_a_deferred_constraint_violated_at_the_end_is_an_error_of_the_function(hf: Holdfast) -> None:
    with hf.connection() as connection:
        connection.execute("create table account (name text primary key)")
        connection.execute("create table card (name text references account deferrable initially deferred)")

    (told,) = await carried_out(hf, card)

    assert "violates foreign key constraint" in told


async def test_a_constraint_that_fails_only_at_the_commit_is_an_error_of_the_function_too(hf: Holdfast) -> None:
    with hf.connection() as connection:
        connection.execute(
            """
            create table card (name text);
            create function refuse() returns trigger language plpgsql as $$
            begin
                if new.name = 'late' then
                    raise exception 'no cards today';
                end if;
                set constraints all deferred;
                insert into card values ('late');
                return null;
            end
            $$;
            create constraint trigger refuse after insert on card deferrable initially deferred
                for each row execute function refuse();
            """
        )

    told, _ = await carried_out(hf, card, look)

    assert "no cards today" in told
    with hf.connection() as connection:
        assert connection.execute("select count(*) from card").fetchone() == (0,)
