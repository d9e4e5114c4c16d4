"""Purging: remove ended runs with all their rows.

A run is removed in one transaction. If it has more rows than one transaction may remove, it is hidden first, so that no
operation can reopen the rest of it. Each later transaction then removes a part.
"""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from heapq import merge
from itertools import islice

import apsw

from holdfast.core.clock import Micros
from holdfast.core.model import Run
from holdfast.stores.operations.unit_of_work import OddRow, OldRun
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.rows import Row

# `kinship.is_kept_for_parent` in SQL.
_IS_KEPT_FOR_PARENT = """
    (
      run.state != 'succeeded'
      and run.deleted_at is null
      and exists (
        select 1
        from entry
        where entry.run_id = run.parent_id
          and entry.location = run.parent_location
          and entry.kind = 'child'
          and entry.ref = run.id
          and entry.attempts > 0
      )
    )
"""  # by the primary key

# The number of rows of a run in the tables where it can have many. Each count stops at the limit that matters.
_SIZE = """
    (select count(*) from (select 1 from entry where run_id = run.id limit ?1))
    + (select count(*) from (select 1 from audit where run_id = run.id limit ?1))
    + (select count(*) from (select 1 from receipt where run_id = run.id limit ?1))
    + (select count(*) from (select 1 from reply where run_id = run.id limit ?1))
    + (select count(*) from (select 1 from value where run_id = run.id limit ?1))
"""  # by the primary keys, and audit_run

_ABOUT = f"""
    select {_IS_KEPT_FOR_PARENT}, {_SIZE}, {rows.TAGGED_RUN}
    from json_each(?2) as chosen
    cross join run on run.id = chosen.value
    cross join intent on intent.run_id = run.id
    order by chosen.id
"""  # by the primary keys

_DUE = """
    select id
    from run indexed by run_purge
    where purge_at <= ?
    order by purge_at, id
    limit ?
"""

_DUE_OF_TYPE = """
    select finished_at, id
    from run indexed by run_ended
    where type = ?
      and finished_at <= ?
      and finished_at is not null
      and purge_at is null
    order by finished_at, id
"""

_NEXT_TYPE = """
    select type
    from run indexed by run_ended
    where type > ?
      and finished_at is not null
      and purge_at is null
    order by type
    limit 1
"""

_RETENTIONS = """
    select name, retention
    from type
    where retention is not null
"""  # full scan: there are few types

# `retention.verdict` in SQL.
_COUNT = f"""
    select run.type, count(*)
    from run indexed by run_purge
    where run.purge_at <= ?1
      and (
        run.retention is not null
        or run.deleted_at is not null
        or run.finished_at <= ?1 - coalesce((select type.retention from type where type.name = run.type), ?2)
      )
      and not {_IS_KEPT_FOR_PARENT}
    group by run.type
"""

_COUNT_BY_TYPE = f"""
    select count(*)
    from run indexed by run_ended
    where run.type = ?
      and run.finished_at <= ?
      and run.finished_at is not null
      and run.purge_at is null
      and not {_IS_KEPT_FOR_PARENT}
"""

_DEFER = """
    update run
    set purge_at = ?
    where id = ?
"""  # by the primary key

_HIDE = """
    update run
    set deleted_at = ifnull(deleted_at, ?1), purge_at = ?1, key = null
    where id = ?2
"""  # by the primary key

_DROP_TAG = """
    delete from tag
    where name = ?
      and value = ?
      and created_at = ?
      and run_id = ?
"""  # by the primary key

# All rows of runs, the runs themselves last: by the primary keys, and audit_run.
_DROPS = tuple(
    f"delete from {table} where {id} in (select value from json_each(?))"
    for table, id in (
        *((table, "run_id") for table in ("entry", "audit", "receipt", "reply", "value", "inbox", "wait", "intent")),
        ("run", "id"),
    )
)

