"""Fill a store with finished runs: the rows of one real run, copied inside the database.

Runs in the environments of engines that keep their runs in SQL tables. It does not interpret rows: an identifier gets
the number of the copy appended, or is hashed with it if it is a UUID, so the rows of a copy belong together.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

Tables = Mapping[str, tuple[str, ...]]
"""The tables of one run, each with its identifier columns."""


def fill(url: str, tables: Tables, copies: int) -> None:
    """Copy every existing row this many times. No other process may use the store."""
    if url.startswith("sqlite:///"):
        _fill_sqlite(url.removeprefix("sqlite:///"), tables, copies)
    else:
        _fill_postgres(url, tables, copies)


def _fill_sqlite(path: str, tables: Tables, copies: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create temporary table copy as select value as number from (select 1 as value) limit 0")
    connection.execute(
        "insert into copy with recursive numbers (number) as "
        "(select 1 union all select number + 1 from numbers where number < ?) select number from numbers",
        (copies,),
    )
    for table, identifiers in tables.items():
        columns = [row[1] for row in connection.execute(f'pragma table_info("{table}")')]
        values = [f"{_name(one)} || '-' || number" if one in identifiers else _name(one) for one in columns]
        connection.execute(_copying(_name(table), columns, values, "copy"))
    connection.execute("analyze")
    connection.commit()
    connection.close()


def _fill_postgres(url: str, tables: Tables, copies: int) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for table, identifiers in tables.items():
            kinds = dict(_columns(connection, table))
            values = [
                _copied(one, kind) if one in identifiers else f"original.{_name(one)}" for one, kind in kinds.items()
            ]
            source = f"generate_series(1, {copies}) as copy (number)"
            connection.execute(_copying(table, list(kinds), values, source))  # type: ignore[arg-type]
        connection.execute("vacuum analyze")


def _columns(connection: Any, table: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = connection.execute(
        "select attname, format_type(atttypid, null) from pg_attribute "
        "where attrelid = %s::regclass and attnum > 0 and not attisdropped and attgenerated = '' order by attnum",
        (table,),
    ).fetchall()
    return found


def _copied(column: str, kind: str) -> str:
    if kind == "uuid":
        return f"md5(original.{_name(column)}::text || copy.number)::uuid"
    return f"original.{_name(column)} || '-' || copy.number"


def _copying(table: str, columns: list[str], values: list[str], source: str) -> str:
    names = ", ".join(map(_name, columns))
    return f"insert into {table} ({names}) select {', '.join(values)} from {table} as original cross join {source}"  # noqa: S608


def _name(column: str) -> str:
    return f'"{column}"'
