"""The schema of a store on a server: this module checks it, makes it if it is empty, migrates it, or refuses it.

Several processes may try to change it at once. A process that has to wait for another waits for a moment, gives up, and
tries again a little later. All pending steps are one transaction, with the views and functions of this code.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg
from msgspec import convert
from msgspec.structs import replace
from psycopg import errors, sql

from holdfast.core.clock import SystemClock
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import AppliedStep, Report, SchemaStatus
from holdfast.stores.migrations import Migrations, check
from holdfast.stores.postgres import sql_files, topics
from holdfast.stores.postgres.scripts import identifier, qualified

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

_NUMBERS = """
    select max(value) filter (where name = 'schema'), max(value) filter (where name = 'compatible_from')
    from {schema}.meta
    where name in ('schema', 'compatible_from')
"""

_SET_NUMBERS = """
    insert into {schema}.meta (name, value)
    values ('schema', %s), ('compatible_from', %s)
    on conflict (name) do update
    set value = excluded.value
"""

_STEPS = """
    select number, name, at, version
    from {schema}.schema_steps
    order by number
"""

_ADD_STEP = """
    insert into {schema}.schema_steps (number, name, at, version)
    values (%s, %s, %s, %s)
"""

_GRANTS = """
    select format(
        'grant %%s on %%s to %%s%%s',
        privilege_type,
        oid::regclass,
        case grantee when 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end,
        case when is_grantable then ' with grant option' else '' end
    )
    from pg_class, aclexplode(relacl)
    where oid = %s::regclass
      and grantee <> relowner
"""

_OLD_FUNCTIONS = r"""
    select format('drop function %%s', oid::regprocedure)
    from pg_proc
    where pronamespace = %s::regnamespace
      and proname ~ '_v\d+$'
      and proname <> all (%s)
