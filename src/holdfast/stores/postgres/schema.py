"""The schema of a store on a server: this module checks it, makes it if it is empty, or refuses it.

Several processes may try to make it at once. A process that has to wait for another waits for a moment, gives up, and
tries again a little later.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg import errors, sql

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores import schema_number
from holdfast.stores.postgres import sql_files, topics
from holdfast.stores.postgres.sql import identifier, qualified

LOCK_SECONDS = 1.0
PAUSE_SECONDS = 0.25
PATIENCE_SECONDS = 60.0

_FIND = """
    select has_schema_privilege(oid, 'usage'),
        has_schema_privilege(oid, 'create'),
        pg_get_userbyid(nspowner),
        exists (select from pg_class where relnamespace = pg_namespace.oid and relname = 'meta' and relkind = 'r'),
        (
            select min(relname)
            from pg_class
            where relnamespace = pg_namespace.oid
              and relkind in ('r', 'v', 'm', 'f', 'p')
        )
    from pg_namespace
    where nspname = %s
"""  # by name; needs no permission

_NUMBER = """
    select value
    from {schema}.meta
    where name = 'schema'
"""

_SET_NUMBER = """
    insert into {schema}.meta (name, value)
    values ('schema', %s)
"""

_WHO = """
    select current_user, current_database(), has_database_privilege(current_database(), 'create')
"""

_IN_THE_WAY = """
    select coalesce(string_agg(distinct pid::text, ', '), '')
    from pg_locks
    where locktype = 'advisory'
      and classid::bigint = %s::bigint & 4294967295
      and objid::bigint = %s::bigint & 4294967295
      and granted
      and pid <> pg_backend_pid()
"""  # finds the session that is making the schema; an oid is the number of the lock without its sign


def status(connection: psycopg.Connection[Any], schema: str) -> SchemaStatus:
    """Return the number of a schema, 0 if it is empty. A schema of another program is refused."""
    return SchemaStatus(current=_number(connection, schema), wanted=sql_files.NUMBER)


def prepare(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make the schema if it is empty. Several processes may do this at once.

    Raises:
        SchemaOutOfDate: The schema has another number. It is not changed.

    """
    until = time.monotonic() + PATIENCE_SECONDS
    while _is_empty(connection, schema):
        try:
            _make(connection, schema)
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            if time.monotonic() > until:
                raise StoreUnavailable(_blocked(connection, schema)) from error
            time.sleep(PAUSE_SECONDS)
        except errors.InsufficientPrivilege as error:
            raise StoreUnavailable(_forbidden(connection, schema, error)) from error


def _is_empty(connection: psycopg.Connection[Any], schema: str) -> bool:
    found = status(connection, schema)
    schema_number.check(found, f"the store in schema {schema!r}")
    return found.current == 0


def _make(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make everything in one transaction, so that no other session finds a part of it."""
    with connection.transaction():
        connection.execute("set local statement_timeout = 0")
        connection.execute(f"set local lock_timeout = {round(LOCK_SECONDS * 1000)}".encode())
        # A lock of the transaction, not of the session, so that it works behind a pooler.
        topics.take_turn(connection, schema, topics.MAKING)
        if _number(connection, schema) == 0:  # otherwise another process was first
            _fill(connection, schema)


def _fill(connection: psycopg.Connection[Any], schema: str) -> None:
    if not _exists(connection, schema):
        connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
    # Functions keep this path. The temporary schema comes last, or a user's temporary table could hide ours.
    connection.execute(f"set local search_path = {identifier(schema)}, pg_catalog, pg_temp".encode())
    connection.execute("set local check_function_bodies = off")  # functions refer to others that are made later
    connection.execute(sql_files.script().encode(), prepare=False)  # a script has many statements
    connection.execute(qualified(_SET_NUMBER, schema), (str(sql_files.NUMBER),), prepare=False)


def _number(connection: psycopg.Connection[Any], schema: str) -> int:
    found = connection.execute(_FIND, (schema,), prepare=False).fetchone()
    if found is None:
        return 0
    may_use, _, owner, has_meta, relation = found
    if not may_use:
        raise StoreUnavailable(
            f"schema {schema!r} belongs to {owner!r}, and this user is not allowed to use it; have {owner!r} run: "
            f"{_grants(connection, schema)}"
        )
    if relation is None:
        return 0
    number = _recorded_number(connection, schema) if has_meta else None
    if number is None:
        raise StoreUnavailable(
            f"schema {schema!r} belongs to another program (it has {relation!r}, but is not marked as holdfast's); "
            "choose another one with ?schema=…"
        )
    return number


def _recorded_number(connection: psycopg.Connection[Any], schema: str) -> int | None:
    try:
        found = connection.execute(qualified(_NUMBER, schema), prepare=False).fetchone()
    except errors.InsufficientPrivilege as error:
        raise StoreUnavailable(
            f"this user is not allowed to read the tables of schema {schema!r}; have their owner run: "
            f"{_grants(connection, schema)}"
        ) from error
    except errors.UndefinedColumn:
        return None
    return int(found[0]) if found is not None and str(found[0]).isdecimal() else None


def _exists(connection: psycopg.Connection[Any], schema: str) -> bool:
    # Not `create schema if not exists`: that needs the permission to create a schema even if it exists.
    return connection.execute(_FIND, (schema,), prepare=False).fetchone() is not None


def _blocked(connection: psycopg.Connection[Any], schema: str) -> str:
    turn = (topics.classid(schema), topics.MAKING)
    found = connection.execute(_IN_THE_WAY, turn, prepare=False).fetchone()
    processes = found[0] if found else ""
    return (
        f"schema {schema!r} could not be made within {PATIENCE_SECONDS:g} s, because another session was making it all "
        f"the time; end that session and try again (server processes that are making it: {processes or 'none now'})"
    )


def _forbidden(connection: psycopg.Connection[Any], schema: str, error: psycopg.Error) -> str:
    """Return the message for a missing permission: what is missing, and who can grant it."""
    user, database, may_create = _who(connection)
    found = connection.execute(_FIND, (schema,), prepare=False).fetchone()
    told = error.diag.message_primary or str(error)
    if found is None and not may_create:
        return (
            f"user {user!r} is not allowed to create schema {schema!r} ({told}); have an administrator run: "
            f"grant create on database {sql.Identifier(database).as_string(None)} to {_role(user)}; "
            f"or: create schema {identifier(schema)} authorization {_role(user)}"
        )
    if found is not None and not found[1]:
        return (
            f"user {user!r} is not allowed to create tables in schema {schema!r} ({told}); run `holdfast migrate` as "
            f"{found[2]!r}, or have that user run: grant usage, create on schema {identifier(schema)} to {_role(user)}"
        )
    return f"user {user!r} is not allowed to make schema {schema!r} ({told}); run `holdfast migrate` as a user who is"


def _grants(connection: psycopg.Connection[Any], schema: str) -> str:
    """Return the grants that a worker needs on a schema of another owner."""
    name, role = identifier(schema), _role(_who(connection)[0])
    return (
        f"grant usage on schema {name} to {role}; "
        f"grant select, insert, update, delete on all tables in schema {name} to {role}; "
        f"grant usage on all sequences in schema {name} to {role}"
    )


def _who(connection: psycopg.Connection[Any]) -> tuple[str, str, bool]:
    found = connection.execute(_WHO, prepare=False).fetchone()
    assert found is not None
    user, database, may_create = found
    return user, database, may_create


def _role(name: str) -> str:
    return sql.Identifier(name).as_string(None)
