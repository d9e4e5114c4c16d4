"""The guard: what statements of users must not do on a connection that they share with this store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import apsw

from holdfast.stores.sqlite import schema

SAVEPOINT = "holdfast transaction"

_CREATE_TABLE = re.compile(r"^create table (\w+)", re.MULTILINE)

# Which of the two names that come with an operation is that of a table.
_FIRST_IS_TABLE = frozenset(
    {
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_ANALYZE,
    }
)
_SECOND_IS_TABLE = frozenset(
    {
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_DROP_TRIGGER,
    }
)
_TEMPORARY = frozenset(
    {
        apsw.SQLITE_CREATE_TEMP_TABLE,
        apsw.SQLITE_CREATE_TEMP_INDEX,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_VIEW,
    }
)
_FILES = frozenset({apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH})

# Those that only tell something. `data_version` is asked for by SQLite's own full-text search.
_PRAGMAS = frozenset(
    {"data_version", "defer_foreign_keys", "foreign_key_check", "foreign_key_list", "foreign_keys", "index_info"}
    | {"index_list", "index_xinfo", "table_info", "table_list", "table_xinfo"}
)


class Guard:
    """An authorizer, which SQLite asks about each statement that it compiles. Off, it allows everything.

    It keeps users from mistakes, not from malice. One for the whole life of a connection: with each new one SQLite
    would compile all statements anew.
    """

    def __init__(self, refusal: type[Exception], *, may_read: bool = False) -> None:
        self._refusal = refusal
        self._may_read = may_read
        self._is_on = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """Refuse what must not be, until the end."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let this store do what it has to do, until the end."""
        was_on, self._is_on = self._is_on, False
        try:
            yield
        finally:
            self._is_on = was_on

    def __call__(
        self, operation: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if self._is_on and (reason := self._reason(operation, first or "", second or "")) is not None:
            raise self._refusal(reason)  # SQLite then refuses the statement, and apsw raises this
        return apsw.SQLITE_OK

    def _reason(self, operation: int, first: str, second: str) -> str | None:
        """Why a statement is refused; None if it is not."""
        table = second if operation in _SECOND_IS_TABLE else first
        is_of_table = operation in _FIRST_IS_TABLE or operation in _SECOND_IS_TABLE
        if is_of_table or (operation == apsw.SQLITE_READ and not self._may_read):
            if table.lower() in own_tables():
                return f"the table {table!r} is holdfast's own; keep to tables of yours, and leave runs to hf and ctx"
        elif operation == apsw.SQLITE_TRANSACTION or (operation == apsw.SQLITE_SAVEPOINT and second == SAVEPOINT):
            return (
                f"{first} is not for you to say here: the transaction is committed when your code returns, and rolled "
                "back when it raises"
            )
        elif operation in _FILES:
            return "another file cannot be part of this transaction; do what concerns it in a step of its own"
        elif operation in _TEMPORARY:
            return "a temporary table or view would outlive the transaction; use a table of yours, and empty it"
        elif operation == apsw.SQLITE_PRAGMA and first.lower() not in _PRAGMAS:
            return f"pragma {first} would change a connection, or a file, that is not yours alone"
        return None


def guard_of(connection: apsw.Connection, refusal: type[Exception], *, may_read: bool = False) -> Guard:
    """The guard of a connection, which has none before it is asked for."""
    known = connection.authorizer
    if isinstance(known, Guard):
        return known
    guard = Guard(refusal, may_read=may_read)
    connection.authorizer = guard
    return guard


@cache
def own_tables() -> frozenset[str]:
    """The names of this store's tables."""
    return frozenset(_CREATE_TABLE.findall(schema.script()))
