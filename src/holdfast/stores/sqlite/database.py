"""User tables in the store's file: transactions inside a run (`ctx.tx`) and outside of runs (`hf.connection`)."""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

import apsw

from holdfast.core.checkpoint import Checkpoint, Created
from holdfast.core.clock import Clock, Micros
from holdfast.core.commands import Sent
from holdfast.core.errors import Fatal, InvalidRequest
from holdfast.core.model import Entry, Event, Intent, MessageToRun
from holdfast.core.ports import Transacted, Transaction
from holdfast.stores.operations import arrivals, checkpoints, starts
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.connections import (
    TransactionEnded,
    is_of_file,
    open_for_reading,
    open_for_writing,
    unavailable,
)
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.hints import mark
from holdfast.stores.sqlite.transaction import Transaction as Unit
from holdfast.stores.sqlite.writer import WriteLock, Writer, check_not_writing, writing_here


class SqliteDatabase:
    """The capability `Database` of `SqliteStore`. `writer` returns the writer of the open store, or raises."""

    def __init__(self, files: Files, clock: Clock, writer: Callable[[], Writer]) -> None:
        self._files = files
        self._clock = clock
        self._writer = writer

    # Inside of runs

    async def transact(self, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
        writer = self._writer()
        try:
            return await writer.run(lambda unit: _transact(unit, checkpoint, location, transaction))
        except TransactionEnded as ended:
            # The rollback also undid the checkpoint, which is valid: write it again, without the transaction.
            error = Fatal(str(ended))
            error.__cause__ = ended
        answer = await writer.run(lambda unit: checkpoints.write(unit, [checkpoint], unit.now()))
        return Transacted(verdict=answer.verdicts[0], now=answer.now, error=error)

    # Outside of runs

    def connection(self, *, readonly: bool = False) -> AbstractContextManager[apsw.Connection]:
        self._writer()  # raises if the store is not open in this process
        return self._reading() if readonly else self._writing()

    @contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        with self._translating():
            connection = open_for_reading(self._files.database)
        try:
            connection.execute("begin")
            yield connection
        finally:
            connection.close(force=True)

    @contextmanager
    def _writing(self) -> Iterator[apsw.Connection]:
        """Write on a separate connection, which takes the write lock like every writer, in this process too."""
        check_not_writing(self._files.database)
        turn = WriteLock(self._files.turn)
        with self._translating():
            turn.open()
        try:
            with self._translating():
                turn.acquire()
                connection = open_for_writing(self._files.database, may_create=False)
            try:
                self._writer().check_number(connection)
                yield from self._transaction(connection)
            finally:
                connection.close(force=True)
        finally:
            turn.close()
        mark(self._files)

    def _transaction(self, connection: apsw.Connection) -> Iterator[apsw.Connection]:
        with self._translating():
            connection.execute("begin immediate")
        with writing_here(self._files.database):
            try:
                with guard_of(connection, InvalidRequest, may_read=True).on():
                    yield connection
            except BaseException:
                with suppress(apsw.Error):  # after some errors, such as a full disk, SQLite has already rolled back
                    connection.execute("rollback")
                raise
            with self._translating():
                connection.execute("commit")

    def serve(self) -> Callable[[], None]:
        return lambda: None  # SQLite has no requests in plain SQL, so there is nothing to serve

    # Coroutines only because other databases have async connections: these never suspend.

    async def create_in(self, connection: object, intents: Sequence[Intent]) -> Created:
        with self._unit(connection) as unit:
            return starts.create(unit, intents, None, unit.now())

    async def send_in(self, connection: object, messages: Sequence[MessageToRun], *, by: str = "") -> Sequence[Sent]:
        with self._unit(connection) as unit:
            return arrivals.send(unit, messages, unit.now(), by=by)

    async def emit_in(self, connection: object, events: Sequence[Event], *, by: str = "") -> Sequence[int]:
        with self._unit(connection) as unit:
            return arrivals.emit(unit, events, unit.now(), by=by)

    @contextmanager
    def _unit(self, connection: object) -> Iterator[Unit]:
        """Open a unit of work in a user's transaction.

        It posts no hint, because only the user's commit makes the change visible. A connection from `connection()`
        marks the hint file after that commit, so every process queries the database.
        """
        ours = self._check_connection(connection)
        guard = ours.authorizer
        lifted = guard.off() if isinstance(guard, Guard) else nullcontext()
        with self._translating(), lifted, ours:  # a savepoint, so that a refusal leaves nothing behind
            unit = Unit(ours, self._clock)
            yield unit
            unit.flush()

    def _check_connection(self, connection: object) -> apsw.Connection:
        if type(connection).__module__.partition(".")[0] == "sqlite3":
            raise InvalidRequest(
                "this is a connection of the sqlite3 module: two SQLite libraries with the same file open in one "
                "process break each other's locks and corrupt the file; use `with hf.connection() as connection:`"
            )
        if not isinstance(connection, apsw.Connection):
            raise InvalidRequest(
                f"expected an apsw.Connection, such as hf.connection() returns, but got {connection!r}"
            )
        if not self._is_ours(Path(connection.filename)):
            raise InvalidRequest(
                f"this connection is to {connection.filename or 'a database in memory'}, but runs are stored in "
                f"{self._files.database}; use `with hf.connection() as connection:`"
            )
        if not connection.in_transaction:
            raise InvalidRequest(
                "no transaction is open on this connection; begin one: the change takes effect when you commit"
            )
        return connection

    def _is_ours(self, path: Path) -> bool:
        try:
            return path.samefile(self._files.database)
        except OSError:
            return False

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError) as error:
            raise unavailable(self._files.database, error) from error


