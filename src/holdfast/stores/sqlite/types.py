"""Types as rows: their rules, and the worker that offered them last."""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from holdfast.core.model import TypeRule
from holdfast.stores.sqlite import rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_TYPES = f"""
    select {rows.TYPE_COLUMNS}
    from type
    order by name
"""  # full scan: there are few types

_ONE = f"""
    select {rows.TYPE_COLUMNS}
    from type
    where name = ?
"""  # by the primary key

_RULED = f"""
    select {rows.TYPE_COLUMNS}
    from type
    where is_enabled = 0
       or concurrency is not null
       or per_key is not null
       or rate is not null
"""  # full scan: there are few types

_PUT = f"""
    insert into type ({rows.TYPE_COLUMNS})
    values ({rows.placed(rows.TYPE_COLUMNS)})
    on conflict (name) do update
    set {rows.overwritten(TypeRule, "name")}
"""


class SqliteTypes:
    """The rules of types. The rules that affect claims are read once per transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection
        self._ruled: dict[str, TypeRule] | None = None

    def get(self, type: str) -> TypeRule | None:
        found = self._connection.execute(_ONE, (type,)).fetchall()
        return rows.type_of(found[0]) if found else None

    def put(self, rule: TypeRule) -> None:
        self._ruled = None
        self._connection.execute(_PUT, rows.type_row(rule))

    def is_ruled(self, type: str) -> bool:
        return type in self.ruled()

    def ruled(self) -> dict[str, TypeRule]:
        """Return the rules of types that are disabled or limited. All other types are unrestricted."""
        if self._ruled is None:
            self._ruled = {rule.name: rule for rule in map(rows.type_of, self._connection.execute(_RULED))}
        return self._ruled


def list_types(connection: apsw.Connection) -> list[TypeRule]:
    return [rows.type_of(row) for row in connection.execute(_TYPES)]
