"""User transactions (`ctx.tx`): a user's function runs on the writer's connection, in the commit that records it.

The function runs inside a savepoint and cannot commit. If it rolls back more than its own work, the writer repeats all
other operations of the commit without it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.clock import Micros
from holdfast.core.errors import Fatal
from holdfast.core.model import Entry
from holdfast.core.ports import Transacted, Transaction
from holdfast.stores.operations.checkpoints import record
from holdfast.stores.sqlite import checkpoints
from holdfast.stores.sqlite.errors import TransactionEnded, is_of_file
from holdfast.stores.sqlite.guard import SAVEPOINT, guard_of
from holdfast.stores.sqlite.transaction import Transaction as Unit

LIMIT_SECONDS = 5.0

_STEPS_BETWEEN_LOOKS = 2_000


def transact(unit: Unit, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
    """Write a checkpoint, the work of a transaction and its entry. If the transaction fails, write only the checkpoint.

    The checkpoint's fence covers the transaction too: no other process can write before this commit.
    """
    now = unit.now()
    (verdict,) = checkpoints.write(unit, [checkpoint]).verdicts
    if verdict.is_lost or not verdict.is_held:
        return Transacted(verdict=verdict, now=now)
    recorded = unit.histories.entry(checkpoint.run_id, location)
    if recorded is not None and recorded.is_settled:  # committed by an earlier call, whose answer was lost
        return Transacted(verdict=verdict, now=now, entry=recorded)
    entry, error = _carried_out(unit.connection, transaction, now)
    if entry is not None:
        record(unit, checkpoint.run_id, checkpoint.token, entry, now)
    return Transacted(verdict=verdict, now=now, entry=entry, error=error)


def _carried_out(
    connection: apsw.Connection, transaction: Transaction, now: Micros
) -> tuple[Entry | None, BaseException | None]:
    """Run a transaction. Returns its entry, or the error that undid it."""
    connection.execute(f'savepoint "{SAVEPOINT}"')
    ends_at = time.monotonic() + LIMIT_SECONDS
    try:
        with _confined(connection, ends_at):
            entry = transaction(connection, now)
        _check(connection, ends_at)
    except BaseException as error:
        if is_of_file(error):
            raise  # the checkpoint could not be written either
        _roll_back(connection, error)
        return None, _late(error) if isinstance(error, apsw.InterruptError) and time.monotonic() > ends_at else error
    _end_savepoint(connection, "release")
    return entry, None


def _check(connection: apsw.Connection, ends_at: float) -> None:
    """Raise now for errors that would otherwise fail the commit that all operations of the batch share."""
    if time.monotonic() > ends_at:
        raise _late(None)
    open_keys, _ = connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)
    if open_keys:
        raise apsw.ConstraintError("FOREIGN KEY constraint failed: a deferred one is violated at the end")


def _late(error: BaseException | None) -> TimeoutError:
    late = TimeoutError(
        f"the transaction took longer than {LIMIT_SECONDS:g} s, and it blocks all other writes; do less in it, or "
        "split it into several"
    )
    late.__cause__ = error
    return late


def _roll_back(connection: apsw.Connection, error: BaseException) -> None:
    try:
        _end_savepoint(connection, "rollback to")
    except TransactionEnded as ended:
        raise ended from error
    _end_savepoint(connection, "release")


def _end_savepoint(connection: apsw.Connection, how: str) -> None:
    try:
        connection.execute(f'{how} "{SAVEPOINT}"')
    except apsw.Error as error:
        raise TransactionEnded(
            "the function ended the transaction that it runs in (by closing the connection, or with "
            f"`on conflict rollback`), so all of its work was undone: {error}"
        ) from error


@contextmanager
def _confined(connection: apsw.Connection, ends_at: float) -> Iterator[None]:
    """Limit what a user's function can do and how long it can run, and close the cursors that it leaves open."""
    cursors: weakref.WeakSet[apsw.Cursor] = weakref.WeakSet()

    def cursor_of(connection: apsw.Connection) -> apsw.Cursor:
        cursor = apsw.Cursor(connection)
        cursors.add(cursor)
        return cursor

    connection.cursor_factory = cursor_of
    connection.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS_BETWEEN_LOOKS, id=SAVEPOINT)
    # Refuse commits: if the function ends the transaction, each further statement would commit by itself.
    connection.set_commit_hook(lambda: True, id=SAVEPOINT)
    try:
        with guard_of(connection, Fatal).on():
            yield
    finally:
        for cursor in cursors:  # an unfinished statement would keep the whole batch from committing
            cursor.close(force=True)
        connection.cursor_factory = apsw.Cursor
        connection.set_progress_handler(None, id=SAVEPOINT)
        connection.set_commit_hook(None, id=SAVEPOINT)
