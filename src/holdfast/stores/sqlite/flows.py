"""Flows as rows: one for each registration. The texts come last in a row, so that a list does not read them."""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import apsw
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.questions import ListFlows
from holdfast.stores.sqlite import rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_LISTED = [field for field in FlowDefinition.__struct_fields__ if field not in ("source", "program")]
_COLUMNS = rows.listed(FlowDefinition, _LISTED)

_OF_TYPE = f"""
    select {_COLUMNS}
    from flow
    where type = ?
    order by registered_at
"""  # by the primary key

_TEXTS = """
    select source, program
    from flow
    where type = ?
      and registered_at = ?
"""  # by the primary key

_PUT = f"""
    insert into flow ({rows.listed(FlowDefinition)})
    values ({rows.placed(rows.listed(FlowDefinition))})
    on conflict (type, registered_at) do update
    set used_at = excluded.used_at
"""

_REMOVE = """
    delete from flow
    where type = ?
      and registered_at = ?
"""  # by the primary key

_SUPERSEDED = """
    select type
    from flow
    group by type
    having count(*) > 1
    order by type
"""  # a scan of the primary key: there are few

_OLDEST_RUN = """
    select min(created_at)
    from run indexed by run_type
    where type = ?
"""

_LIST = f"""
    select {_COLUMNS}
    from flow
    where (type, registered_at) > (?, ?)
    order by type, registered_at
"""  # by the primary key

_flow_of = rows.reader(FlowDefinition, _LISTED, what="the flow {type}")
_row = rows.writer(FlowDefinition)


class SqliteFlows:
    """Registrations of flows, by type and time."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._connection = transaction.connection

    def of(self, type: str) -> Sequence[FlowDefinition]:
        return [_flow_of(row) for row in self._connection.execute(_OF_TYPE, (type,))]

    def whole(self, definition: FlowDefinition) -> FlowDefinition:
        return _whole(self._connection, definition)

    def put(self, definition: FlowDefinition) -> None:
        self._connection.execute(_PUT, _row(definition))

    def remove(self, definition: FlowDefinition) -> None:
        self._connection.execute(_REMOVE, (definition.type, definition.registered_at))

    def types(self) -> Sequence[str]:
        return [type for (type,) in self._connection.execute(_SUPERSEDED)]

    def oldest_run(self, type: str) -> Micros | None:
        self._transaction.flush()
        oldest: Micros | None = self._connection.execute(_OLDEST_RUN, (type,)).get
        return oldest


def list_flows(connection: apsw.Connection, query: ListFlows) -> list[FlowDefinition]:
    listed: list[FlowDefinition] = []
    for row in connection.execute(_LIST, query.after):
        if len(listed) == query.limit:
            break
        if query.admits(definition := _flow_of(row)):
            listed.append(definition)
    return [_whole(connection, one) for one in listed] if query.with_texts else listed


def _whole(connection: apsw.Connection, definition: FlowDefinition) -> FlowDefinition:
    ((source, program),) = connection.execute(_TEXTS, (definition.type, definition.registered_at))
    return replace(definition, source=source, program=program)
