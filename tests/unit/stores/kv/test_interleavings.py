"""Another process writes between the load and the commit of an operation: the operation sees it, or starts over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from holdfast.core.checkpoint import Suspend
from holdfast.core.commands import Cancel, SendMessages
from holdfast.core.states import RunState
from holdfast.stores.kv import KeyValueStore, names
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Answers, Committed, Gain, Part, Read
from holdfast.stores.kv.names import entries_of, is_catalogue, lasting_entries_of
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    OTHER_WORKER,
    a_message,
    a_step,
    an_id,
    an_intent,
    checkpoint_for,
    claim_one,
    for_message,
    held,
    start,
    succeed,
    the_run,
    write,
)
from tests.key_value.wrapped_driver import WrappedDriver

Deed = Callable[[], Awaitable[object]]


class WatchedDriver(WrappedDriver):
    """A driver that counts loads, and lets another process act once before the next write."""

    def __init__(self, inner: DictionaryDriver) -> None:
        super().__init__(inner)
        self.deed: Deed | None = None
        self.loads = 0
        self.number = 0
        """The epoch."""

    @property
    def epoch(self) -> int:
        return self.number

    async def load(self, reads: Sequence[Read]) -> Answers:
        self.loads += 1
        return await super().load(reads)

    async def commit(self, parts: Sequence[Part | Gain], hint: bytes = b"") -> Committed:
        deed, self.deed = self.deed, None
        if deed is not None:
            await deed()
        return await super().commit(parts, hint)


class Place:
    """Two stores on one dictionary, as in two processes. The first one is watched."""

    def __init__(self) -> None:
        self.clock = SettableClock()
        self.data = Dictionary()
        self.driver = WatchedDriver(DictionaryDriver(self.data, clock=self.clock))
        self.store = KeyValueStore(lambda: self.driver, clock=self.clock)
        self.other = KeyValueStore(lambda: DictionaryDriver(self.data, clock=self.clock), clock=self.clock)


@pytest.fixture
def place() -> Place:
    return Place()


async def test_a_message_between_load_and_commit_of_a_suspension_is_not_missed(place: Place) -> None:
    lease = await held(place.store)
    place.driver.deed = lambda: place.other.apply(SendMessages(messages=[a_message(id="m1")]))

    verdict = await write(place.store, checkpoint_for(lease, Suspend(), waits=(for_message("go"),)))

    assert [arrival.ref for arrival in verdict.arrivals] == ["m1"]
    assert verdict.is_held


async def test_a_step_with_an_undo_between_load_and_commit_of_a_cancel_is_undone(place: Place) -> None:
    lease = await held(place.other)
    step = checkpoint_for(lease, entries=(a_step(has_undo=True),))
    place.driver.deed = lambda: write(place.other, step)

    await place.store.apply(Cancel(run_id=an_id(1), id="c", reason="enough"))

    run = await the_run(place.store)
    assert (run.state, run.rollback) == (RunState.ROLLING_BACK, RunState.CANCELLED)


async def test_a_run_that_takes_a_key_between_load_and_commit_of_a_start_keeps_it(place: Place) -> None:
    await start(place.store, an_intent(3))
    place.driver.deed = lambda: place.other.create([an_intent(1, key="k")])

    created = await place.store.create([an_intent(2, key="k")])

    assert [(one.run_id, one.created) for one in created.runs] == [(an_id(1), False)]
    assert await place.store.get(an_id(2)) is None


async def test_a_second_step_takes_one_trip(place: Place) -> None:
    lease = await held(place.store)
    await write(place.store, checkpoint_for(lease, entries=(a_step("one", 1),)))
    place.driver.loads = 0

    await write(place.store, checkpoint_for(lease, entries=(a_step("two", 2),)))

    assert place.driver.loads == 0
    assert [entry.location for entry in await place.store.history(an_id(1))] == ["one", "two"]


async def test_what_was_remembered_before_an_epoch_is_forgotten(place: Place) -> None:
    """A lost version may be given again, by a process that did not notice the loss."""
    lease = await held(place.store)
    partitions, head = place.data.partitions, names.head(an_id(1))
    version = partitions[head].version
    await place.other.apply(Cancel(run_id=an_id(1), id="c", reason="enough"))
    partitions[head] = partitions[head]._replace(version=version)
    place.driver.number += 1

    verdict = await write(place.store, checkpoint_for(lease, entries=(a_step(),)))

    assert verdict.is_lost
    assert list(await place.store.history(an_id(1))) == []


async def test_many_messages_come_with_a_lease_in_their_order(place: Place) -> None:
    await start(place.store, an_intent(1))
    ids = [f"m{number}" for number in range(100)]
    await place.store.apply(SendMessages(messages=[a_message(id=id) for id in ids]))

    lease = await claim_one(place.store)

    assert [arrival.ref for arrival in lease.arrivals] == ids


async def test_a_run_that_changes_its_state_leaves_no_index_entry(place: Place) -> None:
    await start(place.store, an_intent(1, key="k", tags={"color": "blue"}))
    lease = await claim_one(place.store, worker=OTHER_WORKER)
    await write(place.store, checkpoint_for(lease, succeed()))

    run = await the_run(place.store)
    expected = {(index, member) for index, member, _ in (*entries_of(run), *lasting_entries_of(run))}
    found = {(name, member) for name, index in place.data.indexes.items() for member, _ in index.lowest(None)}
    assert {entry for entry in found if not is_catalogue(entry[0]) and an_id(1) in entry[1]} == {
        entry for entry in expected if not is_catalogue(entry[0])
    }
