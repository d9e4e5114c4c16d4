"""Contract of lease renewals and worker records: `renew`, `look`, `retire` and `workers`."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import Hold, Release, Suspend, Verdict
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel, RetireWorker, SendMessages
from holdfast.core.model import Holding, Lease
from holdfast.core.ports import Store
from holdfast.core.questions import VerdictsOn
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    WORKER,
    a_message,
    a_step,
    a_worker,
    an_id,
    block,
    checkpoint_for,
    claim_one,
    claimed_ids,
    for_message,
    held,
    holding_of,
    name_of,
    picture_of,
    renew,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

LOST = Verdict(run_id=an_id(1), is_lost=True, is_held=False)
HELD = Verdict(run_id=an_id(1))


class RenewContract(Contract):
    """A lease lasts while its holder renews it in time and no other request takes the run away."""

    async def test_a_renewal_moves_the_end_of_the_lease(self, store: Store, clock: SettableClock) -> None:
        """T5, S7: the store's clock decides leases."""
        lease = await held(store)
        clock.advance(20 * SECOND)

        answer = await renew(store, holding_of(lease), lease=LEASE)

        assert (answer.verdicts, answer.now) == ((HELD,), START + 20 * SECOND)
        assert (await the_run(store)).ready_at == START + 20 * SECOND + LEASE
        clock.advance(LEASE - 1)
        assert await claimed_ids(store, worker=OTHER_WORKER) == []

    async def test_a_renewal_changes_nothing_else(self, store: Store, clock: SettableClock) -> None:
        """T8: a renewal is not a claim. Token, crashes, history and audit stay the same."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=(a_step(),)))
        before = await picture_of(store, 1)

        await renew(store, holding_of(lease))

        assert await picture_of(store, 1) == before

    async def test_an_expired_lease_may_be_renewed_until_another_claim(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T8: expiry alone ends nothing."""
        lease = await held(store)
        clock.advance(10 * LEASE)

        assert (await renew(store, holding_of(lease))).verdicts == (HELD,)
        assert await claimed_ids(store, worker=OTHER_WORKER) == []

    async def test_a_renewal_after_another_claim_is_lost_and_changes_nothing(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T8: an old token fences off renewals too, even for a worker that claimed its own run again."""
        lease = await held(store)
        clock.advance(LEASE)
        await claim_one(store, worker=WORKER)
        clock.advance(SECOND)
        before = await picture_of(store, 1)

        assert (await renew(store, holding_of(lease))).verdicts == (LOST,)
        assert await picture_of(store, 1) == before

    async def test_a_renewal_after_a_cancel_is_lost(self, store: Store) -> None:
        """SEMANTICS, control: a running holder learns of a cancel at its next renewal."""
        lease = await held(store)
        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert (await renew(store, holding_of(lease))).verdicts == (LOST,)
        assert (await the_run(store)).ready_at is None

    @pytest.mark.parametrize("next", [Suspend(), Release(), succeed(), block()], ids=name_of)
    async def test_a_renewal_of_a_run_that_its_holder_gave_up_is_lost(
        self, store: Store, clock: SettableClock, next: Suspend
    ) -> None:
        """T5: `ready_at` of a run that no worker holds is not a lease."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, next, waits=(for_message("go"),)))
        clock.advance(SECOND)
        before = await picture_of(store, 1)

        assert (await renew(store, holding_of(lease))).verdicts == (LOST,)
        assert await picture_of(store, 1) == before

    async def test_a_renewal_with_a_wrong_token_or_of_an_unknown_run_is_lost(self, store: Store) -> None:
        """T8: only the current token counts."""
        lease = await held(store)
        wrong = [
            Holding(run_id=an_id(1), token=lease.run.token + 1),
            Holding(run_id=an_id(1), token=0),
            Holding(run_id=an_id(9), token=1),
        ]

        verdicts = (await renew(store, *wrong)).verdicts

        assert [(verdict.run_id, verdict.is_lost) for verdict in verdicts] == [
            (an_id(1), True),
            (an_id(1), True),
            (an_id(9), True),
        ]

    async def test_a_lost_lease_does_not_affect_the_others_of_its_batch(
        self, store: Store, clock: SettableClock
    ) -> None:
        """T9: a batch is many verdicts, one per run, in order."""
        leases = [await held(store, number) for number in (3, 1, 2)]
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        clock.advance(SECOND)

        answer = await renew(store, *(holding_of(lease) for lease in leases))

        assert [(verdict.run_id, verdict.is_lost) for verdict in answer.verdicts] == [
            (an_id(3), False),
            (an_id(1), True),
            (an_id(2), False),
        ]
        assert [(await the_run(store, number)).ready_at for number in (3, 2)] == [START + SECOND + LEASE] * 2

    async def test_a_renewal_returns_the_arrivals_since_the_last_answer(self, store: Store) -> None:
        """T1: the holder learns of an arrival in the answer to its next checkpoint or renewal."""
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message(id="m1"), a_message(id="m2")]))

        verdicts = (
            *(await renew(store, holding_of(lease))).verdicts,
            *(await renew(store, holding_of(lease, seen=1))).verdicts,
            *(await renew(store, holding_of(lease, seen=2))).verdicts,
        )

        assert [[arrival.ref for arrival in verdict.arrivals] for verdict in verdicts] == [["m1", "m2"], ["m2"], []]

    # Looking

    async def test_a_look_answers_like_a_renewal_and_renews_nothing(self, store: Store, clock: SettableClock) -> None:
        """The port: a look gives the answer of a renewal, without renewing."""
        lease = await held(store, 1)
        gone = await self._lost(store, 2)
        await store.apply(SendMessages(messages=[a_message()]))
        clock.advance(SECOND)
        before = await picture_of(store, 1, 2)
        holdings = (holding_of(gone), holding_of(lease), Holding(run_id=an_id(9), token=1))

        seen = await store.changes(VerdictsOn(holdings=holdings))

        assert seen.now == START + SECOND
        assert await picture_of(store, 1, 2) == before
        assert await store.workers() == []
        assert seen == await renew(store, *holdings)

    async def _lost(self, store: Store, number: int) -> Lease:
        lease = await held(store, number)
        await store.apply(Cancel(run_id=an_id(number), id="c"))
        return lease

    # Workers

    async def test_a_renewal_records_that_its_worker_is_alive(self, store: Store, clock: SettableClock) -> None:
        """The port: `renew` extends leases and records that the worker is alive, even if it holds no run."""
        await renew(store, worker=OTHER_WORKER)
        clock.advance(SECOND)
        await renew(store, worker=WORKER)
        await renew(store, worker=OTHER_WORKER)

        first, second = await store.workers()

        assert (first.id, first.started_at, first.heartbeat_at) == (WORKER, START + SECOND, START + SECOND)
        assert (second.id, second.started_at, second.heartbeat_at) == (OTHER_WORKER, START, START + SECOND)
        told = a_worker(OTHER_WORKER)
        assert (second.name, second.host, second.pid) == (told.name, told.host, told.pid)
        assert (second.types, second.concurrency) == (told.types, told.concurrency)

    async def test_retiring_a_worker_keeps_its_leases(self, store: Store) -> None:
        """The port: `retire` removes the record of a stopped worker. Its runs stay leased until the leases end."""
        lease = await held(store)
        await renew(store, holding_of(lease))
        await renew(store, worker=OTHER_WORKER)

        await store.apply(RetireWorker(worker_id=WORKER))
        await store.apply(RetireWorker(worker_id="never seen"))

        assert [worker.id for worker in await store.workers()] == [OTHER_WORKER]
        assert not (await write(store, checkpoint_for(lease, Hold()))).is_lost
