"""Cleaning: resets a database after a test, so that the next test can use it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from holdfast.stores.postgres import schema, sql_files
from holdfast.testing.patience import GUARD_SECONDS

SCHEMA = "holdfast"


# Ends sessions that were left open, and waits until they are gone: their transactions may still commit.
_END_SESSIONS = f"""
do $$
declare
    others constant name := current_database();
    patient_until constant timestamptz := clock_timestamp() + interval '{GUARD_SECONDS} s';
begin
    loop
        perform pg_terminate_backend(pid)
        from pg_stat_activity
        where datname = others
            and pid <> pg_backend_pid()
            and backend_type = 'client backend';
        exit when not found or clock_timestamp() > patient_until;
        perform pg_sleep(0.001);
        perform pg_stat_clear_snapshot();
    end loop;
end
$$
"""

_SCHEMAS = """
select quote_ident(nspname)
from pg_namespace
where nspname not like 'pg\\_%'
  and nspname <> 'information_schema'
"""

_PUBLIC = """
create schema public;
grant usage, create on schema public to public
"""

_HAS_OTHERS = f"""
select exists (
        select
        from pg_depend
        where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace('public')
    )
    or exists (
        select
        from pg_namespace
        where oid >= 16384
            and nspname not in ('{SCHEMA}', 'public')
            and nspname not like 'pg\\_%'
    )
"""  # noqa: S608 - a name of ours

# Deleted, not truncated: with few rows that costs a hundredth. The rest is the work of autovacuum.
_DELETE_ROWS = f"""
do $$
declare
    place text;
    is_used boolean;
begin
    for place in
        select format('%I.%I', '{SCHEMA}', relname)
        from pg_class
        where relnamespace = to_regnamespace('{SCHEMA}') and relkind = 'r' and relname not in ('meta', 'schema_steps')
    loop
        execute format('select exists (select from %s)', place) into is_used;
        if is_used then
            execute format('delete from %s', place);
        end if;
    end loop;
    delete from {SCHEMA}.meta where name not in ('schema', 'compatible_from');
    perform setval(oid::regclass, 1, false)
    from pg_class
    where relnamespace = to_regnamespace('{SCHEMA}') and relkind = 'S';
end
$$
"""  # noqa: S608

# Everything of the schema that may have been changed; a changed row of the catalog has a new `xmin`.
_FINGERPRINT = f"""
select format('%s %s %s %s',
    (
        select string_agg(oid || ':' || xmin, ' ' order by oid)
        from pg_class
        where relnamespace = to_regnamespace('{SCHEMA}')
    ),
    (
        select string_agg(oid || ':' || xmin, ' ' order by oid)
        from pg_proc
        where oid >= 16384
    ),
    (
        select string_agg(oid::text, ' ' order by oid)
        from pg_trigger
        where oid >= 16384
    ),
    (
        select string_agg(setconfig::text, ' ')
        from pg_db_role_setting
        where setdatabase = (select oid from pg_database where datname = current_database())
    )
)
"""  # noqa: S608

_VERSION = f"select max(value) from {SCHEMA}.meta where name = 'schema'"  # noqa: S608


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, connect_timeout=round(GUARD_SECONDS))


class Cleaner:
    """A database, and a permanent connection to it: connecting takes as long as cleaning."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self._connection: psycopg.Connection[Any] | None = None
        self._fingerprint: tuple[Any, ...] | None = None
        """A fingerprint of the schema when it was created; None if there is none."""

    def migrate(self) -> None:
        """Create the schema, unless it exists."""
        if self._fingerprint is None:
            connection = self._connected()
            schema.prepare(connection, SCHEMA, sql_files.migrations())
            self._fingerprint = _fingerprint(connection)

    def clean(self) -> bool:
        """Remove all rows, and all objects outside our schema. Return False if the schema itself was changed."""
        connection = self._connected()
        connection.execute(_END_SESSIONS)
        if _found(connection, _HAS_OTHERS):
            _drop(connection, _SCHEMAS + f"and nspname <> '{SCHEMA}'")
        if _fingerprint(connection) != self._fingerprint:
            return False
        connection.execute(_DELETE_ROWS)
        return True

    def empty(self) -> None:
        """Remove everything."""
        self._fingerprint = None
        connection = self._connected()
        connection.execute(_END_SESSIONS)
        connection.execute(f"alter database {self.name} reset all".encode())
        _drop(connection, _SCHEMAS)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> psycopg.Connection[Any]:
        """Return the connection, or a new one if it was closed, for example by a test that ended all sessions."""
        if self._connection is not None:
            with suppress(psycopg.OperationalError):
                self._connection.execute("select 1")
                return self._connection
            self.close()
        self._connection = connect(self.url)
        return self._connection


def _drop(connection: psycopg.Connection[Any], schemas: str) -> None:
    for (name,) in connection.execute(schemas.encode()).fetchall():
        connection.execute(f"drop schema {name} cascade".encode())
    connection.execute(_PUBLIC)


def _fingerprint(connection: psycopg.Connection[Any]) -> tuple[Any, ...] | None:
    try:
        return _found(connection, _FINGERPRINT), _found(connection, _VERSION)
    except psycopg.errors.UndefinedTable:
        return None


def _found(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
