"""Requests of SQL producers, stored until a worker carries them out by the same rules as every other command.

The server functions `cancel`, `send` and `emit` write them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import psycopg

from holdfast.core.clock import Clock, Micros
from holdfast.core.commands import Cancel, EmitEvents, SendMessages
from holdfast.core.errors import RunNotFound
from holdfast.core.model import Event, MessageToRun, Value
from holdfast.core.news import News
from holdfast.core.outage import Outage
from holdfast.stores.operations import commands
from holdfast.stores.postgres.hints import Hints
from holdfast.stores.postgres.scripts import Calls, Connection, qualified, run_script
from holdfast.stores.postgres.sessions import Sessions
from holdfast.stores.postgres.topics import REQUESTING, classid
from holdfast.stores.postgres.unit_of_work import PART, decide
from holdfast.stores.workspace.reads import reads_for
from holdfast.stores.workspace.row_unit import RowUnit

BATCH_LIMIT = 200

_log = logging.getLogger("holdfast.store")


class SendRequest(Value, frozen=True, kw_only=True, tag_field="kind", tag="send"):
    """A request to send a message to a run, which may have ended since."""

    message: MessageToRun


class EmitRequest(Value, frozen=True, kw_only=True, tag_field="kind", tag="emit"):
    """A request to publish an event."""

    event: Event


class CancelBody(Value, frozen=True, kw_only=True):
    """The id and the reason of a cancel."""

    id: str
    reason: str = ""


class CancelRequest(Value, frozen=True, kw_only=True, tag_field="kind", tag="cancel"):
    """A request to cancel a run, which may have ended since."""

    run_id: str
    request: CancelBody


Request = SendRequest | EmitRequest | CancelRequest

RequestedCommand = SendMessages | EmitEvents | Cancel


class Taken(NamedTuple):
    """A request as a command, with its number. The command is None if the request cannot be decoded and is dropped."""

    number: int
    command: RequestedCommand | None


_WAITING = """
    select exists (select from {schema}.requests)
"""

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
        returning number, body, by
    )
    select number, body, by
    from taken
    order by number
"""  # by the primary key

_request: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_payload: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

_VALUES = ("21", "22", "23", "54")
"""Classes of server errors that are caused by values."""


def are_waiting(connection: Connection, schema: str) -> bool:
    """True if there are requests, even if another process is carrying them out."""
    ((is_so,),) = connection.execute(qualified(_WAITING, schema)).fetchall()
    return bool(is_so)


def carry_out(connection: Connection, calls: Calls, at: Micros | None) -> News | None:
    """Carry out the oldest requests in order, and delete them, in one transaction. Return None if there are none.

    If one of them can never succeed, each gets a transaction of its own, and that request is dropped.
    """
    try:
        with connection.transaction():
            taken = take(connection, calls.schema, BATCH_LIMIT)
            return _done(connection, calls, taken, at) if taken else None
    except Exception as error:
        if not _is_hopeless(error):
            raise
    return _carry_out_singly(connection, calls, at)


def _carry_out_singly(connection: Connection, calls: Calls, at: Micros | None) -> News:
    news = News()
    for _ in range(BATCH_LIMIT):
        with connection.transaction():
            taken = take(connection, calls.schema, 1)
            if not taken:
                break
            try:
                news.add(_done(connection, calls, taken, at))
            except Exception as error:
                if not _is_hopeless(error):
                    raise
                reason = str(error).partition("\n")[0]
                _log.warning("request %s is dropped: it cannot be carried out: %s", taken[0].number, reason)
    return news


def _done(connection: Connection, calls: Calls, taken: Sequence[Taken], at: Micros | None) -> News:
    """Carry out requests, all or none, in a transaction that is already open."""
    asked = [one.command for one in taken if one.command is not None]
    if not asked:
        return News()

    def operation(unit: RowUnit, now: Micros) -> None:
        for command in asked:
            _perform(unit, command, now)

    reads = [read for command in asked for read in reads_for(command)]
    _, news = run_script(connection, decide(calls, reads, operation, at, PART))
    return news


def _is_hopeless(error: Exception) -> bool:
    """True if the request itself is at fault: the server refuses its values, or a rule refuses it.

    Other errors of the server, such as a lack of disk space or of a permission, may go away.
    """
    if not isinstance(error, psycopg.Error):
        return True
    if error.sqlstate is None:
        return isinstance(error, psycopg.DataError)
    return error.sqlstate[:2] in _VALUES


def _perform(unit: RowUnit, command: RequestedCommand, now: Micros) -> None:
    """Carry out a command as far as still possible: its run may have ended since the request was written."""
    match command:
        case SendMessages():
            (sent,) = commands.apply(unit, command, now)
            if sent.refused is not None:
                _log.warning(
                    "a message to run %s is dropped: the run has ended meanwhile",
                    sent.run_id,
                    extra={"run_id": sent.run_id},
                )
        case EmitEvents():
            commands.apply(unit, command, now)
        case Cancel():
            with suppress(RunNotFound):
                commands.apply(unit, command, now)


def take(connection: Connection, schema: str, limit: int) -> list[Taken]:
    """Take the oldest requests. They are deleted when the open transaction commits.

    Only one session takes requests at a time, so that they are carried out in order. While another session has them,
    this returns nothing. Call it before anything is locked.
    """
    found = connection.execute(_TURN, (classid(schema), REQUESTING)).fetchone()
    if found is None or not found[0]:
        return []
    rows = connection.execute(qualified(_TAKE, schema), (limit,))
    return [Taken(number, _decoded(number, body, by)) for number, body, by in rows]


