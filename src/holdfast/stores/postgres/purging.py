"""Purging: removes ended runs with all their rows after their retention.

A run is removed in one transaction. A run with more rows than one batch may remove is hidden first, so that it cannot
be reopened, and then removed batch by batch. Only one pruner of a store purges at a time. It waits for no lock: runs
that another transaction has locked are left for the next purge.
"""

# ruff: noqa: S608 - statements are built from constants; values of users are always bound

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import psycopg

from holdfast.core import retention
from holdfast.core.clock import Micros
from holdfast.core.model import Run
from holdfast.stores.postgres import topics
from holdfast.stores.postgres.sql import qualified

_MANY = ("entries", "audits", "receipts", "replies", "run_values")
"""Tables in which a run may have many rows."""
_PARTS = (*_MANY, "inbox", "waits")
"""All tables with rows of runs."""

# A batch touches a hundred scattered rows. Postgres would read a table of a few thousand rows from end to end for it.
_PLANNING = """
    select set_config('enable_seqscan', 'off', true),
        set_config('enable_hashjoin', 'off', true),
        set_config('enable_mergejoin', 'off', true)
"""

# `kinship.is_kept_for_parent` in SQL.
_IS_KEPT_FOR_PARENT = """
    (
        run.state <> 'succeeded'
        and run.deleted_at is null
        and exists (
            select
            from {schema}.entries as entry
            where entry.run_id = run.parent_id
              and entry.location = run.parent_location
              and entry.kind = 'child'
              and entry.ref = run.id
              and entry.attempts > 0
        )
    )
"""  # by the primary key

# The number of rows of a run. Counting stops once the room is exceeded.
_SIZE = " + ".join(
    f"(select count(*) from (select from {{schema}}.{table} where run_id = run.id limit %(room)s + 1) as few)"
    for table in _MANY
)  # by the primary keys, and audits_run

_ABOUT = f"""
    select row_to_json(run)::text, {_IS_KEPT_FOR_PARENT}, {_SIZE}, coalesce(types.retention, %(usual)s)
    from {{schema}}.runs_read as run
    left join {{schema}}.types on types.name = run.type
    where run.id = any(%(ids)s::text[])
"""  # by the primary keys

# Each type that has ended runs, and its retention.
_TYPES = """
    ended (type) as (
        (
            select type
            from {schema}.runs
            where finished_at is not null
              and purge_at is null
            order by type
            limit 1
        )
        union all
        select (
            select runs.type
            from {schema}.runs
            where runs.finished_at is not null
              and runs.purge_at is null
              and runs.type > ended.type
            order by runs.type
            limit 1
        )
        from ended
        where ended.type is not null
    ),
    kept as (
        select ended.type, coalesce(types.retention, %(usual)s) as retention
        from ended
        left join {schema}.types on types.name = ended.type
        where ended.type is not null
    )
"""  # runs_ended, from one type to the next

# First the runs with a purge time of their own, then the others by their end. So runs that were made together are
# removed together, and their rows are on the same pages.
_DUE = f"""
    with recursive {_TYPES}
    select id
    from (
        (
            select 0 as turn, purge_at as at, id
            from {{schema}}.runs
            where purge_at <= %(now)s
            order by purge_at, id
            limit %(limit)s
        )
        union all
        (
            select 1, due.finished_at, due.id
            from kept
            cross join lateral (
                select runs.finished_at, runs.id
                from {{schema}}.runs
                where runs.type = kept.type
                  and runs.finished_at <= %(now)s - kept.retention
                  and runs.finished_at is not null
                  and runs.purge_at is null
                order by runs.finished_at, runs.id
                limit %(limit)s
            ) as due
            order by due.finished_at, due.id
            limit %(limit)s
        )
    ) as due
    order by turn, at, id
    limit %(limit)s
"""  # runs_purge, runs_ended

# `retention.verdict` in SQL.
_COUNT = f"""
    select run.type, count(*)
    from {{schema}}.runs as run
    left join {{schema}}.types on types.name = run.type
    where run.purge_at <= %(now)s
      and (
          run.retention is not null
          or run.deleted_at is not null
          or run.finished_at <= %(now)s - coalesce(types.retention, %(usual)s)
      )
      and not {_IS_KEPT_FOR_PARENT}
    group by run.type
"""  # runs_purge

_COUNT_BY_TYPE = f"""
    with recursive {_TYPES}
    select kept.type, due.count
    from kept
    cross join lateral (
        select count(*) as count
        from {{schema}}.runs as run
        where run.type = kept.type
          and run.finished_at <= %(now)s - kept.retention
          and run.finished_at is not null
          and run.purge_at is null
          and not {_IS_KEPT_FOR_PARENT}
    ) as due
"""  # runs_ended

# A run that was reopened meanwhile has another token.
_LOCK = """
    select run.id
    from unnest(%(ids)s::text[], %(tokens)s::bigint[]) as chosen (id, token)
    join {schema}.runs as run on run.id = chosen.id and run.token = chosen.token
    where run.finished_at is not null
    for update of run skip locked
"""  # by the primary key

_DEFER = """
    update {schema}.runs
    set purge_at = %s
    where id = any(%s::text[])
"""  # by the primary key

_HIDE = """
    update {schema}.runs
    set deleted_at = coalesce(deleted_at, %(now)s),
        purge_at = %(now)s,
        key = null
    where id = %(id)s
"""  # by the primary key

