"""Lists of runs, newest first, page by page. Each list is read from indexes in its own order.

Statements are built from the fixed clauses in this file. Values of users are always bound.
"""

# ruff: noqa: S608 - statements are built from constants; values of users are always bound

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg

from holdfast.core.questions import Details, Query
from holdfast.core.states import RunState
from holdfast.stores.postgres import reads
from holdfast.stores.postgres.sql import qualified

# States that few runs are in, each with the condition of a partial index: `runs_rare`, or `runs_held` for running runs.
# Postgres uses such an index only if the statement itself implies the condition, so the states are part of the text.
_RARE = (RunState.FAILED, RunState.CANCELLED, RunState.BLOCKED, RunState.PAUSED, RunState.ROLLING_BACK)
_FEW = {state: f"run.state = '{state.value}'" for state in _RARE}
_FEW[RunState.RUNNING] = "run.state = 'running' and run.worker is not null"

_LAST_CHARACTER = "\U0010ffff"

_FAMILY = "run.type >= %(family)s and run.type < %(family_end)s"


def list_runs(connection: psycopg.Connection[Any], schema: str, query: Query) -> list[Details]:
    """Return one page of the runs that match a query."""
    text, values = statement(query)
    # Not prepared: the best plan depends on the values, above all on the limit.
    return reads.details(connection.execute(qualified(text, schema), values, prepare=False))


def statement(query: Query) -> tuple[str, dict[str, object]]:
    """Return the statement for a list, and its values."""
    types, listed = _source(query)
    text = f"""
        with recursive {types} page as (
            select listed.created_at, listed.id
            from {listed}
            order by listed.created_at desc, listed.id desc
            limit %(limit)s
        )
        select {reads.DETAILS}
        from page
        join {{schema}}.runs_read as run on run.id = page.id
        order by page.created_at desc, page.id desc
    """
    return text, _values(query)


def _source(query: Query) -> tuple[str, str]:
    """Return the clause that lists the types (empty if not needed), and the source of the runs."""
    conditions = list(_conditions(query))
    if query.tags or query.key is not None or query.parent_id is not None or query.id_prefix is not None:
        return "", f"({_newest(conditions)}) as listed"
    if query.is_deleted:
        return "", f"({_newest(conditions)}) as listed"
    if query.states and query.states.issubset(_FEW):
        each = [f"({_newest([_FEW[state], *conditions])})" for state in sorted(query.states)]
        return "", f"({' union all '.join(each)}) as listed"
    if query.type is not None and not query.type.endswith(".*"):
        return "", f"({_newest(conditions)}) as listed"
    of_type = _newest(["run.type = types.type", *conditions])
    return f"{_types(query)},", f"types cross join lateral ({of_type}) as listed"


def _newest(conditions: Sequence[str]) -> str:
    """Return the query for the newest runs, in order: from `runs_listed` for one type, `runs_rare` for one state."""
    return f"""
        select run.created_at, run.id
        from {{schema}}.runs as run
        where {" and ".join(conditions)}
        order by run.created_at desc, run.id desc
        limit %(limit)s
    """


def _types(query: Query) -> str:
    """Return the clause for all types, or those of a family. It skips from type to type in `runs_listed`.

    An index of all runs by creation time would cost every start more than it saves here.
    """
    family = "true" if query.type is None else _FAMILY
    return f"""
        types as (
            (
                select run.type
                from {{schema}}.runs as run
                where {family}
                order by run.type
                limit 1
            )
            union all
            select (
                select run.type
                from {{schema}}.runs as run
                where run.type > types.type
                  and {family}
                order by run.type
                limit 1
            )
            from types
            where types.type is not null
        )
    """


def _conditions(query: Query) -> Iterator[str]:
    """Yield the conditions of a query, in the order of the fields of `Query`."""
    if query.states:
        yield "run.state = any(%(states)s::text[])"
    if query.type is not None:
        yield _FAMILY if query.type.endswith(".*") else "run.type = %(type)s"
    if query.key is not None:
        yield "run.key = %(key)s"
    if query.tags:
        yield "run.tags @> %(tags)s::jsonb"
    if query.parent_id is not None:
        yield "run.parent_id = %(parent_id)s"
    if query.id_prefix is not None:
        yield "run.id >= %(id_prefix)s and run.id < %(id_end)s"
    if query.created_from is not None:
        yield "run.created_at >= %(created_from)s"
    if query.created_until is not None:
        yield "run.created_at < %(created_until)s"
    yield f"run.deleted_at is {'not ' if query.is_deleted else ''}null"
    if query.before is not None:
        yield "(run.created_at, run.id) < (%(before_created_at)s, %(before_id)s)"


def _values(query: Query) -> dict[str, object]:
    type = query.type or ""
    before = query.before or (0, "")
    return {
        "states": sorted(query.states),
        "type": type,
        "family": type[:-1],
        "family_end": type[:-2] + "/",  # the character after the dot
        "key": query.key,
        "tags": msgspec.json.encode(query.tags).decode(),
        "parent_id": query.parent_id,
        "id_prefix": query.id_prefix,
        "id_end": f"{query.id_prefix}{_LAST_CHARACTER}",
        "created_from": query.created_from,
        "created_until": query.created_until,
        "before_created_at": before[0],
        "before_id": before[1],
        "limit": query.limit,
    }
