"""The store port on SQLite: what callers see. It decides nothing and holds no SQL; it hands work to threads."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Control, Created, LeaseRequest, Verdicts
from holdfast.core.clock import Clock, Micros, SystemClock
from holdfast.core.errors import StoreUnavailable
from holdfast.core.hint import Hint
from holdfast.core.model import (
    AuditFact,
    Backlog,
    DeadLetter,
    Entry,
    Event,
    Firing,
    Holding,
    Intent,
    Message,
    Run,
    Schedule,
    Topic,
    TypeChange,
    TypeOffer,
    TypeRule,
    WorkerInfo,
)
from holdfast.core.ports import (
    Details,
    Due,
    Finding,
    Fired,
    LetterQuery,
    Pruned,
    Query,
    ScheduleQuery,
    SchemaStatus,
    Sent,
    SlotUse,
)
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored
from holdfast.stores.operations import (
    arrivals,
    controls,
    dead_letters,
    leases,
    pruning,
    schedules,
    starts,
    transfers,
)
from holdfast.stores.operations import types as type_rules
from holdfast.stores.sqlite import (
    backlogs,
    checkup,
    claims,
    histories,
    limits,
    listing,
    purging,
    reads,
    schema,
    types,
    unreadable,
)
from holdfast.stores.sqlite import dead_letters as letters
from holdfast.stores.sqlite import events as event_rows
from holdfast.stores.sqlite import schedules as timetable
from holdfast.stores.sqlite import transfers as moving
from holdfast.stores.sqlite.checkpoints import write as write_checkpoints
from holdfast.stores.sqlite.database import SqliteDatabase, check_not_writing
from holdfast.stores.sqlite.files import PRIVATE_MODE, Files
from holdfast.stores.sqlite.liveness import WorkerLocks, with_deaths
from holdfast.stores.sqlite.readers import Readers
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.stores.sqlite.trouble import unavailable
from holdfast.stores.sqlite.watch import Others
from holdfast.stores.sqlite.writer import Writer

_SMALL = 8
"""So many runs at most are dealt with on the event loop itself."""

_CLOSE_SECONDS = 10.0
_EXIT_SECONDS = 1.0


class SqliteStore:
    """Runs in one SQLite file, which several processes of one machine may use at once."""

    flushes = 1  # there is one writer, which commits together whatever it finds

    def __init__(self, path: str | os.PathLike[str], *, mode: int = PRIVATE_MODE, clock: Clock | None = None) -> None:
        self._files = Files(Path(path).absolute(), mode)
        self._clock: Clock = clock or SystemClock()
        self._others = Others(self._files)
        self._locks = WorkerLocks(self._files.workers)
        self._threads: tuple[Writer, Readers] | None = None
        self._claimed = 0
        self._opening = asyncio.Lock()
        self._pid: int | None = None
        self._at_exit: weakref.finalize[..., SqliteStore] | None = None

    # Lifetime

    async def open(self) -> None:
        self._check_process()
        async with self._opening:
            if self._threads is not None:
                return
            self._files.make()
            writer = Writer(self._files, self._clock, self._others, self._locks)
            readers = Readers(self._files)
            await writer.start()
            self._threads = writer, readers
            self._pid = os.getpid()
            self._others.watch(writer.look)
            self._at_exit = weakref.finalize(self, _end_threads, writer, readers, self._pid)
            os.register_at_fork(after_in_child=_abandoning(weakref.ref(writer)))

    async def close(self) -> None:
        if self._threads is None or self._pid != os.getpid():  # a forked child must leave the parent's alone
            return
        writer, readers = self._threads
        self._threads = None
        if self._at_exit is not None:
            self._at_exit.detach()
        readers.stop()
        writer.stop()
        await asyncio.to_thread(_join, writer, readers, _CLOSE_SECONDS)
        self._others.end_watches()
        self._pid = None  # nothing is open that a fork could not take along

    def twin(self) -> SqliteStore:
        return SqliteStore(self._files.database, mode=self._files.mode, clock=self._clock)

    def schema(self) -> SchemaStatus:
        try:
            return schema.status_of_file(self._files.database)
        except apsw.Error as error:
            raise unavailable(self._files.database, error) from error

    async def now(self) -> Micros:
        return self._clock.now()

    # Writing

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        run = self._writer.run_small if len(intents) == 1 else self._writer.run
        return await run(lambda unit: starts.create(unit, intents, lease, unit.now()))

    async def claim(self, request: ClaimRequest) -> Claimed:
        # A claim that found few runs will probably find few again.
        run = self._writer.run_small if self._claimed <= _SMALL else self._writer.run
        try:
            claimed = await run(lambda unit: claims.claim(unit, self._locks, request))
        except unreadable.FAILURES:
            if not await self._writer.run(lambda unit: unreadable.block_due(unit, request.types)):
                raise
            claimed = await run(lambda unit: claims.claim(unit, self._locks, request))
        self._claimed = len(claimed.leases)
        return claimed

    def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:
        run = self._writer.run_small if len(checkpoints) == 1 else self._writer.run
        return run(lambda unit: write_checkpoints(unit, checkpoints))

    def renew(self, worker: WorkerInfo, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        def operation(unit: Transaction) -> Verdicts:
            self._locks.hold(worker.id)
            return leases.renew(unit, worker, holdings, lease, unit.now())

        return self._writer.run_blocking(operation)

    async def retire(self, worker_id: str) -> None:
        def operation(unit: Transaction) -> None:
            unit.workers.remove(worker_id)
            unit.after_commit.append(lambda: self._locks.release(worker_id))

        self._locks.retiring(worker_id)
        await self._writer.run(operation)

    async def send(self, messages: Sequence[Message]) -> Sequence[Sent]:
        run = self._writer.run_small if len(messages) == 1 else self._writer.run
        return await run(lambda unit: arrivals.send(unit, messages, unit.now()))

    async def emit(self, events: Sequence[Event]) -> Sequence[int]:
        if len(events) > 1:
            return await self._writer.run(lambda unit: arrivals.emit(unit, events, unit.now()))
        return await self._writer.run_small(
            lambda unit: arrivals.emit(unit, events, unit.now()),
            is_small=lambda unit: all(not unit.waits.has_more_than(event.topic, _SMALL) for event in events),
        )

    async def put_topics(self, topics: Sequence[Topic]) -> None:
        await self._writer.run(lambda unit: unit.events.put_topics(topics))

    async def change_types(self, changes: Sequence[TypeChange]) -> None:
        await self._writer.run(lambda unit: type_rules.change(unit, changes, unit.now()))

    async def offer_types(self, worker: str, offers: Sequence[TypeOffer]) -> None:
        await self._writer.run(lambda unit: type_rules.offer(unit, worker, offers, unit.now()))

    async def replay_letters(self, numbers: Sequence[int]) -> int:
        return await self._writer.run(lambda unit: dead_letters.replay(unit, numbers, unit.now()))

    async def purge_letters(self, numbers: Sequence[int]) -> int:
        return await self._writer.run(lambda unit: dead_letters.purge(unit, numbers))

    async def restore(self, restoration: Restoration) -> Restored:
        return await self._writer.run(lambda unit: transfers.restore(unit, restoration, unit.now()))

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        return await self._writer.run(lambda unit: schedules.restore(unit, wanted))

    async def put_schedules(self, wanted: Sequence[Schedule]) -> Sequence[Schedule]:
        return await self._writer.run(lambda unit: schedules.put(unit, wanted, unit.now()))

    async def pause_schedules(self, names: Sequence[str], *, is_paused: bool) -> Sequence[bool]:
        return await self._writer.run(lambda unit: schedules.pause(unit, names, unit.now(), is_paused=is_paused))

    async def remove_schedules(self, names: Sequence[str]) -> Sequence[bool]:
        return await self._writer.run(lambda unit: schedules.remove(unit, names))

    async def trigger_schedule(self, name: str, run_id: str) -> bool:
        return await self._writer.run(lambda unit: schedules.trigger(unit, name, run_id, unit.now()))

    async def fire(self, firings: Sequence[Firing]) -> Sequence[Fired]:
        return await self._writer.run(lambda unit: schedules.fire(unit, firings, unit.now()))

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        if not is_dry_run:
            return await self._writer.run(lambda unit: pruning.prune(unit, limit, retention, unit.now()))
        now = self._clock.now()
        pruned = await self._writer.run(lambda unit: _rehearse(unit, limit))
        runs = await self._readers.run(lambda connection: purging.count(connection, retention, now))
        return replace(pruned, runs=runs)

    async def control(self, run_id: str, request: Control) -> bool | None:
        return await self._writer.run(lambda unit: controls.control(unit, run_id, request, unit.now()))

    # Reading

    async def get(self, run_id: str) -> Details | None:
        return await self._readers.run_small(lambda connection: reads.get(connection, run_id))

    async def find(self, key: str) -> str | None:
        return await self._readers.run_small(lambda connection: reads.find(connection, key))

    async def list(self, query: Query) -> Sequence[Details]:
        return await self._readers.run(lambda connection: listing.list_runs(connection, query))

    async def history(self, run_id: str) -> Sequence[Entry]:
        def read(connection: apsw.Connection) -> Sequence[Entry]:
            with unreadable.readable(f"the history of run {run_id}"):
                return histories.history(connection, run_id)

        return await self._readers.run(read)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        return await self._readers.run(lambda connection: reads.audit(connection, run_id))

    async def ends(self, run_ids: Sequence[str]) -> Sequence[Run]:
        run = self._readers.run_small if len(run_ids) <= _SMALL else self._readers.run
        return await run(lambda connection: reads.ends(connection, run_ids))

    async def look(self, holdings: Sequence[Holding]) -> Verdicts:
        run = self._readers.run_small if len(holdings) <= _SMALL else self._readers.run
        return await run(
            lambda connection: leases.look(Transaction(connection, self._clock), holdings, self._clock.now())
        )

    async def replies(self, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        run = self._readers.run_small if len(asked) <= _SMALL else self._readers.run
        return await run(lambda connection: reads.replies(connection, asked))

    async def topics(self) -> Sequence[Topic]:
        return await self._readers.run(event_rows.list_topics)

    async def types(self) -> Sequence[TypeRule]:
        return await self._readers.run(types.list_types)

    async def slots(self, type: str | None = None) -> Sequence[SlotUse]:
        return await self._readers.run(lambda connection: limits.uses(connection, type))

    async def dead_letters(self, query: LetterQuery) -> Sequence[DeadLetter]:
        return await self._readers.run(lambda connection: letters.list_letters(connection, query))

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        def read(connection: apsw.Connection) -> Sequence[Dump]:
            with unreadable.readable("a run"):
                return moving.dump(connection, run_ids)

        return await self._readers.run(read)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        return await self._readers.run(lambda connection: moving.kept_events(connection, after, limit))

    async def last_event(self) -> int:
        return await self._readers.run(event_rows.last_event)

    async def schedules(self, query: ScheduleQuery) -> Sequence[Schedule]:
        return await self._readers.run(lambda connection: timetable.list_schedules(connection, query))

    async def due_schedules(self, limit: int, after: tuple[Micros, str] = (0, "")) -> Due:
        now = self._clock.now()
        return await self._readers.run(lambda connection: timetable.due(connection, limit, after, now))

    async def counts(self) -> dict[str, dict[RunState, int]]:
        return await self._readers.run(reads.counts)

    async def backlog(self) -> Sequence[Backlog]:
        return await self._readers.run(lambda connection: backlogs.backlog(connection, self._clock.now()))

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._readers.run(lambda connection: with_deaths(reads.workers(connection), self._files.workers))

    async def held(self) -> dict[str, int]:
        return await self._readers.run(backlogs.held)

    async def orphans(self, limit: int) -> Sequence[str]:
        return await self._readers.run(lambda connection: reads.orphans(connection, limit))

    async def check(self) -> Sequence[Finding]:
        return await self._readers.run(lambda connection: checkup.findings(connection, self._files, self._clock.now()))

    # For tables of users

    @property
    def database(self) -> SqliteDatabase:
        return SqliteDatabase(self._files, self._clock, lambda: self._running()[0])

    # Telling

    def serve(self) -> Callable[[], None]:
        return lambda: None

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        leave = self._others.listen(listener)
        if self._threads is not None:
            self._others.watch(self._writer.look)
        return leave

    # Threads

    @property
    def _writer(self) -> Writer:
        check_not_writing(self._files.database)
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
                f"the store {self._files.database} was opened in another process (pid {self._pid}); "
                "a fork does not take its threads along: open the store after the fork"
            )


def _rehearse(unit: Transaction, limit: int) -> Pruned:
    """Say how much a pruning would remove but for runs: there may be many, and a reader can count them."""
    unit.flush()  # others share this transaction
    unit.connection.execute("savepoint dry_run")
    try:
        return pruning.prune_events(unit, limit, unit.now())
    finally:
        unit.connection.execute("rollback to dry_run")
        unit.connection.execute("release dry_run")


def _join(writer: Writer, readers: Readers, seconds: float) -> None:
    readers.join(seconds)
    writer.join(seconds)


def _end_threads(writer: Writer, readers: Readers, pid: int) -> None:
    """Called when a store was not closed: let its threads end before the interpreter does, but wait for nothing."""
    if os.getpid() != pid:
        return
    readers.stop()
    writer.stop(is_exiting=True)
    _join(writer, readers, _EXIT_SECONDS)


def _abandoning(known: weakref.ref[Writer]) -> Callable[[], None]:
    """What a forked child does first."""

    def abandon() -> None:
        if (writer := known()) is not None:
            writer.abandon()

    return abandon
