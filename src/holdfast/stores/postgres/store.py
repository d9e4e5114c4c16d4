"""The store port on Postgres. It decides nothing and holds no SQL; it picks a connection and runs scripts on it."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
import psycopg

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Created, LeaseRequest, Verdicts
from holdfast.core.clock import Clock, FollowingClock, Micros
from holdfast.core.commands import Command
from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.model import AuditFact, Entry, Holding, Intent, WorkerRecord
from holdfast.core.news import Hint, News
from holdfast.core.ports import Finding, Pruned, Report, SchemaStatus
from holdfast.core.questions import Awaited, Details, EndsOf, Listing, Query, Stat
from holdfast.core.retention import RUN_RETENTION
from holdfast.stores.held import Held
from holdfast.stores.migrations import Migrations
from holdfast.stores.postgres import (
    checkup,
    claims,
    pruning,
    reads,
    schema,
    sql_files,
    unit_of_work,
)
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.checkpoints import Writing
from holdfast.stores.postgres.connections import OWN, UNLIMITED, Connector, SessionLimits, unavailable
from holdfast.stores.postgres.database import PostgresDatabase
from holdfast.stores.postgres.hints import Hints
from holdfast.stores.postgres.loop_session import LoopSession
from holdfast.stores.postgres.scripts import Calls, Connection, Script, answer, run_script
from holdfast.stores.postgres.sessions import Sessions
from holdfast.stores.postgres.sql_requests import RequestThread
from holdfast.stores.postgres.transfers import PostgresTransfer

WRITERS = 3
READERS = 2
TRANSACTORS = 4
FEW = 8
"""Maximum number of run ends that one query on the event loop asks for."""
ERRAND_SECONDS = 2.0
"""Maximum time that an empty claim waits for requests of SQL producers, which a lock may delay."""
HEART_LIMITS = SessionLimits(statement_seconds=4.0, lock_seconds=3.0)
"""Limits of a heartbeat. A beat that takes longer counts as missed, and the next one tries another connection."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Carrier = TypeVar("_Carrier", Sessions, LoopSession, RequestThread)


