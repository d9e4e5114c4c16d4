"""Flows: read the registrations of flows, and remove those that no run needs. The shared operations write them."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec
import psycopg

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition, removable
from holdfast.core.questions import ListFlows
from holdfast.stores.postgres.sql import qualified

_FIELDS = ", ".join(field for field in FlowDefinition.__struct_fields__ if field not in ("source", "program"))

_LIST = f"""
    select row_to_json(flow)::text
    from (
        select {_FIELDS}
        from {{schema}}.flows
        where (type, registered_at) > (%(type_after)s, %(after)s)
          and (%(type)s::text is null or type = %(type)s or starts_with(type, %(family)s))
          and (%(version)s::text is null or starts_with(version, %(version)s))
        order by type, registered_at
        limit %(limit)s
    ) as flow
"""  # noqa: S608 - built from constants; by the primary key

_LIST_WITH_TEXTS = _LIST.replace(_FIELDS, f"{_FIELDS}, source, program")

_SUPERSEDED = f"""
    select row_to_json(flow)::text
    from (
        select {_FIELDS}
        from {{schema}}.flows
        where type in (select type from {{schema}}.flows group by type having count(*) > 1)
        order by type, registered_at
    ) as flow
"""  # noqa: S608 - built from constants; all of them: there are few

_OLDEST_RUN = """
    select created_at
    from {schema}.runs
    where type = %s
    order by created_at
    limit 1
"""  # runs_listed

# A fork that was made meanwhile has changed `used_at`.
_REMOVE = """
    delete from {schema}.flows
    where type = %s
      and registered_at = %s
      and used_at = %s
"""  # by the primary key

_decode = msgspec.json.Decoder(FlowDefinition).decode


def list_flows(connection: psycopg.Connection[Any], schema: str, query: ListFlows) -> list[FlowDefinition]:
    is_family = query.type is not None and query.type.endswith(".*")
    values = {
        "type_after": query.after[0],
        "after": query.after[1],
        "type": query.type,
        "family": (query.type or "")[:-1] if is_family else None,
        "version": query.version,
        "limit": query.limit,
    }
    statement = _LIST_WITH_TEXTS if query.with_texts else _LIST
    return [_decode(text) for (text,) in connection.execute(qualified(statement, schema), values)]


def prune(connection: psycopg.Connection[Any], schema: str, limit: int, retention: Micros, now: Micros) -> int:
    """Remove registrations that no run needs, at most `limit`. Return how many."""
    count = 0
    found = [_decode(text) for (text,) in connection.execute(qualified(_SUPERSEDED, schema)).fetchall()]
    for type, registrations in groupby(found, lambda one: one.type):
        row = connection.execute(qualified(_OLDEST_RUN, schema), (type,)).fetchone()
        old = removable(list(registrations), None if row is None else row[0], retention, now)
        for one in old[: limit - count]:
            values = (one.type, one.registered_at, one.used_at)
            count += connection.execute(qualified(_REMOVE, schema), values).rowcount
    return count
