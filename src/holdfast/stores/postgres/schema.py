"""The schema: numbered SQL files, applied forward only, all that are missing in one transaction.

Workers may be at work meanwhile. A change that waits for a table makes everybody behind it wait, too, so it waits
only for a moment, gives up, and is tried again a little later.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from msgspec.structs import replace
from psycopg import errors, sql

from holdfast.core import audit
from holdfast.core.claim_order import BEGUN, CHILD, NEW, RANKS, SHARE
from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT
from holdfast.core.codec import DEPTH_LIMIT, DIGIT_LIMIT, VALUE_LIMIT_BYTES
from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.intent import KEY_LIMIT
from holdfast.core.location import NAME_LIMIT
from holdfast.core.ports import SchemaStatus
from holdfast.core.rules import LIMIT_LOCATION, SUSPECT_CRASHES
from holdfast.core.text import NOT_IN_TYPES_RANGE, POSTGRES_REFUSED_RANGE
from holdfast.stores.migration import Migration, migrations_of, status_at
from holdfast.stores.postgres import topics
from holdfast.stores.postgres.statements import RANK, identifier, qualified

LOCK_SECONDS = 1.0
PAUSE_SECONDS = 0.25
PATIENCE_SECONDS = 60.0

_PLACE = re.compile(r"\{\{(\w+)\}\}")

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
"""  # by its name; works without any permission

_VERSION = """
    select value
    from {schema}.meta
    where name = 'schema'
"""

_SET_VERSION = """
    insert into {schema}.meta (name, value)
    values ('schema', %s)
    on conflict (name) do update
    set value = excluded.value
"""

_WHO = """
    select current_user, current_database(), has_database_privilege(current_database(), 'create')
"""

# Whoever holds a table that a change waits for.
_IN_THE_WAY = """
    select coalesce(string_agg(distinct pg_locks.pid::text, ', '), '')
    from pg_locks
    join pg_class on pg_class.oid = pg_locks.relation
    where pg_class.relnamespace = to_regnamespace(%s)
      and pg_locks.granted
      and pg_locks.pid <> pg_backend_pid()
"""


def _decimal(digits: int) -> str:
    """The first digits of a number, with a point after the first of them."""
    text = str(digits)
    return f"{text[0]}.{text[1:42]}"


_FILLED_IN = {
    "name_limit": str(NAME_LIMIT),
    "key_limit": str(KEY_LIMIT),
    "value_limit": str(VALUE_LIMIT_BYTES),
    "value_limit_shown": f"{VALUE_LIMIT_BYTES // 2**20} MiB",
    "depth_limit": str(DEPTH_LIMIT),
    "digit_limit": str(DIGIT_LIMIT),
    "digit_limit_shown": f"{DIGIT_LIMIT:,}",
    "first_instant": str(FIRST_INSTANT),
    "last_instant": str(LAST_INSTANT),
    "refused_range": POSTGRES_REFUSED_RANGE,
    "not_in_types_range": NOT_IN_TYPES_RANGE.replace("'", "''"),
    "too_large": str(2**1024 - 2**970),
    "too_small": _decimal(5**1075),
    "begun": str(BEGUN),
    "child": str(CHILD),
    "new": str(NEW),
    "rank": RANK,
    "ranks": str(RANKS),
    "share": str(SHARE),
    "limit_location": LIMIT_LOCATION,
    "suspect_crashes": str(SUSPECT_CRASHES),
    "routine": ", ".join(f"'{event}'" for event in audit.ROUTINE),
    "routine_kept": str(audit.KEPT),
    "trim_every": str(audit.TRIM_EVERY),
}
"""Rules of `core` that stand in migrations by name, in double braces: SQL has no list and no limit of its own."""


def migrations() -> list[Migration]:
    """All there are, in order."""
    return [replace(one, script=_filled_in(one.script)) for one in migrations_of(__package__)]


def _filled_in(script: str) -> str:
    return _PLACE.sub(lambda place: _FILLED_IN[place[1]], script)


def status(connection: psycopg.Connection[Any], schema: str) -> SchemaStatus:
    """The version of a database, which may be empty. Refuses a schema that belongs to something else."""
    return status_at(_version(connection, schema), migrations())


