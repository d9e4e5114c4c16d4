"""Reads: queries about runs, for users and for the engine, and lists of runs. Nothing here writes, but `block_due`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from holdfast.core import wire
from holdfast.core.errors import ErrorRecord, Unreadable
from holdfast.core.model import AuditFact, Run, Wait, WorkerRecord, columns_of
from holdfast.core.questions import Details, Query, replies_by_run
from holdfast.core.states import ENDS, RunState
from holdfast.core.wire import joined, reason_of
from holdfast.stores.operations.unit_of_work import OddRow
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.histories import history
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_STATES = frozenset(state.value.encode() for state in RunState)
_ENDS = tuple(sorted(state.value for state in ENDS))
_IDS_AT_ONCE = 5_000

_GET = f"""
    select {rows.WHOLE_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.id = ?
      and run.deleted_at is null
"""  # by the primary keys

_FIND = "select id from run where key = ?"  # run_key

_WAITS = f"""
    select run_id, {rows.WAIT_COLUMNS}
    from wait
    where run_id in (select value from json_each(?))
    order by run_id, place
"""  # by the primary key

_VALUES = """
    select run_id, name, value
    from value
    where run_id in (select value from json_each(?))
"""  # by the primary key

_ENDED = f"""
    select {rows.WHOLE_RUN}
    from json_each(?) as wanted
    join run on run.id = wanted.value
    join intent on intent.run_id = run.id
    where run.state in {_ENDS}
    order by wanted.id
"""  # by the primary keys

_REPLIES = """
    select reply.run_id, reply.message_id, reply.payload
    from json_each(?) as asked
    join reply on reply.run_id = asked.value ->> 0 and reply.message_id = asked.value ->> 1
"""  # by the primary key

_COUNTS = """
    select cast(type as blob), cast(state as blob), count(*)
    from run not indexed
    where deleted_at is null
    group by type, state
    order by type
"""  # reads every run

_WORKERS = f"select {rows.WORKER_COLUMNS} from worker order by id"

_ORPHANS = f"""
    select id
    from run
    where worker is null
      and ready_at is null
      and state not in {(*_ENDS, "blocked", "paused")}
      and not exists (select 1 from wait where wait.run_id = run.id)
    order by rowid
    limit ?
"""  # reads every run


def get(connection: apsw.Connection, run_id: str | None, key: str | None) -> Details | None:
    if key is not None:
        run_id = connection.execute(_FIND, (key,)).get
    found = raw_or_not(connection, _GET, (run_id,))
    return details(connection, found)[0] if found else None


def raw_or_not(connection: apsw.Connection, statement: str, bindings: Sequence[object]) -> list[Row]:
    """Return the rows of a statement that reads whole runs. Text comes as bytes if some of it is not UTF-8."""
    try:
        return connection.execute(statement, bindings).fetchall()
    except UnicodeDecodeError:
        return connection.execute(statement.replace(rows.WHOLE_RUN, RAW_RUN), bindings).fetchall()


def details(connection: apsw.Connection, found: Sequence[Row]) -> list[Details]:
    """Return whole runs with their waits and values, in the given order.

    An unreadable run comes with the columns that can be decoded.
    """
    read = [_read(row) for row in found]
    ids = rows.json_of([run.id for run, _ in read])
    waits: dict[str, tuple[Wait, ...]] = {}
    odd: dict[str, str] = {}
    for run_id, of_run in groupby(connection.execute(_WAITS, (ids,)), key=itemgetter(0)):
        try:
            waits[run_id] = tuple(rows.wait_of(wait[1:]) for wait in of_run)
        except FAILURES as error:
            odd[run_id] = f"waits: {reason_of(error)}"
    values: dict[str, dict[str, str]] = {}
    for run_id, name, value in connection.execute(_VALUES, (ids,)):
        values.setdefault(run_id, {})[name] = value
    return [
        Details(
            run=run,
            waits=waits.get(run.id, ()),
            values=values.get(run.id, {}),
            unreadable=joined([why, odd.get(run.id)]),
        )
        for run, why in read
    ]


def _read(row: Row) -> tuple[Run, str | None]:
    # SQLite accepts any value in an integer column.
    if not any(row[place].__class__ is not int and row[place] is not None for place in _INTEGERS):
        with suppress(OddRow):
            return rows.whole_run_of(row), None
    return marked(row)


def ends(connection: apsw.Connection, run_ids: Sequence[str]) -> list[Run]:
    found: list[Run] = []
    for start in range(0, len(run_ids), _IDS_AT_ONCE):
        some = rows.json_of(run_ids[start : start + _IDS_AT_ONCE])
        found += (_read(row)[0] for row in raw_or_not(connection, _ENDED, (some,)))
    return found


def replies(connection: apsw.Connection, asked: Sequence[tuple[str, str]]) -> dict[str, dict[str, str]]:
    parts = (rows.json_of(asked[start : start + _IDS_AT_ONCE]) for start in range(0, len(asked), _IDS_AT_ONCE))
    return replies_by_run(chain.from_iterable(connection.execute(_REPLIES, (some,)) for some in parts))


def counts(connection: apsw.Connection) -> dict[str, dict[RunState, int]]:
    counted: dict[str, dict[RunState, int]] = {}
    for name, state, count in connection.execute(_COUNTS):
        if state in _STATES:  # a row edited by hand may hold an unknown state
            counted.setdefault(name.decode(errors="replace"), {})[RunState(state.decode())] = count
    return counted


def workers(connection: apsw.Connection) -> list[WorkerRecord]:
    return list(map(rows.worker_of, connection.execute(_WORKERS)))


def orphans(connection: apsw.Connection, limit: int) -> list[str]:
    return [run_id for (run_id,) in connection.execute(_ORPHANS, (limit,))]


# Lists of runs


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
        raw_or_not(connection, *statement(conditions, index, query))
        for conditions, index in _sources(connection, query)
    ]
    newest_first = merge(*pages, key=_age, reverse=True)
    return details(connection, list(islice(newest_first, query.limit)))


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


# Unreadable rows

FAILURES = (OddRow, Unreadable, UnicodeDecodeError, msgspec.MsgspecError, TypeError, RecursionError)
"""The errors raised for a row that cannot be decoded, or cannot be compared with other rows."""

_COLUMNS = columns_of(Run)
_FLAGS = [column.field for column in _COLUMNS.values() if column.scalar is bool]
_INTEGERS = [place for place, column in enumerate(_COLUMNS.values()) if column.scalar is int]


def _as_bytes(column: str) -> str:
    return f"case typeof({column}) when 'text' then cast({column} as blob) else {column} end"


RAW_RUN = ", ".join(_as_bytes(column) for column in rows.WHOLE_RUN.split(", "))
"""`WHOLE_RUN` with text as bytes, for rows whose text is not UTF-8."""

_DUE = f"""
    select run.rowid, {RAW_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.type in (select value from json_each(?))
      and run.ready_at is not null
      and (run.ready_at <= ? or typeof(run.ready_at) <> 'integer')
"""  # reads all due runs of the types

_BLOCK = """
    update run
    set state = 'blocked',
        token = case typeof(token) when 'integer' then token + 1 else 1 end,
        worker = null,
        claim_id = null,
        ready_at = null,
        error = ?,
        updated_at = ?
    where rowid = ?
"""  # by the primary key


readable = partial(wire.readable, failures=FAILURES)


def marked(row: Row) -> tuple[Run, str]:
    """Decode what can be decoded of a row of `WHOLE_RUN` or `RAW_RUN`, and return why the rest cannot."""
    columns: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
    return wire.marked(columns | {flag: bool(columns[flag]) for flag in _FLAGS})


def block_due(unit: Transaction, types: Sequence[str]) -> int:
    """Block the due runs of the given types that no worker can read. Returns their number."""
    now = unit.now()
    unit.flush()
    blocked = 0
    for rowid, *row in unit.all(_DUE, rows.json_of(types), now):
        run, why = marked(tuple(row))
        try:
            history(unit.connection, run.id)
            unit.inboxes.newer(run, 0)
        except FAILURES as error:
            why = why or reason_of(error)
        if why:
            record = ErrorRecord(type=Unreadable.__name__, message=why)
            unit.connection.execute(_BLOCK, (rows.json_of(record), now, rowid))
            unit.audit.note(AuditFact(run_id=run.id, event="blocked", at=now, data={"error": str(record)[:500]}))
            blocked += 1
    unit.runs.forget_all()
    return blocked
