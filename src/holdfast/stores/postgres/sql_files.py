"""The SQL files of the Postgres store: tables, steps that change them, views and server functions.

`schema.sql` has the tables of the baseline, and `migrations` the steps after it. `views.sql` and `functions`, one file
for each noun, are as this code needs them: each migration makes them again. The files name rules of `core`, and
settings that many functions share, in double braces. This module fills them in. It runs nothing; `schema` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import get_args

import msgspec

from holdfast.core import audit
from holdfast.core.claim_order import BEGUN, CHILD, NEW, RANKS, SHARE
from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, LENGTH_LIMIT_SECONDS
from holdfast.core.codec import DEPTH_LIMIT, DIGIT_LIMIT, VALUE_LIMIT_BYTES
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import ACTOR_LIMIT, ATTEMPTS_LIMIT, KEY_LIMIT
from holdfast.core.location import NAME_LIMIT, NOT_IN_TYPES_RANGE, PEOPLE_PREFIX, POSTGRES_REFUSED_RANGE
from holdfast.core.model import (
    EVENT_RETENTION,
    FIXED,
    NEVER_NULL,
    Arrival,
    DeadLetter,
    Entry,
    Intent,
    Run,
    StoredColumn,
    TypeRule,
    Undelivered,
    Wait,
    columns_of,
)
from holdfast.core.rules import LIMIT_LOCATION, SUSPECT_CRASHES
from holdfast.stores import sql_text
from holdfast.stores.migrations import Migrations, sql_migrations
from holdfast.stores.postgres.scripts import RANK
from holdfast.stores.workspace.rows import EventRow

BASELINE = 13
"""The schema number of `schema.sql`. Every change of an SQL file, except of a comment, needs a step."""

FIRST = ("micros", "instant", "new_id", "json_of", "json_or_null", "check_intent_v1")
"""Functions that tables and views use. They are made before these, and all others after them."""

_VIEW = re.compile(r"^create view (\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"^(?:--.*\n)*create function (\w+)", re.MULTILINE)  # with the comment before it


def _decimal(digits: int) -> str:
    """Return the first digits of a number, with a point after the first digit."""
    text = str(digits)
    return f"{text[0]}.{text[1:42]}"


def _header(*lines: str) -> str:
    """Join the lines between the signature of a function and its body."""
    return "\n    ".join(lines)


# Functions keep the search path that they are made with, so the caller's does not matter.
_SEARCH_PATH = "set search_path from current"

# Postgres plans a function in SQL at each call unless it can inline it. So all functions are PL/pgSQL, except those
# that are written to be inlined.
HEADERS = {
    # A function that Python calls: one round trip, one commit. JSON in, JSON out. Its last argument is the time. If
    # it is null, the server's clock counts. It applies and never decides: `core/rules.py` decides what becomes of a
    # run. Each of its statements sees everything committed before it, so a read after a lock is as new as the lock.
    #
    # A statement is planned once per session, because planning takes longer than the statement. One plan is good for
    # all values. Tables may still be empty at that time. So the settings rule out sequential scans and joins that read
    # a whole table. They also raise the cost of rows that are read in vain.
    "operation": _header(
        "language plpgsql",
        _SEARCH_PATH,
        "set plan_cache_mode = force_generic_plan",
        "set enable_seqscan = off",
        "set enable_hashjoin = off",
        "set enable_mergejoin = off",
        "set cpu_tuple_cost = 1",
        "set cpu_index_tuple_cost = 1",
        "set jit = off",
        "set lock_timeout = '10s'",
    ),
    # A function that only reads and is called by operations or views. It is planned with the caller's settings.
    "reader": _header("language plpgsql stable", _SEARCH_PATH),
    # A function for SQL producers. It has the rights of the schema's owner, so that producers need no rights on tables:
    # with those they could write any request. So it checks all its arguments, its search path has temporary tables
    # last, and its file revokes the public right to call it.
    "producer": _header("language plpgsql security definer", _SEARCH_PATH),
}
"""Settings that many functions share."""

CONSTANTS = {
    "name_limit": str(NAME_LIMIT),
    "key_limit": str(KEY_LIMIT),
    "actor_limit": str(ACTOR_LIMIT),
    "attempts_limit": str(ATTEMPTS_LIMIT),
    "attempts_limit_shown": f"{ATTEMPTS_LIMIT:,}",
    "length_limit_seconds": f"{LENGTH_LIMIT_SECONDS:.0f}",
    "undelivered": ", ".join(f"'{policy}'" for policy in get_args(Undelivered)),
    "undelivered_shown": ", ".join(get_args(Undelivered)),
    "value_limit": str(VALUE_LIMIT_BYTES),
    "value_limit_shown": f"{VALUE_LIMIT_BYTES // 2**20} MiB",
    "depth_limit": str(DEPTH_LIMIT),
    "digit_limit": str(DIGIT_LIMIT),
    "digit_limit_shown": f"{DIGIT_LIMIT:,}",
    "first_instant": str(FIRST_INSTANT),
    "last_instant": str(LAST_INSTANT),
    "refused_range": POSTGRES_REFUSED_RANGE,
    "not_in_types_range": NOT_IN_TYPES_RANGE.replace("'", "''"),
    "too_large": str(2**1024 - 2**970),
    "too_small": _decimal(5**1075),
    "begun": str(BEGUN),
    "child": str(CHILD),
    "new": str(NEW),
    "rank": RANK,
    "ranks": str(RANKS),
    "share": str(SHARE),
    "event_retention": str(EVENT_RETENTION),
    "limit_location": LIMIT_LOCATION,
    "people_prefix": PEOPLE_PREFIX,
    "suspect_crashes": str(SUSPECT_CRASHES),
    "routine": ", ".join(f"'{event}'" for event in audit.ROUTINE),
    "routine_kept": str(audit.KEPT),
    "trim_every": str(audit.TRIM_EVERY),
}
"""Rules of `core`. SQL defines no lists and no limits itself."""


@cache
def migrations() -> Migrations[str]:
    """Return the steps after `schema.sql`."""
    return sql_migrations(BASELINE, files(__package__) / "migrations", HEADERS | CONSTANTS)


def script() -> str:
    """Return the statements that make a new schema, to run without checks of function bodies: these use each other."""
    steps = [migration.body for migration in migrations().all]
    return "\n".join([*first_functions(), tables(), *steps, *views().values(), *other_functions()])


def tables() -> str:
    """Return the statements that make the tables of the baseline."""
    return filled_in(schema_text())


def views() -> dict[str, str]:
    """Return the statements that make or replace each view, by name, in order."""
    parts = _parts(filled_in(views_text()), _VIEW)
    return {name: text.replace("create view", "create or replace view", 1) for name, text in parts}


def first_functions() -> list[str]:
    """Return the statements that make or replace the functions that tables and views use."""
    return [_function(text) for name, text in function_texts().items() if name in FIRST]


def other_functions() -> list[str]:
    """Return the statements that make or replace all other functions."""
    return [_function(text) for name, text in function_texts().items() if name not in FIRST]


def _function(text: str) -> str:
    return filled_in(text).replace("create function", "create or replace function", 1)


def schema_text() -> str:
    """Return the text of `schema.sql`, with its names in braces."""
    return (files(__package__) / "schema.sql").read_text("utf-8")


def views_text() -> str:
    """Return the text of `views.sql`, with its names in braces."""
    return (files(__package__) / "views.sql").read_text("utf-8")


def function_texts() -> dict[str, str]:
    """Return the texts of the server functions, by name, with their names in braces."""
    found = [file for file in (files(__package__) / "functions").iterdir() if file.name.endswith(".sql")]
    return dict(sorted(part for file in found for part in _parts(file.read_text("utf-8"), _FUNCTION)))


def _parts(text: str, beginning: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield the parts of a text, each from one beginning to the next, with the names that the beginnings have."""
    found = list(beginning.finditer(text))
    ends = [part.start() for part in found[1:]] + [len(text)]
    for part, end in zip(found, ends, strict=True):
        yield part[1], text[part.start() : end]


def filled_in(text: str) -> str:
    """Replace the names in braces by their constants, headers and lists of columns."""
    return sql_text.filled_in(text, HEADERS | CONSTANTS | column_lists())


# Lists of columns, generated from the fields of the values
#
# Each kind of value has these lists, with its noun before them:
#
# - `columns`: the columns of its table.
# - `record`: the fields of its JSON with their types, for `json_to_recordset`.
# - `values`: what is written to the columns, from a record named `n`. The JSON leaves out defaults.
# - `updates`: the assignments of an upsert: all columns but the first, which is the key.
# - `fields`: what is read from the columns, as the fields of the value.
#
# The lists of `intent` have what a run gets from its start, those of `letter` have no number, because the table gives
# it. `run_changes` are the assignments of an update of a run, from a record named `n`.

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