# The runs and all their rows: by the primary keys, and audits_run.
_OF_RUNS = "of_{table} as (delete from {{schema}}.{table} where run_id = any(%(ids)s::text[]))"
_DROP = f"""
    with {", ".join(_OF_RUNS.format(table=table) for table in _PARTS)}
    delete from {{schema}}.runs
    where id = any(%(ids)s::text[])
"""

# Some rows of a run that has many.
_DROPS_SOME = tuple(
    f"delete from {{schema}}.{table} where ctid = any(array("
    f"select ctid from {{schema}}.{table} where run_id = %s limit %s))"
    for table in _MANY
)

_run = msgspec.json.Decoder(Run)


class _Due(msgspec.Struct, frozen=True):
    """A run that may be due for purging."""

    run: Run
    is_kept_for_parent: bool
    size: int
    retention: Micros


def purge(
    connection: psycopg.Connection[Any], schema: str, limit: int, usual: Micros, now: Micros
) -> tuple[dict[str, int], bool]:
    """Purge the first runs that are due. Return the number of purged runs by type, and True if more are due.

    `usual` is the retention of runs whose type has none.
    """
    with connection.transaction():
        if not topics.try_turn(connection, schema, topics.PURGING):
            return {}, False  # the pruner that has the turn goes on until nothing is left
        connection.execute(_PLANNING)
        purging = _Purging(connection, schema, limit, usual, now)
        ids = purging.due()
        gone, has_more = purging.done(ids) if ids else (Counter(), False)
    # If others have locked all of them, the caller should come back later and not at once.
    return dict(sorted(gone.items())), purging.is_moving and (has_more or len(ids) == limit)


def count(connection: psycopg.Connection[Any], schema: str, usual: Micros, now: Micros) -> dict[str, int]:
    """Return the number of runs that are due, by type."""
    by_type: Counter[str] = Counter()
    for statement in (_COUNT, _COUNT_BY_TYPE):
        for type, many in connection.execute(qualified(statement, schema), {"now": now, "usual": usual}):
            by_type[type] += many
    return {type: many for type, many in sorted(by_type.items()) if many}


class _Purging:
    """One batch."""

    def __init__(
        self, connection: psycopg.Connection[Any], schema: str, limit: int, usual: Micros, now: Micros
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._limit = limit
        self._room = limit * retention.ROWS_PER_RUN
        self._usual = usual
        self._now = now
        self.is_moving = False
        """True if this batch has changed anything."""

    def due(self) -> list[str]:
        """Return the first due runs: those with a purge time of their own, then the others by their end."""
        return [id for (id,) in self._all(_DUE, {"now": self._now, "usual": self._usual, "limit": self._limit})]

    def done(self, ids: Sequence[str]) -> tuple[Counter[str], bool]:
        """Purge those runs that are due. Return their number by type, and True if some did not fit into the batch."""
        gone: list[_Due] = []
        later: dict[Micros | None, list[Run]] = defaultdict(list)
        for one in self._about(ids):
            run = one.run
            found = retention.verdict(
                run, retention=one.retention, is_kept_for_parent=one.is_kept_for_parent, now=self._now
            )
            if found == "purge":
                gone.append(one)
            else:
                later[retention.deferred(run, found, self._now).purge_at].append(run)
        for purge_at, runs in later.items():
            self._do(_DEFER, (purge_at, self._locked(runs)))
        fits = retention.fitting((one.size for one in gone), self._room)
        if gone and fits == 0:
            self._gut(gone[0].run)
        return self._remove([one.run for one in gone[:fits]]), fits < len(gone)

    def _about(self, ids: Sequence[str]) -> list[_Due]:
        found = self._all(_ABOUT, {"ids": list(ids), "room": self._room, "usual": self._usual})
        about: dict[str, _Due] = {}
        for run, *others in found:
            with suppress(msgspec.MsgspecError, RecursionError):  # a run that cannot be decoded stays
                one = _Due(_run.decode(run), *others)
                about[one.run.id] = one
        return [about[id] for id in ids if id in about]

    def _locked(self, runs: Sequence[Run]) -> list[str]:
        """Lock runs, and return those that are unchanged and that no other transaction has locked."""
        values = {"ids": [run.id for run in runs], "tokens": [run.token for run in runs]}
        locked = [id for (id,) in self._all(_LOCK, values)]
        self.is_moving = self.is_moving or bool(locked)
        return locked

    def _remove(self, runs: Sequence[Run]) -> Counter[str]:
        locked = set(self._locked(runs)) if runs else set()
        if locked:
            self._do(_DROP, {"ids": sorted(locked)})
        return Counter(run.type for run in runs if run.id in locked)

    def _gut(self, run: Run) -> None:
        """Hide a run that has too many rows, and remove some of them."""
        if not self._locked([run]):
            return
        self._do(_HIDE, {"now": self._now, "id": run.id})
        room = self._room
        for statement in _DROPS_SOME:
            if room > 0:
                room -= self._do(statement, (run.id, room))

    def _all(self, statement: str, values: Any = None) -> list[Any]:
        return self._connection.execute(qualified(statement, self._schema), values).fetchall()

    def _do(self, statement: str, values: Any) -> int:
        return self._connection.execute(qualified(statement, self._schema), values).rowcount
