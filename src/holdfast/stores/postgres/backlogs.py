"""Backlogs: how much may be claimed now, and how much is held, without a look at what sleeps or has ended."""

from __future__ import annotations

from typing import Any

import psycopg

from holdfast.core.clock import Micros
from holdfast.core.model import Backlog
from holdfast.stores.postgres.sql import RANK, qualified

# Runs nobody holds stand in lanes, one for each type, priority and rank, which are hopped through as claims do.
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
"""  # noqa: S608 - an expression of ours; runs_queue, runs_held

_HELD = """
    select worker, count(*)
    from {schema}.runs
    where worker is not null
    group by worker
"""  # runs_held


def backlog(connection: psycopg.Connection[Any], schema: str, at: Micros | None) -> list[Backlog]:
    """What may be claimed now, by type. Without a time, the server's counts."""
    found = connection.execute(qualified(_BACKLOG, schema), {"at": at})
    return [Backlog(type=type, count=count, since=since) for type, count, since in found]


def held(connection: psycopg.Connection[Any], schema: str) -> dict[str, int]:
    """How many runs each worker holds."""
    return dict(connection.execute(qualified(_HELD, schema)).fetchall())
