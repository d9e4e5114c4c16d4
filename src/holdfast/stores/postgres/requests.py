"""Requests: what producers in plain SQL wish for, kept until a worker carries it out by the rules of everything.

They are written by the functions `cancel`, `send` and `emit` of the schema.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg

from holdfast.core.checkpoint import Cancel
from holdfast.core.model import Event, Message, Value
from holdfast.stores.postgres.statements import qualified
from holdfast.stores.postgres.topics import REQUESTING, classid

_log = logging.getLogger("holdfast.store")


class SendRequest(Value, frozen=True, kw_only=True, tag_field="kind", tag="send"):
    """Send a message to a run. It may have ended since."""

    message: Message


class EmitRequest(Value, frozen=True, kw_only=True, tag_field="kind", tag="emit"):
    """Publish an event."""

    event: Event


class CancelRequest(Value, frozen=True, kw_only=True, tag_field="kind", tag="cancel"):
    """Cancel a run. It may have ended since."""

    run_id: str
    request: Cancel


Request = SendRequest | EmitRequest | CancelRequest

_TURN = """
    select pg_try_advisory_xact_lock(%s, %s)
"""

_TAKE = """
    with taken as (
        delete from {schema}.requests
        where number = any(array(
            select number
            from {schema}.requests
            order by number
            limit %s
            for update skip locked
        ))
        returning number, body
    )
    select number, body
    from taken
    order by number
"""  # by the primary key

_request: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def take(connection: psycopg.Connection[Any], schema: str, limit: int) -> list[Request]:
    """The oldest requests, which are gone once the open transaction is committed.

    One at a time does this, or what a producer asked for could be carried out in another order: nothing is there to be
    taken while somebody else is at it. Call it before anything is locked.
    """
    found = connection.execute(_TURN, (classid(schema), REQUESTING)).fetchone()
    if found is None or not found[0]:
        return []
    return list(_decoded(connection.execute(qualified(_TAKE, schema), (limit,))))


def _decoded(found: psycopg.Cursor[Any]) -> Iterator[Request]:
    for number, body in found:
        try:
            yield _request.decode(body)
        except msgspec.MsgspecError as error:
            # Nobody would ever understand it, and it must not stand in the way of the others.
            _log.warning("request %s is dropped: it was not written by holdfast's functions: %s", number, error)