# A limited number of rows of one run.
_DROPS_SOME = tuple(
    f"delete from {table} where run_id = ?1 and {id} in (select {id} from {table} where run_id = ?1 limit ?2)"
    for table, id in (
        ("entry", "location"),
        ("audit", "number"),
        ("receipt", "message_id"),
        ("reply", "message_id"),
        ("value", "name"),
    )
)


def due(connection: apsw.Connection, limit: int, usual: Micros, room: int, now: Micros) -> list[OldRun]:
    """Return the first runs that may be due, with the facts that decide whether they are removed."""
    kept = _retentions(connection, usual)
    found: list[Row] = connection.execute(
        _ABOUT, (room + 1, rows.json_of(_due(connection, limit, kept, now)))
    ).fetchall()
    runs = ((row, _run_of(row)) for row in found)
    return [OldRun(run, kept[run.type], bool(row[0]), row[1]) for row, run in runs if run is not None]


def defer(connection: apsw.Connection, run: Run) -> None:
    connection.execute(_DEFER, (run.purge_at, run.id))


def count(connection: apsw.Connection, usual: Micros, now: Micros) -> dict[str, int]:
    """Count the runs that are due for removal, by type."""
    kept = _retentions(connection, usual)
    by_type: Counter[str] = Counter({str(type): many for type, many in connection.execute(_COUNT, (now, usual))})
    for type in _types(connection):
        by_type[type] += connection.execute(_COUNT_BY_TYPE, (type, now - kept[type])).get
    return {type: many for type, many in sorted(by_type.items()) if many}


def _retentions(connection: apsw.Connection, usual: Micros) -> dict[str, Micros]:
    """Return the retention of each type. Types without one get the usual retention."""
    return defaultdict(lambda: usual, {str(type): kept for type, kept in connection.execute(_RETENTIONS)})


def _types(connection: apsw.Connection) -> Iterator[str]:
    """Yield the types that have ended runs without their own purge time, one index seek per type."""
    last = ""
    while (found := connection.execute(_NEXT_TYPE, (last,)).get) is not None:
        last = found
        yield last


def _due(connection: apsw.Connection, limit: int, kept: Mapping[str, Micros], now: Micros) -> list[str]:
    """Return the first due runs: those with their own purge time, then the others by the time they ended.

    So runs from the same time, whose rows share pages, are removed together.
    """
    ids = [str(run_id) for (run_id,) in connection.execute(_DUE, (now, limit)).fetchall()]
    if len(ids) < limit:
        ended = [_ended(connection, type, now - kept[type]) for type in _types(connection)]
        ids += [run_id for _, run_id in islice(merge(*ended), limit - len(ids))]
        for reading in ended:
            reading.close()
    return ids


def _ended(connection: apsw.Connection, type: str, until: Micros) -> Generator[Row, None, None]:
    """Yield the due runs of a type by the time they ended. Rows are read on demand."""
    with closing(connection.execute(_DUE_OF_TYPE, (type, until))) as found:
        yield from found


def _run_of(row: Row) -> Run | None:
    """Decode a run. Returns None for an unreadable one, which stays: its retention cannot be judged."""
    with suppress(OddRow):
        return rows.tagged_run_of(row[2:])
    return None


def remove(connection: apsw.Connection, runs: Sequence[Run]) -> None:
    """Remove runs with all their rows."""
    if tags := [(name, value, run.created_at, run.id) for run in runs for name, value in run.tags.items()]:
        connection.executemany(_DROP_TAG, tags)
    ids = rows.json_of([run.id for run in runs])
    for statement in _DROPS if runs else ():
        connection.execute(statement, (ids,))


def remove_part(connection: apsw.Connection, run: Run, room: int, now: Micros) -> None:
    """Hide a run and remove up to `room` of its rows."""
    connection.execute(_HIDE, (now, run.id))
    for statement in _DROPS_SOME:
        if room > 0:
            connection.execute(statement, (run.id, room))
            room -= connection.changes()
