"""Races on the key-value store, with the driver calls of the racers in every order: nothing is missed or done twice.

Each race is also played with every commit losing its first answer: the driver repeats it, and others may have written
in between. `HOLDFAST_SWITCHES=8` plays orders in which the turn changes more often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from holdfast.core.checkpoint import Hold, Suspend, Verdict
from holdfast.core.commands import Cancel, EmitEvents, SendMessages, SetTopics
from holdfast.core.model import Lease, Topic
from holdfast.core.ports import Store
from holdfast.core.questions import Details, FindOrphans, Query
from holdfast.core.states import RunState
from holdfast.stores.kv import decision
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    WORKER,
    a_message,
    a_step,
    a_worker,
    an_event,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    facts_of,
    for_child,
    for_event,
    for_message,
    held,
    holding_of,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from tests.duration import lasting
from tests.key_value.interleaving import Arena, CallOrder, Scene, in_every_order, turn
from tests.plugin.tiers import amount

SWITCHES = amount(short=2, long=4, variable="HOLDFAST_SWITCHES")

pytestmark = [pytest.mark.both_tiers, lasting(20 if SWITCHES > 2 else 2)]


@pytest.fixture(autouse=True)
def immediate_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an operation start over at once after a conflict: the order decides who is next, not time."""
    monkeypatch.setattr(decision, "FIRST_PAUSE_SECONDS", 0.0)