# Inside of runs

LIMIT_SECONDS = 5.0

_STEPS_BETWEEN_CHECKS = 2_000


def _transact(unit: Unit, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
    """Write a checkpoint, the work of a transaction and its entry. If the transaction fails, write only the checkpoint.

    The checkpoint's fence covers the transaction too: no other process can write before this commit.
    """
    now = unit.now()
    (verdict,) = checkpoints.write(unit, [checkpoint], now).verdicts
    if verdict.is_lost or not verdict.is_held:
        return Transacted(verdict=verdict, now=now)
    recorded = unit.histories.entry(checkpoint.run_id, location)
    if recorded is not None and recorded.is_settled:  # committed by an earlier call, whose answer was lost
        return Transacted(verdict=verdict, now=now, entry=recorded)
    entry, error = _run_transaction(unit.connection, transaction, now)
    if entry is not None:
        checkpoints.record(unit, checkpoint.run_id, checkpoint.token, entry, now)
    return Transacted(verdict=verdict, now=now, entry=entry, error=error)


def _run_transaction(
    connection: apsw.Connection, transaction: Transaction, now: Micros
) -> tuple[Entry | None, BaseException | None]:
    """Run a transaction. Returns its entry, or the error that undid it."""
    connection.execute(f'savepoint "{SAVEPOINT}"')
    ends_at = time.monotonic() + LIMIT_SECONDS
    try:
        with _confine(connection, ends_at):
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
def _confine(connection: apsw.Connection, ends_at: float) -> Iterator[None]:
    """Limit what a user's function can do and how long it can run, and close the cursors that it leaves open."""
    cursors: weakref.WeakSet[apsw.Cursor] = weakref.WeakSet()

    def cursor_of(connection: apsw.Connection) -> apsw.Cursor:
        cursor = apsw.Cursor(connection)
        cursors.add(cursor)
        return cursor

    connection.cursor_factory = cursor_of
    connection.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS_BETWEEN_CHECKS, id=SAVEPOINT)
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


# The guard

SAVEPOINT = "holdfast transaction"

_CREATE_TABLE = re.compile(r"^create table (\w+)", re.MULTILINE)


