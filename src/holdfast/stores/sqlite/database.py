"""User tables in the store's file: transactions inside a run (`ctx.tx`) and outside of runs (`hf.connection`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path

import apsw

from holdfast.core.checkpoint import Checkpoint, Created
from holdfast.core.clock import Clock
from holdfast.core.commands import Sent
from holdfast.core.errors import Fatal, InvalidRequest
from holdfast.core.model import Event, Intent, MessageToRun
from holdfast.core.ports import Transacted, Transaction
from holdfast.stores.operations import arrivals, starts
from holdfast.stores.sqlite import checkpoints, user_transactions
from holdfast.stores.sqlite.connections import open_for_reading, open_for_writing
from holdfast.stores.sqlite.errors import TransactionEnded, unavailable
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.guard import Guard, guard_of
from holdfast.stores.sqlite.hint_file import mark
from holdfast.stores.sqlite.transaction import Transaction as Unit
from holdfast.stores.sqlite.write_lock import WriteLock
from holdfast.stores.sqlite.writer import Writer


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
            return await writer.run(lambda unit: user_transactions.transact(unit, checkpoint, location, transaction))
        except TransactionEnded as ended:
            # The rollback also undid the checkpoint, which is valid: write it again, without the transaction.
            error = Fatal(str(ended))
            error.__cause__ = ended
        answer = await writer.run(lambda unit: checkpoints.write(unit, [checkpoint]))
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
        with _writing_here(self._files.database):
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
        marks the hint file after that commit, so every process looks at the database.
        """
        ours = self._checked(connection)
        guard = ours.authorizer
        lifted = guard.off() if isinstance(guard, Guard) else nullcontext()
        with self._translating(), lifted, ours:  # a savepoint, so that a refusal leaves nothing behind
            unit = Unit(ours, self._clock)
            yield unit
            unit.flush()

    def _checked(self, connection: object) -> apsw.Connection:
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


# The file whose write lock this task or thread holds, so that it never waits for itself.
_WRITING: ContextVar[list[Path]] = ContextVar("holdfast_writing")


@contextmanager
def _writing_here(path: Path) -> Iterator[None]:
    mine = [path]
    token = _WRITING.set(mine)
    try:
        yield
    finally:
        mine.clear()  # tasks started in the block have a copy of the variable, which refers to the same list
        _WRITING.reset(token)


def check_not_writing(path: Path) -> None:
    """Raise if the caller itself holds the write lock, because waiting for it would never end."""
    if path in _WRITING.get([]):
        raise InvalidRequest(
            f"inside `with hf.connection()` no other connection can write to {path}, not even holdfast's: leave the "
            "block first, or use hf.start_in, hf.send_in or hf.emit_in(connection, …)"
        )
