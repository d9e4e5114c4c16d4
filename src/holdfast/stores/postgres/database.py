"""User transactions in the store's database, inside runs (`ctx.tx`) and outside (`hf.connection`, `start_in`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from msgspec.structs import replace
from psycopg.pq import TransactionStatus

from holdfast.core.checkpoint import Checkpoint, Created
from holdfast.core.clock import Micros
from holdfast.core.commands import Command, EmitEvents, SendMessages, Sent
from holdfast.core.errors import Fatal, InvalidRequest, StoreUnavailable
from holdfast.core.model import Entry, Event, Intent, MessageToRun
from holdfast.core.news import News
from holdfast.core.ports import Transacted, Transaction
from holdfast.stores.held import Held
from holdfast.stores.postgres import claims, reads, unit_of_work
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.checkpoints import AlreadySettled, Writing
from holdfast.stores.postgres.connections import SEEING_LEVELS, connect, is_conflict, is_overdue, unavailable
from holdfast.stores.postgres.hints import Hints
from holdfast.stores.postgres.scripts import AsyncConnection, Calls, Connection, Script, run_script, run_script_async
from holdfast.stores.postgres.sessions import Sessions
from holdfast.stores.postgres.unit_of_work import PART

T = TypeVar("T")

_MEET = b"""
    set constraints all immediate;
"""
"""Checks deferred constraints now, so that a violation is an error of the function and not of the commit."""

_RESET = b"""
    close all;
    reset session authorization;
    reset role;
    reset all;
    unlisten *;
    discard temp;
    select pg_advisory_unlock_all()
"""
"""Resets in one round trip what a function may have changed in its session, because other functions use it next."""


class PostgresDatabase:
    """The capability of `PostgresStore` for applications that keep tables of their own in its database."""

    def __init__(
        self,
        address: PostgresAddress,
        calls: Calls,
        held: Held,
        *,
        sessions: Sessions,
        hints: Hints,
        time: Callable[[], tuple[Micros | None, Micros]],
        serve: Callable[[], Callable[[], None]],
    ) -> None:
        self._address = address
        self._calls = calls
        self._held = held
        self._sessions = sessions
        self._hints = hints
        self._time = time
        self.serve = serve

    # Inside runs

    async def transact(self, checkpoint: Checkpoint, location: str, transaction: Transaction) -> Transacted:
        """Run the function first and check the fence last, so that the run is not locked while the function works."""

        def job(connection: Connection) -> Transacted:
            at, now = self._time()
            writing = Writing(self._calls, self._held, at=at, now=now)
            is_complete = False
            try:
                with connection.transaction():
                    answer = self._transact(connection, writing, checkpoint, location, transaction)
                    is_complete = True
            except _Refused as refused:
                answer = refused.answer
            except (_Ended, AlreadySettled) as end:
                _reset(connection)  # if the function ended the transaction, the rollback did not undo everything
                answer = _without(connection, writing, checkpoint, entry=end.entry, error=end.error)
            except psycopg.Error as error:
                if not is_complete or not _is_violation(error):
                    raise
                answer = _without(connection, writing, checkpoint, error=error)
            self._hints.announce(writing.news)
            return answer

        def repeat(connection: Connection) -> Transacted:
            answer = job(connection)
            self._hints.wake_all()
            return answer

        try:
            return await self._sessions.run(job, again=repeat)
        except StoreUnavailable as error:
            if not is_overdue(error.__cause__):
                raise
        # The server ended the function's transaction and closed the connection, so this attempt has failed.
        return await self._sessions.run(lambda connection: self._give_up(connection, checkpoint))

    def _give_up(self, connection: Connection, checkpoint: Checkpoint) -> Transacted:
        """Write the checkpoint of a transaction that took too long, without the transaction, with a timeout error."""
        at, now = self._time()
        writing = Writing(self._calls, self._held, at=at, now=now)
        overdue = TimeoutError(
            "the server ended the transaction, because it was idle for too long "
            "(idle_in_transaction_session_timeout); do slow work in a step, and only the writes here"
        )
        answer = _without(connection, writing, checkpoint, error=overdue)
        self._hints.announce(writing.news)
        return answer

    def _transact(
        self,
        connection: Connection,
        writing: Writing,
        checkpoint: Checkpoint,
        location: str,
        transaction: Transaction,
    ) -> Transacted:
        """Call the function and write its entry and the checkpoint, in a transaction that is already open."""
        error: BaseException | None = None
        # An earlier attempt may have committed and lost its answer.
        entry = reads.settled(connection, self._address.schema, checkpoint.run_id, location)
        settling = None
        if entry is None:
            entry, error = _carried_out(connection, transaction, self._time()[1])
            if entry is not None:
                checkpoint, settling = replace(checkpoint, entries=(*checkpoint.entries, entry)), location
        verdicts = run_script(connection, writing.decide([checkpoint], PART, settling=settling))
        (verdict,) = verdicts.verdicts
        if not verdict.is_held:
            raise _Refused(Transacted(verdict=verdict, now=verdicts.now))
        return Transacted(verdict=verdict, now=verdicts.now, entry=entry, error=error)

    # Outside runs

    @contextmanager
    def connection(self, *, readonly: bool = False) -> Iterator[Connection]:
        with self._translating():
            connection = connect(self._address)
        try:
            with connection.transaction():
                if readonly:
                    connection.execute("set transaction read only")
                yield connection
        finally:
            connection.close()
        if not readonly:
            self._hints.wake_all()

    async def create_in(self, connection: object, intents: Sequence[Intent]) -> Created:
        at, _ = self._time()
        return await self._run_script(connection, claims.create(self._calls, intents, None, at, PART))

    async def send_in(self, connection: object, messages: Sequence[MessageToRun], *, by: str = "") -> Sequence[Sent]:
        command = SendMessages(messages=messages, by=by)
        return await self._apply_in(connection, command)

    async def emit_in(self, connection: object, events: Sequence[Event], *, by: str = "") -> Sequence[int]:
        command = EmitEvents(events=events, by=by)
        return await self._apply_in(connection, command)

    async def _apply_in(self, connection: object, command: Command[T]) -> T:
        at, _ = self._time()
        return await self._run_script(connection, unit_of_work.apply_in(self._calls, command, at))

    async def _run_script(self, connection: object, script: Script[tuple[T, News]]) -> T:
        """Run a script in a user's transaction. The server notifies other processes when the user commits."""
        with self._translating():
            return await run_on_user_connection(connection, self._with_notice(script))

    def _with_notice(self, script: Script[tuple[T, News]]) -> Script[T]:
        answer, news = yield from script
        if news.hint() is not None and self._address.has_hints:
            yield self._calls.notify, ()
        return answer

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise unavailable(self._address, error) from error


