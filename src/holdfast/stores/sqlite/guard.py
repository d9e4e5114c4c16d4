"""The guard: refuse users' statements that must not run on a connection shared with this store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import apsw

from holdfast.stores.sqlite import schema

SAVEPOINT = "holdfast transaction"

_CREATE_TABLE = re.compile(r"^create table (\w+)", re.MULTILINE)

# SQLite passes two names with each operation. These sets say which of the two is the table.
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

# Allowed pragmas: they change neither a lasting setting nor the file. SQLite's full-text search uses `data_version`.
_PRAGMAS = frozenset(
    {"data_version", "defer_foreign_keys", "foreign_key_check", "foreign_key_list", "foreign_keys", "index_info"}
    | {"index_list", "index_xinfo", "table_info", "table_list", "table_xinfo"}
)


class Guard:
    """An authorizer, which SQLite calls for each statement that it compiles. While off, it allows everything.

    It protects against mistakes, not against malice. A connection keeps one guard for life, because SQLite recompiles
    all statements when the authorizer changes.
    """

    def __init__(self, refusal: type[Exception], *, may_read: bool = False) -> None:
        self._refusal = refusal
        self._may_read = may_read
        self._is_on = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """Refuse forbidden statements until the block ends."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    @contextmanager
    def off(self) -> Iterator[None]:
        """Allow every statement, for the store's own work, until the block ends."""
        was_on, self._is_on = self._is_on, False
        try:
            yield
        finally:
            self._is_on = was_on

    def __call__(
        self, operation: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if self._is_on and (reason := self._reason(operation, first or "", second or "")) is not None:
            raise self._refusal(reason)  # SQLite then refuses the statement, and apsw raises this error
        return apsw.SQLITE_OK

    def _reason(self, operation: int, first: str, second: str) -> str | None:
        """Return why a statement is refused, or None if it is allowed."""
        table = second if operation in _SECOND_IS_TABLE else first
        is_of_table = operation in _FIRST_IS_TABLE or operation in _SECOND_IS_TABLE
        if is_of_table or (operation == apsw.SQLITE_READ and not self._may_read):
            if table.lower() in own_tables():
                return f"the table {table!r} belongs to holdfast; use only your own tables, and hf and ctx for runs"
        elif operation == apsw.SQLITE_TRANSACTION or (operation == apsw.SQLITE_SAVEPOINT and second == SAVEPOINT):
            return (
                f"{first} is not allowed here: holdfast commits the transaction when your code returns, and rolls it "
                "back when your code raises"
            )
        elif operation in _FILES:
            return "another file cannot be part of this transaction; work on that file in a separate step"
        elif operation in _TEMPORARY:
            return "a temporary table or view would outlive the transaction; use an ordinary table, and empty it"
        elif operation == apsw.SQLITE_PRAGMA and first.lower() not in _PRAGMAS:
            return f"pragma {first} is not allowed: it would change a connection or a file that holdfast uses too"
        return None


def guard_of(connection: apsw.Connection, refusal: type[Exception], *, may_read: bool = False) -> Guard:
    """Return the guard of a connection. The first call installs it."""
    known = connection.authorizer
    if isinstance(known, Guard):
        return known
    guard = Guard(refusal, may_read=may_read)
    connection.authorizer = guard
    return guard


@cache
def own_tables() -> frozenset[str]:
    """Return the names of this store's tables."""
    texts = (schema.baseline(), *(migration.body for migration in schema.migrations().all))
    return frozenset(_CREATE_TABLE.findall("\n".join(texts)))
