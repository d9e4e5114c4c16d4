"""A unit of work on Postgres: an operation on a working set, in one transaction.

One round trip locks and loads what the operation is about, the operation decides, and another writes what changed. If
the operation needs more than was loaded, everything is rolled back and repeated with more. So locks are always taken in
one order, and the operation decides on what it read.
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
from holdfast.stores.postgres.scripts import Pipeline, Script, Statement, pipelined
from holdfast.stores.postgres.sql import Calls
from holdfast.stores.working.decision import ROUNDS_LIMIT, Operation, decide
from holdfast.stores.working.load_request import LoadRequest, NotLoaded

MUCH_CHARACTERS = 2_000_000
"""To decide on so much may take longer than our transactions usually may: they are to outlast no process that stands
still."""

TAKEN = "HF001"
"""What the functions say when somebody else was quicker with an id or a key."""

UNIQUE = "23505"
"""What the database says when somebody else was quicker with a key that an ended run was to take again."""

T = TypeVar("T")


class Bounds:
    """What begins, ends and undoes a unit of work: a transaction, or a part of one that somebody else has open."""

    def __init__(self, begin: bytes, commit: bytes, *undo: bytes, take_time: bytes | None = None) -> None:
        self._begin: Statement = begin, ()
        self.commit: Statement = commit, ()
        self._undo = undo
        self._take_time = take_time

    def taking_time(self, document: str) -> Script[None]:
        """Ask for patience if there is so much to decide on that it takes longer than our transactions usually may."""
        if self._take_time is not None and len(document) > MUCH_CHARACTERS:
            yield self._take_time, ()

    def around(self, work: Script[T], *, is_committing: bool = False) -> Script[T]:
        """Do something wholly or, if it raises, not at all. What `is_committing` ends with `commit` by itself."""
        first = next(work)  # if that fails nothing was said, and there is nothing to undo
        try:
            answer = yield from _going_on(work, pipelined(self._begin, first))
            if not is_committing:
                yield self.commit
        except GeneratorExit:
            raise  # nobody runs this script any more: the owner of the connection rolls back, or closes it
        except BaseException:
            with suppress(psycopg.Error):  # it may be the connection that is broken
                for statement in self._undo:
                    yield statement, ()
            raise
        return answer


def _going_on(work: Script[T], statement: Statement | Pipeline) -> Script[T]:
    """Do something that has begun, with this statement instead of the one it has asked for."""
    while True:
        try:
            answer = yield statement
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it was said to whoever works
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
    b"rollback to savepoint holdfast",  # its locks go with it
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
    """What an operation answers once all it changed is written, and what there is to tell of it.

    `then` completes the answer with what is read when all is written, in the same transaction.
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
                raise  # else it is done again, and meets whoever was quicker
    raise AssertionError(f"an operation needs ever more: {to_load}")


def _attempt(
    calls: Calls,
    to_load: LoadRequest,
    operation: Operation[T],
    at: Micros | None,
    bounds: Bounds,
    *,
    is_committing: bool = False,
) -> Script[tuple[T, News]]:
    """Load, decide and write; and commit what was written, if that is known to be all."""
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
