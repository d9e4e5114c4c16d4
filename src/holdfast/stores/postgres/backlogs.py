"""Backlogs: counts of ready and held runs, without reading runs that sleep or have ended."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.core.clock import Micros
from holdfast.core.model import Backlog
from holdfast.stores.postgres.sql import RANK, qualified

# Runs that no worker holds are in lanes, one per type, priority and rank. Like a claim, the query skips through them.
_BACKLOG = f"""
    with recursive lanes (type, priority, rank) as (
        (
            select first.type, first.priority, {RANK} as rank
            from {{schema}}.runs as first
            where first.worker is null
              and first.ready_at is not null
            order by first.type, first.priority, {RANK}
            limit 1
        )
        union all
        select next.type, next.priority, next.rank
        from lanes
        cross join lateral (
            select run.type, run.priority, {RANK} as rank
            from {{schema}}.runs as run
            where (run.type, run.priority, {RANK}) > (lanes.type, lanes.priority, lanes.rank)
              and run.worker is null
              and run.ready_at is not null
            order by run.type, run.priority, {RANK}
            limit 1
        ) as next
    ),
    due (type, count, since) as (
        select lanes.type, lane.count, lane.since
        from lanes
        cross join lateral (
            select count(*), min(run.ready_at) as since
            from {{schema}}.runs as run
            where run.type = lanes.type
              and run.priority = lanes.priority
              and {RANK} = lanes.rank
              and run.worker is null
              and run.ready_at <= (select {{schema}}.instant({{schema}}.time_v1(%(at)s)))
        ) as lane
        union all
        select run.type, count(*), min(run.ready_at)
        from {{schema}}.runs as run
        where run.worker is not null
          and run.ready_at <= (select {{schema}}.instant({{schema}}.time_v1(%(at)s)))
        group by run.type
    )
    select type, sum(count)::bigint, {{schema}}.micros(min(since))
    from due
    where count > 0
    group by type
    order by type
"""  # noqa: S608 - built from a constant; runs_queue, runs_held

_HELD = """
    select worker, count(*)
    from {schema}.runs
    where worker is not null
    group by worker
"""  # runs_held


def backlog(connection: psycopg.Connection[Any], schema: str, at: Micros | None) -> list[Backlog]:
    """Count the runs that can be claimed now, by type. Without a time, the server's clock counts."""
    found = connection.execute(qualified(_BACKLOG, schema), {"at": at})
    return [Backlog(type=type, count=count, since=since) for type, count, since in found]


def held(connection: psycopg.Connection[Any], schema: str) -> dict[str, int]:
    """Return the number of runs that each worker holds."""
    return dict(connection.execute(qualified(_HELD, schema)).fetchall())
