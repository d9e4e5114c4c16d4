"""The store port on SQLite. It makes no decisions and queries no tables itself: it passes work to threads."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never, cast

import apsw
from msgspec.structs import replace

from holdfast.core import questions
from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Created, LeaseRequest, Verdicts
from holdfast.core.clock import Clock, Micros, SystemClock
from holdfast.core.commands import Command, RetireWorker
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import AuditFact, Entry, Holding, Intent, WorkerRecord
from holdfast.core.news import Hint
from holdfast.core.ports import Finding, Pruned, Report, SchemaStatus
from holdfast.core.questions import AnyQuestion, Awaited, Details, Listing, Query, Question, Stat
from holdfast.core.retention import RUN_RETENTION
from holdfast.stores.migrations import Migrations
from holdfast.stores.operations import commands, leases, pruning, starts, types
from holdfast.stores.operations.checkpoints import write as write_checkpoints
from holdfast.stores.sqlite import catalogue, checkup, claims, events, inboxes, limits, reads, schema
from holdfast.stores.sqlite.connections import unavailable
from holdfast.stores.sqlite.database import SqliteDatabase
from holdfast.stores.sqlite.files import PRIVATE_MODE, Files
from holdfast.stores.sqlite.hints import FileHints
from holdfast.stores.sqlite.histories import facts, history
from holdfast.stores.sqlite.liveness import WorkerLocks, with_deaths
from holdfast.stores.sqlite.pruning import count_due
from holdfast.stores.sqlite.readers import Readers
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.stores.sqlite.transfers import SqliteTransfer
from holdfast.stores.sqlite.writer import Writer

A = TypeVar("A")

_CLOSE_SECONDS = 10.0
_EXIT_SECONDS = 1.0


class SqliteStore:
    """Keeps runs in one SQLite file, which several processes of one machine can share."""

    # A second batch in parallel gains nothing: the one writer commits everything in its queue together.
    concurrent_checkpoints = 1

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: int = PRIVATE_MODE,
        clock: Clock | None = None,
        steps: Migrations[str] | None = None,
    ) -> None:
        self._files = Files(Path(path).absolute(), mode)
        self._steps = steps or schema.migrations()
        self._clock: Clock = clock or SystemClock()
        self._hints = FileHints(self._files)
        self._locks = WorkerLocks(self._files.workers)
        self._threads: tuple[Writer, Readers] | None = None
        self._opening = asyncio.Lock()
        self._pid: int | None = None
        self._at_exit: weakref.finalize[..., SqliteStore] | None = None

    # Lifetime

    async def open(self, migrate: Report | None = None) -> None:
        self._check_process()
        async with self._opening:
            if self._threads is not None:
                return
            self._files.make()
            writer = Writer(self._files, self._clock, self._hints, self._locks, self._steps)
            readers = Readers(self._files, self._steps)
            await writer.start(migrate)
            self._threads = writer, readers
            self._pid = os.getpid()
            self._hints.watch(writer.poll)
            self._at_exit = weakref.finalize(self, _end_threads, writer, readers, self._pid)
            os.register_at_fork(after_in_child=_abandoning(weakref.ref(writer)))

    async def close(self) -> None:
        if self._threads is None or self._pid != os.getpid():  # a forked child must not touch its parent's threads
            return
        writer, readers = self._threads
        self._threads = None
        if self._at_exit is not None:
            self._at_exit.detach()
        readers.stop()
        writer.stop()
        await asyncio.to_thread(_join, writer, readers, _CLOSE_SECONDS)
        self._hints.end_watches()
        self._pid = None  # nothing is open now, so a forked child may open the store

    def for_another_loop(self) -> SqliteStore:
        return SqliteStore(self._files.database, mode=self._files.mode, clock=self._clock, steps=self._steps)

    def schema(self) -> SchemaStatus:
        try:
            return schema.status_of_file(self._files.database, self._steps)
        except apsw.Error as error:
            raise unavailable(self._files.database, error) from error

    async def now(self) -> Micros:
        return self._clock.now()

    # Writing

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        return await self._writer.run(lambda unit: starts.create(unit, intents, lease, unit.now()))

    async def claim(self, request: ClaimRequest) -> Claimed:
        try:
            return await self._writer.run(lambda unit: claims.claim(unit, self._locks, request))
        except reads.FAILURES:
            if not await self._writer.run(lambda unit: reads.block_due(unit, request.types)):
                raise
            return await self._writer.run(lambda unit: claims.claim(unit, self._locks, request))

    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:
        def operation(unit: Transaction) -> Verdicts:
            unit.runs.load([one.run_id for one in checkpoints])
            return write_checkpoints(unit, checkpoints, unit.now())

        return self._writer.run(operation)

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        def operation(unit: Transaction) -> Verdicts:
            self._locks.hold(worker.id)
            return leases.renew(unit, worker, holdings, lease, unit.now())

        return self._writer.run_blocking(operation)

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        if not is_dry_run:
            return await self._writer.run(lambda unit: pruning.prune(unit, limit, retention, unit.now()))
        now = self._clock.now()
        pruned = await self._writer.run(lambda unit: _rehearse_pruning(unit, limit, retention))
        return replace(pruned, runs=await self._readers.run(lambda connection: count_due(connection, retention, now)))

    async def apply(self, command: Command[A]) -> A:
        def operation(unit: Transaction) -> A:
            if isinstance(command, RetireWorker):
                unit.after_commit.append(partial(self._locks.release, command.worker_id))
            return commands.apply(unit, command, unit.now())

        if isinstance(command, RetireWorker):
            self._locks.retiring(command.worker_id)
        return await self._writer.run(operation)

    # Reading

    async def get(self, run_id: str | None = None, *, key: str | None = None) -> Details | None:
        return await self._readers.run(lambda connection: reads.get(connection, run_id, key))

    async def list(self, query: Query) -> Sequence[Details]:
        return await self._readers.run(lambda connection: reads.list_runs(connection, query))

    async def history(self, run_id: str) -> Sequence[Entry]:
        def read(connection: apsw.Connection) -> Sequence[Entry]:
            with reads.readable(f"the history of run {run_id}"):
                return history(connection, run_id)

        return await self._readers.run(read)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        return await self._readers.run(lambda connection: facts(connection, run_id))

    async def stats(self, question: Stat[A]) -> A:
        return await self._answer(question)

    async def catalog(self, question: Listing[A]) -> A:
        return await self._answer(question)

    async def changes(self, question: Awaited[A]) -> A:
        return await self._answer(question)

    async def _answer(self, question: Question[A]) -> A:
        asked = cast("AnyQuestion", question)
        return cast("A", await self._readers.run(lambda connection: _answer(connection, asked, self._clock)))

    async def workers(self) -> Sequence[WorkerRecord]:
        return await self._readers.run(lambda connection: with_deaths(reads.workers(connection), self._files.workers))

    async def check(self) -> Sequence[Finding]:
        return await self._readers.run(lambda connection: checkup.findings(connection, self._files, self._clock.now()))

    # Capabilities

    @property
    def database(self) -> SqliteDatabase:
        return SqliteDatabase(self._files, self._clock, lambda: self._writer)

    @property
    def transfer(self) -> SqliteTransfer:
        return SqliteTransfer(lambda: self._writer, lambda: self._readers)

    # Hints

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        leave = self._hints.listen(listener)
        if self._threads is not None:
            self._hints.watch(self._writer.poll)
        return leave

    # Threads

    @property
    def _writer(self) -> Writer:
        return self._running()[0]

    @property
    def _readers(self) -> Readers:
        return self._running()[1]

    def _running(self) -> tuple[Writer, Readers]:
        self._check_process()
        if self._threads is None:
            raise StoreUnavailable(f"the store {self._files.database} is not open; call open() first")
        return self._threads

    def _check_process(self) -> None:
        if self._pid is not None and os.getpid() != self._pid:
            raise StoreUnavailable(
                f"the store {self._files.database} was opened in another process (pid {self._pid}), and a fork does "
                "not copy its threads; open the store after the fork"
            )


def _answer(connection: apsw.Connection, question: AnyQuestion, clock: Clock) -> object:  # noqa: C901, PLR0912 - one line for each question
    """Call the read that answers a question."""
    match question:
        # What processes wait for comes first: it is asked often.
        case questions.EndsOf():
            return reads.ends(connection, question.run_ids)
        case questions.VerdictsOn():
            return leases.check(Transaction(connection, clock), question.holdings, clock.now())
        case questions.RepliesTo():
            return reads.replies(connection, question.messages)
        case questions.CountRuns():
            return reads.counts(connection)
        case questions.CountReady():
            return claims.backlog(connection, clock.now())
        case questions.CountLeases():
            return claims.held(connection)
        case questions.CountSlots():
            return limits.uses(connection, question.type)
        case questions.FindOrphans():
            return reads.orphans(connection, question.limit)
        case questions.ListTopics():
            return events.list_topics(connection)
        case questions.ListTypes():
            return catalogue.list_types(connection)
        case questions.ListMessages():
            return inboxes.list_messages(connection, question.run_id)
        case questions.ListDeadLetters():
            return catalogue.list_letters(connection, question)
        case questions.ListSchedules():
            return catalogue.list_schedules(connection, question)
        case questions.ListDueSchedules():
            return catalogue.due_schedules(connection, question.limit, question.after, clock.now())
        case questions.ListFlows():
            return catalogue.list_flows(connection, question)
        case _:
            assert_never(question)


def _rehearse_pruning(unit: Transaction, limit: int, retention: Micros) -> Pruned:
    """Prune all but runs in a savepoint, and roll back. A reader counts the runs."""
    unit.flush()  # other operations share this transaction, and their changes must survive the rollback
    unit.connection.execute("savepoint dry_run")
    try:
        pruned = pruning.prune_events(unit, limit, unit.now())
        return replace(pruned, flows=types.prune_flows(unit, limit, retention, unit.now()))
    finally:
        unit.connection.execute("rollback to dry_run")
        unit.connection.execute("release dry_run")


def _join(writer: Writer, readers: Readers, seconds: float) -> None:
    readers.join(seconds)
    writer.join(seconds)


def _end_threads(writer: Writer, readers: Readers, pid: int) -> None:
    """End the threads of a store that was not closed, before the interpreter ends. Waits only for a short time."""
    if os.getpid() != pid:
        return
    readers.stop()
    writer.stop(is_exiting=True)
    _join(writer, readers, _EXIT_SECONDS)


def _abandoning(known: weakref.ref[Writer]) -> Callable[[], None]:
    """Return the hook that a forked child runs first."""

    def abandon() -> None:
        if (writer := known()) is not None:
            writer.abandon()

    return abandon
