"""Purging: ended runs go away, with all that belongs to them, when their time has come.

A run is removed in one transaction. If it has more rows than a bite may remove it is taken out of sight first, so that
nobody reopens what is left of it, and goes a bite at a time. Only one pruner of a store is at it at a time, and it
waits for nobody: whatever somebody else has locked is left for the next time.
"""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

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
"""Where a run may have many rows."""
_PARTS = (*_MANY, "inbox", "waits")
"""Where it may have any."""

# A bite is a hundred rows here and there, for which a table of a few thousand would be read from end to end.
_PLANNING = """
    select set_config('enable_seqscan', 'off', true),
        set_config('enable_hashjoin', 'off', true),
        set_config('enable_mergejoin', 'off', true)
"""

# `kinship.is_kept_for_parent` in the words of SQL.
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

# What a run has many of. Counted no further than there is need to know.
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

# Each type there are ended runs of, and how long those are kept.
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

# Those with an instant of their own first, then the others by the time they ended: so those go together that were made
# together, and have their rows on the same pages.
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

# `retention.verdict` in the words of SQL.
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

# One that was reopened meanwhile has another token.
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

# All that belongs to runs, and they themselves: by the primary keys, and audits_run.
_OF_RUNS = "of_{table} as (delete from {{schema}}.{table} where run_id = any(%(ids)s::text[]))"
_DROP = f"""
    with {", ".join(_OF_RUNS.format(table=table) for table in _PARTS)}
    delete from {{schema}}.runs
    where id = any(%(ids)s::text[])
"""

# Some of what a run has many of.
_DROPS_SOME = tuple(
    f"delete from {{schema}}.{table} where ctid = any(array("
    f"select ctid from {{schema}}.{table} where run_id = %s limit %s))"
    for table in _MANY
)

_run = msgspec.json.Decoder(Run)


class _Due(msgspec.Struct, frozen=True):
    """A run whose time has come, perhaps."""

    run: Run
    is_kept_for_parent: bool
    size: int
    retention: Micros


def purge(
    connection: psycopg.Connection[Any], schema: str, limit: int, usual: Micros, now: Micros
) -> tuple[dict[str, int], bool]:
    """Look at the first runs that are due; how many went, by type, and whether there are more.

    `usual` is how long runs are kept whose type does not say.
    """
    with connection.transaction():
        if not topics.try_turn(connection, schema, topics.PURGING):
            return {}, False  # whoever has it goes on until nothing is left
        connection.execute(_PLANNING)
        purging = _Purging(connection, schema, limit, usual, now)
        ids = purging.due()
        gone, has_more = purging.done(ids) if ids else (Counter(), False)
    # Where all is locked by others it is better to come back later than at once.
    return dict(sorted(gone.items())), purging.is_moving and (has_more or len(ids) == limit)


def count(connection: psycopg.Connection[Any], schema: str, usual: Micros, now: Micros) -> dict[str, int]:
    """How many runs would go, by type, were all that are due removed."""
    by_type: Counter[str] = Counter()
    for statement in (_COUNT, _COUNT_BY_TYPE):
        for type, many in connection.execute(qualified(statement, schema), {"now": now, "usual": usual}):
            by_type[type] += many
    return {type: many for type, many in sorted(by_type.items()) if many}


class _Purging:
    """One bite."""

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
        """Whether anything is otherwise than before."""

    def due(self) -> list[str]:
        """The first runs that are due: those with an instant of their own, then the others by the time they ended."""
        return [id for (id,) in self._all(_DUE, {"now": self._now, "usual": self._usual, "limit": self._limit})]

    def done(self, ids: Sequence[str]) -> tuple[Counter[str], bool]:
        """Remove those of the runs that are to go; how many did, and whether some were left for want of room."""
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
            with suppress(msgspec.MsgspecError, RecursionError):  # one that cannot be read stays
                one = _Due(_run.decode(run), *others)
                about[one.run.id] = one
        return [about[id] for id in ids if id in about]

    def _locked(self, runs: Sequence[Run]) -> list[str]:
        """Those of the runs that are as they were, and nobody else is about to change."""
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
        """Remove some of what a run has too many of. Nobody sees it from now on."""
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