def _carried_out(
    connection: Connection, transaction: Transaction, now: Micros
) -> tuple[Entry | None, BaseException | None]:
    """Call a user's function in a savepoint. Return its entry, or the error that rolled it back."""
    entries: list[Entry] = []
    try:
        with connection.transaction():
            entries.append(transaction(connection, now))
            # Inside the savepoint: what the store writes after the function needs the session's own role and settings.
            _reset(connection, _MEET + _RESET)
    except BaseException as error:
        # Without a connection the store cannot write its part either. After a conflict the whole transaction repeats.
        if connection.closed or connection.broken or is_conflict(error):
            raise
        if connection.pgconn.transaction_status != TransactionStatus.INTRANS:
            raise _Ended from error
        _reset(connection)  # a rollback does not undo everything, for example session locks
        return None, error
    if not entries:  # the driver swallows its own `Rollback`
        return None, Fatal("the function raised psycopg.Rollback; raise any other exception to undo its work")
    return entries[0], None


def _is_violation(error: psycopg.Error) -> bool:
    """True if a constraint was violated or a trigger refused the write."""
    return error.sqlstate is not None and error.sqlstate[:2] in ("23", "P0")


def _reset(connection: Connection, statements: bytes = _RESET) -> None:
    """Reset everything that a function has set, locked or created in its session."""
    psycopg.Cursor(connection).execute(statements, prepare=False)


def _without(
    connection: Connection,
    writing: Writing,
    checkpoint: Checkpoint,
    *,
    entry: Entry | None = None,
    error: BaseException | None,
) -> Transacted:
    """Write a checkpoint without its failed transaction: the facts before the transaction stay valid."""
    (verdict,) = (verdicts := run_script(connection, writing.decide([checkpoint]))).verdicts
    return Transacted(verdict=verdict, now=verdicts.now, entry=entry, error=error)


