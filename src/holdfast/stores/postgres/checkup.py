"""The check-up: findings about the health of the store and its server, for `holdfast doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from psycopg import errors

from holdfast.core.clock import SECOND
from holdfast.core.ports import Finding
from holdfast.stores.migrations import finding_of_schema
from holdfast.stores.operations.limits import finding_of
from holdfast.stores.postgres import schema as schemas
from holdfast.stores.postgres import sql_files
from holdfast.stores.postgres.scripts import Connection, qualified

LONG_TRANSACTION_SECONDS = 300
LATE_REQUEST_SECONDS = 60
DEAD_ROWS = 100_000
RETAINED_BYTES = 10 * (1 << 30)
FULL_SHARE = 0.8

_GIBIBYTE = 1 << 30
_NAMED = 3
"""Maximum number of findings per subject that are named, the worst first."""


_SETTINGS = """
    select name, setting
    from pg_settings
    where name = any(%s)
"""

_DURABILITY = {
    "fsync": ("problem", "a crash of the machine can destroy the whole database"),
    "full_page_writes": ("problem", "a crash of the machine can damage tables"),
    "synchronous_commit": ("warning", "a crash of the server loses the latest commits, so effects may be repeated"),
}

_CONNECTIONS = """
    select count(*), current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
    from pg_stat_activity
    where backend_type = 'client backend'
"""

# While either kind lasts, vacuum cannot remove the old versions of rows that runs have replaced.
_TRANSACTIONS = """
    select what, seconds::bigint
    from (
        select format('process %%s (%%s)', pid, concat_ws(', ', usename, nullif(application_name, ''), state)) as what,
            extract(epoch from clock_timestamp() - xact_start) as seconds
        from pg_stat_activity
        where xact_start is not null
          and datname = current_database()
          and backend_type = 'client backend'
          and pid <> pg_backend_pid()
        union all
        select format('prepared transaction %%s', gid),
            extract(epoch from clock_timestamp() - prepared)
        from pg_prepared_xacts
        where database = current_database()
    ) as transactions
    where seconds > %s
    order by seconds desc
"""

_SLOTS = """
    select slot_name, active, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
    from pg_replication_slots
    where pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) > %s
    order by 3 desc
"""

_DEAD_ROWS = """
    select relname, n_dead_tup, n_live_tup, coalesce(greatest(last_vacuum, last_autovacuum)::text, 'never')
    from pg_stat_user_tables
    where schemaname = %s
      and n_dead_tup > %s
      and n_dead_tup > n_live_tup
    order by n_dead_tup desc
"""

_SIZE = """
    select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint
    from pg_class
    where relnamespace = %s::regnamespace
      and relkind = 'r'
"""

_REQUESTS = """
    select count(*), coalesce(max({schema}.micros(clock_timestamp()) - at), 0)
    from (
        select at
        from {schema}.requests
        order by number
        limit 10000
    ) as oldest
"""  # by the primary key


_STRAY = """
    select (
            select count(*)
            from {schema}.slots as slot
            left join {schema}.runs as run on run.id = slot.run_id
            where run.id is null
               or not coalesce(run.slots, '[]')::jsonb ? slot.name
               or run.worker is null and run.ready_at is null
        ) + (
            select count(*)
            from {schema}.runs as run
            cross join lateral json_array_elements_text(run.slots::json) as had (name)
            where run.worker is not null
              and not exists (select from {schema}.slots as slot where slot.name = had.name and slot.run_id = run.id)
        )