class PostgresStore:
    """A store in one schema of a Postgres database, for any number of processes on any number of machines."""

    concurrent_checkpoints = 2
    """Number of batches in flight: the second is written while the first waits for the disk."""

    def __init__(self, url: str, *, clock: Clock | None = None, steps: Migrations[str] | None = None) -> None:
        self._url = url
        self._steps = steps or sql_files.migrations()
        self._refusal: SchemaOutOfDate | None = None
        """Set when the schema was migrated so that this code can no longer use it."""
        self._address = PostgresAddress.of(url)
        self._calls = Calls(self._address.schema)
        self._clock = clock
        self._following = FollowingClock()
        self._held = Held()
        self._connector = connector = Connector(self._address)
        self._hints = Hints(self._address, connector=connector)
        self._writers = Sessions(self._address, "writer", WRITERS, limits=OWN, connector=connector)
        self._readers = Sessions(self._address, "reader", READERS, limits=OWN, connector=connector)
        # Renewals have a session of their own, so that no other operation can delay them.
        self._heart = Sessions(self._address, "heart", 1, limits=HEART_LIMITS, connector=connector)
        # User functions may be slow. In sessions of their own they delay no other operation.
        self._transactors = Sessions(self._address, "transactor", TRANSACTORS, connector=connector, is_for_users=True)
        self._loop_session = LoopSession(connector, self._writers, limits=OWN)
        self._request_thread = RequestThread(
            self._calls, self._writers, self._hints, clock, has_hints=self._address.has_hints
        )
        self._opening = asyncio.Lock()
        self._pid: int | None = None
        self._at_exit: weakref.finalize[..., PostgresStore] | None = None

    # Lifetime

    async def open(self, migrate: Report | None = None) -> None:
        self._check_process()
        async with self._opening:
            if self._pid is not None:
                return
            self._refusal = None
            for sessions in self._all:
                sessions.start()
            self._pid = os.getpid()
            self._at_exit = weakref.finalize(self, _end, self._parts, self._pid)
            os.register_at_fork(after_in_child=_abandoning(weakref.ref(self)))
            try:
                await asyncio.to_thread(self._prepare, migrate)
                self._hints.start()
                self._request_thread.start()
                await self.now()
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        if self._pid != os.getpid():  # a forked child must not close the parent's connections
            return
        if self._at_exit is not None:
            self._at_exit.detach()
        await self._loop_session.stop()
        await asyncio.to_thread(_end, self._parts, self._pid)
        # For the next `open`. Only now: an operation during `close` would open a connection that is never closed.
        self._loop_session = LoopSession(self._connector, self._writers, limits=OWN)
        self._held = Held()
        self._pid = None  # nothing is open, so a fork is harmless

    def for_another_loop(self) -> PostgresStore:
        return PostgresStore(self._url, clock=self._clock, steps=self._steps)

    def schema(self) -> SchemaStatus:
        with self._connected() as connection:
            return schema.status(connection, self._address.schema, self._steps)

    def _prepare(self, migrate: Report | None) -> None:
        with self._connected() as connection:
            schema.prepare(connection, self._address.schema, self._steps, migrate)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Open a connection without time limits for one piece of schema work, and close it afterwards."""
        connection = self._connector.connect(UNLIMITED)
        try:
            yield connection
        except psycopg.Error as error:
            raise unavailable(self._address, error) from error
        finally:
            connection.close()

    async def now(self) -> Micros:
        if self._clock is not None:
            return self._clock.now()
        asked_at = self._following.now()
        now = await self._running(self._readers).run(lambda connection: answer(connection, self._calls.now))
        self._following.sync(int(now), asked_at)
        return int(now)

    @property
    def _all(self) -> tuple[Sessions, ...]:
        return self._writers, self._readers, self._heart, self._transactors

    @property
    def _parts(self) -> tuple[_Stoppable, ...]:
        """The parts to stop, in this order."""
        return *self._all, self._request_thread, self._hints

    # Writing

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        at = self._at
        created = await self._write(
            lambda: claims.create(self._calls, intents, lease, at),
            again=lambda: claims.create_again(self._calls, intents, lease, at),
            is_small=len(intents) <= unit_of_work.SMALL,
        )
        self._held.lease([run.lease for run in created.runs if run.lease is not None])
        return created

    async def claim(self, request: ClaimRequest) -> Claimed:
        while True:
            batches = self._request_thread.batches
            claimed, has_requests = await self._claim(request)
            if not has_requests:
                return claimed
            errand = self._request_thread.begin()
            if claimed.leases:
                return msgspec.structs.replace(claimed, has_more=True)  # claimed runs do not wait for the requests
            # The requests may make runs ready, so an empty answer is final only after they were applied.
            await asyncio.wait([errand], timeout=ERRAND_SECONDS)
            if self._request_thread.batches == batches:
                return claimed

    async def _claim(self, request: ClaimRequest) -> tuple[Claimed, bool]:
        """Claim once. Return the leases, and True if SQL producers have open requests."""
        at, asked_at = self._time()
        repeat = msgspec.structs.replace(request, is_repeat=True)
        found = await self._running(self._loop_session).run(
            lambda: claims.claim(self._calls, request, at), again=lambda: claims.claim(self._calls, repeat, at)
        )
        claimed = found.claimed
        if claimed is None:
            # Not on the loop: many runs may have to be parked, and claims of one limited type wait for each other.
            claimed = await self._running(self._writers).run(
                lambda connection: run_script(connection, claims.claim_limited(self._calls, request, found, at)),
                again=lambda connection: run_script(connection, claims.claim_again(self._calls, repeat, at)),
            )
        self._request_thread.record_poll()
        self._following.sync(claimed.now, asked_at)
        self._held.lease(claimed.leases)
        return claimed, found.has_requests

    def checkpoint(self, batch: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:
        at, now = self._time()

        def script() -> Script[tuple[Verdicts, News]]:
            writing = Writing(self._calls, self._held, at=at, now=now)
            verdicts = yield from writing.write(batch)
            self._following.sync(verdicts.now, now)
            return verdicts, writing.news

        return self._write(script, is_small=len(batch) == 1)

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        at = self._at

        def beat(connection: Connection) -> Verdicts:
            schema.check_number(connection, self._address.schema, self._steps)
            return claims.renew(connection, self._calls, worker, holdings, lease=lease, at=at)

        try:
            verdicts = self._running(self._heart).run_blocking(beat)
        except SchemaOutOfDate as error:
            self._refusal = error
            raise
        for verdict in verdicts.verdicts:
            if verdict.is_lost:
                self._held.forget(verdict.run_id)
        return verdicts

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        return await self._run_in(
            self._writers, pruning.prune, limit, self._at, retention=retention, is_dry_run=is_dry_run
        )

    async def apply(self, command: Command[_R]) -> _R:
        at = self._at
        return await self._write(
            lambda: unit_of_work.apply(self._calls, command, at), is_small=unit_of_work.is_small(command)
        )

    def _write(
        self,
        script: Callable[[], Script[tuple[_R, News]]],
        again: Callable[[], Script[tuple[_R, News]]] | None = None,
        *,
        is_small: bool = True,
    ) -> asyncio.Future[_R]:
        """Run a writing script and announce its news. `script` is called once per attempt.

        After a lost connection, `again` replaces `script` if given. Large writes run in a thread, so that encoding them
        does not block the event loop.
        """

        def first() -> Script[_R]:
            result, news = yield from script()
            self._hints.announce(news)
            return result

        def repeat() -> Script[_R]:
            result, _ = yield from (again or script)()
            self._hints.wake_all()  # the first attempt may have committed without announcing its news
            return result

        if is_small:
            return self._running(self._loop_session).run(first, again=repeat)
        return self._running(self._writers).run(
            lambda connection: run_script(connection, first()),
            again=lambda connection: run_script(connection, repeat()),
        )

    # Reading

    async def get(self, run_id: str | None = None, *, key: str | None = None) -> Details | None:
        return await self._read(reads.get, run_id, key)

    async def list(self, query: Query) -> Sequence[Details]:
        return await self._read(reads.list_runs, query)

    async def history(self, run_id: str) -> Sequence[Entry]:
        return await self._read(reads.history, run_id)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        return await self._read(reads.audit, run_id)

    async def stats(self, question: Stat[_R]) -> _R:
        return await self._read(reads.answer, question, self._at)

    async def catalog(self, question: Listing[_R]) -> _R:
        return await self._read(reads.answer, question, self._at)

    async def changes(self, question: Awaited[_R]) -> _R:
        is_about_few_ends = isinstance(question, EndsOf) and question.size <= FEW
        if is_about_few_ends:
            return await self._running(self._loop_session).run(
                lambda: reads.answer_few_ends(self._address.schema, question)
            )
        return await self._read(reads.answer, question, self._at)

    async def workers(self) -> Sequence[WorkerRecord]:
        return await self._read(reads.workers)

    async def check(self) -> Sequence[Finding]:
        return await self._read(checkup.findings)

    def _read(
        self, function: Callable[Concatenate[Connection, str, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_R]:
        """Call a reading function with a connection and the schema name."""
        return self._run_in(self._readers, function, *args, **kwargs)

    def _run_in(
        self,
        sessions: Sessions,
        function: Callable[Concatenate[Connection, str, _P], _R],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> asyncio.Future[_R]:
        schema = self._address.schema
        return self._running(sessions).run(lambda connection: function(connection, schema, *args, **kwargs))

    # Capabilities

    @property
    def database(self) -> PostgresDatabase:
        sessions = self._running(self._transactors)
        return PostgresDatabase(
            self._address,
            self._calls,
            self._held,
            sessions=sessions,
            hints=self._hints,
            time=self._time,
            serve=self._serve,
        )

    @property
    def transfer(self) -> PostgresTransfer:
        return PostgresTransfer(
            self._calls,
            read=lambda job: self._running(self._readers).run(job),
            write=self._write,
            time=lambda: self._at,
        )

    # Hints

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        return self._hints.listen(listener)

    def _serve(self) -> Callable[[], None]:
        return self._running(self._request_thread).serve()

    # Sessions

    @property
    def _at(self) -> Micros | None:
        """The time of an operation by the test clock, or None: the server's clock counts."""
        return None if self._clock is None else self._clock.now()

    def _time(self) -> tuple[Micros | None, Micros]:
        """The time to send to the server (None: its own clock counts), and the time as far as this process knows."""
        at = self._at
        return at, self._following.now() if at is None else at

    def _running(self, carrier: _Carrier) -> _Carrier:
        """Return the given carrier if the store is open in this process.

        Raises:
            StoreUnavailable: The store is not open, or was opened in the process that this one was forked from.
            SchemaOutOfDate: The schema was migrated, and this code can no longer use it.

        """
        self._check_process()
        if self._pid is None:
            raise StoreUnavailable(f"the store {self._address.shown} is not open; call open() first")
        if self._refusal is not None:
            raise SchemaOutOfDate(str(self._refusal))
        return carrier

    def _check_process(self) -> None:
        if self._pid is not None and os.getpid() != self._pid:
            raise StoreUnavailable(
                f"the store {self._address.shown} was opened in another process (pid {self._pid}); "
                "a fork does not copy the store's threads: open the store after the fork"
            )

    def abandon(self) -> None:
        """Forget all connections and threads in a forked child, without closing those of the parent."""
        for sessions in self._all:
            sessions.abandon()
        self._request_thread.abandon()
        self._loop_session.abandon()
        self._hints.abandon()


class _Stoppable(Protocol):
    def stop(self) -> None: ...


def _end(parts: Sequence[_Stoppable], pid: int | None) -> None:
    """Stop all parts, unless this is a forked child: they belong to the parent."""
    if os.getpid() != pid:
        return
    for part in parts:
        part.stop()


def _abandoning(known: weakref.ref[PostgresStore]) -> Callable[[], None]:
    def abandon() -> None:
        if (store := known()) is not None:
            store.abandon()

    return abandon