class _Refused(Exception):
    """The lease is lost, so the whole transaction is rolled back."""

    def __init__(self, answer: Transacted) -> None:
        super().__init__(answer.verdict.run_id)
        self.answer = answer


class _Ended(Exception):
    """A user's function has committed or rolled back the transaction that it runs in."""

    entry: Entry | None = None

    @property
    def error(self) -> Fatal:
        """The error of the function."""
        fatal = Fatal(
            "the function called `commit` or `rollback` and so ended the transaction it runs in; "
            "leave that to holdfast: it commits what the function wrote together with the record of it"
        )
        fatal.__cause__ = self.__cause__
        return fatal


# Scripts on a user's connection, in the transaction that is open there

_KINDS = "a psycopg connection, or a SQLAlchemy connection or session on one"


async def run_on_user_connection(connection: object, script: Script[T]) -> T:
    """Run a script in the transaction that is open on a user's connection, of any supported kind."""
    own = await _driver_connection(connection)
    _check_transaction(own)
    script = _checked(script)
    if isinstance(own, psycopg.AsyncConnection):
        return await run_script_async(own, script)
    return await _in_thread(own, script)


async def _in_thread(connection: Connection, script: Script[T]) -> T:
    """Run a blocking script in a thread, so that it does not block the event loop.

    A caller that is cancelled meanwhile still waits for the end. The script uses the caller's connection: if the caller
    rolled back before the end, the remaining statements would be committed one by one.
    """
    # Not a task: a loop that shuts down cancels all tasks, and a cancelled task would not say when the thread ends.
    running = asyncio.get_running_loop().run_in_executor(None, run_script, connection, script)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()  # retrieved, or asyncio would log it as never retrieved
        raise cancelled
    return running.result()


async def _driver_connection(connection: Any) -> Connection | AsyncConnection:
    """Return the driver's connection, also from inside a SQLAlchemy connection or session."""
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        return connection
    if not _is_of_sqlalchemy(connection):
        raise InvalidRequest(f"{connection!r} is not a supported connection; pass {_KINDS}")
    if hasattr(connection, "bind") and hasattr(connection, "connection"):  # a session, which has a transaction at once
        connection = connection.connection()
        if asyncio.iscoroutine(connection):
            connection = await connection
    if not connection.in_transaction():
        raise InvalidRequest(
            "no transaction is open on this connection; begin one (`with connection.begin():`): the write takes effect "
            "when you commit it"
        )
    raw = await connection.get_raw_connection() if hasattr(connection, "get_raw_connection") else connection.connection
    own = raw.driver_connection
    if not isinstance(own, (psycopg.Connection, psycopg.AsyncConnection)):
        kind = f"{type(own).__module__}.{type(own).__qualname__}"
        raise InvalidRequest(f"this SQLAlchemy engine uses the driver of {kind}; use a postgresql+psycopg://… engine")
    return own


def _checked(script: Script[T]) -> Script[T]:
    """Check the isolation level, then run a script. At another level it would miss runs that have begun to wait."""
    level = yield b"select current_setting('transaction_isolation')", ()
    if level not in SEEING_LEVELS:
        raise InvalidRequest(
            f"the isolation level of this transaction is {level!r}; it must be 'read committed': begin the transaction "
            "with `begin isolation level read committed`, which overrides any default. At another level it cannot "
            "see runs that have begun to wait meanwhile, and they would not be woken"
        )
    return (yield from script)


def _is_of_sqlalchemy(connection: object) -> bool:
    families = (kind.__module__.partition(".")[0] for kind in type(connection).__mro__)
    return "sqlalchemy" in families


def _check_transaction(connection: Connection | AsyncConnection) -> None:
    if connection.closed:
        raise InvalidRequest("this connection is closed")
    match connection.pgconn.transaction_status:
        case TransactionStatus.INERROR:
            raise InvalidRequest("the transaction on this connection has failed; roll it back first")
        case TransactionStatus.IDLE if connection.autocommit:
            raise InvalidRequest(
                "no transaction is open on this connection; begin one (`with connection.transaction():`): the write "
                "takes effect when you commit it"
            )
        case _:  # without autocommit the driver begins a transaction by itself
            pass
