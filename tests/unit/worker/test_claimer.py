"""The claimer: when it asks for runs, and when it waits."""

from __future__ import annotations

import asyncio
import logging

import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.core.checkpoint import Claimed, ClaimRequest
from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import new_id
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract.arrange import TYPE, an_id, an_intent
from holdfast.testing.contract.clock import SettableClock
from holdfast.worker import claimer as module
from holdfast.worker.claimer import Claimer


class Room:
    """A worker that always has free slots."""

    def __init__(self, clock: SettableClock) -> None:
        self.clock = clock

    def free(self) -> int:
        return 10

    def holds_suspect(self) -> bool:
        return False

    async def renew_if_late(self) -> None:
        pass


MILLISECOND: Micros = SECOND // 1_000


class Asked(MemoryStore):
    """A store that counts claims. It may withhold a ready run, or simulate a faster rival."""

    claims = 0
    is_withholding = False
    has_rival = False
    trouble: Exception | None = None

    async def claim(self, request: ClaimRequest) -> Claimed:
        self.claims += 1
        if self.trouble is not None:
            raise self.trouble
        if self.has_rival:
            await super().claim(replace(request, id=new_id(), worker="rival", limit=1_000))
        claimed = await super().claim(request)
        return replace(claimed, next_ready_at=claimed.now) if self.is_withholding else claimed


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def store(clock: SettableClock) -> Asked:
    return Asked(clock=clock)


@pytest.fixture
def taken() -> list[Claimed]:
    return []


@pytest_asyncio.fixture
async def claimer(store: Asked, clock: SettableClock, taken: list[Claimed]) -> Claimer:
    return Claimer(
        store,
        Room(clock),
        worker_id="w",
        types=lambda: (TYPE,),
        lease=30 * SECOND,
        poll=3_600 * SECOND,
        accept=taken.append,
    )


async def settled(claimer: Claimer) -> None:
    while claimer.is_running:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def let_pass(length: Micros, claimer: Claimer, clock: SettableClock) -> None:
    """Let time pass, a millisecond at a time."""
    for _ in range(length // MILLISECOND):
        clock.advance(MILLISECOND)
        await settled(claimer)


async def test_after_an_empty_claim_hints_of_other_processes_wait_a_moment(
    claimer: Claimer, store: Asked, clock: SettableClock
) -> None:
    claimer.wake()
    await settled(claimer)
    for _ in range(10):
        claimer.wake_for_others()
        await settled(claimer)
    assert store.claims == 1
    assert not claimer.is_idle, "something may be ready"

    clock.advance(module._VAIN_PAUSE)
    await settled(claimer)

    assert store.claims == 2


async def test_hints_of_other_processes_do_not_wait_for_a_clock_that_was_set_back(
    claimer: Claimer, store: Asked, clock: SettableClock
) -> None:
    claimer.wake()
    await settled(claimer)
    clock._now -= 3600 * SECOND

    claimer.wake_for_others()
    await settled(claimer)

    assert store.claims == 2


async def test_a_worker_that_got_a_run_reacts_to_hints_at_once(
    claimer: Claimer, store: Asked, clock: SettableClock
) -> None:
    for number in range(5):
        await store.create([an_intent(number)])
        claimer.wake_for_others()
        await settled(claimer)
        clock.advance(module._VAIN_PAUSE // 100)
    assert store.claims == 5


async def test_own_hints_never_wait(claimer: Claimer, store: Asked) -> None:
    for _ in range(5):
        claimer.wake()
        await settled(claimer)
    assert store.claims == 5


async def test_a_run_is_claimed_at_the_instant_at_which_it_becomes_ready(
    claimer: Claimer, store: Asked, clock: SettableClock, taken: list[Claimed]
) -> None:
    began = clock.now()
    delays = [3 * MILLISECOND, 4 * MILLISECOND, 18 * MILLISECOND, 40 * MILLISECOND]
    await store.create([an_intent(number, delay=delay) for number, delay in enumerate(delays)])
    claimer.wake()
    await settled(claimer)

    await let_pass(50 * MILLISECOND, claimer, clock)

    claimed_at = {lease.run.id: claimed.now - began for claimed in taken for lease in claimed.leases}
    assert claimed_at == {an_id(number): delay for number, delay in enumerate(delays)}
    assert store.claims == 1 + len(delays)


async def test_a_ready_run_that_was_withheld_is_claimed_again_but_not_at_once(
    claimer: Claimer, store: Asked, clock: SettableClock
) -> None:
    store.is_withholding = True
    claimer.wake()
    await settled(claimer)

    await let_pass(100 * MILLISECOND, claimer, clock)

    assert store.claims == 1 + 100 * MILLISECOND // module._AGAIN_PAUSE


async def test_a_worker_with_a_faster_rival_does_not_wake_for_every_timer(
    claimer: Claimer, store: Asked, clock: SettableClock
) -> None:
    await store.create([an_intent(number, delay=number * MILLISECOND) for number in range(1, 101)])
    claimer.wake()
    await settled(claimer)
    store.has_rival = True

    await let_pass(100 * MILLISECOND, claimer, clock)

    assert store.claims == 2 + 99 * MILLISECOND // module._AGAIN_PAUSE


async def test_a_worker_that_once_had_a_faster_rival_is_in_time_for_later_runs(
    claimer: Claimer, store: Asked, clock: SettableClock, taken: list[Claimed]
) -> None:
    later = 2 * module._AGAIN_PAUSE
    await store.create([an_intent(1, delay=MILLISECOND), an_intent(2, delay=later)])
    claimer.wake()
    await settled(claimer)
    store.has_rival = True
    await let_pass(MILLISECOND, claimer, clock)
    store.has_rival = False

    await let_pass(later - MILLISECOND, claimer, clock)

    assert [lease.run.id for claimed in taken for lease in claimed.leases] == [an_id(2)]


@pytest.mark.parametrize("trouble", [StoreUnavailable("gone"), RuntimeError("broken")])
async def test_a_failed_claim_is_repeated_after_a_pause_and_logged_once(
    claimer: Claimer, store: Asked, clock: SettableClock, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store.trouble = trouble
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        for _ in range(5):
            for _ in range(3):
                claimer.wake()
                await settled(claimer)
            clock.advance(module._OUTAGE_PAUSE)
            await settled(claimer)
        asked = store.claims
        store.trouble = None
        clock.advance(module._OUTAGE_PAUSE)
        await settled(claimer)

    assert asked == 6
    assert [record.getMessage().partition(" after ")[0] for record in caplog.records] == [
        f"cannot claim; trying again: {trouble}",
        "claiming works again",
    ]