"""  # functions of workers that the store refuses from now on

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


def status(connection: psycopg.Connection[Any], schema: str, steps: Migrations[str]) -> SchemaStatus:
    """Return the number of a schema, 0 if it is empty, and its record. A schema of another program is refused."""
    found = _status(connection, schema, steps)
    if found.current <= sql_files.BASELINE:
        return found
    try:
        rows = connection.execute(qualified(_STEPS, schema), prepare=False).fetchall()
    except errors.InsufficientPrivilege:
        return found  # a worker need not know how the schema became what it is
    applied = [convert(dict(zip(AppliedStep.__struct_fields__, row, strict=True)), AppliedStep) for row in rows]
    return replace(found, applied=tuple(applied))


def check_number(connection: psycopg.Connection[Any], schema: str, steps: Migrations[str]) -> None:
    """Refuse a schema that was migrated to a number with which this code cannot work.

    Raises:
        SchemaOutOfDate: The number is too high.

    """
    current, oldest = _recorded_numbers(connection, schema) or (0, 0)
    check(steps.status(current, oldest), _where(schema), may_migrate=True)


def prepare(
    connection: psycopg.Connection[Any], schema: str, steps: Migrations[str], report: Report | None = None
) -> None:
    """Make the schema if it is empty, or migrate it if progress can be reported. Several processes may do this at once.

    Raises:
        SchemaOutOfDate: This code cannot use the schema. It is not changed.

    """
    until = time.monotonic() + PATIENCE_SECONDS
    while _is_behind(connection, schema, steps, may_migrate=report is not None):
        try:
            _advance(connection, schema, steps, report)
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            if time.monotonic() > until:
                raise StoreUnavailable(_blocked(connection, schema)) from error
            time.sleep(PAUSE_SECONDS)
        except errors.InsufficientPrivilege as error:
            raise StoreUnavailable(_forbidden(connection, schema, error)) from error


def _is_behind(connection: psycopg.Connection[Any], schema: str, steps: Migrations[str], *, may_migrate: bool) -> bool:
    found = _status(connection, schema, steps)
    check(found, _where(schema), may_migrate=may_migrate)
    return found.current < found.wanted


def _advance(connection: psycopg.Connection[Any], schema: str, steps: Migrations[str], report: Report | None) -> None:
    """Change everything in one transaction, so that no other session finds a part of it."""
    with connection.transaction():
        connection.execute("set local statement_timeout = 0")
        connection.execute(f"set local lock_timeout = {round(LOCK_SECONDS * 1000)}".encode())
        # A lock of the transaction, not of the session, so that it works behind a pooler.
        topics.take_turn(connection, schema, topics.MAKING)
        found = _status(connection, schema, steps)
        if found.current >= found.wanted:
            return  # another process was first
        if found.current == 0 and not _exists(connection, schema):
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        # Functions keep this path. The temporary schema comes last, or a user's temporary table could hide ours.
        connection.execute(f"set local search_path = {identifier(schema)}, pg_catalog, pg_temp".encode())
        connection.execute("set local check_function_bodies = off")  # functions refer to others that are made later
        _run(connection, *sql_files.first_functions())
        current, oldest = found.current, found.compatible_from
        if current == 0:
            _run(connection, sql_files.tables())
            current = oldest = sql_files.BASELINE
        views = sql_files.views()
        # A step can drop no column that a view shows. Views for people stay: others may depend on them.
        internal = [name for name in views if name.endswith("_read")] if found.current else []
        grants = {name: _drop_view(connection, name) for name in internal}
        for migration in steps.after(current):
            if found.current and report is not None:
                report(f"step {migration.step.number}: {migration.step.about}")
            _run(connection, migration.body)
            done = migration.applied(SystemClock().now())
            connection.execute(qualified(_ADD_STEP, schema), (done.number, done.name, done.at, done.version))
            oldest = migration.compatible_from(oldest)
        for name, text in views.items():
            _make_view(connection, name, text)
            _run(connection, *grants.get(name, ()))
        _run(connection, *sql_files.other_functions())
        if oldest != found.compatible_from:
            _drop_old_functions(connection, schema)
        connection.execute(qualified(_SET_NUMBERS, schema), (str(steps.number), str(oldest)), prepare=False)


def _run(connection: psycopg.Connection[Any], *texts: str) -> None:
    for text in texts:
        connection.execute(text.encode(), prepare=False)  # a text has many statements


def _make_view(connection: psycopg.Connection[Any], name: str, text: str) -> None:
    """Make or replace a view. One whose columns have changed is dropped first, and keeps its grants."""
    try:
        with connection.transaction():
            _run(connection, text)
    except errors.InvalidTableDefinition:
        grants = _drop_view(connection, name)
        _run(connection, text, *grants)


def _drop_view(connection: psycopg.Connection[Any], name: str) -> list[str]:
    """Drop a view. Return the statements that grant again what was granted on it."""
    grants = connection.execute(_GRANTS, (name,), prepare=False).fetchall()
    _run(connection, f"drop view {name}")
    return [grant for (grant,) in grants]


def _drop_old_functions(connection: psycopg.Connection[Any], schema: str) -> None:
    """Drop the functions that only refused workers call."""
    drops = connection.execute(_OLD_FUNCTIONS, (schema, list(sql_files.function_texts())), prepare=False).fetchall()
    _run(connection, *(drop for (drop,) in drops))


def _where(schema: str) -> str:
    return f"the store in schema {schema!r}"


def _status(connection: psycopg.Connection[Any], schema: str, steps: Migrations[str]) -> SchemaStatus:
    """Return the numbers of a schema."""
    return steps.status(*_numbers(connection, schema))


def _numbers(connection: psycopg.Connection[Any], schema: str) -> tuple[int, int]:
    """Return the number of a schema, and the lowest one whose code may use it. 0 if it is empty."""
    found = connection.execute(_FIND, (schema,), prepare=False).fetchone()
    if found is None:
        return 0, 0
    may_use, _, owner, has_meta, relation = found
    if not may_use:
        raise StoreUnavailable(
            f"schema {schema!r} belongs to {owner!r}, and this user is not allowed to use it; have {owner!r} run: "
            f"{_grants(connection, schema)}"
        )
    if relation is None:
        return 0, 0
    numbers = _recorded_numbers(connection, schema) if has_meta else None
    if numbers is None:
        raise StoreUnavailable(
            f"schema {schema!r} belongs to another program (it has {relation!r}, but is not marked as holdfast's); "
            "choose another one with ?schema=…"
        )
    return numbers


def _recorded_numbers(connection: psycopg.Connection[Any], schema: str) -> tuple[int, int] | None:
    try:
        found = connection.execute(qualified(_NUMBERS, schema), prepare=False).fetchone()
    except errors.InsufficientPrivilege as error:
        raise StoreUnavailable(
            f"this user is not allowed to read the tables of schema {schema!r}; have their owner run: "
            f"{_grants(connection, schema)}"
        ) from error
    except errors.UndefinedColumn:
        return None
    is_ours = found is not None and str(found[0]).isdecimal()
    return (int(found[0]), int(found[1] or 0)) if is_ours and found is not None else None


def _exists(connection: psycopg.Connection[Any], schema: str) -> bool:
    # Not `create schema if not exists`: that needs the permission to create a schema even if it exists.
    return connection.execute(_FIND, (schema,), prepare=False).fetchone() is not None


def _blocked(connection: psycopg.Connection[Any], schema: str) -> str:
    turn = (topics.classid(schema), topics.MAKING)
    found = connection.execute(_IN_THE_WAY, turn, prepare=False).fetchone()
    processes = found[0] if found else ""
    return (
        f"schema {schema!r} could not be made or migrated within {PATIENCE_SECONDS:g} s, because another session was "
        "making it or held a lock on its tables all the time; end that session and try again (server processes that "
        f"are making it: {processes or 'none now'})"
    )


def _forbidden(connection: psycopg.Connection[Any], schema: str, error: psycopg.Error) -> str:
    """Return the message for a missing permission: what is missing, and who can grant it."""
    user, database, may_create = _who(connection)
    found = connection.execute(_FIND, (schema,), prepare=False).fetchone()
    reason = error.diag.message_primary or str(error)
    if found is None and not may_create:
        return (
            f"user {user!r} is not allowed to create schema {schema!r} ({reason}); have an administrator run: "
            f"grant create on database {sql.Identifier(database).as_string(None)} to {_role(user)}; "
            f"or: create schema {identifier(schema)} authorization {_role(user)}"
        )
    if found is not None and not found[1]:
        return (
            f"user {user!r} is not allowed to create tables in schema {schema!r} ({reason}); run `holdfast migrate` as "
            f"{found[2]!r}, or have that user run: grant usage, create on schema {identifier(schema)} to {_role(user)}"
        )
    return f"user {user!r} is not allowed to make schema {schema!r} ({reason}); run `holdfast migrate` as a user who is"


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
