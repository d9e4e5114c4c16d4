"""The claimer: when it asks for work, and when it had better not."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from holdfast.core.checkpoint import Claimed, ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract.arrange import TYPE, an_intent
from holdfast.testing.contract.clock import SettableClock
from holdfast.worker import claimer as module
from holdfast.worker.claimer import Claimer


class Room:
    """A worker with nothing but room."""

    def __init__(self, clock: SettableClock) -> None:
        self.clock = clock

    def free(self) -> int:
        return 10

    def holds_suspect(self) -> bool:
        return False

    async def renew_if_late(self) -> None:
        pass


class Asked(MemoryStore):
    """A store that counts claims."""

    claims = 0

    async def claim(self, request: ClaimRequest) -> Claimed:
        self.claims += 1
        return await super().claim(request)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def store(clock: SettableClock) -> Asked:
    return Asked(clock=clock)


@pytest_asyncio.fixture
async def claimer(store: Asked, clock: SettableClock) -> Claimer:
    taken: list[Claimed] = []
    return Claimer(
        store,
        Room(clock),
        worker_id="w",
        types=lambda: (TYPE,),
        lease=30 * SECOND,
        poll=3_600 * SECOND,
        take=taken.append,
    )


async def settled(claimer: Claimer) -> None:
    while claimer.is_asking:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_after_a_claim_in_vain_the_news_of_others_wait_a_moment(
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


async def test_the_news_of_others_do_not_wait_until_a_clock_that_was_set_back_has_caught_up(
    claimer: Claimer, store: Asked, clock: SettableClock
) -> None:
    claimer.wake()
    await settled(claimer)
    clock._now -= 3600 * SECOND

    claimer.wake_for_others()
    await settled(claimer)

    assert store.claims == 2


async def test_who_wins_something_asks_at_once_when_others_have_news(
    claimer: Claimer, store: Asked, clock: SettableClock
) -> None:
    for number in range(5):
        await store.create([an_intent(number)])
        claimer.wake_for_others()
        await settled(claimer)
        clock.advance(module._VAIN_PAUSE // 100)
    assert store.claims == 5


async def test_own_news_never_wait(claimer: Claimer, store: Asked) -> None:
    for _ in range(5):
        claimer.wake()
        await settled(claimer)
    assert store.claims == 5
