"""A unit of work on Postgres: an operation on a working set, in one transaction.

One round trip locks and loads the rows that the operation needs, the operation decides, and another round trip writes
its changes. If the operation needs more rows, everything is rolled back and repeated with more. So locks are always
taken in one order, and the operation decides on locked rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
import psycopg

from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.stores.postgres import unreadable
from holdfast.stores.postgres.connections import IDLE_IN_TRANSACTION_SECONDS
from holdfast.stores.postgres.load_document import document
from holdfast.stores.postgres.scripts import Script, Statement, Statements, pipelined
from holdfast.stores.postgres.sql import Calls
from holdfast.stores.working.decision import ROUNDS_LIMIT, Operation, decide
from holdfast.stores.working.load_request import LoadRequest, NotLoaded

MUCH_CHARACTERS = 2_000_000
"""Size of a document from which deciding may exceed the usual idle limit of the store's transactions. That limit is
short, so that a process that stands still does not keep its locks."""

TAKEN = "HF001"
"""SQLSTATE of the server functions if another transaction took an id or a key first."""

UNIQUE = "23505"
"""SQLSTATE of the database if another transaction took a key first that an ended run was to take again."""

T = TypeVar("T")


class Bounds:
    """Statements that begin, commit and undo a unit of work: a transaction, or a savepoint in one that is open."""

    def __init__(self, begin: bytes, commit: bytes, *undo: bytes, take_time: bytes | None = None) -> None:
        self._begin: Statement = begin, ()
        self.commit: Statement = commit, ()
        self._undo = undo
        self._take_time = take_time

    def taking_time(self, document: str) -> Script[None]:
        """Raise the idle limit of the transaction if deciding on the document may exceed the usual one."""
        if self._take_time is not None and len(document) > MUCH_CHARACTERS:
            yield self._take_time, ()

    def around(self, work: Script[T], *, is_committing: bool = False) -> Script[T]:
        """Run a script wholly or, if it raises, not at all. With `is_committing`, the script commits by itself."""
        first = next(work)  # if this raises, nothing was sent, and there is nothing to undo
        try:
            answer = yield from _going_on(work, pipelined(self._begin, first))
            if not is_committing:
                yield self.commit
        except GeneratorExit:
            raise  # the script was dropped: the owner of the connection rolls back or closes it
        except BaseException:
            with suppress(psycopg.Error):  # the connection itself may be broken
                for statement in self._undo:
                    yield statement, ()
            raise
        return answer


def _going_on(work: Script[T], statement: Statement | Statements) -> Script[T]:
    """Continue a script that has begun, with this statement in place of its first one."""
    while True:
        try:
            answer = yield statement
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - every error goes to the script
            go_on = partial(work.throw, error)
        else:
            go_on = partial(work.send, answer)
        try:
            statement = go_on()
        except StopIteration as end:
            done: T = end.value
            return done


_PATIENT = f"set local idle_in_transaction_session_timeout = {round(IDLE_IN_TRANSACTION_SECONDS * 1000)}".encode()

TRANSACTION = Bounds(b"begin isolation level read committed", b"commit", b"rollback", take_time=_PATIENT)
PART = Bounds(
    b"savepoint holdfast",
    b"release savepoint holdfast",
    b"rollback to savepoint holdfast",  # also releases the locks taken since
    b"release savepoint holdfast",
)


def decided(
    calls: Calls,
    to_load: LoadRequest,
    operation: Operation[T],
    at: Micros | None,
    bounds: Bounds = TRANSACTION,
    *,
    then: Callable[[T], Script[T]] | None = None,
) -> Script[tuple[T, News]]:
    """Let an operation decide and write its changes. Return its answer and its news.

    `then` completes the answer with a read after the writes, in the same transaction.
    """
    for _ in range(ROUNDS_LIMIT):
        try:
            if then is None:
                attempt = _attempt(calls, to_load, operation, at, bounds, is_committing=True)
                return (yield from bounds.around(attempt, is_committing=True))
            attempt = _attempt(calls, to_load, operation, at, bounds)
            return (yield from bounds.around(_completed(attempt, then)))
        except NotLoaded as missing:
            to_load.add(missing)
        except psycopg.DatabaseError as error:
            if error.sqlstate not in (TAKEN, UNIQUE):
                raise  # otherwise the next round finds the row of the transaction that was first
    raise AssertionError(f"an operation asks for more data in every round: {to_load}")


def _attempt(
    calls: Calls,
    to_load: LoadRequest,
    operation: Operation[T],
    at: Micros | None,
    bounds: Bounds,
    *,
    is_committing: bool = False,
) -> Script[tuple[T, News]]:
    """Load, decide and write. With `is_committing`, commit in the same round trip as the writes."""
    found = yield calls.load, (document(to_load, calls.schema), at)
    yield from bounds.taking_time(found)
    loaded = unreadable.loaded(found, to_load.runs, is_strict=bool(to_load.due))
    decision = decide(loaded, to_load, operation)
    last = [bounds.commit] if is_committing else []
    if decision.changes:
        last.insert(0, (calls.apply, (msgspec.json.encode(decision.changes).decode(), loaded.now)))
    if last:
        yield pipelined(*last)
    return decision.answer, decision.news


def _completed(attempt: Script[tuple[T, News]], then: Callable[[T], Script[T]]) -> Script[tuple[T, News]]:
    told, news = yield from attempt
    return (yield from then(told)), news
