"""Contract of user transactions in the store's own database: exactly once, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from holdfast.core.checkpoint import Suspend, Verdict
from holdfast.core.clock import SECOND, Micros
from holdfast.core.commands import Cancel, SendMessages, Sent, SetTopics
from holdfast.core.errors import InvalidRequest, KeyConflict
from holdfast.core.model import Entry, EntryKind, EntryState, Lease, MessageToRun, Topic
from holdfast.core.ports import Database, Store, Transacted
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    WORKER,
    a_message,
    a_retry,
    a_step,
    an_event,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    claim_one,
    ended,
    for_event,
    for_message,
    held,
    holder_of,
    picture_of,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock
from holdfast.testing.patience import wait_for


def a_tx(location: str = "book", position: int = 1, result: str | None = "1", **options: Any) -> Entry:
    return a_step(location, position, result, kind=EntryKind.TX, **options)


class Book:
    """A table of the user, with one row per committed transaction."""

    def __init__(self, store: Store) -> None:
        database = store.database
        assert database is not None, "this contract needs a store with the capability `Database`"
        self.database: Database = database
        self.calls = 0
        with self.database.connection() as connection:
            connection.execute("create table book (line text)")

    async def transact(
        self,
        lease: Lease,
        entry: Entry | None = None,
        *,
        error: BaseException | None = None,
        meanwhile: Callable[[], object] = lambda: None,
        **parts: Any,
    ) -> Transacted:
        """Write a line and an entry in one transaction, or raise after writing the line."""
        entry = entry or a_tx()

        def transaction(connection: Any, _now: Micros) -> Entry:
            self.calls += 1
            connection.execute("insert into book values ('line')")
            meanwhile()
            if error is not None:
                raise error
            return entry

        return await self.database.transact(checkpoint_for(lease, **parts), entry.location, transaction)

    @contextmanager
    def rolled_back(self) -> Iterator[Any]:
        """Open a transaction that is rolled back at the end of the block."""
        with suppress(_Undone), self.database.connection() as connection:
            yield connection
            raise _Undone

    def lines(self) -> int:
        with self.database.connection(readonly=True) as connection:
            (row,) = connection.execute("select count(*) from book").fetchall()
        return int(row[0])


class _Undone(Exception):
    pass


def history_of(entries: Sequence[Entry]) -> list[tuple[str, EntryKind, EntryState, str | None]]:
    return [(entry.location, entry.kind, entry.state, entry.result) for entry in entries]


class DatabaseContract(Contract):
    """The tests for a store that is also a database for tables of users. Use it like `StoreContract`."""

    @pytest.fixture
    def book(self, store: Store) -> Book:
        return Book(store)

    # Transactions of runs

    async def test_a_transaction_and_its_entry_are_committed_together(self, store: Store, book: Book) -> None:
        lease = await held(store)
        entry = a_tx(result='"page 1"')
        answer = await book.transact(lease, entry)
        assert answer.entry == entry
        assert answer.error is None
        assert answer.verdict == Verdict(run_id=an_id(1))
        assert answer.now == START
        assert book.lines() == 1
        assert list(await store.history(an_id(1))) == [entry]

    async def test_a_transaction_also_commits_earlier_facts_of_the_run(self, store: Store, book: Book) -> None:
        lease = await held(store)
        await book.transact(lease, a_tx(position=2), entries=(a_step("first", 1),), values={"at": "2"})
        assert [entry.location for entry in await store.history(an_id(1))] == ["first", "book"]
        details = await store.get(an_id(1))
        assert details is not None
        assert details.values == {"at": "2"}

    async def test_a_repeated_transaction_is_not_carried_out_again(self, store: Store, book: Book) -> None:
        """S6: after a lost answer, the store reads the entry back."""
        lease = await held(store)
        parts: dict[str, Any] = {"entries": (a_step("first", 1),)}
        first = await book.transact(lease, a_tx(position=2, result='"once"'), **parts)
        again = await book.transact(lease, a_tx(position=2, result='"twice"'), **parts)
        assert again.entry == first.entry
        assert book.calls == 1
        assert book.lines() == 1

    async def test_a_transaction_that_raises_commits_only_the_checkpoint(self, store: Store, book: Book) -> None:
        lease = await held(store)
        error = LookupError("no such page")
        answer = await book.transact(lease, a_tx(position=2), error=error, entries=(a_step("first", 1),))
        assert answer.error is error
        assert answer.entry is None
        assert answer.verdict.is_held
        assert book.lines() == 0
        assert [entry.location for entry in await store.history(an_id(1))] == ["first"]

    async def test_a_transaction_may_raise_a_base_exception(self, store: Store, book: Book) -> None:
        lease = await held(store)
        answer = await book.transact(lease, error=SystemExit(3))
        assert isinstance(answer.error, SystemExit)
        assert book.lines() == 0
        assert (await book.transact(lease)).entry is not None

    async def test_a_transaction_replaces_the_record_of_a_failed_attempt(self, store: Store, book: Book) -> None:
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_retry("book"),)))
        await book.transact(lease, a_tx(attempts=2))
        assert history_of(await store.history(an_id(1))) == [("book", EntryKind.TX, EntryState.DONE, "1")]

    async def test_a_holder_that_lost_the_run_writes_nothing_in_a_transaction(
        self, store: Store, clock: SettableClock, book: Book
    ) -> None:
        """S2, T8: under an old token, neither the transaction nor the checkpoint is written."""
        old = await held(store, worker=WORKER)
        clock.advance(LEASE + SECOND)
        await claim_one(store, worker=OTHER_WORKER)
        before = await picture_of(store, 1)
        answer = await book.transact(old, entries=(a_step("first", 1),))
        assert answer.verdict.is_lost
        assert answer.entry is None
        assert answer.error is None
        assert book.lines() == 0
        assert await picture_of(store, 1) == before

    async def test_a_cancelled_run_cannot_transact(self, store: Store, book: Book) -> None:
        lease = await held(store)
        await store.apply(Cancel(run_id=an_id(1), id="c1"))
        assert (await book.transact(lease)).verdict.is_lost
        assert book.lines() == 0

    async def test_an_ended_run_cannot_transact(self, store: Store, book: Book) -> None:
        lease = await held(store)
        await write(store, checkpoint_for(lease, succeed()))
        answer = await book.transact(lease)
        assert not answer.verdict.is_held
        assert book.lines() == 0
        assert await store.history(an_id(1)) == ()

    async def test_an_unknown_run_cannot_transact(self, store: Store, book: Book) -> None:
        lease = Lease(run=(await held(store)).run)
        answer = await book.transact(lease, run_id=an_id(9))
        assert answer.verdict.is_lost
        assert book.lines() == 0

    async def test_the_answer_of_a_transaction_returns_new_arrivals(self, store: Store, book: Book) -> None:
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message()]))
        answer = await book.transact(lease)
        assert [arrival.name for arrival in answer.verdict.arrivals] == ["go"]

    async def test_a_transaction_does_not_block_the_event_loop(self, store: Store, book: Book) -> None:
        """A transaction blocks, so the store runs it in another thread."""
        lease = await held(store)
        gate = threading.Event()
        asyncio.get_running_loop().call_later(0.01, gate.set)
        answer = await book.transact(lease, meanwhile=lambda: wait_for("the event loop opens the gate", gate))
        assert gate.is_set()
        assert answer.entry is not None

    async def test_several_runs_may_transact_at_once(self, store: Store, book: Book) -> None:
        leases = [await held(store, number) for number in range(1, 6)]
        answers = await asyncio.gather(*(book.transact(lease, a_tx(result=f'"{lease.run.id}"')) for lease in leases))
        assert [answer.entry and answer.entry.result for answer in answers] == [f'"{lease.run.id}"' for lease in leases]
        assert book.lines() == len(leases)

    async def test_a_transaction_whose_caller_was_cancelled_happens_once_when_repeated(
        self, store: Store, book: Book
    ) -> None:
        """S6: the repeat does not write a second time."""
        lease = await held(store)
        begun, gate = threading.Event(), threading.Event()

        def stand() -> None:
            begun.set()
            wait_for("the gate is opened", gate)

        asked = asyncio.create_task(book.transact(lease, meanwhile=stand))
        await asyncio.to_thread(wait_for, "the transaction begins", begun)
        asked.cancel()
        gate.set()
        answer = await book.transact(lease)
        assert answer.entry == a_tx()
        assert book.lines() == 1
        assert list(await store.history(an_id(1))) == [a_tx()]

    # Transactions outside of runs

    async def test_a_connection_block_is_committed_at_its_end(self, store: Store, book: Book) -> None:
        with book.database.connection() as connection:
            connection.execute("insert into book values ('mine')")
        assert book.lines() == 1

    async def test_a_connection_block_that_raises_is_rolled_back(self, store: Store, book: Book) -> None:
        def fail() -> None:
            with book.database.connection() as connection:
                connection.execute("insert into book values ('mine')")
                raise LookupError

        with pytest.raises(LookupError):
            fail()
        assert book.lines() == 0

    # Starting in a transaction

    async def test_a_run_started_in_a_transaction_exists_after_the_commit(self, store: Store, book: Book) -> None:
        with book.database.connection() as connection:
            (run,) = (await book.database.create_in(connection, [an_intent(1, tags={"a": "b"})])).runs
            assert run.created
            assert await store.get(an_id(1)) is None
        assert (await the_run(store)).state is RunState.PENDING
        assert (await the_run(store)).tags == {"a": "b"}
        assert (await claim_one(store)).run.id == an_id(1)

    async def test_a_run_started_in_a_rolled_back_transaction_does_not_exist(self, store: Store, book: Book) -> None:
        with book.rolled_back() as connection:
            await book.database.create_in(connection, [an_intent(1, key="k")])
        assert await store.get(an_id(1)) is None
        assert await holder_of(store, "k") is None

    async def test_a_start_in_a_transaction_finds_the_run_of_its_key(self, store: Store, book: Book) -> None:
        """S1: one key makes at most one run."""
        await start(store, an_intent(1, key="k"))
        with book.database.connection() as connection:
            (run,) = (await book.database.create_in(connection, [an_intent(2, key="k")])).runs
        assert (run.run_id, run.created) == (an_id(1), False)

    async def test_a_refused_start_does_not_affect_the_rest_of_the_transaction(self, store: Store, book: Book) -> None:
        await start(store, an_intent(1, key="k"))
        with book.database.connection() as connection:
            connection.execute("insert into book values ('mine')")
            with pytest.raises(KeyConflict):
                await book.database.create_in(connection, [an_intent(2), an_intent(3, key="k", payload='{"a":1}')])
        assert book.lines() == 1
        assert await store.get(an_id(2)) is None

    # Sending in a transaction

    async def test_a_message_sent_in_a_transaction_wakes_the_run_after_the_commit(
        self, store: Store, clock: SettableClock, book: Book
    ) -> None:
        await suspended(store, 1, for_message("go"))
        clock.advance(SECOND)
        with book.database.connection() as connection:
            assert list(await book.database.send_in(connection, [a_message()])) == [Sent(run_id=an_id(1))]
            assert (await the_run(store)).ready_at is None
        assert (await the_run(store)).ready_at == START + SECOND
        assert [arrival.ref for arrival in (await claim_one(store)).arrivals] == ["m1"]

    async def test_a_message_of_a_rolled_back_transaction_is_not_sent(self, store: Store, book: Book) -> None:
        await suspended(store, 1, for_message("go"))
        before = await picture_of(store, 1)
        with book.rolled_back() as connection:
            await book.database.send_in(connection, [a_message()])
        assert await picture_of(store, 1) == before
        await store.apply(SendMessages(messages=[a_message(payload='"again"')]))
        assert [arrival.payload for arrival in (await claim_one(store)).arrivals] == ['"again"']

    async def test_the_holder_of_a_run_gets_a_message_after_the_commit(self, store: Store, book: Book) -> None:
        """T1: a sender touches only the inbox of a held run."""
        lease = await held(store)
        before = await the_run(store)
        with book.database.connection() as connection:
            await book.database.send_in(connection, [a_message()])
        after = await the_run(store)
        assert (after.state, after.ready_at, after.token) == (before.state, before.ready_at, before.token)
        assert [arrival.ref for arrival in (await write(store, checkpoint_for(lease))).arrivals] == ["m1"]

    async def test_a_message_sent_with_and_without_a_transaction_is_one_message(self, store: Store, book: Book) -> None:
        """SEMANTICS, waiting: a repeated send does not create a second message."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message(id="m1")]))
        with book.database.connection() as connection:
            await book.database.send_in(connection, [a_message(id="m1"), a_message(id="m2")])
            await book.database.send_in(connection, [a_message(id="m2")])
        await store.apply(SendMessages(messages=[a_message(id="m2")]))
        assert [arrival.ref for arrival in (await write(store, checkpoint_for(lease))).arrivals] == ["m1", "m2"]

    async def test_a_message_by_key_finds_a_run_started_in_the_same_transaction(self, store: Store, book: Book) -> None:
        message = MessageToRun(id="m1", name="go", payload="1", key="k")
        with book.database.connection() as connection:
            await book.database.create_in(connection, [an_intent(1, key="k")])
            assert list(await book.database.send_in(connection, [message])) == [Sent(run_id=an_id(1))]
        assert [arrival.ref for arrival in (await claim_one(store)).arrivals] == ["m1"]

    async def test_a_refused_message_does_not_affect_the_rest_of_the_transaction(
        self, store: Store, book: Book
    ) -> None:
        await ended(store, 1)
        await held(store, 3)
        with book.database.connection() as connection:
            connection.execute("insert into book values ('mine')")
            sent = await book.database.send_in(connection, [a_message(1), a_message(2), a_message(3)])
        assert list(sent) == [
            Sent(run_id=an_id(1), refused="finished"),
            Sent(run_id=an_id(2), refused="unknown"),
            Sent(run_id=an_id(3)),
        ]
        assert book.lines() == 1
        assert (await the_run(store, 3)).arrivals == 1

    # Emitting in a transaction

    async def test_an_event_of_a_transaction_reaches_waiting_runs_after_the_commit(
        self, store: Store, clock: SettableClock, book: Book
    ) -> None:
        await suspended(store, 1, for_event("paid"))
        await suspended(store, 2, for_event("paid"))
        await suspended(store, 3, for_event("shipped"))
        clock.advance(SECOND)
        with book.database.connection() as connection:
            assert list(await book.database.emit_in(connection, [an_event()])) == [2]
            assert (await the_run(store)).ready_at is None
        assert [(await the_run(store, number)).ready_at for number in (1, 2, 3)] == [START + SECOND] * 2 + [None]
        assert [arrival.payload for arrival in (await claim_one(store)).arrivals] == ["1"]

    async def test_an_event_of_a_rolled_back_transaction_is_not_emitted(self, store: Store, book: Book) -> None:
        await suspended(store, 1, for_event("paid"))
        early = await held(store, 2)
        before = await picture_of(store, 1)
        with book.rolled_back() as connection:
            await book.database.emit_in(connection, [an_event()])
        assert await picture_of(store, 1) == before
        verdict = await write(store, checkpoint_for(early, Suspend(), waits=(for_event("paid"),)))
        assert not verdict.is_held

    async def test_an_event_of_a_transaction_is_kept_for_runs_that_wait_later(self, store: Store, book: Book) -> None:
        """S3: a wait that is satisfied before it is written never sleeps."""
        lease = await held(store)
        with book.database.connection() as connection:
            assert list(await book.database.emit_in(connection, [an_event()])) == [0]
        verdict = await write(store, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),)))
        assert verdict.is_held
        assert [arrival.payload for arrival in verdict.arrivals] == ["1"]

    async def test_an_event_of_a_transaction_goes_to_one_run_if_its_topic_is_a_queue(
        self, store: Store, book: Book
    ) -> None:
        await store.apply(SetTopics(topics=[Topic(name="paid", mode="queue")]))
        await suspended(store, 1, for_event("paid"))
        await suspended(store, 2, for_event("paid"))
        with book.database.connection() as connection:
            assert list(await book.database.emit_in(connection, [an_event("e1")])) == [1]
        assert [lease.run.id for lease in (await claim(store)).leases] == [an_id(1)]

    # Connections

    async def test_an_object_that_is_not_a_connection_is_refused(self, book: Book) -> None:
        with pytest.raises(InvalidRequest):
            await book.database.create_in(object(), [an_intent(1)])
        with pytest.raises(InvalidRequest):
            await book.database.send_in(object(), [a_message()])
        with pytest.raises(InvalidRequest):
            await book.database.emit_in(object(), [an_event()])
