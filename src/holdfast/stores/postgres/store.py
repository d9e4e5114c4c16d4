"""The store port on Postgres: what callers see. It decides nothing and holds no SQL; it has others carry its talks."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
import psycopg

from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Control, Created, LeaseRequest, Verdicts
from holdfast.core.clock import Clock, FollowingClock, Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.hint import Hint, News
from holdfast.core.model import (
    Event,
    Firing,
    Holding,
    Intent,
    Message,
    Schedule,
    Topic,
    TypeChange,
    TypeOffer,
    WorkerInfo,
)
from holdfast.core.ports import (
    Fired,
    Pruned,
    SchemaStatus,
    Sent,
)
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.transfer import Restoration, Restored
from holdfast.stores.operations import arrivals, dead_letters, types
from holdfast.stores.postgres import (
    claims,
    controls,
    leases,
    pruning,
    schedules,
    schema,
    transfers,
)
from holdfast.stores.postgres import topics as topic_rules
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.bell import Bell
from holdfast.stores.postgres.calls import Calls, answer
from holdfast.stores.postgres.checkpoints import Held, Writing
from holdfast.stores.postgres.connections import OWN, UNLIMITED, Limits
from holdfast.stores.postgres.connector import Connector
from holdfast.stores.postgres.database import PostgresDatabase
from holdfast.stores.postgres.deciding import Operation, decided
from holdfast.stores.postgres.loop_session import LoopSession
from holdfast.stores.postgres.reading import Reading
from holdfast.stores.postgres.request_thread import RequestThread
from holdfast.stores.postgres.sessions import Sessions
from holdfast.stores.postgres.talks import Connection, Talk, hold
from holdfast.stores.postgres.trouble import unavailable
from holdfast.stores.postgres.wishes import Wishes

WRITERS = 3
READERS = 2
TRANSACTORS = 4
SMALL = 4
"""So many runs are made at most in one go on the loop: more would keep the loop busy."""
ERRAND_SECONDS = 2.0
"""So long a claim that found nothing waits for what producers in SQL have asked for; somebody may stand in its way."""
HEART_LIMITS = Limits(statement_seconds=4.0, lock_seconds=3.0)
"""A beat that takes longer is a beat missed: the next one is better tried on another connection."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_W = TypeVar("_W")
_Carrier = TypeVar("_Carrier", Sessions, LoopSession, RequestThread)