def prepare(connection: psycopg.Connection[Any], schema: str, *, may_migrate: bool) -> None:
    """Bring a database to the version this code knows.

    An empty one gets the schema in any case: there is nothing in it that could be older. Several may do this at once.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while _is_to_do(status(connection, schema), schema, may_migrate=may_migrate):
        try:
            _migrate(connection, schema)
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            if time.monotonic() > until:
                raise StoreUnavailable(_blocked(connection, schema)) from error
            time.sleep(PAUSE_SECONDS)
        except errors.InsufficientPrivilege as error:
            raise StoreUnavailable(_forbidden(connection, schema, error)) from error


def _is_to_do(found: SchemaStatus, schema: str, *, may_migrate: bool) -> bool:
    """Whether migrations are missing; raises if this code must not use the schema as it is."""
    if found.current > found.wanted:
        raise SchemaOutOfDate(
            f"schema {schema!r} has version {found.current}, made by a newer holdfast; this one knows {found.wanted}; "
            "upgrade holdfast"
        )
    if found.pending and found.current > 0 and not may_migrate:
        raise SchemaOutOfDate(
            f"schema {schema!r} has version {found.current}, this holdfast needs {found.wanted}; run `holdfast migrate`"
        )
    return bool(found.pending)


def _migrate(connection: psycopg.Connection[Any], schema: str) -> None:
    """Take all steps at once: whoever looks meanwhile must not find a store that seems to be of an older version."""
    with connection.transaction():
        connection.execute("set local statement_timeout = 0")
        connection.execute(f"set local lock_timeout = {round(LOCK_SECONDS * 1000)}".encode())
        # At the level of the transaction, so that a pooler in between may do as it likes.
        topics.take_turn(connection, schema, topics.MIGRATING)
        current = _version(connection, schema)  # another one may have been here first
        pending = [migration for migration in migrations() if migration.version > current]
        if pending:
            _apply(connection, schema, pending)


def _apply(connection: psycopg.Connection[Any], schema: str, pending: Sequence[Migration]) -> None:
    if not _exists(connection, schema):
        connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
    # Functions keep this path. The temporary schema comes last, or a user's temporary table could pass for ours.
    connection.execute(f"set local search_path = {identifier(schema)}, pg_catalog, pg_temp".encode())
    for migration in pending:
        connection.execute(migration.script.encode(), prepare=False)  # a script has many statements
    connection.execute(qualified(_SET_VERSION, schema), (str(pending[-1].version),), prepare=False)


def _version(connection: psycopg.Connection[Any], schema: str) -> int:
    found = connection.execute(_FIND, (schema,), prepare=False).fetchone()
    if found is None:
        return 0
    may_use, _, owner, has_meta, relation = found
    if not may_use:
        raise StoreUnavailable(
            f"schema {schema!r} belongs to {owner!r}, and this user must not use it; have {owner!r} run: "
            f"{_grants(connection, schema)}"
        )
    if relation is None:
        return 0
    version = _recorded_version(connection, schema) if has_meta else None
    if version is None:
        raise StoreUnavailable(
            f"schema {schema!r} is another program's (it has {relation!r}, but is not marked as holdfast's); "
            "choose another one with ?schema=…"
        )
    return version


def _recorded_version(connection: psycopg.Connection[Any], schema: str) -> int | None:
    try:
        found = connection.execute(qualified(_VERSION, schema), prepare=False).fetchone()
    except errors.InsufficientPrivilege as error:
        raise StoreUnavailable(
            f"this user must not read the tables of schema {schema!r}; have their owner run: "
            f"{_grants(connection, schema)}"
        ) from error
    except errors.UndefinedColumn:
        return None
    return int(found[0]) if found is not None and str(found[0]).isdecimal() else None


def _exists(connection: psycopg.Connection[Any], schema: str) -> bool:
    # Not `create schema if not exists`: that needs the permission to create one even if there is one.
    return connection.execute(_FIND, (schema,), prepare=False).fetchone() is not None


def _blocked(connection: psycopg.Connection[Any], schema: str) -> str:
    found = connection.execute(_IN_THE_WAY, (schema,), prepare=False).fetchone()
    processes = found[0] if found else ""
    return (
        f"schema {schema!r} could not be migrated within {PATIENCE_SECONDS:g} s, because its tables were in use all "
        f"the time; end long transactions and try again (server processes that use them: {processes or 'none now'})"
    )


def _forbidden(connection: psycopg.Connection[Any], schema: str, error: psycopg.Error) -> str:
    """What is missing to make or change a schema, and who can give it."""
    user, database, may_create = _who(connection)
    found = connection.execute(_FIND, (schema,), prepare=False).fetchone()
    told = error.diag.message_primary or str(error)
    if found is None and not may_create:
        return (
            f"user {user!r} must not create schema {schema!r} ({told}); have an administrator run: "
            f"grant create on database {sql.Identifier(database).as_string(None)} to {_role(user)}; "
            f"or: create schema {identifier(schema)} authorization {_role(user)}"
        )
    if found is not None and not found[1]:
        return (
            f"user {user!r} must not create tables in schema {schema!r} ({told}); run `holdfast migrate` as "
            f"{found[2]!r}, or have that user run: grant usage, create on schema {identifier(schema)} to {_role(user)}"
        )
    owner = found[2] if found is not None else "its owner"
    return (
        f"user {user!r} must not change schema {schema!r} ({told}); run `holdfast migrate` as {owner!r}, "
        f"or have an administrator run: grant {_role(owner)} to {_role(user)}"
    )


def _grants(connection: psycopg.Connection[Any], schema: str) -> str:
    """All that a worker needs of a schema that somebody else migrates."""
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