"""


def findings(connection: Connection, schema: str) -> list[Finding]:
    """Return one or more findings per subject. Findings that are not `ok` say what to do."""
    checks: dict[str, Callable[[Connection, str], Iterator[Finding]]] = {
        "server": _server,
        "schema": _schema,
        "durability": _durability,
        "connections": _connections,
        "transactions": _transactions,
        "replication": _slots,
        "vacuum": _vacuum,
        "requests": _requests,
        "slots": _stray,
    }
    return [finding for subject, check in checks.items() for finding in _checked(connection, schema, subject, check)]


def _checked(
    connection: Connection, schema: str, subject: str, check: Callable[[Connection, str], Iterator[Finding]]
) -> list[Finding]:
    try:
        return list(check(connection, schema))
    except errors.InsufficientPrivilege as error:
        reason = error.diag.message_primary
        return [Finding.ok(subject, f"not visible to this user: {reason}; a member of the role pg_monitor can see it")]
    except (errors.UndefinedTable, errors.UndefinedColumn):
        return []  # the schema is of another version, which the check of the schema reports


def _server(connection: Connection, _schema: str) -> Iterator[Finding]:
    version = connection.info.parameter_status("server_version") or str(connection.info.server_version)
    ((is_standby,),) = connection.execute("select pg_is_in_recovery()").fetchall()
    if is_standby:
        yield Finding.problem("server", f"Postgres {version} is a standby, which is read-only; name the primary")
    else:
        yield Finding.ok("server", f"Postgres {version}, a primary")


def _schema(connection: Connection, schema: str) -> Iterator[Finding]:
    found = schemas.status(connection, schema, sql_files.migrations())
    ((size,),) = connection.execute(_SIZE, (schema,)).fetchall() if found.current else ((0,),)
    yield finding_of_schema(found, f" in {schema!r}, with {size / _GIBIBYTE:,.2f} GiB of tables and indexes")


def _durability(connection: Connection, _schema: str) -> Iterator[Finding]:
    settings = connection.execute(_SETTINGS, (list(_DURABILITY),)).fetchall()
    weak = [name for name, value in settings if value == "off"]
    for name in weak:
        level, risk = _DURABILITY[name]
        yield Finding(level=level, subject="durability", text=f"{name} is off: {risk}; set it to on")
    if not weak:
        yield Finding.ok("durability", ", ".join(f"{name} is {value}" for name, value in sorted(settings)))


def _connections(connection: Connection, _schema: str) -> Iterator[Finding]:
    ((used, most),) = connection.execute(_CONNECTIONS).fetchall()
    text = f"{used} of {most} connections are in use"
    if used > FULL_SHARE * most:
        yield Finding.warning(
            "connections", f"{text}; raise max_connections, use fewer processes, or connect through a pooler"
        )
    else:
        yield Finding.ok("connections", text)


def _transactions(connection: Connection, _schema: str) -> Iterator[Finding]:
    old = connection.execute(_TRANSACTIONS, (LONG_TRANSACTION_SECONDS,)).fetchall()
    for what, seconds in old[:_NAMED]:
        yield Finding.warning(
            "transactions",
            f"{what} has had a transaction open for {seconds:,} s: until it ends, vacuum cannot remove the old "
            "versions of rows that runs have replaced since, and everything becomes slower; end it",
        )
    if len(old) > _NAMED:
        yield Finding.warning(
            "transactions", f"{len(old) - _NAMED} more are open for too long; set idle_in_transaction_session_timeout"
        )
    if not old:
        yield Finding.ok("transactions", f"none has been open for longer than {LONG_TRANSACTION_SECONDS} s")


def _slots(connection: Connection, _schema: str) -> Iterator[Finding]:
    behind = connection.execute(_SLOTS, (RETAINED_BYTES,)).fetchall()
    for name, is_active, size in behind[:_NAMED]:
        text = f"slot {name!r} keeps {size / _GIBIBYTE:,.1f} GiB of the write-ahead log from being removed"
        advice = "is its receiver too slow?" if is_active else "no client reads from it: if it is not needed, drop it"
        yield Finding.warning("replication", f"{text}; {advice}")
    if not behind:
        yield Finding.ok("replication", "no slot keeps much of the write-ahead log")


def _vacuum(connection: Connection, schema: str) -> Iterator[Finding]:
    ((_, is_on),) = connection.execute(_SETTINGS, (["autovacuum"],)).fetchall()
    if is_on == "off":
        yield Finding.problem("vacuum", "autovacuum is off: tables only grow and become slower; set it to on")
        return
    full = connection.execute(_DEAD_ROWS, (schema, DEAD_ROWS)).fetchall()
    for name, dead, live, last in full[:_NAMED]:
        yield Finding.warning(
            "vacuum",
            f"{schema}.{name} has {dead:,} dead rows beside {live:,} live ones (last vacuum: {last}); does an old "
            "transaction keep them, or are there too few autovacuum workers?",
        )
    if not full:
        yield Finding.ok("vacuum", "no table has too many dead rows")


def _requests(connection: Connection, schema: str) -> Iterator[Finding]:
    ((count, age),) = connection.execute(qualified(_REQUESTS, schema)).fetchall()
    text = f"{count:,} requests of SQL producers are not carried out yet"
    if age > LATE_REQUEST_SECONDS * SECOND:
        yield Finding.warning("requests", f"{text}, the oldest for {age // SECOND:,} s; is a worker running?")
    else:
        yield Finding.ok("requests", text)


def _stray(connection: Connection, schema: str) -> Iterator[Finding]:
    ((count,),) = connection.execute(qualified(_STRAY, schema)).fetchall()
    yield finding_of(count)
