"""The key-value store when the answer to a driver call is lost: the driver repeats the call, or raises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import pytest

from holdfast.core.checkpoint import Suspend
from holdfast.core.commands import ChangeTypes, SendMessages
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import TypeChange
from holdfast.core.news import Hint
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.testing.contract import START, SettableClock
from holdfast.testing.contract.arrange import (
    TYPE,
    a_message,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    claimed_ids,
    for_message,
    for_time,
    held,
    start,
    suspended,
)
from holdfast.testing.patience import until
from tests.key_value.faulty_driver import DriverFault, DriverFaults, FaultyDriver, of_worker


async def a_store(faults: Mapping[int, DriverFault]) -> KeyValueStore:
    """Open a store on an empty dictionary, with faults at the driver calls of a worker."""
    data, clock, planned = Dictionary(), SettableClock(), DriverFaults(faults)
    store = KeyValueStore(lambda: FaultyDriver(DictionaryDriver(data, clock=clock), planned), clock=clock)
    await store.open()
    return store


@pytest.mark.parametrize("concurrency", [None, 2], ids=["", "limited"])
async def test_a_claim_returns_the_runs_that_it_has_won(concurrency: int | None) -> None:
    """S6: otherwise these runs, and the slots of their limit, would be held until their leases end."""
    store = await a_store(dict.fromkeys(range(1, 100), "repeat"))
    await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=concurrency)]))
    await start(store, *(an_intent(number) for number in range(5)))

    with of_worker():
        leases = (await claim(store, limit=2)).leases

    assert [lease.run.id for lease in leases] == [an_id(0), an_id(1)]
    assert await claimed_ids(store, worker="other") == ([] if concurrency else [an_id(2), an_id(3), an_id(4)])


async def sending(store: KeyValueStore) -> Awaitable[object]:
    await suspended(store, 1, for_message("go"))
    return store.apply(SendMessages(messages=[a_message()]))


async def suspending(store: KeyValueStore) -> Awaitable[object]:
    return store.checkpoint([checkpoint_for(await held(store), Suspend(), waits=(for_time(START),))])


@pytest.mark.parametrize("fault", ["repeat", "fail after"])
@pytest.mark.parametrize(("prepare", "commit"), [(sending, 2), (suspending, 1)])
async def test_listeners_look_for_the_news_of_a_commit_whose_answer_was_lost(
    prepare: Callable[[KeyValueStore], Awaitable[Awaitable[object]]], commit: int, fault: DriverFault
) -> None:
    """S6: the repetition finds nothing to do, so it has no news, and the store does not hear its own hints."""
    store = await a_store({commit: fault})
    writing = await prepare(store)
    heard: list[Hint] = []
    store.listen(heard.append)

    with of_worker(), suppress(StoreUnavailable):
        await writing

    await until("the listener hears that it has to look", lambda: any(hint.is_elsewhere for hint in heard))
    assert await claimed_ids(store) == [an_id(1)]
