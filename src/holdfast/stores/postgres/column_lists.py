"""Lists of columns for the SQL files, generated from the fields of the values.

Each kind of value has these lists, with its noun before them:

- `columns`: the columns of its table.
- `record`: the fields of its JSON with their types, for `json_to_recordset`.
- `values`: what is written to the columns, from a record named `n`. The JSON leaves out defaults.
- `updates`: the assignments of an upsert: all columns but the first, which is the key.
- `fields`: what is read from the columns, as the fields of the value.

The lists of `intent` have what a run gets from its start, those of `letter` have no number, because the table gives it.
`run_changes` are the assignments of an update of a run, from a record named `n`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.model import (
    FIXED,
    NEVER_NULL,
    Arrival,
    DeadLetter,
    Entry,
    Intent,
    Run,
    StoredColumn,
    TypeRule,
    Wait,
    columns_of,
)
from holdfast.stores.workspace.rows import EventRow

_WRITTEN = {"ready_at": "instant(n.ready_at)", "tags": "n.tags::jsonb"}
"""Values of columns of a run that SQL producers write too, so that they have types of their own."""

_READ = {
    "ready_at": "micros(ready_at) as ready_at",
    "start_at": "coalesce(start_at, micros(ready_at), created_at) as start_at",
    "tags": "coalesce(tags::json, '{}') as tags",
}
"""Fields of a run that are read from such columns. A run of an SQL producer has no start time before its claim."""

_TYPES = {bool: "boolean", int: "bigint"}


def column_lists() -> dict[str, str]:
    """Return all lists, by the names that the SQL files have for them."""
    run = columns_of(Run)
    kinds = {
        "run": run,
        "intent": {field: one for field, one in columns_of(Intent).items() if field in run and field != "start_at"},
        "entry": columns_of(Entry),
        "arrival": columns_of(Arrival),
        "wait": columns_of(Wait),
        "type": columns_of(TypeRule),
        "flow": columns_of(FlowDefinition),
        "event": columns_of(EventRow),
        "letter": {field: one for field, one in columns_of(DeadLetter).items() if field != "number"},
    }
    lists = {f"{noun}_{name}": text for noun, of in kinds.items() for name, text in _lists([*of.values()])}
    changing = [one for field, one in run.items() if field not in FIXED]
    return lists | {"run_changes": ", ".join(f"{one.name} = {_written(one)}" for one in changing)}


def _lists(columns: Sequence[StoredColumn]) -> Iterator[tuple[str, str]]:
    yield "columns", ", ".join(one.name for one in columns)
    yield "record", ", ".join(f"{_field(one)} {_type(one)}" for one in columns)
    yield "values", ", ".join(map(_written, columns))
    yield "updates", ", ".join(f"{one.name} = excluded.{one.name}" for one in columns[1:])
    yield "fields", ", ".join(map(_read, columns))


def _field(column: StoredColumn) -> str:
    return column.field if column.field == column.name else f'"{column.field}"'


def _type(column: StoredColumn) -> str:
    return "json" if column.is_json else _TYPES.get(column.scalar, "text")


def _written(column: StoredColumn) -> str:
    value = _WRITTEN.get(column.field, f"n.{_field(column)}")
    if column.field in NEVER_NULL or not (column.is_json or column.is_required or column.default is None):
        value = f"coalesce({value}, {_literal(column.default)})"
    return f"{value}::text" if column.is_json and column.field not in _WRITTEN else value


def _read(column: StoredColumn) -> str:
    if column.field in _READ or not column.is_json:
        plain = column.name if column.field == column.name else f"{column.name} as {_field(column)}"
        return _READ.get(column.field, plain)
    value = f"json_of({column.name})"
    if not (column.is_required or column.default is None):
        value = f"coalesce({value}, {_literal(column.default)})"
    return f"{value} as {column.field}"


def _literal(value: object) -> str:
    """Return a default in SQL: JSON is a valid literal of a number or a boolean, and the text of all others."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if isinstance(value, bool | int) else f"'{text}'"