def _operations(names: str) -> frozenset[int]:
    return frozenset(getattr(apsw, f"SQLITE_{name}") for name in names.split())


# SQLite passes two names with each operation. These sets say which of the two is the table.
_FIRST_IS_TABLE = _operations("INSERT UPDATE DELETE CREATE_TABLE DROP_TABLE ANALYZE")
_SECOND_IS_TABLE = _operations("ALTER_TABLE CREATE_INDEX DROP_INDEX CREATE_TRIGGER DROP_TRIGGER")
_TEMPORARY = _operations("CREATE_TEMP_TABLE CREATE_TEMP_INDEX CREATE_TEMP_TRIGGER CREATE_TEMP_VIEW")
_FILES = _operations("ATTACH DETACH")

# Allowed pragmas: they change neither a lasting setting nor the file. SQLite's full-text search uses `data_version`.
_PRAGMAS = frozenset(
    {"data_version", "defer_foreign_keys", "foreign_key_check", "foreign_key_list", "foreign_keys", "index_info"}
    | {"index_list", "index_xinfo", "table_info", "table_list", "table_xinfo"}
)


class Guard:
    """An authorizer, which SQLite calls for each statement that it compiles. While off, it allows everything.

    It protects against mistakes, not against malice. A connection keeps one guard for life, because SQLite recompiles
    all statements when the authorizer changes.
    """

    def __init__(self, refusal: type[Exception], *, may_read: bool = False) -> None:
        self._refusal = refusal
        self._may_read = may_read
        self._is_on = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """Refuse forbidden statements until the block ends."""
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    @contextmanager
    def off(self) -> Iterator[None]:
        """Allow every statement, for the store's own work, until the block ends."""
        was_on, self._is_on = self._is_on, False
        try:
            yield
        finally:
            self._is_on = was_on

    def __call__(
        self, operation: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if self._is_on and (reason := self._reason(operation, first or "", second or "")) is not None:
            raise self._refusal(reason)  # SQLite then refuses the statement, and apsw raises this error
        return apsw.SQLITE_OK

    def _reason(self, operation: int, first: str, second: str) -> str | None:
        """Return why a statement is refused, or None if it is allowed."""
        table = second if operation in _SECOND_IS_TABLE else first
        is_of_table = operation in _FIRST_IS_TABLE or operation in _SECOND_IS_TABLE
        if is_of_table or (operation == apsw.SQLITE_READ and not self._may_read):
            if table.lower() in own_tables():
                return f"the table {table!r} belongs to holdfast; use only your own tables, and hf and ctx for runs"
        elif operation == apsw.SQLITE_TRANSACTION or (operation == apsw.SQLITE_SAVEPOINT and second == SAVEPOINT):
            return (
                f"{first} is not allowed here: holdfast commits the transaction when your code returns, and rolls it "
                "back when your code raises"
            )
        elif operation in _FILES:
            return "another file cannot be part of this transaction; work on that file in a separate step"
        elif operation in _TEMPORARY:
            return "a temporary table or view would outlive the transaction; use an ordinary table, and empty it"
        elif operation == apsw.SQLITE_PRAGMA and first.lower() not in _PRAGMAS:
            return f"pragma {first} is not allowed: it would change a connection or a file that holdfast uses too"
        return None


def guard_of(connection: apsw.Connection, refusal: type[Exception], *, may_read: bool = False) -> Guard:
    """Return the guard of a connection. The first call installs it."""
    known = connection.authorizer
    if isinstance(known, Guard):
        return known
    guard = Guard(refusal, may_read=may_read)
    connection.authorizer = guard
    return guard


@cache
def own_tables() -> frozenset[str]:
    """Return the names of this store's tables."""
    texts = (schema.baseline(), *(migration.body for migration in schema.migrations().all))
    return frozenset(_CREATE_TABLE.findall("\n".join(texts)))
