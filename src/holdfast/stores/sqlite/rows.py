"""Conversion between rows and values. Nothing here accesses a database.

Lists of columns, and the functions that decode and encode rows, are generated from the fields of the values. The
functions are compiled from text, so that they are as fast as functions written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.core.model import (
    DEFAULT_OPTIONS,
    FIXED,
    NEVER_NULL,
    Arrival,
    AuditFact,
    Entry,
    Run,
    RunOptions,
    StoredColumn,
    TypeRule,
    Wait,
    WaitKind,
    WorkerRecord,
    columns_of,
    compiled,
)
from holdfast.core.wire import reason_of
from holdfast.stores.operations.unit_of_work import OddRow

Row = tuple[Any, ...]
"""A row as the driver returns and accepts it: any values that SQLite can store."""

V = TypeVar("V", bound=msgspec.Struct)

FAILURES = (KeyError, TypeError, msgspec.MsgspecError, RecursionError)
"""The errors that decoding raises for a row that was edited by hand."""

_encode = msgspec.json.Encoder().encode


def json_of(value: object) -> str:
    """Encode one of holdfast's own values, never a user's, as JSON text."""
    return _encode(value).decode()


# Lists for statements


def listed(kind: type[msgspec.Struct], fields: Iterable[str] | None = None) -> str:
    """Return the columns of the fields of a value, all of them if none are named."""
    columns = columns_of(kind)
    return ", ".join(columns[field].name for field in (columns if fields is None else fields))


def insertion(table: str, columns: str) -> str:
    """Return the statement that inserts a row."""
    places = ", ".join("?" * (columns.count(",") + 1))
    return f"insert into {table} ({columns}) values ({places})"


def upsert(table: str, columns: str, *keys: str, kept: str = "") -> str:
    """Return the statement that inserts a row, or overwrites the row with these keys, except its column `kept`."""
    changed = [column for column in columns.split(", ") if column not in (*keys, kept)]
    assignments = ", ".join(f"{column} = excluded.{column}" for column in changed)
    return f"{insertion(table, columns)} on conflict ({', '.join(keys)}) do update set {assignments}"


# Functions between rows and values


def reader(kind: type[V], fields: Sequence[str] | None = None, *, what: str = "") -> Callable[[Row], V]:
    """Return a function that decodes a row of the columns of some fields. The other fields stay empty.

    With `what`, the function raises `OddRow` for a row that cannot be decoded. `what` names the row, with fields in
    braces.
    """
    known: dict[str, Any] = {"make": kind, "FAILURES": FAILURES, "OddRow": OddRow, "reason_of": reason_of}
    columns = columns_of(kind)
    wanted = columns if fields is None else fields
    values = [f"{field}={_decoded(columns[field], known)}" for field in wanted]
    missing = [one for one in columns.values() if one.is_required and one.field not in wanted]
    values += [f"{one.field}={one.scalar()!r}" for one in missing]
    text = f"""
        def read(row):
            {", ".join(wanted)}, = row
            try:
                return make({", ".join(values)})
            except FAILURES as flaw:
                raise OddRow(f"{what} cannot be read: {{reason_of(flaw)}}") from flaw
    """
    read: Callable[[Row], V] = compiled("read", text, known)
    return read


def writer(kind: type[msgspec.Struct], fields: Iterable[str] | None = None, given: str = "") -> Callable[..., Row]:
    """Return a function that encodes the fields of a value. The row begins with the `given` arguments before it."""
    known: dict[str, Any] = {"encode": _encode}
    columns = columns_of(kind)
    values = [_encoded(columns[field], known) for field in (columns if fields is None else fields)]
    text = f"""
        def write({given}value):
            return ({given}{", ".join(values)},)
    """
    write: Callable[..., Row] = compiled("write", text, known)
    return write


def _decoded(column: StoredColumn, known: dict[str, Any]) -> str:
    """Return the expression that decodes a column."""
    name = column.field
    if column.scalar is bool:
        return f"bool({name})"
    if column.is_enum:  # looking up a member in a dict takes a tenth of the time of calling the enum
        known[f"{name}_of"] = {member.value: member for member in column.type}
        value = f"{name}_of[{name}]"
    elif column.is_json:
        known[f"{name}_of"] = msgspec.json.Decoder(column.type).decode
        value = f"{name}_of({name})"
    else:
        return name
    if column.is_required:
        return value
    if isinstance(column.default, dict):
        return f"{value} if {name} else {{}}"
    known[f"no_{name}"] = column.default
    return f"{value} if {name} is not None else no_{name}"


def _encoded(column: StoredColumn, known: dict[str, Any]) -> str:
    """Return the expression that encodes a column."""
    value = f"value.{column.field}"
    if not column.is_json:
        return value
    if column.is_required or column.field in NEVER_NULL:
        return f"encode({value}).decode()"
    if isinstance(column.default, dict | tuple):
        return f"encode({value}).decode() if {value} else None"
    known[f"no_{column.field}"] = column.default
    return f"None if {value} is no_{column.field} else encode({value}).decode()"


# Runs

_STARTED_WITH = ("payload", "tags", "options", "continued")
"""Fields of a run that are in the table `intent`, so that an update of the run never copies them."""

_RUN = [field for field in columns_of(Run) if field not in _STARTED_WITH]

MOVED = [field for field in _RUN if field not in FIXED and field != "key"]
"""Fields that an update of a run writes. The key has a statement of its own, because two runs may exchange it."""

RUN_COLUMNS = listed(Run, _RUN)
"""The columns of `run`."""
INTENT_COLUMNS = listed(Run, _STARTED_WITH)
"""The columns of `intent` besides the id of the run."""
WHOLE_RUN = ", ".join(f"{'intent' if field in _STARTED_WITH else 'run'}.{field}" for field in columns_of(Run))
"""The columns of a whole run, from `run` joined with `intent`."""
TAGGED_RUN = ", ".join([*(f"run.{field}" for field in _RUN), "intent.tags"])
"""The columns of a run with its tags, from `run` joined with `intent`."""

run_of = reader(Run, _RUN, what="run {id}")
whole_run_of = reader(Run, what="run {id}")
tagged_run_of = reader(Run, [*_RUN, "tags"], what="run {id}")
run_row: Callable[[Run], Row] = writer(Run, _RUN)
moved_row: Callable[[Run], Row] = writer(Run, [*MOVED, "id"])
intent_row: Callable[[Run], Row] = writer(Run, ["id", *_STARTED_WITH])

tags_of = msgspec.json.Decoder(dict[str, str]).decode
_decode_options = msgspec.json.Decoder(RunOptions).decode


def started_with(run: Run) -> dict[str, Any]:
    """Return the fields of a run that are in the table `intent`."""
    return {field: getattr(run, field) for field in _STARTED_WITH}


def options_of(text: str | None) -> RunOptions:
    return _decode_options(text) if text is not None else DEFAULT_OPTIONS


# Entries, arrivals and waits: the rows begin with the id of the run.

ENTRY_COLUMNS = listed(Entry)
entry_of = reader(Entry, what="the entry at {location!r}")
entry_row: Callable[[str, int, Entry], Row] = writer(Entry, given="run_id, token, ")

ARRIVAL_COLUMNS = listed(Arrival)
arrival_of = reader(Arrival, what="arrival {number}")
arrival_row: Callable[[str, Arrival], Row] = writer(Arrival, given="run_id, ")

WAIT_COLUMNS = listed(Wait)
wait_of = reader(Wait, what="the wait at {location!r}")
_wait_row: Callable[[str, int, str | None, Wait], Row] = writer(Wait, given="run_id, place, topic, ")


def wait_row(run_id: str, place: int, wait: Wait) -> Row:
    """Return a row of run_id, place, topic, `WAIT_COLUMNS`.

    `topic` is the topic of an event, or the group or limit whose slot the run waits for. It serves to find the waits.
    """
    topic = wait.names[0] if wait.kind in (WaitKind.EVENT, WaitKind.SLOT) and wait.names else None
    return _wait_row(run_id, place, topic, wait)


# Types, workers and the audit

TYPE_COLUMNS = listed(TypeRule)
type_of = reader(TypeRule, what="type {name}")
type_row: Callable[[TypeRule], Row] = writer(TypeRule)

_WORKER = [field for field in columns_of(WorkerRecord) if field != "is_dead"]
WORKER_COLUMNS = listed(WorkerRecord, _WORKER)
worker_of = reader(WorkerRecord, _WORKER, what="worker {id}")
worker_row: Callable[[WorkerRecord], Row] = writer(WorkerRecord, _WORKER)

AUDIT_COLUMNS = listed(AuditFact)
fact_row: Callable[[AuditFact], Row] = writer(AuditFact)

_decode_data = msgspec.json.Decoder(dict[str, str | int]).decode


def fact_of(row: Row) -> AuditFact:
    """Decode a fact. A fact whose data cannot be decoded has the reason in their place."""
    run_id, event, at, text = row
    try:
        data = _decode_data(text) if text else {}
    except FAILURES as error:
        data = {"unreadable": reason_of(error)}
    return AuditFact(run_id=run_id, event=event, at=at, data=data)
