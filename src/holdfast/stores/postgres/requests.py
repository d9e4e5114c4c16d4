"""Requests: what producers in plain SQL wish for, kept until a worker carries it out by the rules of everything.

They are written by the functions `cancel`, `send` and `emit` of the schema.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import psycopg

from holdfast.core.checkpoint import Cancel
from holdfast.core.clock import Micros
from holdfast.core.errors import RunNotFound
from holdfast.core.hint import News
from holdfast.core.model import Event, Message, Value
from holdfast.stores.memory import arrivals, controls
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.deciding import PART, decided
from holdfast.stores.postgres.statements import qualified
from holdfast.stores.postgres.talks import Connection, hold
from holdfast.stores.postgres.topics import REQUESTING, classid
from holdfast.stores.postgres.wishes import Wishes
from holdfast.stores.postgres.working import WorkingSet

BATCH_LIMIT = 200

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


def carry_out(connection: Connection, calls: Calls, at: Micros | None) -> News | None:
    """Do what the oldest requests ask for, in their order, and forget them, all in one transaction; None if none is."""
    with connection.transaction():
        taken = take(connection, calls.schema, BATCH_LIMIT)
        if not taken:
            return None
        wishes = Wishes()
        for request in taken:
            _wish(wishes, request)

        def operation(working: WorkingSet, now: Micros) -> None:
            for request in taken:
                _perform(working, request, now)

        _, news = hold(connection, decided(calls, wishes, operation, at, PART))
    return news


def _wish(wishes: Wishes, request: Request) -> None:
    match request:
        case SendRequest():
            wishes.send([request.message])
        case EmitRequest():
            wishes.emit([request.event])
        case CancelRequest():
            wishes.control(request.run_id, request.request)


def _perform(working: WorkingSet, request: Request, now: Micros) -> None:
    match request:
        case SendRequest():
            (sent,) = arrivals.send(working, [request.message], now)
            if sent.refused is not None:  # it was not, when it was sent
                _log.warning("a message to run %s is dropped: the run has ended meanwhile", sent.run_id)
        case EmitRequest():
            arrivals.emit(working, [request.event], now)
        case CancelRequest():
            with suppress(RunNotFound):
                controls.control(working, request.run_id, request.request, now)


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
