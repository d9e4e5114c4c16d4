"""SQL for one schema: the calls of server functions, and statements in which `{schema}` stands for the schema.

Statements name the schema of every object. The search path of a session belongs to the user, or to another client of a
pooler.
"""

# ruff: noqa: S608 - the name of the schema is checked by `PostgresAddress`; values of users are always bound

from __future__ import annotations

from functools import lru_cache

from psycopg import sql

from holdfast.core.claim_order import BEGUN, CHILD, NEW
from holdfast.stores.postgres.scripts import Connection

RANK = f"case when token > 0 then {BEGUN} when parent_id is not null then {CHILD} else {NEW} end"
"""`claim_order.rank_of` in SQL. A statement can use the index `runs_queue` only with exactly this expression."""

_KNOWN_LIMIT = 1_000


@lru_cache(_KNOWN_LIMIT)
def qualified(text: str, schema: str) -> bytes:
    """Return the statement for one schema. Texts are constants, so each is built once and prepared once."""
    return text.replace("{schema}", identifier(schema)).encode()


def identifier(schema: str) -> str:
    """Return the name of a schema, quoted for SQL if needed."""
    return sql.Identifier(schema).as_string(None)


class Calls:
    """The statements that call the server functions of a schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.create = f"select {schema}.create_v1(%s, %s, %s)".encode()
        self.claim = (f"select {schema}.claim_v1(%s, %s, %s::text[], %s, %s, %s, %s, %s, %s, %s, %s)").encode()
        self.leased = (
            f"select {schema}.leases_within_limits_v1(array(select json_array_elements_text(%s)), %s::text[], %s)"
        ).encode()
        self.block_unreadable = f"select {schema}.block_unreadable_v1(%s, %s, %s, %s)".encode()
        self.checkpoint = f"select {schema}.checkpoint_v1(%s, %s, %s, %s, %s, %s, %s)".encode()
        self.checkpoint_one = (
            f"select {schema}.checkpoint_v1(array[%s], array[%s::bigint], array[%s::bigint], array[%s], %s, %s, %s)"
        ).encode()
        self.renew = f"select {schema}.renew_v1(%s, %s, %s, %s)".encode()
        self.trim = f"select {schema}.trim_v1(array(select json_array_elements_text(%s)))".encode()
        self.load = f"select {schema}.load_v1(%s, %s)".encode()
        self.apply = f"select {schema}.apply_v1(%s, %s)".encode()
        self.lost = f"select {schema}.lost_v1(%s, %s)".encode()
        self.now = f"select {schema}.time_v1(null)".encode()
        self.notify = f"select pg_notify('{schema}', '')".encode()
        self.retire = f"delete from {schema}.workers where id = %s".encode()


def answer(connection: Connection, call: bytes, *arguments: object) -> str:
    """Return the one value of a call."""
    row = connection.execute(call, arguments).fetchone()
    assert row is not None
    text: str = row[0]
    return text
