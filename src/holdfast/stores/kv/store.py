"""The key-value store as callers see it: the port, on any driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, assert_never, cast

import msgspec

from holdfast.core import questions
from holdfast.core.checkpoint import Checkpoint, Claimed, ClaimRequest, Created, LeaseRequest, Verdict, Verdicts
from holdfast.core.clock import Clock, FollowingClock, Micros
from holdfast.core.commands import Command
from holdfast.core.errors import Unreadable
from holdfast.core.model import AuditFact, Entry, Holding, Intent, Schedule, WorkerRecord, new_id
from holdfast.core.news import Hint, News
from holdfast.core.ports import Finding, Pruned, Report, SchemaStatus
from holdfast.core.questions import AnyQuestion, Awaited, Details, Listing, Query, Stat
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.transfer import Dump, KeptEvent, Origin, Restoration, Restored
from holdfast.stores.kv import claims, foresight, migrations, names, pruning, reads
from holdfast.stores.kv.catalogue import VALUE
from holdfast.stores.kv.checkpoints import BatchWriter, HeldRuns
from holdfast.stores.kv.decision import Decisions, Operation
from holdfast.stores.kv.driver import Driver, Fields, Partition, Read, Reserve
from holdfast.stores.kv.histories import decode_arrival
from holdfast.stores.kv.runs import OddRun, head_of
from holdfast.stores.kv.starts import Starts
from holdfast.stores.kv.unit_of_work import KvUnit
from holdfast.stores.loops import Listeners
from holdfast.stores.migrations import Migrations, check, finding_of_schema
from holdfast.stores.operations import commands, leases, schedules, transfers
from holdfast.stores.operations.unit_of_work import OddRow

A = TypeVar("A")

CLAIMED_AT_ONCE = 100
"""Maximum number of runs that a claim of an engine leases. The first runs work while the next ones are leased."""


class KeyValueStore:
    """A store on a driver. `driver` makes one for this store."""

    concurrent_checkpoints = 2
    """Number of batches in flight: the second is written while the first is on its way."""

    def __init__(
        self,
        make_driver: Callable[[], Driver],
        *,
        clock: Clock | None = None,
        steps: Migrations[migrations.StepFunction] = migrations.MIGRATIONS,
    ) -> None:
        self._make_driver = make_driver
        self._steps = steps
        self._driver = make_driver()
        self._clock = clock
        self._following = FollowingClock()
        self._held = HeldRuns()
        self._hints = KvHints()
        self._decisions = Decisions(self._driver, self._hints.encoded, self._hints.wake_all)
        self._starts = Starts(self._driver, self._decisions, self._held)
        self._stop_listening: Callable[[], None] | None = None
        self._epoch = 0
        self._opening = asyncio.Lock()

    @property
    def database(self) -> None:
        """None, because a key-value store cannot hold tables of users."""

    @property
    def transfer(self) -> KvTransfer:
        return KvTransfer(self._driver, self._apply)

    # Lifetime

    async def open(self, migrate: Report | None = None) -> None:
        async with self._opening:
            if self._stop_listening is not None:
                return
            await self._driver.open()
            try:
                self._following.sync(await migrations.prepare(self._driver, self._steps, migrate))
            except BaseException:
                await self._driver.close()
                raise
            self._epoch = self._driver.epoch
            self._stop_listening = self._driver.listen(self._hints.receive)

    async def close(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        self._held.clear()
        await self._driver.close()

    def for_another_loop(self) -> KeyValueStore:
        return type(self)(self._make_driver, clock=self._clock, steps=self._steps)

    def schema(self) -> SchemaStatus:
        # A store that is not open may be asked, too: the command line checks a store before it opens it.
        return migrations.status_of(self._driver.peek(names.META, migrations.FIELDS), self._steps)

    async def now(self) -> Micros:
        if self._clock is not None:
            return self._clock.now()
        asked_at = self._following.now()
        now = (await self._driver.load([])).now
        self._following.sync(now, asked_at)
        return now

    async def _enter_epoch(self) -> None:
        """In a new epoch, forget what is known of runs, and refuse a store that this code can no longer use."""
        epoch = self._driver.epoch
        self._held.clear()  # the engine may have lost writes, so what is remembered may never have been
        found, _, _ = await migrations.load_status(self._driver, self._steps)
        check(found, "the store", may_migrate=True)
        self._epoch = epoch

    def _time(self) -> Micros:
        """The time as far as this process knows it."""
        return self._following.now() if self._clock is None else self._clock.now()

    # Writing

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None = None) -> Created:
        if self._driver.epoch != self._epoch:
            await self._enter_epoch()
        created, news = await self._starts.create(intents, lease, self._time())
        self._hints.send_news(news)
        return created

    async def claim(self, request: ClaimRequest) -> Claimed:
        if self._driver.epoch != self._epoch:
            await self._enter_epoch()
        asked_at = self._time()
        asked = request if request.limit <= CLAIMED_AT_ONCE else msgspec.structs.replace(request, limit=CLAIMED_AT_ONCE)
        found = await self._driver.claim(asked)
        for run_id in found.odd if found is not None else ():
            await claims.block(self._driver, OddRun(run_id, "run", "its state is damaged"))
        if found is None or found.limited:
            claimed, leased = await self._decided_claim(request)
        else:
            leased, odd = claims.leased_runs(found.runs)
            leases = tuple(one.lease for one in leased)
            is_cut = asked is not request and len(found.runs) >= asked.limit
            has_more = bool(odd) or is_cut
            claimed = Claimed(leases=leases, next_ready_at=found.next_ready_at, now=found.now, has_more=has_more)
            for run in odd:
                await claims.block(self._driver, run)
        self._following.sync(claimed.now, asked_at)
        for one in leased:
            self._held.keep_lease(one.lease, one.waits, one.head, one.history)
        return claimed

    async def _decided_claim(self, request: ClaimRequest) -> tuple[Claimed, list[claims.LeasedRun]]:
        while True:
            try:
                return await claims.claim(self._decisions, request)
            except OddRun as odd:
                await claims.block(self._driver, odd)

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        if self._driver.epoch != self._epoch:
            await self._enter_epoch()
        asked_at = self._time()
        writer = BatchWriter(self._decisions, self._held, asked_at)
        verdicts = await writer.write(checkpoints)
        self._following.sync(verdicts.now, asked_at)
        self._hints.send_news(writer.news)
        return verdicts

    def renew(self, worker: WorkerRecord, holdings: Sequence[Holding], lease: Micros) -> Verdicts:
        record = msgspec.json.encode(msgspec.structs.replace(worker, started_at=0, heartbeat_at=0))
        now, renewed = self._driver.renew(worker.id, record, holdings, lease)
        verdicts: list[Verdict] = []
        for holding, one in zip(holdings, renewed, strict=True):
            if one is None:
                self._held.forget(holding.run_id)
                verdicts.append(Verdict(run_id=holding.run_id, is_lost=True, is_held=False))
            else:
                arrivals = tuple(map(decode_arrival, one.newer))
                verdicts.append(Verdict(run_id=holding.run_id, arrivals=arrivals, seen=one.arrivals, stop=one.stop))
        return Verdicts(verdicts=tuple(verdicts), now=now)

    async def prune(self, limit: int, *, retention: Micros = RUN_RETENTION, is_dry_run: bool = False) -> Pruned:
        return await pruning.prune(self._decisions, limit, retention, is_dry_run=is_dry_run)

    async def apply(self, command: Command[A]) -> A:
        def operation(unit: Any, now: Micros) -> A:
            return commands.apply(unit, command, now)

        reopened = sum(command.needs().reopenings.values())
        follow = foresight.reopening(reopened) if reopened else foresight.closing
        return await self._apply(operation, foresight.reads_for(command), follow)

    async def _apply(
        self, operation: Operation[A], first_reads: Sequence[Read] = (), follow: foresight.Follow = foresight.closing
    ) -> A:
        if self._driver.epoch != self._epoch:
            await self._enter_epoch()
        try:
            decided = await self._decisions.decide(operation, first_reads, follow=follow)
        except OddRow as error:
            raise Unreadable(f"the store has something that cannot be read: {error}") from error
        self._hints.send_news(decided.news)
        return decided.answer

    # Reading

    async def get(self, run_id: str | None = None, *, key: str | None = None) -> Details | None:
        return await reads.get(self._driver, run_id, key)

    async def list(self, query: Query) -> Sequence[Details]:
        return await reads.list_runs(self._driver, query)

    async def history(self, run_id: str) -> Sequence[Entry]:
        return await reads.history(self._driver, run_id)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        return await reads.audit(self._driver, run_id)

    async def stats(self, question: Stat[A]) -> A:
        return cast("A", await self._answer(cast("AnyQuestion", question)))

    async def catalog(self, question: Listing[A]) -> A:
        return cast("A", await self._answer(cast("AnyQuestion", question)))

    async def changes(self, question: Awaited[A]) -> A:
        return cast("A", await self._answer(cast("AnyQuestion", question)))

    async def _answer(self, question: AnyQuestion) -> object:  # noqa: C901, PLR0912 - one line for each question
        match question:
            # What processes wait for comes first: it is asked often.
            case questions.EndsOf():
                return await reads.ends(self._driver, question.run_ids)
            case questions.VerdictsOn():
                return await self._check_leases(question.holdings)
            case questions.RepliesTo():
                return await reads.replies(self._driver, question.messages)
            case questions.CountRuns():
                return await reads.counts(self._driver)
            case questions.CountReady():
                return await reads.backlog(self._driver)
            case questions.CountLeases():
                return await reads.held(self._driver)
            case questions.CountSlots():
                return await reads.slots(self._driver, question.type)
            case questions.FindOrphans():
                return await reads.orphans(self._driver, question.limit)
            case questions.ListTopics():
                return await reads.topics(self._driver)
            case questions.ListTypes():
                return await reads.types(self._driver)
            case questions.ListMessages():
                return await reads.messages(self._driver, question.run_id)
            case questions.ListDeadLetters():
                return await reads.dead_letters(self._driver, question)
            case questions.ListSchedules():
                return await reads.schedules(self._driver, question)
            case questions.ListDueSchedules():
                return await reads.due_schedules(self._driver, question.limit, question.after)
            case questions.ListFlows():
                return await reads.list_flows(self._driver, question)
            case _:
                assert_never(question)

    async def _check_leases(self, holdings: Sequence[Holding]) -> Verdicts:
        known = [head_of(holding.run_id) for holding in holdings]
        decided = await self._decisions.decide(
            lambda unit, now: leases.check(unit, holdings, now), known, is_dry_run=True
        )
        return decided.answer

    async def workers(self) -> Sequence[WorkerRecord]:
        return await reads.workers(self._driver)

    async def check(self) -> Sequence[Finding]:
        found, _, _ = await migrations.load_status(self._driver, self._steps)
        return [*await self._driver.check(), finding_of_schema(found), await reads.finding_of_slots(self._driver)]

    # Hints

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        return self._hints.add(listener)


_decode = msgspec.json.Decoder(Hint).decode


class KvHints(Listeners[Hint]):
    """The listeners of one store. They get a hint that this store has sent itself only once."""

    def __init__(self) -> None:
        super().__init__()
        self._sender = new_id().encode()

    def encoded(self, news: News) -> bytes:
        """Return news for other processes; nothing if there is none."""
        hint = news.hint()
        return b"" if hint is None else self._sender + b" " + msgspec.json.encode(hint)

    def receive(self, message: bytes) -> None:
        """Send a hint from the driver to the listeners. An empty message means that hints may have been lost."""
        if not message:
            self.send(Hint(is_elsewhere=True, is_foreign=True))
            return
        sender, _, encoded = message.partition(b" ")
        if sender != self._sender:
            with suppress(msgspec.MsgspecError):  # sent by another version of holdfast; polling finds the change
                self.send(msgspec.structs.replace(_decode(encoded), is_foreign=True))

    def send_news(self, news: News) -> None:
        """Send the news of a commit of this store to the listeners."""
        hint = news.hint()
        if hint is not None:
            self.send(hint)

    def wake_all(self) -> None:
        """Let the listeners check for changes: an answer was lost, and with it perhaps news."""
        self.send(Hint(is_elsewhere=True))


class Decider(Protocol):
    """Executes an operation and gives hints of its news."""

    def __call__(self, operation: Operation[A], first_reads: Sequence[Read] = ()) -> Awaitable[A]: ...


class KvTransfer:
    """The `Transfer` capability of a key-value store."""

    def __init__(self, driver: Driver, decide: Decider) -> None:
        self._driver = driver
        self._decide = decide

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        return await reads.dump(self._driver, run_ids)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        return await reads.kept_events(self._driver, after, limit)

    async def last_event(self) -> int:
        return (await self._numbers(0)).start - 1

    async def restore(self, restoration: Restoration) -> Restored:
        export_id = restoration.export_id
        known: list[Read] = [Fields(names.origin(export_id), (VALUE,))]
        known += [head_of(dump.run.id) for dump in restoration.runs]
        origin = await self._first_seen(restoration)

        def operation(unit: KvUnit, now: Micros) -> Restored:
            if origin is not None and unit.origins.get(export_id) is None:
                unit.origins.put(export_id, origin)
            return transfers.restore(unit, restoration, now)

        return await self._decide(operation, known)

    async def _first_seen(self, restoration: Restoration) -> Origin | None:
        """Return the origin of an export that this store does not know yet, with all its numbers reserved.

        Numbers are reserved before the operation and only once. Otherwise another process could get some of them after
        the operation has read the last one in use, and an operation that starts over would find them in use.
        """
        loaded = await self._driver.load([Fields(names.origin(restoration.export_id), (VALUE,))])
        if cast("Partition", loaded.answers[0]).fields:
            return None
        high = await self.last_event()
        if (lead := restoration.last_event - high) > 0:
            high = (await self._numbers(lead)).start - 1
        _, since = await self._decide(lambda unit, _: unit.events.newest())
        return Origin(high=high, since=since, at=since)

    async def _numbers(self, count: int) -> range:
        loaded = await self._driver.load([Reserve(names.EVENT_NUMBERS, count)])
        return cast("range", loaded.answers[0])

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        known = [Fields(names.schedule(one.name), (VALUE,)) for one in wanted]
        return await self._decide(lambda unit, _: schedules.restore(unit, wanted), known)
