"""Reads: queries about runs, for users and for the engine. Nothing here writes."""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, groupby
from operator import itemgetter

import apsw

from holdfast.core.audit import kept
from holdfast.core.model import AuditFact, Run, Wait, WorkerRecord
from holdfast.core.questions import Details, replies_by_run
from holdfast.core.states import ENDS, RunState
from holdfast.core.unreadable import joined, reason_of
from holdfast.stores.operations.unit_of_work import OddRow
from holdfast.stores.sqlite import rows, unreadable
from holdfast.stores.sqlite.rows import Row

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

_FIND = """
    select id
    from run
    where key = ?
"""  # run_key

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

_AUDIT = f"""
    select {rows.AUDIT_COLUMNS}
    from audit
    where run_id = ?
    order by number
"""  # audit_run

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

_WORKERS = f"""
    select {rows.WORKER_COLUMNS}
    from worker
    order by id
"""

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
        return connection.execute(statement.replace(rows.WHOLE_RUN, unreadable.RAW_RUN), bindings).fetchall()


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
        except unreadable.FAILURES as error:
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
    if not unreadable.has_odd_types(row):
        with suppress(OddRow):
            return rows.whole_run_of(row), None
    return unreadable.marked(row)


def audit(connection: apsw.Connection, run_id: str) -> tuple[AuditFact, ...]:
    """Return the audit of a run. Omits old routine facts, even those that are not trimmed yet."""
    return kept(map(rows.fact_of, connection.execute(_AUDIT, (run_id,))))


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
