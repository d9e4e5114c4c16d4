"""A link: a connection that an event loop watches. A statement is sent at once, its answer read when it comes.

It waits for nothing, repeats nothing and has no thread. Everything happens on its loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.postgres import types

from holdfast.stores.postgres.connections import Connection, Unanswered
from holdfast.stores.postgres.talks import Chain, Trip
from holdfast.stores.postgres.trouble import is_lost, is_timeout

Answered = Callable[[Any, psycopg.Error | None], None]

_INTEGERS = frozenset(types[name].oid for name in ("int2", "int4", "int8"))
_BOOL = types["bool"].oid
_STATEMENTS_REMEMBERED = 256


class Link:
    """One statement at a time, with one value for an answer. `broke` is called when the connection is gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Connection,
        *,
        is_prepared: bool,
        broke: Callable[[psycopg.Error], None],
    ) -> None:
        self.connection = connection
        self.opened_at = time.monotonic()
        self._loop = loop
        self._pgconn = connection.pgconn
        self._socket = connection.pgconn.socket
        self._is_prepared = is_prepared
        self._broke = broke
        self._lost: psycopg.Error | None = None
        self._answered: Answered | None = None
        self._trip: tuple[bytes, list[bytes | None] | None] = (b"", None)
        self._sent_at = 0.0
        self._is_preparing = False
        self._is_full = False
        self._names: dict[bytes, bytes] = {}
        self._result: pq.abc.PGresult | None = None
        self._watch: asyncio.TimerHandle | None = None
        loop.add_reader(self._socket, self._on_readable)

    @property
    def is_free(self) -> bool:
        return self._answered is None and self._lost is None

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open."""
        return self._pgconn.transaction_status == pq.TransactionStatus.IDLE

    def ask(self, said: Trip | Chain, answered: Answered) -> None:
        """Send something; `answered` gets its value (None if null, or no row) or what went wrong, later on."""
        assert self._answered is None
        if self._lost is not None:
            self._loop.call_soon(answered, None, self._lost)
            return
        try:
            self._trip = self._put_together(said) if isinstance(said, Chain) else _as_libpq_wants(said)
        except psycopg.DataError as error:
            self._loop.call_soon(answered, None, error)
            return
        self._answered = answered
        self._sent_at = time.monotonic()
        if self._watch is None and self.connection.answer_seconds:
            self._watch = self._loop.call_later(self.connection.answer_seconds, self._look)
        try:
            self._send()
        except psycopg.Error as error:
            self._loop.call_soon(self._lose, error)

    def end(self) -> None:
        """Close. Whoever waits is not told."""
        self._answered = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        with suppress(psycopg.Error):
            self.connection.close()

    # Sending

    def _send(self) -> None:
        statement, arguments = self._trip
        if arguments is None:
            self._pgconn.send_query(statement)
        elif not self._is_prepared:
            self._pgconn.send_query_params(statement, arguments)
        elif (name := self._names.get(statement)) is not None:
            self._pgconn.send_query_prepared(name, arguments)
        else:
            self._is_preparing = True
            self._pgconn.send_prepare(b"holdfast_%d" % len(self._names), statement)
        self._flush()

    def _put_together(self, chain: Chain) -> tuple[bytes, None]:
        """Several statements in one, which takes no arguments: they stand in it as literals."""
        return b"; ".join(self._with_literals(*trip) for trip in chain.trips), None

    def _with_literals(self, statement: bytes, arguments: tuple[object, ...]) -> bytes:
        first, *rest = statement.split(b"%s")
        escape = pq.Escaping(self._pgconn).escape_literal
        texts = (_as_text(one) for one in arguments)
        literals = (b"null" if text is None else bytes(escape(text)) for text in texts)
        return first + b"".join(literal + text for literal, text in zip(literals, rest, strict=True))

    def _flush(self) -> None:
        is_full = bool(self._pgconn.flush())  # the socket takes no more for the moment
        if is_full and not self._is_full:
            self._loop.add_writer(self._socket, self._on_writable)
        elif self._is_full and not is_full:
            self._loop.remove_writer(self._socket)
        self._is_full = is_full

    def _on_writable(self) -> None:
        try:
            self._flush()
        except psycopg.Error as error:
            self._lose(error)

    # Receiving

    def _on_readable(self) -> None:
        try:
            self._pgconn.consume_input()
            while self._pgconn.notifies() is not None:
                pass
            while self._answered is not None and not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    self._complete()
                    return
                # Of several the last that gives something, or fails.
                if self._result is None or result.status != pq.ExecStatus.COMMAND_OK:
                    self._result = result
        except psycopg.Error as error:
            self._lose(error)

    def _complete(self) -> None:
        result, self._result = self._result, None
        assert result is not None
        is_good = result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
        is_preparing, self._is_preparing = self._is_preparing, False
        if is_good and is_preparing:
            self._names[self._trip[0]] = b"holdfast_%d" % len(self._names)
            self._send()
        elif is_good:
            self._answer(_value(result), None)
        elif is_lost(error := error_from_result(result, encoding="utf-8")) and not is_timeout(error):
            self._lose(error)
        else:
            self._answer(None, error)

    def _answer(self, value: Any, error: psycopg.Error | None) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(value, error)

    # Trouble

    def _look(self) -> None:
        """Give up a connection that has not answered for too long."""
        self._watch = None
        if self._answered is None:
            return
        left = self._sent_at + self.connection.answer_seconds - time.monotonic()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look)
        else:
            self._lose(Unanswered(f"no answer within {self.connection.answer_seconds:g} s"))

    def _lose(self, error: psycopg.Error) -> None:
        if self._lost is None:
            self._lost = error
            answered, self._answered = self._answered, None
            self.end()
            self._broke(error)
            if answered is not None:
                answered(None, error)


def _as_libpq_wants(trip: Trip) -> tuple[bytes, list[bytes | None]]:
    statement, arguments = trip
    return _numbered(statement), [_as_text(one) for one in arguments]


@lru_cache(_STATEMENTS_REMEMBERED)
def _numbered(statement: bytes) -> bytes:
    """A statement with its arguments as libpq wants them: $1, $2, … for %s."""
    first, *rest = statement.split(b"%s")
    return first + b"".join(b"$%d%s" % (number, text) for number, text in enumerate(rest, 1))


def _as_text(value: object) -> bytes | None:
    """An argument as text, whose type the server infers."""
    if value is None:
        return None
    if isinstance(value, str):
        return _encoded(value)
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int):
        return b"%d" % value
    raise TypeError(f"a link takes text, whole numbers, booleans and None, not {value!r}")


def _encoded(text: str) -> bytes:
    """As the driver does it: libpq takes everything up to the first NUL, and the rest would be lost in silence."""
    if "\0" in text:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise psycopg.DataError(str(error)) from error


def _value(result: pq.abc.PGresult) -> Any:
    """The first value of an answer, as the driver would give it: text, whole number or boolean."""
    if not result.ntuples or not result.nfields or (data := result.get_value(0, 0)) is None:
        return None
    kind = result.ftype(0)
    if kind in _INTEGERS:
        return int(data)
    if kind == _BOOL:
        return data == b"t"
    return data.decode()
