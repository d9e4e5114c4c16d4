"""Calls: the statements that carry out operations, for one schema. Each is one trip."""

# ruff: noqa: S608 - the name of the schema is checked by `Address`; what users give is only ever bound

from __future__ import annotations

from holdfast.stores.postgres.talks import Connection


class Calls:
    """The functions of a schema, by what they do."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.create = f"select {schema}.create_v1(%s, %s, %s)".encode()
        self.claim = (f"select {schema}.claim_v1(%s, %s, %s::text[], %s, %s, %s, %s, %s, %s, %s, %s)").encode()
        self.leased = (
            f"select {schema}.leased_v1(array(select json_array_elements_text(%s)), %s::text[], %s)"
        ).encode()
        self.due_ids = f"select {schema}.due_ids_v1(%s, %s, %s)".encode()
        self.lease = f"select {schema}.lease_v1(%s)".encode()
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
    """The one value that a call gives back."""
    row = connection.execute(call, arguments).fetchone()
    assert row is not None
    text: str = row[0]
    return text
