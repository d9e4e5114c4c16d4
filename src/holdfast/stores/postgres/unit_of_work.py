"""A unit of work on Postgres: a command or another operation on loaded rows, in one transaction.

One round trip locks and loads the rows that the operation needs, the operation decides, and another round trip writes
its changes. If the operation needs more rows, everything is rolled back and repeated with more. So locks are always
taken in one order, and the operation decides on locked rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import psycopg

from holdfast.core.clock import Micros
from holdfast.core.commands import Command, RetireWorker, SetTopics
from holdfast.core.news import News
from holdfast.core.rules import is_due
from holdfast.stores.operations import commands
from holdfast.stores.postgres import schedules, topics, unreadable
from holdfast.stores.postgres.connections import IDLE_IN_TRANSACTION_SECONDS
from holdfast.stores.postgres.scripts import Calls, Script, Statement, Statements, pipelined
from holdfast.stores.postgres.topics import bucket, classid
from holdfast.stores.workspace.decision import Missing, rounds
from holdfast.stores.workspace.reads import EmitRead, Reads, RowRead, ScheduleRead, TopicRead, reads_for, to_reopen
from holdfast.stores.workspace.row_changes import changes_of
from holdfast.stores.workspace.row_unit import RowUnit
from holdfast.stores.workspace.rows import RowWorkspace

ROUNDS_LIMIT = 200
"""Maximum number of rounds of one operation. Each round loads more than the one before, so reaching it is a bug."""

MUCH_CHARACTERS = 2_000_000
"""Size of a document from which deciding may exceed the usual idle limit of the store's transactions. That limit is
short, so that a process that stands still does not keep its locks."""

TAKEN = "HF001"
"""SQLSTATE of the server functions if another transaction took an id or a key first."""

UNIQUE = "23505"
"""SQLSTATE of the database if another transaction took a key first that an ended run was to take again."""

T = TypeVar("T")

Operation = Callable[[RowUnit, Micros], T]


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


def decide(
    calls: Calls,
    first: Iterable[RowRead],
    operation: Operation[T],
    at: Micros | None,
    bounds: Bounds = TRANSACTION,
    *,
    then: Callable[[T], Script[T]] | None = None,
) -> Script[tuple[T, News]]:
    """Let an operation decide and write its changes. Return its answer and its news.

    `first` is what it is known to read. `then` completes the answer with a read after the writes, in the same
    transaction.
    """
    reads = Reads(first)
    numbers = rounds(ROUNDS_LIMIT)
    while True:
        next(numbers)
        try:
            if then is None:
                attempt = _attempt(calls, reads, operation, at, bounds, is_committing=True)
                return (yield from bounds.around(attempt, is_committing=True))
            attempt = _attempt(calls, reads, operation, at, bounds)
            return (yield from bounds.around(_completed(attempt, then)))
        except Missing as missing:
            reads.add(missing.reads)
        except psycopg.DatabaseError as error:
            if error.sqlstate not in (TAKEN, UNIQUE):
                raise  # otherwise the next round finds the row of the transaction that was first


def _attempt(
    calls: Calls,
    reads: Reads,
    operation: Operation[T],
    at: Micros | None,
    bounds: Bounds,
    *,
    is_committing: bool = False,
) -> Script[tuple[T, News]]:
    """Load, decide and write. With `is_committing`, commit in the same round trip as the writes."""
    known = yield from schedules.load(calls.schema, reads.of(ScheduleRead))
    found = yield calls.load, (_document(reads, calls.schema), at)
    yield from bounds.taking_time(found)
    rows = RowWorkspace(unreadable.loaded(found, reads), reads)
    rows.schedules = dict(known)
    now = rows.loaded.now
    answer = operation(RowUnit(rows), now)
    writes = schedules.writes(calls.schema, known, rows.schedules)
    if changes := changes_of(rows):
        writes.append((calls.apply, (msgspec.json.encode(changes).decode(), now)))
    if is_committing:
        writes.append(bounds.commit)
    if writes:
        yield pipelined(*writes)
    # Claims skip rows that this transaction has locked. So give a hint for those that are due once it is committed.
    runs = [record.run for record in rows.records.values()]
    rows.news.ready |= {run.type for run in runs if run.worker is None and is_due(run, now)}
    return answer, rows.news


def _completed(attempt: Script[tuple[T, News]], then: Callable[[T], Script[T]]) -> Script[tuple[T, News]]:
    answer, news = yield from attempt
    return (yield from then(answer)), news


def _document(reads: Reads, schema: str) -> str:
    """Return reads as the JSON that the server function `load` takes, with the locks of their topics.

    A lock that two topics share is exclusive if either topic needs that.
    """
    locks = {bucket(read.name): False for read in reads.of(TopicRead)}
    locks |= {bucket(read.name): True for read in reads.of(EmitRead)}
    document = reads.document()
    if locks:
        family = classid(schema)
        document["buckets"] = [
            {"class": family, "bucket": at, "is_exclusive": is_exclusive} for at, is_exclusive in locks.items()
        ]
    return msgspec.json.encode(document).decode()


# Commands

SMALL = 4
"""Maximum number of runs, messages or schedules that a command encodes on the event loop. More would block it."""


def is_small(command: Command[Any]) -> bool:
    """True if a command is quick enough to be encoded on the event loop.

    Others are not: an event may reach many runs, a control a whole family, a change of limits all runs of a type.
    """
    size = command.size
    return size is not None and size <= SMALL


def apply(calls: Calls, command: Command[T], at: Micros | None) -> Script[tuple[T, News]]:
    """Apply a command. Return its answer and the news to announce."""
    answer, news = yield from _apply(calls, command, at)
    return cast("T", answer), news


def _apply(calls: Calls, command: Command[Any], at: Micros | None) -> Script[tuple[object, News]]:
    # Topics and workers are not among the rows that operations load: nothing is decided about them.
    if isinstance(command, SetTopics):
        yield from TRANSACTION.around(topics.put(calls.schema, command.topics))
        return None, News()
    if isinstance(command, RetireWorker):
        yield calls.retire, (command.worker_id,)
        return None, News()
    reads = [*reads_for(command)]
    for run_id, limit in command.needs().reopenings.items():
        found = yield calls.lost, (run_id, limit)
        reads += to_reopen(msgspec.json.decode(found, type=list[str]))
    return (yield from decide(calls, reads, lambda unit, now: commands.apply(unit, command, now), at))


def apply_in(calls: Calls, command: Command[T], at: Micros | None) -> Script[tuple[T, News]]:
    """Apply a command in a transaction that is already open."""
    return decide(calls, reads_for(command), lambda unit, now: commands.apply(unit, command, now), at, PART)