class PostgresStore(Reading):
    """Runs in one schema of a Postgres database, for any number of processes on any number of machines."""

    flushes = 2
    """A second batch is written while the first one waits for the disk."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._url = url
        self._address = Address.of(url)
        self._calls = Calls(self._address.schema)
        self._clock = clock
        self._following = FollowingClock()
        self._held = Held()
        self._connector = connector = Connector(self._address)
        self._bell = Bell(self._address, connector=connector)
        self._writers = Sessions(self._address, "writer", WRITERS, limits=OWN, connector=connector)
        self._readers = Sessions(self._address, "reader", READERS, limits=OWN, connector=connector)
        # Leases are renewed whatever else goes on, so nothing else may stand in the way.
        self._heart = Sessions(self._address, "heart", 1, limits=HEART_LIMITS, connector=connector)
        # Functions of users may take their time, and must not hold up anybody else.
        self._transactors = Sessions(self._address, "transactor", TRANSACTORS, connector=connector, is_for_users=True)
        self._loop_session = LoopSession(connector, self._writers, limits=OWN)
        self._request_thread = RequestThread(
            self._calls, self._writers, self._bell, clock, has_hints=self._address.has_hints
        )
        self._opening = asyncio.Lock()
        self._pid: int | None = None
        self._at_exit: weakref.finalize[..., PostgresStore] | None = None

    # Lifetime

    async def open(self, *, migrate: bool = True) -> None:
        self._check_process()
        async with self._opening:
            if self._pid is not None:
                return
            for sessions in self._all:
                sessions.start()
            self._pid = os.getpid()
            self._at_exit = weakref.finalize(self, _end, self._parts, self._pid)
            os.register_at_fork(after_in_child=_abandoning(weakref.ref(self)))
            try:
                await asyncio.to_thread(self._prepare, may_migrate=migrate)
                self._bell.start()
                self._request_thread.start()
                await self.now()
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        if self._pid != os.getpid():  # a forked child must leave the parent's alone
            return
        if self._at_exit is not None:
            self._at_exit.detach()
        await self._loop_session.stop()
        self._loop_session = LoopSession(self._connector, self._writers, limits=OWN)  # for the next time
        await asyncio.to_thread(_end, self._parts, self._pid)
        self._held = Held()
        self._pid = None  # nothing is open that a fork could not take along

    def twin(self) -> PostgresStore:
        return PostgresStore(self._url, clock=self._clock)

    def schema(self) -> SchemaStatus:
        with self._connected() as connection:
            return schema.status(connection, self._address.schema)

    def _prepare(self, *, may_migrate: bool) -> None:
        with self._connected() as connection:
            schema.prepare(connection, self._address.schema, may_migrate=may_migrate)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection for what may take long, and is done by nobody else."""
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
        told = await self._running(self._readers).run(lambda connection: answer(connection, self._calls.now))
        self._following.told(int(told), asked_at)
        return int(told)

    @property
    def _all(self) -> tuple[Sessions, ...]:
        return self._writers, self._readers, self._heart, self._transactors

    @property
    def _parts(self) -> tuple[_Part, ...]:
        """What has to be stopped, in this order."""
        return *self._all, self._request_thread, self._bell

    # Writing

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        at = self._at
        created = await self._write(
            lambda: claims.create(self._calls, intents, lease, at),
            again=lambda: claims.create_again(self._calls, intents, lease, at),
            is_small=len(intents) <= SMALL,
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
                return msgspec.structs.replace(claimed, has_more=True)  # they need not wait for it
            # What is asked for may make runs ready: only then it is known whether there is nothing to do.
            await asyncio.wait([errand], timeout=ERRAND_SECONDS)
            if self._request_thread.batches == batches:
                return claimed

    async def _claim(self, request: ClaimRequest) -> tuple[Claimed, bool]:
        """What is leased, and whether producers in SQL have asked for something."""
        at, asked_at = self._time()
        repeat = msgspec.structs.replace(request, is_repeat=True)
        found = await self._running(self._loop_session).hold(
            lambda: claims.claim(self._calls, request, at), again=lambda: claims.claim(self._calls, repeat, at)
        )
        claimed = found.claimed
        if claimed is None:
            # Not on the loop: many may have to be parked, and only one at a time decides over a type.
            claimed = await self._running(self._writers).run(
                lambda connection: hold(connection, claims.claim_limited(self._calls, request, found, at)),
                again=lambda connection: hold(connection, claims.claim_again(self._calls, repeat, at)),
            )
        self._request_thread.looked()
        self._following.told(claimed.now, asked_at)
        self._held.lease(claimed.leases)
        return claimed, found.has_requests

    def checkpoint(self, batch: Sequence[Checkpoint]) -> asyncio.Future[Verdicts]:
        at, now = self._time()

        def talk() -> Talk[tuple[Verdicts, News]]:
            writing = Writing(self._calls, self._held, at=at, now=now)
            verdicts = yield from writing.write(batch)
            self._following.told(verdicts.now, now)
            return verdicts, writing.news

        return self._write(talk, is_small=len(batch) == 1)

    def renew(self, worker: WorkerInfo, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        at = self._at
        told = self._running(self._heart).run_blocking(
            lambda connection: leases.renew(connection, self._calls, worker, holdings, lease=lease, at=at)
        )
        for verdict in told.verdicts:
            if verdict.is_lost:
                self._held.let_go(verdict.run_id)
        return told

    async def retire(self, worker_id: str) -> None:
        await self._running(self._writers).run(
            lambda connection: connection.execute(self._calls.retire, (worker_id,)).close()
        )

    async def send(self, messages: Sequence[Message]) -> Sequence[Sent]:
        wishes = Wishes()
        wishes.send(messages)
        return await self._decide(wishes, lambda working, now: arrivals.send(working.unit, messages, now))

    async def emit(self, events: Sequence[Event]) -> Sequence[int]:
        wishes = Wishes()
        wishes.emit(events)
        # To whoever waits, which may be many.
        return await self._decide(wishes, lambda working, now: arrivals.emit(working.unit, events, now), is_small=False)

    async def put_topics(self, topics: Sequence[Topic]) -> None:
        await self._run_in(self._writers, topic_rules.put, topics)

    async def change_types(self, changes: Sequence[TypeChange]) -> None:
        wishes = Wishes(types={change.name for change in changes}, is_ruling=True)
        # Of whoever is held or waits, which may be many.
        await self._decide(wishes, lambda working, now: types.change(working.unit, changes, now), is_small=False)

    async def offer_types(self, worker: str, offers: Sequence[TypeOffer]) -> None:
        wishes = Wishes(types={offer.name for offer in offers})
        await self._decide(wishes, lambda working, now: types.offer(working.unit, worker, offers, now))

    async def replay_letters(self, numbers: Sequence[int]) -> int:
        wishes = Wishes(letters=set(numbers))
        return await self._decide(wishes, lambda working, now: dead_letters.replay(working.unit, numbers, now))

    async def purge_letters(self, numbers: Sequence[int]) -> int:
        wishes = Wishes(letters=set(numbers))
        return await self._decide(wishes, lambda working, _: dead_letters.purge(working.unit, numbers))

    async def restore(self, restoration: Restoration) -> Restored:
        at = self._at
        return await self._write(lambda: transfers.restored(self._calls, restoration, at), is_small=False)

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        at = self._at
        return await self._write(lambda: schedules.restore(self._calls, wanted, at), is_small=len(wanted) <= SMALL)

    async def put_schedules(self, wanted: Sequence[Schedule]) -> Sequence[Schedule]:
        return await self._write_many(wanted, schedules.put)

    async def pause_schedules(self, names: Sequence[str], *, is_paused: bool) -> Sequence[bool]:
        return await self._write_many(names, partial(schedules.pause, is_paused=is_paused))

    async def remove_schedules(self, names: Sequence[str]) -> Sequence[bool]:
        return await self._write_many(names, schedules.remove)

    async def trigger_schedule(self, name: str, run_id: str) -> bool:
        at = self._at
        return await self._write(lambda: schedules.trigger(self._calls, name, run_id, at))

    async def fire(self, firings: Sequence[Firing]) -> Sequence[Fired]:
        return await self._write_many(firings, schedules.fire)

    async def _write_many(
        self,
        wanted: Sequence[_W],
        talk: Callable[[Calls, Sequence[_W], Micros | None], Talk[tuple[Sequence[_R], News]]],
    ) -> Sequence[_R]:
        at = self._at
        return await self._write(lambda: talk(self._calls, wanted, at), is_small=len(wanted) <= SMALL)

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        return await self._run_in(
            self._writers, pruning.prune, limit, self._at, retention=retention, is_dry_run=is_dry_run
        )

    async def control(self, run_id: str, request: Control) -> bool | None:
        at = self._at
        # Whole families may be cancelled or reopened.
        return await self._write(lambda: controls.control(self._calls, run_id, request, at), is_small=False)

    async def _decide(self, wishes: Wishes, operation: Operation[_R], *, is_small: bool = True) -> _R:
        """Have an operation of the model decide, on what `wishes` ask for to begin with."""
        at = self._at
        return await self._write(lambda: decided(self._calls, wishes, operation, at), is_small=is_small)

    def _write(
        self,
        talk: Callable[[], Talk[tuple[_R, News]]],
        again: Callable[[], Talk[tuple[_R, News]]] | None = None,
        *,
        is_small: bool = True,
    ) -> asyncio.Future[_R]:
        """Have something written, and tell of it. `talk` makes it, once for each time it is tried.

        After a lost connection `again` does instead, if given. What is large is not for the loop to put together.
        """

        def first() -> Talk[_R]:
            told, news = yield from talk()
            self._bell.announce(news)
            return told

        def repeat() -> Talk[_R]:
            told, _ = yield from (again or talk)()
            self._bell.stir()  # what the first attempt did may not have been told
            return told

        if is_small:
            return self._running(self._loop_session).hold(first, again=repeat)
        return self._running(self._writers).run(
            lambda connection: hold(connection, first()), again=lambda connection: hold(connection, repeat())
        )

    # Reading: see `Reading`

    def _read(
        self, function: Callable[Concatenate[Connection, str, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_R]:
        return self._run_in(self._readers, function, *args, **kwargs)

    def _ask(self, talk: Callable[[], Talk[_R]]) -> asyncio.Future[_R]:
        return self._running(self._loop_session).hold(talk)

    @property
    def _schema(self) -> str:
        return self._address.schema

    def _run_in(
        self,
        sessions: Sessions,
        function: Callable[Concatenate[Connection, str, _P], _R],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> asyncio.Future[_R]:
        schema = self._address.schema
        return self._running(sessions).run(lambda connection: function(connection, schema, *args, **kwargs))

    # For tables of users

    @property
    def database(self) -> PostgresDatabase:
        sessions = self._running(self._transactors)
        return PostgresDatabase(
            self._address, self._calls, self._held, sessions=sessions, bell=self._bell, time=self._time
        )

    # Telling

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        return self._bell.listen(listener)

    def serve(self) -> Callable[[], None]:
        return self._running(self._request_thread).serve()

    # Sessions

    @property
    def _at(self) -> Micros | None:
        """The time of an operation, if it is not for the server to say."""
        return None if self._clock is None else self._clock.now()

    def _time(self) -> tuple[Micros | None, Micros]:
        """The time as the server is told it, if at all, and as far as it is known here."""
        at = self._at
        return at, self._following.now() if at is None else at

    def _running(self, carrier: _Carrier) -> _Carrier:
        """Whoever carries out an operation, if the store is open here."""
        self._check_process()
        if self._pid is None:
            raise StoreUnavailable(f"the store {self._address.shown} is not open; call open() first")
        return carrier

    def _check_process(self) -> None:
        if self._pid is not None and os.getpid() != self._pid:
            raise StoreUnavailable(
                f"the store {self._address.shown} was opened in another process (pid {self._pid}); "
                "a fork does not take its threads along: open the store after the fork"
            )

    def abandon(self) -> None:
        """What a forked child does first: nothing of its parent's is used or closed."""
        for sessions in self._all:
            sessions.abandon()
        self._request_thread.abandon()
        self._loop_session.abandon()
        self._bell.abandon()


class _Part(Protocol):
    def stop(self) -> None: ...


def _end(parts: Sequence[_Part], pid: int | None) -> None:
    """Close everything that is open, unless this is a forked child, whose parent goes on with it."""
    if os.getpid() != pid:
        return
    for part in parts:
        part.stop()


def _abandoning(known: weakref.ref[PostgresStore]) -> Callable[[], None]:
    def abandon() -> None:
        if (store := known()) is not None:
            store.abandon()

    return abandon