def _decoded(number: int, body: str, by: str) -> RequestedCommand | None:
    try:
        request = _request.decode(body)
        match request:
            case SendRequest():
                _payload.decode(request.message.payload)
                return SendMessages(messages=(request.message,), by=by)
            case EmitRequest():
                _payload.decode(request.event.payload)
                return EmitEvents(events=(request.event,), by=by)
            case CancelRequest():
                return Cancel(run_id=request.run_id, id=request.request.id, reason=request.request.reason, by=by)
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        # It can never be decoded, and must not block the requests behind it.
        _log.warning("request %s is dropped: it cannot be decoded: %s", number, error)
        return None


# The request thread

POLL_SECONDS = 7.0
"""Maximum time between two polls. It exceeds the claimer's poll, because the claims of a free worker also poll."""
POLL_WITHOUT_HINTS_SECONDS = 2.0
"""Maximum time between two polls of a store without notifications."""

_APART_SECONDS = 0.02
"""Minimum time between two polls, because notifications of SQL producers may come in a stream."""
_RETRY_SECONDS = 1.0
_STOP_SECONDS = 1.0


class RequestThread:
    """Carries out requests after a notification, and polls for them, while this process has a worker, busy or not.

    A claim carries them out as well, so that a worker with a free slot finds the runs that they make ready. This thread
    does not depend on free slots, on the types of the worker, or on its event loop.
    """

    def __init__(self, calls: Calls, writers: Sessions, hints: Hints, clock: Clock | None, *, has_hints: bool) -> None:
        self._calls = calls
        self._writers = writers
        self._hints = hints
        self._clock = clock
        self._has_hints = has_hints
        hints.on_request(self.wake)
        self._changing = threading.Lock()
        self._working = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._servers: set[object] = set()
        self._is_open = False
        self._polled_at = 0.0
        self._outage = Outage(
            _log,
            "cannot carry out requests of SQL producers; trying again",
            "carrying out requests of SQL producers works again",
        )
        self._errand: asyncio.Future[bool] | None = None
        self.batches = 0
        """Number of batches that this process has carried out."""

    # Lifetime

    def start(self) -> None:
        """Mark the store as open."""
        self._is_open = True

    def stop(self) -> None:
        """End the thread. Call this after the writers have stopped, so that the thread waits for no answer."""
        self._is_open = False
        thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None:
            thread.join(_STOP_SECONDS)

    def abandon(self) -> None:
        """Reset in a forked child, which has no such thread. It takes no lock, because the thread may have held it."""
        self._is_open = False
        self._changing, self._working, self._wake = threading.Lock(), threading.Lock(), threading.Event()
        self._thread = self._errand = None
        self._servers = set()

    def serve(self) -> Callable[[], None]:
        """Carry out requests until the returned function is called. Several workers of a process may call this."""
        server = object()
        with self._changing:
            self._servers.add(server)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-postgres-requests", daemon=True)
                self._thread.start()
        self.wake()
        return lambda: self._servers.discard(server)

    # From other threads

    def wake(self) -> None:
        """Make the thread poll for requests. Callable from any thread."""
        if self._servers:
            self._wake.set()

    def record_poll(self) -> None:
        """Record that a claim has just polled for requests."""
        self._polled_at = time.monotonic()

    def begin(self) -> asyncio.Future[bool]:
        """Carry out a batch of requests for a claim. The future is done when the batch is."""
        if self._errand is None:
            self._errand = self._writers.run(self._carry_out)
            self._errand.add_done_callback(self._done)
        return self._errand

    def _done(self, errand: asyncio.Future[bool]) -> None:
        self._errand = None
        if not errand.cancelled():
            self._note(errand.exception())

    # In its own thread

    def _run(self) -> None:
        while self._is_open:
            is_woken = self._wake.wait(self._patience())
            self._wake.clear()
            if self._servers and (is_woken or self._patience() == 0.0):
                self._poll()
                time.sleep(_APART_SECONDS)

    def _patience(self) -> float | None:
        """Seconds until the next poll; None if this process has no worker."""
        if not self._servers:
            return None
        poll = POLL_SECONDS if self._has_hints else POLL_WITHOUT_HINTS_SECONDS
        poll = min(poll, _RETRY_SECONDS) if self._outage.is_ongoing else poll
        return max(0.0, self._polled_at + poll - time.monotonic())

    def _poll(self) -> None:
        self._polled_at = time.monotonic()
        try:
            while self._writers.run_blocking(self._carry_out_waiting):
                pass
        except Exception as error:  # noqa: BLE001 - after any error the next poll tries again
            self._note(error)
        else:
            self._note(None)

    def _note(self, error: BaseException | None) -> None:
        if error is None:
            self._outage.worked()
        elif self._is_open:  # otherwise the error comes from closing the store
            self._outage.failed(error)

    # In the thread of a session

    def _carry_out_waiting(self, connection: Connection) -> bool:
        """Carry out a batch if there are requests. The check costs one round trip and takes no lock."""
        return are_waiting(connection, self._calls.schema) and self._carry_out(connection)

    def _carry_out(self, connection: Connection) -> bool:
        """Carry out a batch. Return False if there was none, or if another process is carrying it out."""
        with self._working:
            at = None if self._clock is None else self._clock.now()
            news = carry_out(connection, self._calls, at)
            if news is not None:
                self.batches += 1
        self._hints.announce(news or News())
        return news is not None