@pytest.fixture(autouse=True, params=[decision.READS_AT_ONCE, 1], ids=["", "one by one"])
def reads_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operations load everything at once, as most do, or one by one: others may write between any two loads."""
    monkeypatch.setattr(decision, "READS_AT_ONCE", request.param)


@pytest.fixture(params=[False, True], ids=["", "lost answers"])
def is_lossy(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def play(scene: Scene, *, is_lossy: bool, switches: int = SWITCHES) -> None:
    # With loads one by one there are many more orders.
    switches = min(switches, 2) if decision.READS_AT_ONCE == 1 else switches
    assert await in_every_order(scene, is_lossy=is_lossy, switches=switches) > 2


async def check_goes_on(store: Store, lease: Lease, verdict: Verdict) -> None:
    """Check that the holder got the arrival, or that the arrival woke the run. Then end the run."""
    if verdict.is_held:
        assert len(verdict.arrivals) == 1
    else:
        (lease,) = (await claim(store)).leases
        assert len(lease.arrivals) == 1
    assert not (await write(store, checkpoint_for(lease, succeed()))).is_lost


async def test_a_message_that_races_a_suspension_is_never_missed(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        holder, sender = await arena.stores(2)
        lease = await held(holder)

        verdict, (sent,) = await order.race(
            write(holder, checkpoint_for(lease, Suspend(), waits=(for_message("go"),))),
            sender.apply(SendMessages(messages=[a_message()])),
        )

        assert sent.refused is None
        await check_goes_on(holder, lease, verdict)

    await play(scene, is_lossy=is_lossy)


async def test_an_event_that_races_a_wait_for_it_is_never_missed(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        holder, emitter = await arena.stores(2)
        lease = await held(holder)

        verdict, _ = await order.race(
            write(holder, checkpoint_for(lease, Suspend(), waits=(for_event("paid"),))),
            emitter.apply(EmitEvents(events=[an_event()])),
        )

        await check_goes_on(holder, lease, verdict)

    await play(scene, is_lossy=is_lossy)


async def test_an_event_in_a_queue_that_races_two_waits_for_it_reaches_one_of_them(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        one, other, emitter = await arena.stores(3)
        await emitter.apply(SetTopics(topics=[Topic(name="paid", mode="queue")]))
        first, second = await held(one, 1), await held(other, 2, worker=OTHER_WORKER)
        waits = (for_event("paid"),)

        *verdicts, _ = await order.race(
            write(one, checkpoint_for(first, Suspend(), waits=waits)),
            write(other, checkpoint_for(second, Suspend(), waits=waits)),
            emitter.apply(EmitEvents(events=[an_event()])),
        )

        told = [verdict.run_id for verdict in verdicts if verdict.arrivals]
        woken = [lease.run.id for lease in (await claim(emitter)).leases if lease.arrivals]
        assert len({*told, *woken}) == 1

    await play(scene, is_lossy=is_lossy, switches=SWITCHES - 1)  # three racers have many orders


async def test_the_end_of_a_child_that_races_its_waiting_parent_is_never_missed(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        parents, children = await arena.stores(2)
        parent = await held(parents, 1)
        child = await held(children, 2, worker=OTHER_WORKER, parent_id=an_id(1), parent_location="child")

        verdict, end = await order.race(
            write(parents, checkpoint_for(parent, Suspend(), waits=(for_child(2),))),
            write(children, checkpoint_for(child, succeed())),
        )

        assert not end.is_lost
        await check_goes_on(parents, parent, verdict)

    await play(scene, is_lossy=is_lossy)


@pytest.mark.parametrize("force", [False, True], ids=["", "by force"])
async def test_a_cancel_and_an_end_that_race_agree_on_one_winner(*, is_lossy: bool, force: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        holder, other = await arena.stores(2)
        lease = await held(holder)

        verdict, is_cancelled = await order.race(
            write(holder, checkpoint_for(lease, succeed())),
            other.apply(Cancel(run_id=an_id(1), id="c", force=force)),
        )

        assert verdict.is_lost == is_cancelled
        assert (await the_run(other)).state is (RunState.CANCELLED if is_cancelled else RunState.SUCCEEDED)
        facts = Counter(await facts_of(other))
        assert facts["cancelled"] + facts["succeeded"] == 1

    await play(scene, is_lossy=is_lossy)


async def test_a_cancel_that_races_a_step_with_an_undo_never_forgets_to_undo_it(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        holder, other = await arena.stores(2)
        lease = await held(holder)

        verdict, is_cancelled = await order.race(
            write(holder, checkpoint_for(lease, Hold(), entries=(a_step(has_undo=True),))),
            other.apply(Cancel(run_id=an_id(1), id="c")),
        )

        assert is_cancelled
        is_recorded = any(entry.has_undo for entry in await other.history(an_id(1)))
        assert (await the_run(other)).state is (RunState.ROLLING_BACK if is_recorded else RunState.CANCELLED)
        assert is_recorded or verdict.is_lost
        assert (await write(holder, checkpoint_for(lease, succeed()))).is_lost

    await play(scene, is_lossy=is_lossy)


async def test_a_parent_that_ends_while_it_starts_a_child_leaves_no_orphan(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        holder, other = await arena.stores(2)
        lease = await held(holder)
        child = an_intent(2, parent_id=an_id(1), on_close="cancel")

        verdict, _ = await order.race(
            write(holder, checkpoint_for(lease, Hold(), children=(child,))),
            other.apply(Cancel(run_id=an_id(1), id="c")),
        )

        states = {one.run.id: one.run.state for one in await other.list(Query(limit=10))}
        expected = {an_id(1): RunState.CANCELLED} | ({} if verdict.is_lost else {an_id(2): RunState.CANCELLED})
        assert states in (expected, {**expected, an_id(2): RunState.CANCELLED})
        assert await other.stats(FindOrphans(limit=10)) == []

    await play(scene, is_lossy=is_lossy)


async def test_two_starts_with_one_key_create_one_run(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        stores = await arena.stores(2)

        answers = await order.race(
            *(store.create([an_intent(number, key="k")]) for number, store in enumerate(stores, start=1))
        )

        (first,), (second,) = (answer.runs for answer in answers)
        assert first.run_id == second.run_id
        assert len(await stores[0].list(Query(limit=10))) == 1
        # A start whose answer was lost need not count as new: the engine compares the ids.
        assert is_lossy or first.created + second.created == 1

    await play(scene, is_lossy=is_lossy)


async def test_two_messages_that_race_to_one_run_both_arrive(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        one, other = await arena.stores(2)
        await suspended(one, 1, for_message("go"))

        await order.race(
            one.apply(SendMessages(messages=[a_message(id="m1")])),
            other.apply(SendMessages(messages=[a_message(id="m2")])),
        )

        (lease,) = (await claim(one)).leases
        assert sorted(arrival.ref or "" for arrival in lease.arrivals) == ["m1", "m2"]
        assert sorted(arrival.number for arrival in lease.arrivals) == [1, 2]

    await play(scene, is_lossy=is_lossy)


async def test_a_renewal_that_races_a_message_is_not_taken_back(*, is_lossy: bool) -> None:
    """Trap: what an operation writes back of a held run must leave the end of its lease alone."""

    async def scene(arena: Arena, order: CallOrder) -> None:
        holder, sender = await arena.stores(2)
        lease = await held(holder)
        arena.clock.advance(LEASE // 2)

        async def renew() -> None:
            await turn("renew")
            holder.renew(a_worker(), [holding_of(lease)], LEASE)

        await order.race(renew(), sender.apply(SendMessages(messages=[a_message()])))

        assert (await the_run(sender)).ready_at == arena.clock.now() + LEASE
        arena.clock.advance(LEASE - 1)
        assert (await claim(sender, worker=OTHER_WORKER)).leases == ()

    await play(scene, is_lossy=is_lossy)


async def test_claimers_that_race_share_no_run_and_take_the_most_urgent_first(*, is_lossy: bool) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        stores = await arena.stores(2)
        priorities = {an_id(number): number % 3 for number in range(6)}
        await start(stores[0], *(an_intent(number, priority=number % 3) for number in range(6)))

        answers = await order.race(
            *(
                claim(store, worker=worker, limit=2)
                for store, worker in zip(stores, (WORKER, OTHER_WORKER), strict=True)
            )
        )

        won = [[lease.run.id for lease in claimed.leases] for claimed in answers]
        assert sorted(priorities[run_id] for run_ids in won for run_id in run_ids) == [0, 0, 1, 1]
        assert len({run_id for run_ids in won for run_id in run_ids}) == 4
        for run_ids, worker in zip(won, (WORKER, OTHER_WORKER), strict=True):
            assert await _held_by(stores[0], worker) == sorted(run_ids)

    await play(scene, is_lossy=is_lossy)


async def _held_by(store: Store, worker: str) -> list[str]:
    listed: Sequence[Details] = await store.list(Query(limit=10))
    return sorted(details.run.id for details in listed if details.run.worker == worker)
