"""Races between stores on one database: in any order, nothing is missed and no deadlock occurs.

`HOLDFAST_RACES=10000 pytest tests/contract/test_races.py` runs that many of each.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from itertools import cycle
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast.core.checkpoint import Checkpoint, Hold, LeaseRequest, Suspend, Verdicts
from holdfast.core.commands import Cancel, EmitEvents, SendMessages
from holdfast.core.model import Event, Intent, Lease, MessageToRun, new_id
from holdfast.core.ports import Store
from holdfast.core.questions import FindOrphans, Query
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    LEASE,
    PYTHON,
    TYPE,
    WORKER,
    a_step,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    fail,
    for_child,
    for_event,
    for_message,
    succeed,
)
from tests.duration import lasting
from tests.plugin.tiers import amount

RACES = amount(short=40, long=400, variable="HOLDFAST_RACES")
WIDTH = 10
"""Number of concurrent races, each about its own run, in one call of each store."""

Stores = Sequence[Store]

pytestmark = [pytest.mark.both_tiers, lasting(RACES / 50)]

DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
OTHERS = """
select count(*)
from pg_stat_activity
where datname = current_database()
  and pid <> pg_backend_pid()
  and application_name like 'holdfast%'
"""


@pytest_asyncio.fixture
async def stores(make_store: Callable[[], Store], request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    """Three stores. Afterwards the fixture checks that no deadlock occurred, which the stores would have survived."""
    stores = [make_store() for _ in range(3)]
    is_counted = "postgres" in request.node.name
    url = request.getfixturevalue("postgres_store_url") if is_counted else ""
    earlier = deadlocks(url) if is_counted else 0  # other tests used the database before
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()
    assert not is_counted or deadlocks(url) == earlier


def deadlocks(url: str) -> int:
    """Return the number of deadlocks in a database, once all stores on it are closed."""
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(OTHERS).fetchone() != (0,):  # a session reports its counts at its end
            time.sleep(0.01)
        ((count,),) = connection.execute(DEADLOCKS).fetchall()
        return int(count)


def rounds() -> list[range]:
    """Yield the numbers of the runs, by the rounds in which they race."""
    return [range(first, first + WIDTH) for first in range(0, RACES, WIDTH)]


async def held(store: Store, intents: Sequence[Intent]) -> list[Lease]:
    """Create runs, held by the worker of this store."""
    lease = LeaseRequest(worker=WORKER, claim_id=new_id(), lease=LEASE, python=PYTHON)
    created = await store.create(intents, lease)
    return [run.lease for run in created.runs if run.lease is not None]


async def race(*racers: Coroutine[Any, Any, Any]) -> list[Any]:
    """Start all at once, in any order; return their answers in the order of the arguments."""
    begun = {racer: asyncio.create_task(racer) for racer in random.sample(racers, len(racers))}
    return [await begun[racer] for racer in racers]


async def write(store: Store, checkpoints: Sequence[Checkpoint]) -> Verdicts:
    return await store.checkpoint(random.sample(checkpoints, len(checkpoints)))


async def cancel(store: Store, number: int, *, force: bool = True) -> bool | None:
    return await store.apply(Cancel(run_id=an_id(number), id=new_id(), force=force))


async def check_all_go_on(store: Store, numbers: Sequence[int], verdicts: Verdicts, leases: Sequence[Lease]) -> None:
    """Check that each run got its arrival, or was woken by it. Then end the run."""
    held = {verdict.run_id: verdict for verdict in verdicts.verdicts if verdict.is_held}
    woken = {lease.run.id: lease for lease in (await claim(store, limit=WIDTH)).leases}
    assert {*held, *woken} == {an_id(number) for number in numbers}
    assert all(verdict.arrivals for verdict in held.values())
    assert all(lease.arrivals for lease in woken.values())
    latest = {lease.run.id: lease for lease in leases} | woken
    ended = await store.checkpoint([checkpoint_for(latest[run_id], succeed()) for run_id in (*held, *woken)])
    assert not any(verdict.is_lost for verdict in ended.verdicts)


async def test_a_message_that_races_a_suspension_is_never_missed(stores: Stores) -> None:
    for numbers in rounds():
        leases = await held(stores[0], [an_intent(number) for number in numbers])
        messages = [MessageToRun(id=new_id(), name="go", payload="1", run_id=lease.run.id) for lease in leases]
        halves = random.sample(messages[::2], WIDTH // 2), random.sample(messages[1::2], WIDTH // 2)

        verdicts, *_ = await race(
            write(stores[0], [checkpoint_for(one, Suspend(), waits=(for_message("go"),)) for one in leases]),
            stores[1].apply(SendMessages(messages=halves[0])),
            stores[2].apply(SendMessages(messages=halves[1])),
        )

        await check_all_go_on(stores[0], numbers, verdicts, leases)
    sys.stdout.write(f"figure: {RACES:,} races, 0 stuck\n")


async def test_an_event_that_races_a_wait_for_it_is_never_missed(stores: Stores) -> None:
    for numbers in rounds():
        leases = await held(stores[0], [an_intent(number) for number in numbers])
        topics = {lease.run.id: f"{numbers}-{number % 3}" for number, lease in enumerate(leases)}
        waiting = [checkpoint_for(one, Suspend(), waits=(for_event(topics[one.run.id]),)) for one in leases]
        events = [Event(id=new_id(), topic=topic, payload="1") for topic in {*topics.values()}]

        verdicts, *_ = await race(
            write(stores[0], waiting),
            stores[1].apply(EmitEvents(events=events[:2])),
            stores[2].apply(EmitEvents(events=events[:0:-1])),
        )

        await check_all_go_on(stores[0], numbers, verdicts, leases)


async def test_the_end_of_a_child_that_races_its_waiting_parent_is_never_missed(stores: Stores) -> None:
    for numbers in rounds():
        parents = await held(stores[0], [an_intent(number) for number in numbers])
        children = await held(
            stores[1],
            [an_intent(number + 10 * RACES, parent_id=an_id(number), parent_location="child") for number in numbers],
        )
        waits = [for_child(number + 10 * RACES) for number in numbers]

        verdicts, ends = await race(
            write(
                stores[0], [checkpoint_for(one, Suspend(), waits=(w,)) for one, w in zip(parents, waits, strict=True)]
            ),
            write(stores[1], [checkpoint_for(child, succeed()) for child in children]),
        )

        assert not any(verdict.is_lost for verdict in ends.verdicts)
        await check_all_go_on(stores[0], numbers, verdicts, parents)


async def test_a_cancel_and_an_end_that_race_agree_on_one_winner(stores: Stores) -> None:
    for numbers in rounds():
        leases = await held(stores[0], [an_intent(number) for number in numbers])

        verdicts, *cancelled = await race(
            write(stores[0], [checkpoint_for(lease, succeed()) for lease in leases]),
            *(cancel(store, number) for number, store in zip(numbers, cycle(stores[1:]), strict=False)),
        )

        lost = {verdict.run_id: verdict.is_lost for verdict in verdicts.verdicts}
        for number, is_cancelled in zip(numbers, cancelled, strict=True):
            details = await stores[1].get(an_id(number))
            assert details is not None
            assert details.run.state is (RunState.CANCELLED if is_cancelled else RunState.SUCCEEDED)
            assert lost[an_id(number)] == is_cancelled
            facts = Counter(fact.event for fact in await stores[2].audit(an_id(number)))
            assert facts["cancelled"] + facts["succeeded"] == 1
    sys.stdout.write(f"figure: {RACES:,} races, one end each, 0 deadlocks\n")


async def test_a_cancel_that_races_a_step_with_an_undo_never_forgets_to_undo_it(stores: Stores) -> None:
    seen: Counter[RunState] = Counter()
    for numbers in rounds():
        leases = await held(stores[0], [an_intent(number) for number in numbers])
        steps = [checkpoint_for(lease, Hold(), entries=(a_step(has_undo=True),)) for lease in leases]

        verdicts, *cancelled = await race(
            write(stores[0], steps),
            *(cancel(store, number, force=False) for number, store in zip(numbers, cycle(stores[1:]), strict=False)),
        )

        assert all(cancelled)
        lost = {verdict.run_id for verdict in verdicts.verdicts if verdict.is_lost}
        for number in numbers:
            details = await stores[1].get(an_id(number))
            is_recorded = any(entry.has_undo for entry in await stores[1].history(an_id(number)))
            assert details is not None
            assert details.run.state is (RunState.ROLLING_BACK if is_recorded else RunState.CANCELLED)
            assert is_recorded or an_id(number) in lost
            seen[details.run.state] += 1
    sys.stdout.write(f"figure: {RACES:,} races: {seen[RunState.ROLLING_BACK]} to undo, 0 forgotten\n")


async def test_a_parent_and_children_that_end_concurrently_end_once(stores: Stores) -> None:
    """A parent is cancelled with its children, while they end by themselves and notify it."""
    for numbers in rounds():
        families = [[an_id(10 * RACES + 10 * number + each) for each in range(3)] for number in numbers]
        await held(stores[0], [an_intent(number) for number in numbers])
        young = await held(
            stores[1],
            [
                Intent(
                    id=id, type=TYPE, payload="{}", parent_id=an_id(number), parent_location=f"c{id}", on_close="cancel"
                )
                for number, family in zip(numbers, families, strict=True)
                for id in family
            ],
        )

        verdicts, *_ = await race(
            write(stores[1], [checkpoint_for(lease, fail()) for lease in young]),
            *(cancel(store, number) for number, store in zip(numbers, cycle(stores[::2]), strict=False)),
        )

        lost = {verdict.run_id: verdict.is_lost for verdict in verdicts.verdicts}
        for lease in young:
            details = await stores[2].get(lease.run.id)
            assert details is not None
            assert details.run.state is (RunState.CANCELLED if lost[lease.run.id] else RunState.FAILED)


async def test_stores_that_change_the_same_runs_never_deadlock(stores: Stores) -> None:
    """Batches about the same few runs, parents, keys and topics, in any order, from all sides."""
    await stores[0].create([an_intent(number, key=f"k{number}") for number in range(WIDTH)])
    chance = random.Random(RACES)

    await asyncio.gather(*(_meddle(store, chance.random()) for store in stores for _ in range(3)))

    assert await stores[0].stats(FindOrphans(limit=WIDTH)) == []
    listed = await stores[0].list(Query(limit=1_000))
    assert len({details.run.id for details in listed}) == len(listed)


async def _meddle(store: Store, seed: float) -> None:
    chance = random.Random(seed)
    for _ in range(RACES // 10):
        some = chance.sample(range(WIDTH), 4)
        match chance.choice(("send", "emit", "work", "work", "cancel", "create")):
            case "send":
                await store.apply(SendMessages(messages=[_a_message(chance, number) for number in some]))
            case "emit":
                await store.apply(
                    EmitEvents(events=[Event(id=new_id(), topic=f"t{number}", payload="1") for number in some])
                )
            case "work":
                leases = (await claim(store, limit=4, worker=f"{chance.random()}")).leases
                await store.checkpoint([_a_checkpoint(chance, lease, some) for lease in leases])
            case "cancel":
                await store.apply(Cancel(run_id=an_id(some[0]), id=new_id(), force=chance.random() < 0.5))
            case _:
                await store.create(
                    [
                        Intent(id=new_id(), type=TYPE, payload="{}", key=f"k{number}", reuse="after_end")
                        for number in some
                    ]
                )


def _a_message(chance: random.Random, number: int) -> MessageToRun:
    key = f"k{number}" if chance.random() < 0.5 else None
    return MessageToRun(id=new_id(), name="go", payload="1", run_id=None if key else an_id(number), key=key)


def _a_checkpoint(chance: random.Random, lease: Lease, some: Sequence[int]) -> Checkpoint:
    topic = f"t{some[1]}"
    parts: dict[str, Any] = {
        "messages": tuple(_a_message(chance, number) for number in some[:2]),
        "events": (Event(id=new_id(), topic=f"t{some[0]}", payload="1"),),
        "cancels": (an_id(some[2]),) if an_id(some[2]) > lease.run.id else (),
        "children": (
            Intent(
                id=new_id(), type=TYPE, payload="{}", parent_id=lease.run.id, parent_location="c", on_close="cancel"
            ),
        ),
        "waits": (for_event(topic), for_message("go")),
    }
    chosen = {name: part for name, part in parts.items() if chance.random() < 0.4} | {"waits": parts["waits"]}
    return checkpoint_for(lease, chance.choice((Hold(), Suspend(), Suspend(), succeed(), fail())), **chosen)
