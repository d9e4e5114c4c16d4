"""Races on Postgres, with the statements of the racers in every order: nothing is missed or done twice.

A racer that waits for a lock cannot take its turn. Then the other one continues, until the lock is released. Each race
is also played with stores that remember nothing of the runs they have leased, so that the shared operations decide.
`HOLDFAST_SWITCHES=8` plays orders in which the turn changes more often.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import psycopg
import pytest
import pytest_asyncio

from holdfast.core.checkpoint import Suspend, Verdict
from holdfast.core.commands import Cancel, EmitEvents, SendMessages, SetTopics
from holdfast.core.model import Lease, Topic
from holdfast.core.news import News
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.scripts import Script, pipelined
from holdfast.testing.contract.arrange import (
    OTHER_WORKER,
    a_message,
    an_event,
    an_id,
    checkpoint_for,
    claim,
    facts_of,
    for_child,
    for_event,
    for_message,
    held,
    succeed,
    suspended,
    the_run,
    write,
)
from tests.duration import lasting
from tests.key_value.interleaving import CallOrder, each_order, turn
from tests.plugin.tiers import amount

SWITCHES = amount(short=2, long=4, variable="HOLDFAST_SWITCHES")

pytestmark = [pytest.mark.both_tiers, lasting(20 if SWITCHES > 2 else 3)]

IS_BLOCKED = "select cardinality(pg_blocking_pids(%s)) > 0"

T = TypeVar("T")


class TurnStore(PostgresStore):
    """A store that waits for its turn before every statement of its writes, on a connection of its own."""

    connection: psycopg.AsyncConnection[Any]

    def _write(self, script: Callable[[], Script[tuple[T, News]]], *_: Any, **__: Any) -> asyncio.Future[T]:
        return asyncio.ensure_future(self._carry_out(script()))

    async def _carry_out(self, script: Script[tuple[T, News]]) -> T:
        try:
            statement = next(script)
            while True:
                answer = None
                try:
                    for one in pipelined(statement).statements:
                        name = one[0].decode().partition("(")[0]
                        if not name.startswith("begin"):  # it locks and reads nothing, so its place does not matter
                            await turn(name)
                        cursor = await self.connection.execute(*one)
                        row = await cursor.fetchone() if cursor.description else None
                        answer = row[0] if row else answer
                except psycopg.Error as error:
                    statement = script.throw(error)
                else:
                    statement = script.send(answer)
        except StopIteration as end:
            answered: T = end.value[0]
            return answered


class LockOrder(CallOrder):
    """An order of statements in which racers may wait for locks of each other. Racers are numbered like the stores."""

    place: Place

    async def _ready(self, tasks: Sequence[asyncio.Task[Any]]) -> list[int]:
        while True:
            running = [number for number, task in enumerate(tasks) if number not in self._waiting and not task.done()]
            if (self._waiting or not running) and all([await self.place.is_blocked(number) for number in running]):
                return sorted(self._waiting)
            await asyncio.sleep(0)


class Place:
    """Stores in one schema, each like a process of its own. Every race has runs and a topic of its own."""

    def __init__(
        self, stores: Sequence[TurnStore], observer: psycopg.AsyncConnection[Any], *, is_forgetful: bool
    ) -> None:
        self.stores = stores
        self.number = 0
        self._observer = observer
        self._is_forgetful = is_forgetful

    @property
    def topic(self) -> str:
        return f"paid-{self.number}"

    async def is_blocked(self, number: int) -> bool:
        """Return True if a store waits for a lock that another session has."""
        cursor = await self._observer.execute(IS_BLOCKED, (self.stores[number].connection.info.backend_pid,))
        return await cursor.fetchone() == (True,)

    async def race(self, order: LockOrder, *racers: Coroutine[Any, Any, Any]) -> list[Any]:
        """Let racers race, each on the store with its number."""
        if self._is_forgetful:
            for store in self.stores:
                store._held.clear()
        return await order.race(*racers)


Scene = Callable[[Place, LockOrder], Awaitable[None]]


@pytest_asyncio.fixture(params=[False, True], ids=["remembering", "forgetful"])
async def place(request: pytest.FixtureRequest, postgres_store_url: str) -> AsyncIterator[Place]:
    async with AsyncExitStack() as closing:

        async def connection() -> psycopg.AsyncConnection[Any]:
            connected = psycopg.AsyncConnection.connect(postgres_store_url, autocommit=True)
            return await closing.enter_async_context(await connected)

        stores = [TurnStore(postgres_store_url) for _ in range(3)]
        for store in stores:
            await store.open()
            closing.push_async_callback(store.close)
            store.connection = await connection()
        yield Place(stores, await connection(), is_forgetful=request.param)


async def play(scene: Scene, place: Place, switches: int = SWITCHES) -> None:
    def order(choices: Sequence[int], switches: int) -> LockOrder:
        made = LockOrder(choices, switches)
        made.place = place
        return made

    async def play_once(order: LockOrder) -> None:
        place.number += 10
        await scene(place, order)

    assert await each_order(play_once, order, switches) > 2


async def check_goes_on(store: Store, lease: Lease, verdict: Verdict) -> None:
    """Check that the holder got the arrival, or that the arrival woke the run. Then end the run."""
    if verdict.is_held:
        assert len(verdict.arrivals) == 1
    else:
        (lease,) = (await claim(store)).leases
        assert len(lease.arrivals) == 1
    assert not (await write(store, checkpoint_for(lease, succeed()))).is_lost


async def test_a_message_that_races_a_suspension_is_never_missed(place: Place) -> None:
    async def scene(place: Place, order: LockOrder) -> None:
        holder, sender, _ = place.stores
        lease = await held(holder, place.number)

        verdict, (sent,) = await place.race(
            order,
            write(holder, checkpoint_for(lease, Suspend(), waits=(for_message("go"),))),
            sender.apply(SendMessages(messages=[a_message(place.number)])),
        )

        assert sent.refused is None
        await check_goes_on(holder, lease, verdict)

    await play(scene, place)


async def test_an_event_that_races_a_wait_for_it_is_never_missed(place: Place) -> None:
    async def scene(place: Place, order: LockOrder) -> None:
        holder, emitter, _ = place.stores
        lease = await held(holder, place.number)

        verdict, _ = await place.race(
            order,
            write(holder, checkpoint_for(lease, Suspend(), waits=(for_event(place.topic),))),
            emitter.apply(EmitEvents(events=[an_event(topic=place.topic)])),
        )

        await check_goes_on(holder, lease, verdict)

    await play(scene, place)


async def test_an_event_in_a_queue_that_races_two_waits_for_it_reaches_one_of_them(place: Place) -> None:
    async def scene(place: Place, order: LockOrder) -> None:
        one, other, emitter = place.stores
        await emitter.apply(SetTopics(topics=[Topic(name=place.topic, mode="queue")]))
        first, second = await held(one, place.number), await held(other, place.number + 1, worker=OTHER_WORKER)
        waits = (for_event(place.topic),)

        *verdicts, _ = await place.race(
            order,
            write(one, checkpoint_for(first, Suspend(), waits=waits)),
            write(other, checkpoint_for(second, Suspend(), waits=waits)),
            emitter.apply(EmitEvents(events=[an_event(topic=place.topic)])),
        )

        told = [verdict.run_id for verdict in verdicts if verdict.arrivals]
        woken = [lease.run.id for lease in (await claim(emitter)).leases if lease.arrivals]
        assert len({*told, *woken}) == 1

    await play(scene, place, SWITCHES - 1)  # three racers have many orders


async def test_the_end_of_a_child_that_races_its_waiting_parent_is_never_missed(place: Place) -> None:
    async def scene(place: Place, order: LockOrder) -> None:
        parents, children, _ = place.stores
        number = place.number
        parent = await held(parents, number)
        child = await held(children, number + 1, worker=OTHER_WORKER, parent_id=an_id(number), parent_location="child")

        verdict, end = await place.race(
            order,
            write(parents, checkpoint_for(parent, Suspend(), waits=(for_child(number + 1),))),
            write(children, checkpoint_for(child, succeed())),
        )

        assert not end.is_lost
        await check_goes_on(parents, parent, verdict)

    await play(scene, place)


@pytest.mark.parametrize("force", [False, True], ids=["", "by force"])
async def test_a_cancel_and_an_end_that_race_agree_on_one_winner(place: Place, *, force: bool) -> None:
    async def scene(place: Place, order: LockOrder) -> None:
        holder, other, _ = place.stores
        lease = await held(holder, place.number)

        verdict, is_cancelled = await place.race(
            order,
            write(holder, checkpoint_for(lease, succeed())),
            other.apply(Cancel(run_id=an_id(place.number), id="c", force=force)),
        )

        assert verdict.is_lost == is_cancelled
        state = (await the_run(other, place.number)).state
        assert state is (RunState.CANCELLED if is_cancelled else RunState.SUCCEEDED)
        facts = Counter(await facts_of(other, place.number))
        assert facts["cancelled"] + facts["succeeded"] == 1

    await play(scene, place)


async def test_two_messages_that_race_to_one_run_both_arrive(place: Place) -> None:
    async def scene(place: Place, order: LockOrder) -> None:
        one, other, _ = place.stores
        await suspended(one, place.number, for_message("go"))

        await place.race(
            order,
            one.apply(SendMessages(messages=[a_message(place.number, id="m1")])),
            other.apply(SendMessages(messages=[a_message(place.number, id="m2")])),
        )

        (lease,) = (await claim(one)).leases
        assert sorted(arrival.ref or "" for arrival in lease.arrivals) == ["m1", "m2"]
        assert sorted(arrival.number for arrival in lease.arrivals) == [1, 2]

    await play(scene, place)
