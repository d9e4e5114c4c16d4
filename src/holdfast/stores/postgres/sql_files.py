"""The SQL files of the Postgres store: `schema.sql`, and one file per server function in `functions`.

Rules of `core`, and settings that many functions share, stand in the files by name in double braces. This module fills
them in. It runs nothing; `schema` does.
"""

from __future__ import annotations

from importlib.resources import files

from holdfast.core import audit
from holdfast.core.claim_order import BEGUN, CHILD, NEW, RANKS, SHARE
from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT
from holdfast.core.codec import DEPTH_LIMIT, DIGIT_LIMIT, VALUE_LIMIT_BYTES
from holdfast.core.intent import KEY_LIMIT
from holdfast.core.location import NAME_LIMIT
from holdfast.core.model import EVENT_RETENTION
from holdfast.core.rules import LIMIT_LOCATION, SUSPECT_CRASHES
from holdfast.core.text import NOT_IN_TYPES_RANGE, POSTGRES_REFUSED_RANGE
from holdfast.stores import sql_text
from holdfast.stores.postgres.sql import RANK

NUMBER = 12
"""The number of the schema. A change of any SQL file, except of a comment, needs the next one."""

FIRST = ("micros", "instant", "new_id", "json_of", "json_or_null", "check_intent")
"""The functions that `schema.sql` uses. They are made before it, and all others, which may use its tables, after it."""


def _decimal(digits: int) -> str:
    """The first digits of a number, with a point after the first of them."""
    text = str(digits)
    return f"{text[0]}.{text[1:42]}"


def _header(*lines: str) -> str:
    """Lines between the signature of a function and its text."""
    return "\n    ".join(lines)


# Functions keep the search path that they are made with, so that it does not matter which one a caller has.
_SEARCH_PATH = "set search_path from current"

# A function in SQL is planned at each call unless Postgres puts its text in the place of the call. So all functions
# are PL/pgSQL, except those that are written for that.
HEADERS = {
    # A function that Python calls: one round trip, one commit. JSON in, JSON out. Its last argument is the time;
    # if it is null, the server's clock counts. It applies and never decides: `core/rules.py` says what becomes of a
    # run. Each of its statements sees what was committed before it, so what is read after a lock is as new as the lock.
    #
    # A statement is planned once per session, because planning takes longer than the statement. There is one good
    # plan for it, whatever the values. Tables may still be empty at that time, so the settings rule out sequential
    # scans and joins that read a whole table, and make a row that is read in vain expensive.
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
    # A function that only reads, and is called by operations or views. It is planned with the caller's settings.
    "reader": _header("language plpgsql stable", _SEARCH_PATH),
    # A function for SQL producers. It has the rights of the schema's owner, so that producers need none on tables: a
    # request that they wrote themselves could ask for anything. So it checks all that it is given, its search path
    # has temporary tables last, and its file revokes the right to call it from everybody.
    "producer": _header("language plpgsql security definer", _SEARCH_PATH),
}
"""Settings that many functions have in common."""

CONSTANTS = {
    "name_limit": str(NAME_LIMIT),
    "key_limit": str(KEY_LIMIT),
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
    "suspect_crashes": str(SUSPECT_CRASHES),
    "routine": ", ".join(f"'{event}'" for event in audit.ROUTINE),
    "routine_kept": str(audit.KEPT),
    "trim_every": str(audit.TRIM_EVERY),
}
"""Rules of `core`: SQL has no list and no limit of its own."""


def script() -> str:
    """All statements that make the schema. Function bodies must not be checked meanwhile: they refer to each other."""
    functions = function_texts()
    first = [functions.pop(name) for name in FIRST]
    return filled_in("\n".join([*first, schema_text(), *functions.values()]))


def schema_text() -> str:
    """The file `schema.sql` as it is."""
    return (files(__package__) / "schema.sql").read_text("utf-8")


def function_texts() -> dict[str, str]:
    """The files of the server functions as they are, by name."""
    found = [file for file in (files(__package__) / "functions").iterdir() if file.name.endswith(".sql")]
    texts = {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in found}
    return dict(sorted(texts.items()))


def filled_in(text: str) -> str:
    """A text with the constants and headers that it names."""
    return sql_text.filled_in(text, HEADERS | CONSTANTS)
