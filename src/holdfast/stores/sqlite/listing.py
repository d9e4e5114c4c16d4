"""Lists of runs, newest first, page by page. An index supplies each list in the order in which it is shown.

Statements are built from the fixed clauses of this file. User input is always bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice

import apsw

from holdfast.core.questions import Details, Query
from holdfast.core.states import RunState
from holdfast.stores.sqlite import reads, rows
from holdfast.stores.sqlite.rows import Row

# The states that the index `run_rare` covers. SQLite uses a partial index only if the statement contains a term of its
# condition literally, so these constants are written into the text instead of being bound.
RARE_STATES = (RunState.FAILED, RunState.CANCELLED, RunState.BLOCKED, RunState.PAUSED, RunState.ROLLING_BACK)

_LAST_CHARACTER = "\U0010ffff"

_NEXT_TYPE = """
    select type
    from run indexed by run_type
    where type > ?
      and type < ?
    order by type
    limit 1
"""

_OTHER_TAG = """
    exists (
        select 1
        from tag as other
        where other.name = ?
          and other.value = ?
          and other.created_at = tag.created_at
          and other.run_id = tag.run_id
    )
"""  # by the primary key

Condition = tuple[str, Sequence[object]]


def list_runs(connection: apsw.Connection, query: Query) -> list[Details]:
    """Return one page of the runs that match a query."""
    pages = [
        reads.raw_or_not(connection, *statement(conditions, index, query))
        for conditions, index in _sources(connection, query)
    ]
    newest_first = merge(*pages, key=_age, reverse=True)
    return reads.details(connection, list(islice(newest_first, query.limit)))


def statement(conditions: Sequence[Condition], index: str, query: Query) -> tuple[str, tuple[object, ...]]:
    """Return the statement for one source of a list, and its bindings."""
    order = "tag" if query.tags else "run"
    conditions = [*conditions, *_filters(query)]
    text = f"""
        select {rows.WHOLE_RUN}
        {_from(query, index)}
        cross join intent on intent.run_id = run.id
        where {" and ".join(clause for clause, _ in conditions) or "true"}
        order by {order}.created_at desc, {"tag.run_id" if query.tags else "run.id"} desc
        limit ?
    """
    return text, (*(value for _, values in conditions for value in values), query.limit)


def _from(query: Query, index: str) -> str:
    if query.tags:
        return "from tag cross join run on run.id = tag.run_id"
    return f"from run {index}"


def _sources(connection: apsw.Connection, query: Query) -> Iterator[tuple[list[Condition], str]]:
    """Yield the indexes to read, each with the conditions that select from it."""
    if query.tags:
        name, value = next(iter(query.tags.items()))
        yield [("tag.name = ? and tag.value = ?", (name, value)), *_types(query), *_states(query)], ""
    elif query.key is not None:
        yield [*_types(query), *_states(query)], "indexed by run_key"
    elif query.parent_id is not None:
        yield [*_types(query), *_states(query)], "indexed by run_parent"
    elif query.id_prefix is not None:
        yield [*_types(query), *_states(query)], "indexed by sqlite_autoindex_run_1"
    elif query.is_deleted:
        yield [*_types(query), *_states(query)], "indexed by run_deleted"
    elif query.states and query.states.issubset(RARE_STATES):
        for state in query.states:
            yield [(f"run.state = '{state.value}'", ()), *_types(query)], "indexed by run_rare"
    elif query.type is not None:
        for type in _types_of(connection, query.type):
            yield [("run.type = ?", (type,)), *_states(query)], "indexed by run_type"
    else:
        yield _states(query), "indexed by run_created"


def _types_of(connection: apsw.Connection, wanted: str) -> Iterator[str]:
    """Yield the names of types that match a type or a family such as `billing.*`, one index seek per name."""
    if not wanted.endswith(".*"):
        yield wanted
        return
    last, end = wanted[:-1], wanted[:-2] + "/"  # the character after the dot
    while (found := connection.execute(_NEXT_TYPE, (last, end)).get) is not None:
        last = found
        yield last


def _types(query: Query) -> list[Condition]:
    if query.type is None:
        return []
    if query.type.endswith(".*"):
        return [("run.type >= ? and run.type < ?", (query.type[:-1], query.type[:-2] + "/"))]
    return [("run.type = ?", (query.type,))]


def _states(query: Query) -> list[Condition]:
    if not query.states:
        return []
    # The unary plus keeps the planner from using an index on states, which is not in the order of the list.
    return [(f"+run.state in ({', '.join('?' * len(query.states))})", sorted(query.states))]


def _filters(query: Query) -> Iterator[Condition]:
    """Yield the conditions that apply to every source, in the order of the fields of `Query`."""
    if query.key is not None:
        yield "run.key = ?", (query.key,)
    for name, value in list(query.tags.items())[1:]:
        yield _OTHER_TAG, (name, value)
    if query.parent_id is not None:
        yield "run.parent_id = ?", (query.parent_id,)
    if query.id_prefix is not None:
        yield "run.id >= ? and run.id < ?", (query.id_prefix, query.id_prefix + _LAST_CHARACTER)
    yield f"run.deleted_at is {'not ' if query.is_deleted else ''}null", ()
    at = "tag.created_at" if query.tags else "run.created_at"
    if query.created_from is not None:
        yield f"{at} >= ?", (query.created_from,)
    if query.created_until is not None:
        yield f"{at} < ?", (query.created_until,)
    if query.before is not None:
        created_at, run_id = query.before
        yield f"{at} <= ? and ({at} < ? or run.id < ?)", (created_at, created_at, run_id)


def _age(row: Row) -> tuple[int, str]:
    created_at, run_id = row[_CREATED_AT], row[_ID]
    # Text comes as bytes if a page has text that is not UTF-8, and a row edited by hand may hold any value.
    return created_at if isinstance(created_at, int) else 0, run_id.decode() if isinstance(run_id, bytes) else run_id


_ID = 0
_CREATED_AT = 16
