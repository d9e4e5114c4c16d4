"""The files of the golden stores: write a store to a file, and load it from there into an empty place.

- SQLite: the database itself.
- Postgres: statements that any client can execute: the schema as the code of that number makes it, then the rows.
- Redis: one key per line, as JSON. Keys with an expiry are left out, because they may be forgotten anyway.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "stores"
SCHEMA = "holdfast"
"""The schema of a golden store on Postgres."""

_TABLES = """
    select relname
    from pg_class
    where relnamespace = %s::regnamespace
      and relkind = 'r'
    order by relname
"""

_COLUMNS = """
    select attname, attidentity <> ''
    from pg_attribute
    where attrelid = %s::regclass
      and attnum > 0
      and not attisdropped
      and attgenerated = ''
    order by attnum
"""


def numbers(kind: str) -> list[int]:
    """Return the schema numbers of which there is a golden store of a kind, oldest first."""
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in FOLDER.glob(f"{kind}-*.gz"))


def file_of(kind: str, number: int) -> Path:
    suffix = {"sqlite": "db", "postgres": "sql", "redis": "jsonl"}[kind]
    return FOLDER / f"{kind}-{number}.{suffix}.gz"


def read(kind: str, number: int) -> bytes:
    return gzip.decompress(file_of(kind, number).read_bytes())


def _write(kind: str, number: int, content: bytes) -> None:
    file_of(kind, number).write_bytes(gzip.compress(content, mtime=0))


# SQLite


def keep_sqlite(path: Path, number: int) -> None:
    import apsw

    smaller = path.with_name("smaller.db")
    connection = apsw.Connection(str(path))
    connection.execute("vacuum into ?", (str(smaller),))
    connection.close()
    _write("sqlite", number, smaller.read_bytes())


def load_sqlite(number: int, path: Path) -> None:
    with gzip.open(file_of("sqlite", number)) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)


# Postgres


def keep_postgres(url: str, number: int, script: str) -> None:
    """Write a store on Postgres. `script` makes its schema."""
    import psycopg

    lines = [
        f"create schema {SCHEMA};",
        f"set search_path = {SCHEMA}, pg_catalog, pg_temp;",
        "set check_function_bodies = off;",
        script,
    ]
    with psycopg.connect(url) as connection:
        for (table,) in connection.execute(_TABLES, (SCHEMA,)).fetchall():
            lines += _rows(connection, table)
    lines.append("reset search_path;\nreset check_function_bodies;")
    _write("postgres", number, "\n".join(lines).encode())


def _rows(connection: Any, table: str) -> list[str]:
    """Return the statements that insert the rows of a table, and set its counter."""
    from psycopg import sql

    found = connection.execute(_COLUMNS, (f"{SCHEMA}.{table}",)).fetchall()
    names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in found)
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name, _ in found)
    where = sql.Identifier(SCHEMA, table)
    rows = connection.execute(sql.SQL("select {} from {} order by 1").format(texts, where)).fetchall()
    head = sql.SQL("insert into {} ({}) overriding system value values ").format(sql.Identifier(table), names)
    lines = []
    for row in rows:
        values = sql.SQL(", ").join(map(sql.Literal, row))
        lines.append(sql.SQL("{}({});").format(head, values).as_string(connection))
    for name, is_counter in found:
        if is_counter:
            (last,) = connection.execute(
                sql.SQL("select coalesce(max({}), 0) from {}").format(sql.Identifier(name), where)
            ).fetchone()
            lines.append(f"alter table {table} alter column {name} restart with {last + 1};")
    return lines


def load_postgres(number: int, url: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(read("postgres", number))


# Redis


def keep_redis(url: str, number: int) -> None:
    from tests.redis import connect
    from tests.redis.cleaning import namespace_of

    prefix = f"{{{namespace_of(url)}}}:"
    with connect(url) as client:
        keys = sorted(key for key in client.scan_iter(match=f"{prefix}*", count=1000) if client.pttl(key) == -1)
        lines = [{"key": _text(key).removeprefix(prefix), **_value(client, key)} for key in keys]
    _write("redis", number, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _value(client: Any, key: bytes) -> dict[str, Any]:
    match client.type(key):
        case b"hash":
            fields = sorted(client.hgetall(key).items())
            return {"hash": {_text(name): _text(value) for name, value in fields}}
        case b"list":
            return {"list": [_text(line) for line in client.lrange(key, 0, -1)]}
        case b"zset":
            return {"zset": {_text(name): score for name, score in client.zrange(key, 0, -1, withscores=True)}}
        case b"string":
            return {"string": _text(client.get(key))}
        case other:
            raise AssertionError(f"{key!r} is a {other!r}")


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def load_redis(number: int, url: str) -> None:
    from tests.redis import connect
    from tests.redis.cleaning import namespace_of

    prefix = f"{{{namespace_of(url)}}}:"
    with connect(url, encoding="latin-1") as client:
        for line in read("redis", number).splitlines():
            item = json.loads(line)
            key = prefix + item["key"]
            match item:
                case {"hash": fields}:
                    client.hset(key, mapping=fields)
                case {"list": members}:
                    client.rpush(key, *members)
                case {"zset": scores}:
                    client.zadd(key, scores)
                case {"string": text}:
                    client.set(key, text)
                case _:
                    raise AssertionError(item)
